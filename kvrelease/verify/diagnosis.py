"""What is wrong, where, and what the operator does next: told of a replica that has something wrong; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.verify.checks import Check, CheckId, CheckVerdict, binding_result, tells_candidates
from kvrelease.verify.closeness import Closeness
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict, worst_of_each_prefix
from kvrelease.verify.evidence import Bisection, ReplicaEvidence
from kvrelease.verify.first_stale import bracket
from kvrelease.verify.floor import judged_by_floor
from kvrelease.verify.next_step import NextStep, Situation, next_steps
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.recheck import Cause, CauseFound, cause_of
from kvrelease.verify.suspicion import threshold_nats
from kvrelease.verify.tier import Tier, tiers_of

NOT_SEARCHED = "not searched: other prefixes were worse, or the run ended before"


class StalePrefix(msgspec.Struct, frozen=True, kw_only=True):
    """One shared prefix whose answers are stale or suspect, or whose hits nothing explains.

    Attributes:
        prefix: its label.
        probe: of its probes, the one that was searched: the worst.
        stale: how many of its probes are.
        suspect: likewise.
        cached_tokens: of the worst production leg; None when not known.
        stale_from: leading tokens of the probe's prompt over which its answer agrees with a clean one: the block that
            begins there is the first to make a difference that shows. None when not found.
        block_tokens: the engine's; None when not known.
        why_not_from: why `stale_from` is not told; None where it is.
        foreign_from: leading tokens of the hit that this release is known to have computed; what follows is foreign.
            None where nothing is known to be.
        tiers: cached tokens by the tier that answered the first request of this prefix; empty when not known.
        closeness: of the probe's answer to those of the releases; None without witnesses.
    """

    prefix: str
    probe: str
    stale: int
    suspect: int
    cached_tokens: int | None
    stale_from: int | None
    block_tokens: int | None
    why_not_from: str | None
    foreign_from: int | None
    tiers: dict[Tier, int]
    closeness: Closeness | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong on one replica, and what to do.

    Attributes:
        replica: which one (`EngineIdentity.shown`).
        prefixes: the worst first; none where only the run's own hits are wrong (`reuse`).
        cause: of stale answers, as far as an emptied cache, `identity` or `reuse` told.
        next_steps: in the order to take them.
    """

    replica: str
    cause: CauseFound
    prefixes: tuple[StalePrefix, ...]
    next_steps: tuple[NextStep, ...]


def diagnosis_of(
    replica: ReplicaEvidence,
    judgements: Sequence[ProbeJudgement],
    *,
    closeness: Mapping[str, Closeness],
    floor: NoiseFloor,
    checks: Sequence[Check],
    namespace: str,
    key_space: str | None,
    front: str | None = None,
) -> Diagnosis | None:
    """The diagnosis of one replica; None where no probe is stale or suspect, no hit foreign, and own hits are right.

    Args:
        replica: the evidence.
        judgements: of its probes.
        closeness: of its answers to those of the releases, by prompt id.
        floor: that they were judged by.
        checks: of this replica.
        namespace: of the release.
        key_space: production's, None for unsalted.
        front: what to do about a response cache in front of it; None where nothing shows one.
    """
    failed = {check.id for check in checks if check.verdict is CheckVerdict.FAIL}
    prefixes = tuple(
        msgspec.structs.replace(prefix, closeness=closeness.get(prefix.probe))
        for prefix in stale_prefixes(replica, judgements, floor=floor, names_foreign=CheckId.FIRST_TOUCH in failed)
    )
    gives_back_other = CheckId.REUSE in failed
    if not prefixes and not gives_back_other:
        return None
    nonce = replica.binding
    cause = cause_of(
        replica,
        judgements,
        floor=floor,
        runs_other_weights=CheckId.IDENTITY in failed,
        gives_back_other=gives_back_other,
    )
    situation = Situation(
        identity=replica.identity,
        namespace=namespace,
        key_space=key_space,
        front=front,
        runs_other_weights=CheckId.IDENTITY in failed or cause.cause is Cause.MODEL,
        gives_back_other=gives_back_other,
        is_emptied=replica.flush is not None and replica.flush.is_proved,
        is_bound=binding_result(replica).bound,
        ignores_salt=bool(replica.leaks) or (nonce is not None and bool(nonce.fresh_salt.hits_mostly)),
        is_proven=bool(failed & {CheckId.FIRST_TOUCH, CheckId.CONSISTENCY}),
        tells_candidates=tells_candidates(judgements, floor),
        tiers=frozenset(tier for prefix in prefixes for tier in prefix.tiers),
    )
    return Diagnosis(replica=replica.identity.shown, cause=cause, prefixes=prefixes, next_steps=next_steps(situation))


