"""Runs drawn from a pool: every leg of a real run, answered by what was recorded, and judged by the gate's own code.

One run draws its probes by traffic weight, as `verify` does; for each shared prefix the entry that users' requests hit;
for each probe whether it is stale; and for each leg one of that entry's reads. What is asked again is planned by
`verify.asking`, judged by `verify.judge`: nothing here decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from benchmarks.gate.pool import Pool, PooledPrompt
from benchmarks.gate.template import nonce_tokens
from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg, Witness
from kvrelease.verify.asking import LegKind, repeats_to_ask
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.evidence import Evidence, Isolation, Limits, PowerPair, ProbeEvidence, ReferencePair, Repeats
from kvrelease.verify.in_process import IN_PROCESS_PROBES
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.legs import EXPOSURE_PROBES, REWRITTEN
from kvrelease.verify.noise import noise_floor
from kvrelease.verify.probes import draw
from kvrelease.workload.prompt_set import Prompt, PromptKind

PROBES = 60
LIMITS = Limits(stale_below=0.05)  # the command's default


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one drawn run ended.

    Attributes:
        verdict: of the gate.
        failed: the checks that failed.
        open: the checks that were inconclusive.
        stale: probes that met stale entries.
        requests: that the run would have sent.
        tokens: prompt tokens of them.
    """

    verdict: Verdict
    failed: tuple[str, ...]
    open: tuple[str, ...]
    stale: int
    requests: int
    tokens: int


class Drawing:
    """Draws runs from one pool.

    Args:
        pool: what was recorded.
        template: evidence of a real run on the same kind of engine: its control, binding and cost.
        probes: of each run.
        knows_power: both releases are at hand in process, as the documentation advises.
    """

    def __init__(self, pool: Pool, template: Evidence, *, probes: int = PROBES, knows_power: bool = True) -> None:
        self._template = template
        self._probes = probes
        self._knows_power = knows_power
        self._name = pool.name
        self._observations = pool.observations()
        self._hits: dict[tuple[str, int], Leg] = {}
        self._prompts = {one.id: one for one in pool.prompts}
        self._set = tuple(Prompt(id=one.id, weight=one.weight, kind=PromptKind.CHAT, body={}) for one in pool.prompts)

    def run(self, seed: int, *, stale_share: float) -> Outcome:
        """One run.

        Args:
            seed: of everything that is drawn, with the pool's name and the share.
            stale_share: of the probes that meet the old release's entries, each by chance.
        """
        source = random.Random(f"{self._name} {stale_share} {seed}")  # noqa: S311 - drawn to be repeated, no secret
        chosen = [self._prompts[one.id] for one in draw(self._set, count=self._probes, seed=source.randrange(2**32))]
        stale = {one.id for one in chosen if source.random() < stale_share}
        entries = _Entries(source, chosen, stale=stale, leg=self._leg)
        probes = {one.id: entries.screened(one, is_rewritten=place < REWRITTEN) for place, one in enumerate(chosen)}
        residency = entries.residency(chosen)
        for name, leg in residency.items():
            probes[name] = msgspec.structs.replace(probes[name], production=(*probes[name].production, leg))
        asked = 0
        for name, again in _repeats(list(probes.values()), entries).items():
            probes[name] = msgspec.structs.replace(probes[name], repeats=again)
            asked += len(again.production) + len(again.clean)
        report = judge(self._evidence(tuple(probes.values()), chosen, residency=tuple(residency.values())))
        return self._outcome(report, stale=len(stale), repeats=asked, chosen=chosen)

    def _leg(self, prompt: PooledPrompt, number: int, *, is_cold: bool = False) -> Leg:
        key = (prompt.id, -number - 1 if is_cold else number)
        if key not in self._hits:
            cached = 0 if is_cold else prompt.cached_tokens
            self._hits[key] = Leg(
                key_space=None,
                observation=self._observations[number],
                prompt_tokens=prompt.prompt_tokens,
                cacheable_tokens=prompt.cached_tokens,
                cached_tokens=cached,
                foreign_tokens=0,
                witness=Witness.USAGE,
            )
        return self._hits[key]

    def _evidence(
        self, probes: tuple[ProbeEvidence, ...], chosen: list[PooledPrompt], *, residency: tuple[Leg, ...]
    ) -> Evidence:
        replica = msgspec.structs.replace(
            self._template.replicas[0],
            is_fresh=False,
            isolation=Isolation.FRESH_SALT,
            probes=probes,
            residency=residency,
            exposure=(),
        )
        power: tuple[PowerPair, ...] = ()
        if self._knows_power:
            seen = self._observations
            near = chosen[:IN_PROCESS_PROBES]
            replica = msgspec.structs.replace(
                replica,
                identity_source="release",
                identity_pairs=tuple(ReferencePair(probe=one.id, witness=seen[one.clean_in_process]) for one in near),
                old_identity_pairs=tuple(ReferencePair(probe=one.id, witness=seen[one.old_in_process]) for one in near),
            )
            power = tuple(
                PowerPair(probe=one.id, stale=seen[one.stale_in_process], clean=seen[one.clean_in_process])
                for one in near
            )
        return msgspec.structs.replace(
            self._template,
            limits=LIMITS,
            population=len(self._set),
            skipped=(),
            replicas=(replica,),
            power=power,
            interrupted=False,
        )

    def _outcome(self, report: VerifyReport, *, stale: int, repeats: int, chosen: list[PooledPrompt]) -> Outcome:
        def names(verdict: CheckVerdict) -> tuple[str, ...]:
            return tuple(dict.fromkeys(str(check.id) for check in report.checks if check.verdict is verdict))

        requests = self._template.cost.requests + repeats
        mean_tokens = sum(one.prompt_tokens for one in chosen) / len(chosen)
        nonces, tokens = nonce_tokens(self._template)
        return Outcome(
            verdict=report.verdict,
            failed=names(CheckVerdict.FAIL),
            open=names(CheckVerdict.INCONCLUSIVE),
            stale=stale,
            requests=requests,
            tokens=tokens + round((requests - nonces) * mean_tokens),
        )


