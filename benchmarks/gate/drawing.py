"""Runs drawn from a pool: the gate's own collector asks recorded answers what it asks a server, and its judge judges.

One run draws its probes by traffic weight, as `verify` does, and for each of them whether users' entry is the old
release's. What is asked, how often, in which key space and in which order is decided by `verify.legs`, what it means by
`verify.judge`: nothing here knows their rules.
"""

from __future__ import annotations

import random

import msgspec

from benchmarks.gate.pool import Pool, PooledPrompt
from benchmarks.gate.prompts import deployment
from benchmarks.gate.recorded import RecordedReplica
from kvrelease.artifacts import Verdict
from kvrelease.progress import silent
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import Cost, Evidence, Limits, PowerPair, ReferencePair, ReplicaEvidence
from kvrelease.verify.in_process import IN_PROCESS_PROBES
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.legs import Collector
from kvrelease.verify.probes import draw
from kvrelease.verify.suspicion import threshold_nats
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet

PROBES = 60
LIMITS = Limits(stale_below=0.05)  # the command's default


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one drawn run ended.

    Attributes:
        verdict: of the gate.
        failed: the checks that failed.
        open: the checks that were inconclusive.
        stale: probes that met stale entries.
        visible: of these, probes whose staleness, in process, exceeds the run's threshold.
        requests: that the run would have sent.
        tokens: prompt tokens of them.
    """

    verdict: Verdict
    failed: tuple[str, ...]
    open: tuple[str, ...]
    stale: int
    visible: int
    requests: int
    tokens: int


class Drawing:
    """Draws runs from one pool.

    Args:
        pool: what was recorded.
        probes: of each run.
        knows_power: both releases are at hand in process, as the documentation advises.
    """

    def __init__(self, pool: Pool, *, probes: int = PROBES, knows_power: bool = True) -> None:
        self._pool = pool
        self._probes = probes
        self._knows_power = knows_power
        self._observations = pool.observations()
        self._prompts = {one.id: one for one in pool.prompts}
        self._set = tuple(Prompt(id=one.id, weight=one.weight, kind=PromptKind.CHAT, body={}) for one in pool.prompts)
        prompts = PromptSet(name=pool.name, prompts=self._set, source=pool.name)
        self._deployment = deployment(pool.release, prompts)
        self._staleness = {one.id: self._stale_nats(one) for one in pool.prompts}

    async def run(self, seed: int, *, stale_share: float) -> Outcome:
        """One run.

        Args:
            seed: of everything that is drawn, with the pool's name and the share.
            stale_share: of the probes that meet the old release's entries, each by chance.
        """
        source = random.Random(f"{self._pool.name} {stale_share} {seed}")  # noqa: S311 - to be repeated, no secret
        probes = draw(self._set, count=self._probes, seed=source.randrange(2**32))
        chosen = [self._prompts[one.id] for one in probes]
        stale = {one.id for one in chosen if source.random() < stale_share}
        replica = RecordedReplica(
            chosen,
            self._observations,
            identity=self._pool.identity,
            deployment=self._deployment,
            stale=stale,
            source=source,
        )
        collector = Collector(
            replica.as_replica,
            probes=probes,
            # Users ask without a salt, so the release's namespace is a key space that nobody uses yet.
            other_spaces=(self._deployment.namespace,),
            reference=None,
            progress=silent,
        )
        await collector.collect()
        evidence = self._evidence(collector.evidence(), chosen, replica=replica)
        report = judge(evidence)
        return self._outcome(report, evidence, stale=[one for one in chosen if one.id in stale])

    def _stale_nats(self, prompt: PooledPrompt) -> float:
        """How far the old release's keys and values move the answer to a prompt, in process; infinite if untold."""
        stale, clean = (self._observations[one] for one in (prompt.stale_in_process, prompt.clean_in_process))
        nats = distance(stale, clean).nats
        return float("inf") if nats is None else nats

    def _evidence(self, seen: ReplicaEvidence, chosen: list[PooledPrompt], *, replica: RecordedReplica) -> Evidence:
        """What the run observed, with what the releases say in process of the first probes."""
        power: tuple[PowerPair, ...] = ()
        if self._knows_power:
            answers = self._observations
            near = chosen[:IN_PROCESS_PROBES]
            seen = msgspec.structs.replace(
                seen,
                identity_source="release",
                identity_pairs=tuple(
                    ReferencePair(probe=one.id, witness=answers[one.clean_in_process]) for one in near
                ),
                old_identity_pairs=tuple(
                    ReferencePair(probe=one.id, witness=answers[one.old_in_process]) for one in near
                ),
            )
            power = tuple(
                PowerPair(probe=one.id, stale=answers[one.stale_in_process], clean=answers[one.clean_in_process])
                for one in near
            )
        spent = replica.spent
        return Evidence(
            release=self._deployment.release,
            namespace=self._deployment.namespace,
            production_salt=self._deployment.key_space,
            prompt_set=self._pool.name,
            population=len(self._set),
            skipped=(),
            limits=LIMITS,
            replicas=(seen,),
            power=power,
            cost=Cost(requests=spent.requests, retries=0, tokens=spent.prompt_tokens, seconds=0.0),
        )

    def _outcome(self, report: VerifyReport, evidence: Evidence, *, stale: list[PooledPrompt]) -> Outcome:
        def names(verdict: CheckVerdict) -> tuple[str, ...]:
            return tuple(dict.fromkeys(str(check.id) for check in report.checks if check.verdict is verdict))

        threshold = threshold_nats(report.noise_floor)
        return Outcome(
            verdict=report.verdict,
            failed=names(CheckVerdict.FAIL),
            open=names(CheckVerdict.INCONCLUSIVE),
            stale=len(stale),
            visible=sum(self._staleness[one.id] > threshold for one in stale),
            requests=evidence.cost.requests,
            tokens=evidence.cost.tokens,
        )
