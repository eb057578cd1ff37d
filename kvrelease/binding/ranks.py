"""Proving that requests for a data-parallel rank reach it: a header that nobody reads is answered 200 all the same."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Sequence

from kvrelease.artifacts import Fault
from kvrelease.binding.control import nonce_request
from kvrelease.binding.deployment import Replica
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Counters
from kvrelease.errors import ExitCode, KvreleaseError, PromptTooLong

# In a row to each rank: a server that deals requests out in turn misses one of two.
REQUESTS = 2
# More where other clients' requests are counted beside ours.
MAX_REQUESTS = 6
# An engine counts a request about when it answers it.
SETTLE_S = (0.05, 0.2, 0.5)


class RankProof(enum.StrEnum):
    """Whether requests for a rank reach it."""

    PROVEN = "proven"
    IGNORED = "ignored"
    UNPROVEN = "not proven"

    @property
    def finding(self) -> str:
        """What it says, one clause."""
        return _FINDINGS[self]

    @property
    def hint(self) -> str | None:
        """What to do about it; None where nothing is to be done."""
        return _HINTS.get(self)


_FINDINGS = {
    RankProof.PROVEN: "requests for this rank reach it, by its own counters",
    RankProof.IGNORED: "requests for a rank do not reach it, by the counters of the ranks",
    RankProof.UNPROVEN: "it is not proven that requests for this rank reach it",
}
_HINTS = {
    RankProof.IGNORED: "a proxy may drop X-data-parallel-rank; give each rank a URL of its own, or --data-parallel off",
    RankProof.UNPROVEN: "open /metrics, and run while no other traffic is on the engine",
}


async def prove_ranks(replicas: Sequence[Replica]) -> tuple[RankProof | None, ...]:
    """Whether requests for each replica's rank reach it, by the counters of that rank; None where it has no rank.

    Unique prompts in a key space of our own are sent, so that nothing that is measured later is warmed. Where one rank
    of a server is not reached, none of its ranks is proven: the others may have been hit by chance. Whose the hits of
    such ranks are is not known from then on.
    A server that fails meanwhile proves nothing; what is sent next will tell why.
    """
    by_url: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        if replica.identity.rank is not None:
            by_url[replica.identity.url].append(replica)
    async with asyncio.TaskGroup() as group:
        tasks = {url: group.create_task(_of_server(ranks)) for url, ranks in by_url.items()}
    for url, ranks in by_url.items():
        if tasks[url].result() is not RankProof.PROVEN:
            for replica in ranks:
                replica.observer.doubt_rank()
    return tuple(
        None if replica.identity.rank is None else tasks[replica.identity.url].result() for replica in replicas
    )


def rank_fault(replica: Replica, proof: RankProof | None) -> Fault | None:
    """What a proof that failed leaves open; None where nothing is."""
    if proof is None or proof is RankProof.PROVEN:
        return None
    return Fault(
        where=replica.identity.shown,
        exit_code=int(ExitCode.INCONCLUSIVE),
        message=proof.finding,
        hint=proof.hint,
    )


async def _of_server(ranks: Sequence[Replica]) -> RankProof:
    found = RankProof.PROVEN
    for replica in ranks:
        try:
            proof = await _of_rank(replica)
        except KvreleaseError:
            proof = RankProof.UNPROVEN
        if proof is RankProof.IGNORED:
            return proof
        found = proof if proof is RankProof.UNPROVEN else found
    return found


async def _of_rank(replica: Replica) -> RankProof:
    observer, identity = replica.observer, replica.identity
    reached = 0
    for _ in range(MAX_REQUESTS):
        try:
            request = await nonce_request(
                observer,
                route=replica.request(replica.deployment.prompt_set.prompts[0], salt=None, max_tokens=1).route,
                production=replica.deployment.production,
                model=identity.model,
                salt=probe_salt("rank") if identity.capabilities.has_salt else None,
            )
        except PromptTooLong:  # no room for two blocks: what follows will say so
            return RankProof.UNPROVEN
        before = await observer.engine.counters()
        leg = await observer.observe(request)
        if before is None or leg.prompt_tokens is None:
            return RankProof.UNPROVEN
        queried = await _queried(replica, before=before, at_least=leg.prompt_tokens)
        if queried is None:
            return RankProof.UNPROVEN
        if queried < leg.prompt_tokens:
            return RankProof.IGNORED
        reached += queried == leg.prompt_tokens
        if reached == REQUESTS:
            return RankProof.PROVEN
    return RankProof.UNPROVEN


async def _queried(replica: Replica, *, before: Counters, at_least: int) -> float | None:
    """Tokens that the rank's counters grew by, once they have settled; None where they do not tell."""
    queried: float | None = None
    for pause_s in (0.0, *SETTLE_S):
        await asyncio.sleep(pause_s)
        now = await replica.observer.engine.counters()
        grown = None if now is None else now.since(before)
        if grown is None:
            return None
        queried = grown.queried_tokens
        if queried >= at_least:
            break
    return queried
