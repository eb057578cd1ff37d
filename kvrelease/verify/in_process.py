"""What golden record, baseline and the releases in process say on what a replica was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvrelease.binding.deployment import Replica
from kvrelease.engines.base import Observation
from kvrelease.engines.local import stale_and_clean
from kvrelease.errors import KvreleaseError, UnsupportedRelease
from kvrelease.progress import Progress, ProgressEvent
from kvrelease.release.comparison import Sameness, compare_digests
from kvrelease.verify.evidence import InProcessAnswers, PowerPair, ReferencePair, ReplicaEvidence
from kvrelease.verify.legs import Collector
from kvrelease.verify.record import Record, probe_request
from kvrelease.verify.resemblance import answers_in_process
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt

# Probes that are also run in process; each costs two prefills there, and the median of a handful decides.
IN_PROCESS_PROBES = 4


class InProcess:
    """What the releases in process say on some of the probes.

    Args:
        probes: all that are drawn; the first few are answered.
        replica: whose requests are repeated.
        twins: the releases, where they are opened.
        progress: told after each prompt.

    Attributes:
        power: stale against clean, of each prompt that both releases answered.
        failure: why they did not answer, where they did not.
    """

    def __init__(self, *, probes: Sequence[Prompt], replica: Replica, twins: Twins, progress: Progress) -> None:
        self._every_probe = probes
        self._probes = probes[:IN_PROCESS_PROBES]
        self._replica = replica
        self._twins = twins
        self._progress = progress
        self._answers: dict[str, Observation] = {}
        self._old_answers: dict[str, Observation] = {}
        self.power: list[PowerPair] = []
        self._stale: dict[str, tuple[InProcessAnswers, ...]] = {}
        self.failure: str | None = None

    async def answer_stale(self, collectors: Iterable[Collector]) -> None:
        """Answers the prompts of the stale prefixes of each replica; what does not run in process is left out."""
        prompts = {prompt.id: prompt for prompt in self._every_probe}
        try:
            for collector in collectors:
                seen = collector.evidence()
                self._stale[seen.identity.shown] = await answers_in_process(
                    seen,
                    replica=collector.replica,
                    prompts=prompts,
                    release=self._twins.release,
                    old_release=self._twins.old_release,
                    progress=self._progress,
                )
        except KvreleaseError as error:
            self.failure = self.failure or error.message

    async def run(self) -> None:
        """Answers the first probes.

        Raises:
            KvreleaseError: a prompt does not run in process.
        """
        release, old = self._twins.release, self._twins.old_release
        if release is None:
            return
        for number, prompt in enumerate(self._probes):
            request = probe_request(self._replica, prompt, salt=None)
            self._answers[prompt.id] = await release.complete(request)
            if old is not None:
                self._old_answers[prompt.id] = await old.complete(request)
                try:
                    stale, clean = await stale_and_clean(old, release, request)
                except UnsupportedRelease:
                    old = None  # other shapes: no block of the old release can be hit, so there is nothing to measure
                else:
                    self.power.append(PowerPair(probe=prompt.id, stale=stale, clean=clean))
            self._progress(ProgressEvent(stage="in process", done=number + 1, total=len(self._probes), unit="prompts"))

    async def answer_unique(self, collector: Collector) -> None:
        """Answers what one replica was asked and nobody can have cached; its other clean answers are another engine's.

        Where the second engine is the release in process, it has answered already.

        Raises:
            KvreleaseError: a prompt does not run in process.
        """
        release, old = self._twins.release, self._twins.old_release
        if release is None:
            return
        asked = {one.name: one.reference[0].observation for one in collector.evidence().calibration}
        for name, prompt in list(collector.unique.items())[:IN_PROCESS_PROBES]:
            request = probe_request(collector.replica, prompt, salt=None)
            is_answered = self._twins.reference is release
            self._answers[name] = asked[name] if is_answered else await release.complete(request)
            if old is not None:
                self._old_answers[name] = await old.complete(request)

    def joined(self, collector: Collector) -> ReplicaEvidence:
        """The evidence of one replica, with what golden record, baseline and the releases in process say of it."""
        replica = collector.evidence()
        ids = {probe.id for probe in replica.probes} | {one.name for one in replica.calibration}
        old = _recorded(self._twins.baseline, ids)
        if self._twins.golden is not None:
            pairs, source = _recorded(self._twins.golden, ids), "golden"
            like = old if self._twins.are_recorded_alike else ()
        else:
            pairs, source, like = _pairs(self._answers, ids), "release", _pairs(self._old_answers, ids)
        return msgspec.structs.replace(
            replica,
            identity_pairs=pairs,
            identity_source=source if pairs else "none",
            identity_failure=self.failure,
            identity_is_alike=self._twins.golden is not None and self._twins.golden.is_like(replica.identity),
            old_pairs=old,
            old_is_alike=self._twins.baseline is not None and self._twins.baseline.is_like(replica.identity),
            weights_differ=self._weights_differ(),
            in_process=self._stale.get(replica.identity.shown, ()),
            old_identity_pairs=like,
        )

    def _weights_differ(self) -> bool | None:
        """Whether the release's weights are other ones than the baseline's; None where that is not known."""
        ours = self._replica.deployment.weights
        theirs = None if self._twins.baseline is None else self._twins.baseline.weights
        if ours is None or theirs is None:
            return None
        return _DIFFER[compare_digests(theirs, ours)]


_DIFFER = {Sameness.SAME: False, Sameness.CHANGED: True, Sameness.UNKNOWN: None}


def _recorded(record: Record | None, ids: set[str]) -> tuple[ReferencePair, ...]:
    if record is None:
        return ()
    return _pairs({one.id: one.leg.observation for one in record.observations}, ids)


def _pairs(observations: Mapping[str, Observation], ids: set[str]) -> tuple[ReferencePair, ...]:
    return tuple(
        ReferencePair(probe=name, witness=observation) for name, observation in observations.items() if name in ids
    )
