"""Whole runs of evidence under models of noise, to measure how often the judgement errs.

Each model gives the candidates of one observation: what the release says of the prompt, plus noise. The legs are the
ones that `verify.legs` sends: a screening leg, a cold one, two clean hits, and repeats in pairs for the worst suspects.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg
from kvrelease.verify.consistency import LEGS_THAT_PROVE, WEAK_PROBES_THAT_PROVE, is_suspect, suspicion
from kvrelease.verify.evidence import Evidence, Limits, ProbeEvidence
from kvrelease.verify.judge import judge
from kvrelease.verify.noise import noise_floor
from tests.verify.builders import BASE, evidence, leg, replica

Shift = list[float]
Noise = Callable[[random.Random, int], Shift]


def quiet(_source: random.Random, _probe: int) -> Shift:
    """Concurrency 1 on vLLM CPU: bit-exact."""
    return [0.0] * len(BASE)


def gaussian(sigma: float) -> Noise:
    """Every candidate moves on its own."""
    return lambda source, _probe: [source.gauss(0.0, sigma) for _ in BASE]


def bursty(sigma: float) -> Noise:
    """Some answers are far noisier than others: the scale is log-normal, its standard deviation an e-fold."""

    def noise(source: random.Random, _probe: int) -> Shift:
        scale = sigma * math.exp(source.gauss(0.0, 1.0))
        return [source.gauss(0.0, scale) for _ in BASE]

    return noise


def batches(size: float, *, share: float = 0.25) -> Noise:
    """Another kernel for another batch: of each prompt there are two answers, the second in `share` of the requests."""

    def noise(source: random.Random, probe: int) -> Shift:
        other = random.Random(probe)
        offset = [other.gauss(0.0, size) for _ in BASE]
        return offset if source.random() < share else [0.0] * len(BASE)

    return noise


def rounded(step: float = 0.125, *, share: float = 0.03) -> Noise:
    """bf16 logits: now and then one candidate lands a step beside."""
    return lambda source, _probe: [source.choice((-step, step)) if source.random() < share else 0.0 for _ in BASE]


def observed_run(
    seed: int, *, noise: Noise, stale_nats: float = 0.0, stale_share: float = 1.0, probes: int = 12
) -> Evidence:
    """One run's evidence.

    Args:
        seed: of everything.
        noise: of each observation.
        stale_nats: mean absolute shift that old keys and values make of a prompt's candidates.
        stale_share: of the probes that meet them.
        probes: how many, on three prefixes.
    """
    source = random.Random(seed)
    found = []
    for number in range(probes):
        is_stale = source.random() < stale_share
        # The mean of |N(0, s)| is s · sqrt(2/pi).
        size = stale_nats * math.sqrt(math.pi / 2) if is_stale else 0.0
        moved = [source.gauss(0.0, size) for _ in BASE]
        found.append((_drawn(number, noise=noise, source=source, moved=moved), moved))
    floor = noise_floor(probe for probe, _ in found)
    suspects = sorted((probe for probe, _ in found if is_suspect(probe, floor)), key=suspicion, reverse=True)
    by_prefix: dict[str, list[str]] = {}
    for probe in suspects:
        by_prefix.setdefault(probe.prefix, []).append(probe.id)
    repeated = {name for names in by_prefix.values() for name in names[:WEAK_PROBES_THAT_PROVE]}
    return evidence(
        replica(
            _repeated(probe, number, noise=noise, source=source, moved=moved) if probe.id in repeated else probe
            for number, (probe, moved) in enumerate(found)
        ),
        limits=Limits(stale_below=0.25),
    )


def rates(
    runs: int, *, noise: Noise, stale_nats: float = 0.0, stale_share: float = 1.0, probes: int = 12
) -> dict[Verdict, float]:
    """The share of each verdict in so many runs."""
    counted = dict.fromkeys(Verdict, 0)
    for seed in range(runs):
        run = observed_run(seed, noise=noise, stale_nats=stale_nats, stale_share=stale_share, probes=probes)
        counted[judge(run).verdict] += 1
    return {verdict: count / runs for verdict, count in counted.items()}


def _drawn(number: int, *, noise: Noise, source: random.Random, moved: Shift) -> ProbeEvidence:
    return ProbeEvidence(
        id=f"p{number}",
        prefix=f"desk{number % 3}",
        weight=1.0,
        production=(_leg(noise(source, number), moved),),
        cold=_leg(noise(source, number), cached=0),
        clean=(_leg(noise(source, number)), _leg(noise(source, number))),
    )


def _repeated(probe: ProbeEvidence, number: int, *, noise: Noise, source: random.Random, moved: Shift) -> ProbeEvidence:
    repeats = LEGS_THAT_PROVE - 1
    return ProbeEvidence(
        id=probe.id,
        prefix=probe.prefix,
        weight=probe.weight,
        production=(*probe.production, *(_leg(noise(source, number), moved) for _ in range(repeats))),
        cold=probe.cold,
        clean=(*probe.clean, *(_leg(noise(source, number)) for _ in range(repeats))),
    )


def _leg(shift: Shift, moved: Shift | None = None, *, cached: int = 192) -> Leg:
    total = [one + other for one, other in zip(shift, moved, strict=True)] if moved else shift
    return leg(total, cached=cached)