def searched_prefixes(replica: ReplicaEvidence) -> tuple[StalePrefix, ...]:
    """[prefixes] that are stale or suspect, the worst first, by evidence that is still coming in."""
    floor, judged = judged_by_floor(replica)
    return stale_prefixes(replica, judged, floor=floor, names_foreign=False)


def stale_prefixes(
    replica: ReplicaEvidence, judgements: Sequence[ProbeJudgement], *, floor: NoiseFloor, names_foreign: bool
) -> tuple[StalePrefix, ...]:
    """[prefixes] that are stale or suspect, the worst first; with `names_foreign` those with foreign hits as well."""
    worst = list(worst_of_each_prefix(judgements))
    if names_foreign:
        worst += _most_foreign(judgements, except_for={judged.prefix for judged in worst})
    searches = {search.prefix: search for search in replica.bisections}
    return tuple(
        _of_prefix(judged, replica, judgements, search=searches.get(judged.prefix), floor=floor) for judged in worst
    )


def _most_foreign(judgements: Sequence[ProbeJudgement], *, except_for: set[str]) -> list[ProbeJudgement]:
    most: dict[str, ProbeJudgement] = {}
    for judged in judgements:
        foreign = judged.foreign_tokens or 0
        if foreign and judged.prefix not in except_for:
            held = most.get(judged.prefix)
            most[judged.prefix] = judged if held is None or foreign > (held.foreign_tokens or 0) else held
    return list(most.values())


def _of_prefix(
    worst: ProbeJudgement,
    replica: ReplicaEvidence,
    judgements: Sequence[ProbeJudgement],
    *,
    search: Bisection | None,
    floor: NoiseFloor,
) -> StalePrefix:
    block = replica.identity.capabilities.block_tokens
    verdicts = [judged.verdict for judged in judgements if judged.prefix == worst.prefix]
    is_silent = worst.verdict not in (ProbeVerdict.STALE, ProbeVerdict.SUSPECT)
    first = None if search is None else bracket(search, threshold=threshold_nats(floor)).first_stale_block
    why_not = NOT_SEARCHED if search is None else search.why_not or NOT_SEARCHED
    if is_silent:
        why_not = "no answer differs from its clean twin"
    return StalePrefix(
        prefix=worst.prefix,
        probe=worst.id if search is None else search.probe,
        stale=verdicts.count(ProbeVerdict.STALE),
        suspect=verdicts.count(ProbeVerdict.SUSPECT),
        cached_tokens=worst.cached_tokens,
        stale_from=None if first is None or block is None else first * block,
        block_tokens=block,
        why_not_from=None if first is not None else why_not,
        foreign_from=(worst.cached_tokens or 0) - worst.foreign_tokens if worst.foreign_tokens else None,
        tiers=_first_tiers(replica, worst.prefix),
    )


def _first_tiers(replica: ReplicaEvidence, prefix: str) -> dict[Tier, int]:
    """Of the first probe of a prefix that hit: what it brought into memory, later ones find there."""
    lookups = {lookup.probe: lookup for lookup in replica.lookups}
    for probe in replica.probes:
        if probe.prefix == prefix and probe.production and probe.production[0].cached_tokens != 0:
            return tiers_of(probe.production[0], lookups.get(probe.id))
    return {}
