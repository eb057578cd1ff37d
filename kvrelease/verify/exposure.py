"""Exposure: what clients would get in key spaces that production does not use, and clients may still reach."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from kvrelease.binding.observe import Leg, total
from kvrelease.verify.checks import Check, CheckId, CheckVerdict, space_name
from kvrelease.verify.consistency import ProbeVerdict, judge_probes
from kvrelease.verify.evidence import ExposureEvidence, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import is_suspect, suspicion


class SpaceVerdict(enum.StrEnum):
    """What a key space would serve."""

    STALE = "stale"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    CLEAN = "clean"
    COLD = "cold"


_WORST_FIRST = (
    SpaceVerdict.STALE,
    SpaceVerdict.SUSPECT,
    SpaceVerdict.UNKNOWN,
    SpaceVerdict.CLEAN,
    SpaceVerdict.COLD,
)


class ExposureResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a key space that production does not use would serve.

    Attributes:
        key_space: the salt, None for unsalted.
        cached_tokens: found there; None when not known.
        verdict: the worst of its probes.
    """

    key_space: str | None
    cached_tokens: int | None
    verdict: SpaceVerdict


def exposure_results(replica: ReplicaEvidence, *, floor: NoiseFloor) -> tuple[ExposureResult, ...]:
    """[key spaces] probed besides production's."""
    spaces: dict[str | None, list[ExposureEvidence]] = {}
    for one in replica.exposure:
        spaces.setdefault(one.key_space, []).append(one)
    results = []
    for key_space, found in spaces.items():
        verdicts = _verdicts(found, replica, floor=floor)
        worst = next(verdict for verdict in _WORST_FIRST if verdict in verdicts)
        cached = total([one.leg.cached_tokens for one in found])
        results.append(ExposureResult(key_space=key_space, cached_tokens=cached, verdict=worst))
    return tuple(results)


def exposed_suspects(replica: ReplicaEvidence, *, floor: NoiseFloor) -> dict[int, ProbeEvidence]:
    """By place in `replica.exposure`, the worst suspect of each key space besides production's, as a probe of it."""
    worst: dict[str | None, tuple[int, ProbeEvidence]] = {}
    probes = _as_probes(replica.exposure, replica)
    for place, (one, probe) in enumerate(zip(replica.exposure, probes, strict=True)):
        if one.leg.cached_tokens and is_suspect(probe, floor):
            held = worst.get(one.key_space)
            if held is None or suspicion(probe) > suspicion(held[1]):
                worst[one.key_space] = place, probe
    return dict(worst.values())


def _as_probes(exposure: Iterable[ExposureEvidence], replica: ReplicaEvidence) -> list[ProbeEvidence]:
    """[exposure] what was asked in another key space, as a probe whose production leg it is."""
    probes = {probe.id: probe for probe in replica.probes}
    return [replace(probes[one.probe], production=(one.leg,), rewritten=(), repeats=one.repeats) for one in exposure]


def _verdicts(found: Sequence[ExposureEvidence], replica: ReplicaEvidence, *, floor: NoiseFloor) -> list[SpaceVerdict]:
    """[exposure] of one key space, judged as production's own probes are."""
    judged = judge_probes(_as_probes(found, replica), floor=floor, replica=replica.identity.shown)
    return [_verdict(one.leg, judgement.verdict) for one, judgement in zip(found, judged, strict=True)]


def _verdict(leg: Leg, found: ProbeVerdict) -> SpaceVerdict:
    if not leg.cached_tokens:
        return SpaceVerdict.UNKNOWN if leg.cached_tokens is None else SpaceVerdict.COLD
    return _OF_PROBES[found]


_OF_PROBES = {
    ProbeVerdict.CLEAN: SpaceVerdict.CLEAN,
    ProbeVerdict.STALE: SpaceVerdict.STALE,
    ProbeVerdict.SUSPECT: SpaceVerdict.SUSPECT,
    ProbeVerdict.UNJUDGED: SpaceVerdict.UNKNOWN,
}


def check_exposure(replica: ReplicaEvidence, *, floor: NoiseFloor, namespace: str) -> Check | None:
    """What clients outside production's key space would get; None where the engine has only one."""
    results = exposure_results(replica, floor=floor)
    if not results:
        return None
    shown = "; ".join(_sentence(one, namespace=namespace) for one in results)
    stale = [one for one in results if one.verdict is SpaceVerdict.STALE]
    remedy = " Clients that still send there get another release's KV: flush, or make them send the namespace."
    return Check(
        id=CheckId.EXPOSURE,
        verdict=CheckVerdict.NOTE,
        detail=f"production does not use: {shown}.{remedy if stale else ''}",
        replica=replica.identity.shown,
    )


def _sentence(result: ExposureResult, *, namespace: str) -> str:
    name = "the release's own namespace" if result.key_space == namespace else f"{space_name(result.key_space)} keys"
    match result.verdict:
        case SpaceVerdict.COLD:
            return f"{name}, which would be clean (nothing cached yet)"
        case SpaceVerdict.CLEAN:
            return f"{name}, which would be clean ({result.cached_tokens} tokens cached)"
        case SpaceVerdict.STALE:
            return f"{name}, which would be STALE ({result.cached_tokens} tokens cached)"
        case SpaceVerdict.SUSPECT:
            return f"{name}, which may be STALE: one answer differs, unproved ({result.cached_tokens} tokens cached)"
        case SpaceVerdict.UNKNOWN:
            return f"{name}, where it is not known"
        case _:
            assert_never(result.verdict)
