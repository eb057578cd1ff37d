"""Exposure: what clients would get in key spaces that production does not use, and clients may still reach."""

from __future__ import annotations

import enum
from typing import assert_never

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.verify.checks import Check, CheckId, CheckVerdict, space_name
from kvrelease.verify.consistency import threshold_nats
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import ExposureEvidence, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor


class SpaceVerdict(enum.StrEnum):
    """What a key space would serve."""

    STALE = "stale"
    UNKNOWN = "unknown"
    CLEAN = "clean"
    COLD = "cold"


_WORST_FIRST = (SpaceVerdict.STALE, SpaceVerdict.UNKNOWN, SpaceVerdict.CLEAN, SpaceVerdict.COLD)


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
    probes = {probe.id: probe for probe in replica.probes}
    spaces: dict[str | None, list[ExposureEvidence]] = {}
    for one in replica.exposure:
        spaces.setdefault(one.key_space, []).append(one)
    results = []
    for key_space, found in spaces.items():
        legs: list[Leg] = [one.leg for one in found]
        verdicts = [_exposure_verdict(one, probes[one.probe].cold, probes[one.probe].clean, floor) for one in found]
        worst = next(verdict for verdict in _WORST_FIRST if verdict in verdicts)
        cached = [leg.cached_tokens for leg in legs]
        total = None if any(tokens is None for tokens in cached) else sum(tokens or 0 for tokens in cached)
        results.append(ExposureResult(key_space=key_space, cached_tokens=total, verdict=worst))
    return tuple(results)


def _exposure_verdict(
    one: ExposureEvidence, cold: Leg | None, clean: tuple[Leg, ...], floor: NoiseFloor
) -> SpaceVerdict:
    if one.leg.cached_tokens is None:
        return SpaceVerdict.UNKNOWN
    if one.leg.cached_tokens == 0:
        return SpaceVerdict.COLD
    twin = clean[0] if clean else cold
    if twin is None:
        return SpaceVerdict.UNKNOWN
    found = distance(one.leg.observation, twin.observation)
    if found.nats is None:
        return SpaceVerdict.UNKNOWN if found.first_divergence is None else SpaceVerdict.STALE
    return SpaceVerdict.STALE if found.nats > threshold_nats(floor) else SpaceVerdict.CLEAN


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
        replica=replica.identity.url,
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
        case SpaceVerdict.UNKNOWN:
            return f"{name}, where it is not known"
        case _:
            assert_never(result.verdict)