class _Entries:
    """Which entries the legs of one run read."""

    def __init__(
        self,
        source: random.Random,
        chosen: list[PooledPrompt],
        *,
        stale: set[str],
        leg: Callable[..., Leg],
    ) -> None:
        self._source = source
        self._stale = stale
        self._leg = leg
        self._prompts = {one.id: one for one in chosen}
        # Users' requests under one prefix share what was written of it, the old release's too.
        self._written = {one.prefix: source.random() for one in chosen}

    def screened(self, prompt: PooledPrompt, *, is_rewritten: bool) -> ProbeEvidence:
        """The legs that every probe gets."""
        alone = prompt.alone[0]
        return ProbeEvidence(
            id=prompt.id,
            prefix=prompt.prefix,
            weight=prompt.weight,
            production=(self.production(prompt),),
            cold=self._leg(prompt, self._source.choice(alone), is_cold=True),
            clean=(self.clean(prompt),),
            rewritten=(self._rewritten(prompt),) if is_rewritten else (),
        )

    def residency(self, chosen: list[PooledPrompt]) -> dict[str, Leg]:
        """Production's legs asked again at the end, of one probe for each prefix."""
        first: dict[str, PooledPrompt] = {}
        for prompt in chosen:
            first.setdefault(prompt.prefix, prompt)
        return {one.id: self.production(one) for one in list(first.values())[:EXPOSURE_PROBES]}

    def ask(self, probe: str, kind: LegKind) -> Leg:
        """One repeat."""
        prompt = self._prompts[probe]
        return self.production(prompt) if kind is LegKind.PRODUCTION else self.clean(prompt)

    def production(self, prompt: PooledPrompt) -> Leg:
        """As users get it."""
        entries = prompt.stale if prompt.id in self._stale else prompt.company
        return self._leg(prompt, self._source.choice(entries[self._place(prompt, len(entries))]))

    def clean(self, prompt: PooledPrompt) -> Leg:
        """A clean hit."""
        return self._leg(prompt, self._source.choice(prompt.alone[0]))

    def _rewritten(self, prompt: PooledPrompt) -> Leg:
        """A clean hit on an entry that was written in company once more: never the one that users hit."""
        others = [place for place in range(len(prompt.company)) if place != self._place(prompt, len(prompt.company))]
        entry = prompt.company[self._source.choice(others) if others else 0]
        return self._leg(prompt, self._source.choice(entry))

    def _place(self, prompt: PooledPrompt, entries: int) -> int:
        return int(self._written[prompt.prefix] * entries)


def _repeats(probes: list[ProbeEvidence], entries: _Entries) -> dict[str, Repeats]:
    """What the gate asks again, by probe."""
    wanted = repeats_to_ask(probes, floor=noise_floor(probes))
    found: dict[str, Repeats] = {}
    ask = next(wanted, None)
    while ask is not None:
        leg = entries.ask(ask.probe, ask.kind)
        known = found.get(ask.probe, Repeats())
        if ask.kind is LegKind.PRODUCTION:
            known = msgspec.structs.replace(known, production=(*known.production, leg))
        else:
            known = msgspec.structs.replace(known, clean=(*known.clean, leg))
        found[ask.probe] = known
        try:
            ask = wanted.send(leg)
        except StopIteration:
            ask = None
    return found
