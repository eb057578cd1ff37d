"""Asking for the beginnings of a stale prompt, to find the block from which on it is stale.

It changes the cache that it asks about, so it comes after everything else that needs the cache as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from kvrelease.artifacts import JsonObject
from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Request, Route
from kvrelease.engines.request_fields import has_media
from kvrelease.errors import Refused
from kvrelease.verify.consistency import worst_of_each_prefix
from kvrelease.verify.evidence import Bisection, Cut, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.first_stale import next_cut
from kvrelease.verify.floor import judged_by_floor
from kvrelease.verify.suspicion import threshold_nats, worst_leg
from kvrelease.verify.uniques import Observe

# Prefixes that are searched in one run on one replica: about log2(blocks) + 1 cuts each, two requests a cut.
MAX_PREFIXES = 4

# What makes a prompt of a body, or shapes the answer: a cut is token ids, and greedy. What else production sends stays,
# because it may choose where a cache is read (`kv_transfer_params`, an adapter as `model`, a gateway's own fields).
_NOT_OF_A_CUT = frozenset(
    {
        "messages",
        "prompt",
        "suffix",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "reasoning_effort",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "json_schema",
        "regex",
        "ebnf",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "echo",
        "best_of",
        "modalities",
        "audio",
        "prediction",
        "thinking",
    }
)


class Bisector:
    """Searches the stale prefixes of one replica for their first stale block.

    Attributes:
        found: one search for each prefix, the last one perhaps unfinished.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        as_production: Callable[[str], Request],
        as_clean_twin: Callable[[str], tuple[Request, Replica]],
        observe: Observe,
    ) -> None:
        """Of one replica.

        Args:
            replica: under test.
            as_production: the request of a prompt as users send it.
            as_clean_twin: the request of its clean hit, where its isolation has any, else of its reference leg, and who
                answers it; only for a prompt whose reference leg was proved cold.
            observe: sends a request.
        """
        self.found: list[Bisection] = []
        self._replica = replica
        self._as_production = as_production
        self._as_clean_twin = as_clean_twin
        self._observe = observe

    async def run(self, seen: ReplicaEvidence) -> None:
        """Searches; nothing is sent where no probe is stale or suspect.

        Raises:
            KvreleaseError: the engine failed; `found` keeps what was asked before.
        """
        floor, judged = judged_by_floor(seen)
        probes = {probe.id: probe for probe in seen.probes}
        for worst in worst_of_each_prefix(judged)[:MAX_PREFIXES]:
            await self._search(probes[worst.id], threshold=threshold_nats(floor))

    async def _search(self, probe: ProbeEvidence, *, threshold: float) -> None:
        block = self._replica.identity.capabilities.block_tokens
        search = Bisection(probe=probe.id, prefix=probe.prefix, block_tokens=block)
        self.found.append(search)
        leg = probe.production[worst_leg(probe)]
        why_not = self._why_not(probe, leg=leg)
        if why_not is not None:
            self.found[-1] = replace(search, why_not=why_not)
            return
        assert block, "searched only where a block is known"
        assert leg.cached_tokens, "searched only where something hit"
        while (step := next_cut(search, threshold=threshold, most=leg.cached_tokens // block)) is not None:
            cut = step if isinstance(step, str) else await self._cut(probe.id, blocks=step)
            if isinstance(cut, str):
                self.found[-1] = replace(search, why_not=cut)
                return
            self.found[-1] = search = replace(search, cuts=(*search.cuts, cut))

    async def _cut(self, prompt_id: str, *, blocks: int) -> Cut | str:
        """One cut, answered both ways; a sentence where an engine refuses it."""
        ids = self._beginning(prompt_id, blocks=blocks)
        production = cut_request(self._as_production(prompt_id), ids)
        clean, on = self._as_clean_twin(prompt_id)
        try:
            return Cut(
                blocks=blocks,
                production=await self._observe(production),
                clean=await self._observe(cut_request(clean, ids), on=on),
            )
        except Refused as error:
            if error.status not in (400, 404, 405, 422):
                raise
            return f"a prompt of token ids is refused: {error.message}"

    def _beginning(self, prompt_id: str, *, blocks: int) -> tuple[int, ...]:
        """[tokens] as few ids as it takes to hit so many blocks."""
        assert self._replica.tokens is not None, "a prompt is cut only where its ids are known"
        abilities = self._replica.identity.capabilities
        return self._replica.tokens[prompt_id][: blocks * (abilities.block_tokens or 1) + abilities.lost_tokens + 1]

    def _why_not(self, probe: ProbeEvidence, *, leg: Leg) -> str | None:
        """Why a prompt cannot be searched; None where it can."""
        prompt_id = probe.id
        abilities = self._replica.identity.capabilities
        tokens = self._replica.tokens
        if abilities.reference_heals:
            return (
                "a reference leg replaces what this engine holds, and so does a shorter prompt: nothing is left to be "
                "asked for"
            )
        if probe.cold is None:
            return (
                "no clean twin of a cut prompt can be had: no reference leg could be proved cold beside the old entries"
            )
        if tokens is None or abilities.block_tokens is None or has_media(self._as_production(prompt_id).body):
            return (
                "the engine does not tell the token ids of this prompt, or its block, so no beginning of it can be sent"
            )
        if leg.observation.prompt_tokens != len(tokens[prompt_id]):
            return "the engine computes other tokens than its tokenizer route tells, so no beginning of it can be sent"
        if not leg.cached_tokens or leg.cached_tokens < abilities.block_tokens:
            return (
                "its answer is not known to have come from the cache"
                if leg.cached_tokens is None
                else ("its answer came from no cached block")
            )
        return self._why_not_elsewhere(prompt_id, ids=tokens)

    def _why_not_elsewhere(self, prompt_id: str, *, ids: Mapping[str, tuple[int, ...]]) -> str | None:
        _, answering = self._as_clean_twin(prompt_id)
        if answering is self._replica or (answering.tokens or {}).get(prompt_id) == ids[prompt_id]:
            return None
        return f"{answering.identity.url} makes other token ids of this prompt, or tells none"


def cut_request(request: Request, ids: tuple[int, ...]) -> Request:
    """The request whose prompt is these ids: on the completions route, and otherwise as it is."""
    body: JsonObject = {name: value for name, value in request.body.items() if name not in _NOT_OF_A_CUT}
    return replace(request, route=Route.COMPLETIONS, body=body | {"prompt": list(ids)})
