"""What responses say of hits, and what the counters say in their place; pure."""

from __future__ import annotations

import logging

import msgspec

from kvrelease.engines.base import Counters, Observation

logger = logging.getLogger(__name__)


class Usage:
    """What the usage of one replica's responses has told of hits so far.

    Some servers leave the count out where it is zero, and some proxies now and then: from the first response without
    one on, the counters are to be asked beside every request, which they only answer for while it is alone. So they are
    until a hit was told for the first time, for only then is it known that hits are told as something possible.

    Source: vLLM 0.8.5, entrypoints/openai/serving_chat.py, `enable_prompt_tokens_details and num_cached_tokens`;
    SGLang, entrypoints/openai/usage_processor.py `_details_if_cached`, and `sglext`, absent on a miss.
    """

    def __init__(self, shown: str) -> None:
        """Begins with nothing heard of the replica that people read as `shown`."""
        self._shown = shown
        self._speaks: bool | None = None
        self._told_a_hit = False
        self._is_wrong = False

    @property
    def speaks(self) -> bool | None:
        """Whether every response so far told cached tokens; None before the first."""
        return self._speaks

    @property
    def needs_counters(self) -> bool:
        """Whether the counters should be read before the next request."""
        return not (self._speaks and self._told_a_hit)

    def told(self, observation: Observation, *, ids: int | None) -> int | None:
        """The hit by a response's usage; None where it tells none, or one that cannot be, and ever after that.

        Args:
            observation: the response.
            ids: how many token ids the prompt has; None where that is not known.
        """
        cached = observation.cached_tokens
        most = ids if observation.prompt_tokens is None else observation.prompt_tokens
        if cached is not None and most is not None and cached > most:
            self._warn(cached, most=most)
        if self._is_wrong:
            cached = None
        self._speaks = self._speaks is not False and cached is not None
        self._told_a_hit = self._told_a_hit or bool(cached)
        return cached

    def _warn(self, cached: int, *, most: int) -> None:
        if not self._is_wrong:
            logger.warning(
                "%s: usage tells %d cached tokens of a prompt of %d, which cannot be: no count of it is believed from "
                "now on, and the counters of /metrics decide",
                self._shown,
                cached,
                most,
            )
        self._is_wrong = True


def counted_hit(before: Counters | None, after: Counters | None, *, prompt_tokens: int | None) -> int | None:
    """The hit of one request by the counters; None when they do not speak of this request alone.

    SGLang's appear with their first increment: where there were none before, all that they count since the process
    started must be this request.
    """
    moved = None if after is None else counted_since(before or Counters(queried_tokens=0, cached_tokens=0), after)
    if moved is None or moved.queried_tokens != prompt_tokens or moved.all_cached_tokens > prompt_tokens:
        return None
    return int(moved.all_cached_tokens)


def counted_since(before: Counters, after: Counters) -> Counters | None:
    """What the counters counted in between; None where one went back, and so nothing of the window is known.

    A counter of a store outside the process may appear with its first increment: it counted from zero then.
    """
    moved = after.since(before)
    if moved is None or after.external_cached_tokens is None or moved.external_cached_tokens is not None:
        return moved
    if before.external_cached_tokens is not None:
        return None
    return msgspec.structs.replace(moved, external_cached_tokens=after.external_cached_tokens)
