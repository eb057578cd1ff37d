"""The OpenAI protocol on the wire: a request's body, and what its answer shows.

Both routes, both ways of answering, and the spellings that servers really use. None always means "not told".

Source: OpenAI API reference, chat and completions; vLLM 0.32.0, entrypoints/openai/*/protocol.py; llama.cpp b11434,
tools/server/server-task.cpp (completions carry the log-probabilities of chat's shape there).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import GeneratedToken, Observation, Request, Route, TopLogprob
from kvrelease.engines.foreign import as_count, as_ids, as_list, as_number, as_object, as_text, at, is_object
from kvrelease.engines.front_cache import cached_in_front
from kvrelease.engines.replies import Reply
from kvrelease.errors import UnexpectedReply, UsageError

# JSON has no infinity: vLLM writes -9999, llama.cpp the lowest float, others -100 (exactly; a real log-probability
# among the top 20 never is).
_STAND_INS = -9999.0
_STAND_IN = -100.0
_LEASTS = ("min_tokens", "min_new_tokens")  # vLLM's and SGLang's
_ABORTED = ("abort", "error")
# Any other text there is the server's own, and may hold what it was sent.
_FINISHES = (*_ABORTED, "stop", "length", "content_filter", "tool_calls", "function_call", None)
# Unix time in seconds has eleven digits until the year 5138; what is longer counts something else (milliseconds).
_MOST_UNIX_S = 99_999_999_999


def request_body(request: Request, *, model: str) -> JsonObject:
    """Production's body with what a probe needs on top.

    Everything that production sends stays, but for the fields that a probe decides: the budget, `stream`, and
    `stream_options` where nothing is streamed (servers refuse it there).

    Args:
        request: what to send.
        model: used where the body names none.

    Raises:
        UsageError: less than one token is asked for, or `echo`, whose log-probabilities are the prompt's.
    """
    if request.max_tokens < 1:
        raise UsageError(f"a generation has at least one token, not {request.max_tokens}")
    if request.body.get("echo"):
        raise UsageError(
            "a probe cannot use `echo`: it returns the prompt's log-probabilities, and engines skip the cache for it",
            hint="drop `echo` from the production body",
        )
    body = dict(request.body)
    body.setdefault("model", model)
    is_chat = request.route is Route.CHAT
    newer = "max_completion_tokens"
    budgets = [name for name in ("max_tokens", newer, "n_predict") if name in body]
    body |= dict.fromkeys(budgets or ["max_tokens"], request.max_tokens)
    # vLLM refuses a least that is more than the most; production's was for production's budget.
    body |= {name: request.max_tokens for name in _LEASTS if (as_count(body.get(name)) or 0) > request.max_tokens}
    if request.top_logprobs > 0:
        body |= (
            {"logprobs": True, "top_logprobs": request.top_logprobs} if is_chat else {"logprobs": request.top_logprobs}
        )
    if request.streams:
        body["stream"] = True
        body["stream_options"] = as_object(body.get("stream_options")) | {"include_usage": True}
    elif "stream" in body:
        body["stream"] = False
        body.pop("stream_options", None)
    return body


def without_logprobs(body: JsonObject) -> JsonObject:
    """The same body, asking for no log-probabilities."""
    return {key: value for key, value in body.items() if key not in ("logprobs", "top_logprobs", "return_token_ids")}


def observation(reply: Reply, payloads: Iterable[tuple[JsonObject, float | None]], *, top: int) -> Observation:
    """What an answer shows.

    Args:
        reply: the answer, for its times.
        payloads: [chunks] the JSON of each event and the seconds until it came, or the one JSON answer and None.
        top: how many candidates were asked for.

    Raises:
        UnexpectedReply: it is no generation, an empty one, or one that the server aborted.
    """
    timed = tuple(payloads)
    gathered = _Gathered(top=top)
    for payload, at_s in timed:
        gathered.add(payload, at_s=at_s)
    gathered.check(reply.what)
    return Observation(
        text="".join(gathered.texts),
        tokens=gathered.tokens_with_ids(),
        prompt_tokens=as_count(gathered.usage.get("prompt_tokens")),
        cached_tokens=cached_tokens(gathered.usage),
        ttft_s=gathered.ttft_s,
        total_s=reply.total_s,
        finish_reason=gathered.finish_reason,
        model=gathered.model,
        system_fingerprint=gathered.fingerprint,
        retries=reply.retries,
        lost=reply.lost,
        was_throttled=reply.was_throttled,
        retry_after_s=reply.retry_after_s,
        id=gathered.id,
        created=gathered.created,
        sent_at=reply.sent_at,
        cached_in_front=cached_in_front(reply.headers, (payload for payload, _ in timed)),
    )


def cached_tokens(usage: JsonObject) -> int | None:
    """Tokens of the prompt that came from a cache, by a `usage` object; None when it does not say (null is not 0)."""
    return as_count(at(usage, "prompt_tokens_details", "cached_tokens"))


class _Gathered:
    """An answer, put together from its chunks; a whole answer is one chunk."""

    def __init__(self, *, top: int) -> None:
        self.top = top
        self.texts: list[str] = []
        self.tokens: list[GeneratedToken] = []
        self.token_ids: list[int] | None = []
        self.usage: JsonObject = {}
        self.finish_reason: str | None = None
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.id: str | None = None
        self.created: int | None = None
        self.ttft_s: float | None = None
        self.saw_choice = False

    def add(self, payload: JsonObject, *, at_s: float | None) -> None:
        # Usage may come in any chunk, in several (the last is the whole), beside choices or alone.
        if is_object(payload.get("usage")):
            self.usage = self.usage | as_object(payload["usage"])
        self.model = as_text(payload.get("model")) or self.model
        self.fingerprint = as_text(payload.get("system_fingerprint")) or self.fingerprint
        # Some servers give each event of a stream an id or a time of its own: the first is the answer's.
        self.id = self.id or as_text(payload.get("id")) or None
        self.created = _unix_s(payload.get("created")) if self.created is None else self.created
        for choice in map(as_object, as_list(payload.get("choices"))):
            if (as_count(choice.get("index")) or 0) != 0:
                continue
            self.saw_choice = True
            texts, tokens = _texts(choice), tuple(_tokens(choice.get("logprobs"), top=self.top))
            if at_s is not None and self.ttft_s is None and (any(texts) or tokens):
                self.ttft_s = at_s
            self.texts += texts
            self.tokens += tokens
            self._add_ids(choice)
            self.finish_reason = as_text(choice.get("finish_reason")) or self.finish_reason

    def _add_ids(self, choice: JsonObject) -> None:
        ids = as_ids(choice.get("token_ids"))
        if self.token_ids is not None and ids is not None:
            self.token_ids += ids

    def tokens_with_ids(self) -> tuple[GeneratedToken, ...]:
        """The tokens, each with its id where the server lists the ids beside them, one for one."""
        ids = self.token_ids or []
        if len(ids) != len(self.tokens):
            return tuple(self.tokens)
        return tuple(
            GeneratedToken(token=token.token, token_id=token_id, logprob=token.logprob, top=token.top)
            for token, token_id in zip(self.tokens, ids, strict=True)
        )

    def check(self, what: str) -> None:
        if not self.saw_choice:
            raise UnexpectedReply(
                f"{what}: the answer has no `choices`, so it is no generation",
                hint="check the base URL, and that the server speaks the OpenAI protocol",
            )
        if self.finish_reason in _ABORTED:
            raise UnexpectedReply(f"{what}: the server gave the generation up ({self.finish_reason})")
        if any(self.texts) or self.tokens:
            return
        generated = as_count(self.usage.get("completion_tokens"))
        # A budget spent on hidden reasoning leaves no text, and is a generation all the same.
        if generated or (generated is None and self.finish_reason == "length"):
            return
        raise UnexpectedReply(
            f"{what}: answered 200 without a single token (finish reason {self._known_finish()})",
            hint="ask the server the same by hand; its log may say why",
        )

    def _known_finish(self) -> str | None:
        return self.finish_reason if self.finish_reason in _FINISHES else "unknown here"


def _unix_s(value: object) -> int | None:
    """Unix time in whole seconds; None for anything else, zero (a field that nobody filled in) included."""
    seconds = as_count(value)
    return seconds if seconds and seconds <= _MOST_UNIX_S else None


def _texts(choice: JsonObject) -> list[str]:
    """What was generated in a choice of either route, reasoning and tool calls included."""
    message = as_object(choice.get("message")) or as_object(choice.get("delta"))
    reasoning = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    calls = [
        part
        for call in map(as_object, as_list(message.get("tool_calls")))
        for part in (as_text(at(call, "function", "name")), as_text(at(call, "function", "arguments")))
    ]
    found = [reasoning, as_text(message.get("content")), as_text(message.get("refusal")), as_text(choice.get("text"))]
    return [text for text in (*found, *calls) if text]


def _tokens(logprobs: object, *, top: int) -> Iterable[GeneratedToken]:
    """The tokens in a `logprobs` object, of chat's shape (`content`) or of completions' (parallel arrays)."""
    found = as_object(logprobs)
    if "content" in found:
        for entry in map(as_object, as_list(found["content"])):
            candidates = [
                (as_text(item.get("token")), item.get("logprob"))
                for item in map(as_object, as_list(entry.get("top_logprobs")))
            ]
            yield GeneratedToken(
                token=as_text(entry.get("token")) or "",
                token_id=as_count(entry.get("id")),
                logprob=_known(entry.get("logprob")),
                top=_ranked(candidates, top=top),
            )
        return
    tokens = as_list(found.get("tokens"))
    chosen = as_list(found.get("token_logprobs"))
    tops = as_list(found.get("top_logprobs"))
    for index, token in enumerate(tokens):
        yield GeneratedToken(
            token=as_text(token) or "",
            logprob=_known(chosen[index]) if index < len(chosen) else None,
            top=_ranked(list(as_object(tops[index]).items()) if index < len(tops) else [], top=top),
        )


def _known(value: object) -> float | None:
    """A log-probability in nats; None for NaN, null, infinities and what servers write in their place."""
    number = as_number(value)
    if number is None or not math.isfinite(number) or number <= _STAND_INS or number == _STAND_IN:
        return None
    return number


def _ranked(candidates: Sequence[tuple[str | None, object]], *, top: int) -> tuple[TopLogprob, ...]:
    known = [
        TopLogprob(token=token, logprob=logprob)
        for token, value in candidates
        if token is not None and (logprob := _known(value)) is not None
    ]
    # vLLM appends the chosen token when it is not among the k; that is no candidate of the top k.
    return tuple(sorted(known, key=lambda item: -item.logprob)[:top])
