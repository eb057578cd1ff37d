"""Whole runs of evidence under models of noise, to measure how often the judgement errs.

Each model gives the candidates of one observation: what the release says of the prompt, plus noise. The legs are the
ones that `verify.legs` sends: a screening leg, a cold one, a clean hit, for some one on an entry written again,
repeats in turns for the worst suspects, and entries written again to rank users' own among. What an entry got when it
was written stays with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator
from functools import partial

from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg
from kvrelease.verify.asking import (
    Answer,
    Ask,
    LegKind,
    Wanted,
    peers_to_write,
    repeats_at_once,
    repeats_to_ask,
)
from kvrelease.verify.evidence import Evidence, Limits, ProbeEvidence
from kvrelease.verify.judge import judge
from kvrelease.verify.noise import noise_floor
from kvrelease.verify.reference_legs import REWRITTEN
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
    seed: int,
    *,
    noise: Noise,
    written: Noise = quiet,
    stale_nats: float = 0.0,
    stale_share: float = 1.0,
    probes: int = 12,
    prefixes: int = 3,
    is_written_together: bool = False,
) -> Evidence:
    """One run's evidence.

    Args:
        seed: of everything.
        noise: of each observation.
        written: of each entry, and of all that is read from it.
        stale_nats: mean absolute shift that old keys and values make of a prompt's candidates.
        stale_share: of the probes that meet them.
        probes: how many.
        prefixes: that they share.
        is_written_together: what users' entries got when they were written is drawn once for each prefix.
    """
    source = random.Random(seed)
    entries = [
        _Entries(
            number,
            noise=noise,
            written=written,
            stale=stale_nats if source.random() < stale_share else 0.0,
            source=source,
            company=f"{seed} {number % prefixes}" if is_written_together else None,
        )
        for number in range(probes)
    ]
    found: dict[int, ProbeEvidence] = {}

    def asked(ask: Ask) -> Leg:
        number = int(ask.probe[1:])
        entry, again = entries[number], found[number].repeats
        if ask.kind is LegKind.PRODUCTION:
            again = replace(again, production=(*again.production, leg := entry.production()))
        else:
            again = replace(again, clean=(*again.clean, leg := entry.clean()))
        found[number] = replace(found[number], repeats=again)
        return leg

    for number, one in enumerate(entries):
        found[number] = _drawn(one, prefix=f"desk{number % prefixes}")
        so_far = tuple(found.values())
        answer_all(repeats_at_once(so_far[-1], among=so_far, floor=partial(noise_floor, so_far)), asked)
    floor = noise_floor(found.values())
    answer_all(repeats_to_ask(tuple(found.values()), floor=floor), asked)

    def written_again(company: tuple[str, ...]) -> list[Leg]:
        legs = [entries[int(name[1:])].rewritten() for name in company]
        for name, peer in zip(company, legs, strict=True):
            one = found[int(name[1:])]
            found[int(name[1:])] = replace(one, peers=(*one.peers, peer))
        return legs

    answer_all(peers_to_write(list(found.values()), floor=floor), written_again)
    return evidence(replica(found.values()), limits=Limits(stale_below=0.25))


def answer_all(wanted: Generator[Wanted, Answer, None], answer: Callable[[Wanted], Answer]) -> None:
    """Answers everything that a plan asks for."""
    ask = next(wanted, None)
    while ask is not None:
        try:
            ask = wanted.send(answer(ask))
        except StopIteration:
            ask = None


def rates(
    runs: int,
    *,
    noise: Noise,
    written: Noise = quiet,
    stale_nats: float = 0.0,
    stale_share: float = 1.0,
    probes: int = 12,
    prefixes: int = 3,
    is_written_together: bool = False,
) -> dict[Verdict, float]:
    """The share of each verdict in so many runs."""
    counted = dict.fromkeys(Verdict, 0)
    for seed in range(runs):
        run = observed_run(
            seed,
            noise=noise,
            written=written,
            stale_nats=stale_nats,
            stale_share=stale_share,
            probes=probes,
            prefixes=prefixes,
            is_written_together=is_written_together,
        )
        counted[judge(run).verdict] += 1
    return {verdict: count / runs for verdict, count in counted.items()}


class _Entries:
    """What one prompt's entries answer: production's, the reference's, and any that is written once more."""

    def __init__(
        self, number: int, *, noise: Noise, written: Noise, stale: float, source: random.Random, company: str | None
    ) -> None:
        self.number = number
        self._noise, self._written, self._source = noise, written, source
        # The mean of |N(0, s)| is s · sqrt(2/pi).
        size = stale * math.sqrt(math.pi / 2)
        self._moved = [source.gauss(0.0, size) for _ in BASE]
        together = source if company is None else random.Random(company)
        self._production, self._reference = written(together, number), self._write()

    def _write(self) -> Shift:
        return self._written(self._source, self.number)

    def _read(self, *parts: Shift, cached: int = 192) -> Leg:
        return leg(
            [sum(one) for one in zip(self._noise(self._source, self.number), *parts, strict=True)], cached=cached
        )

    def production(self) -> Leg:
        return self._read(self._production, self._moved)

    def cold(self) -> Leg:
        return self._read(self._reference, cached=0)

    def clean(self) -> Leg:
        return self._read(self._reference)

    def rewritten(self) -> Leg:
        return self._read(self._write())


def _drawn(entries: _Entries, *, prefix: str) -> ProbeEvidence:
    return ProbeEvidence(
        id=f"p{entries.number}",
        prefix=prefix,
        weight=1.0,
        production=(entries.production(),),
        cold=entries.cold(),
        clean=(entries.clean(),),
        rewritten=(entries.rewritten(),) if entries.number < REWRITTEN else (),
    )
