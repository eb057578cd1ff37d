"""Observations of a release as production sees it: a golden record or a baseline.

Production legs fill the cache as users do; that is what makes the record comparable, and why it goes into the ledger.
"""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, fault_of
from kvrelease.binding.closing import close_run, until_interrupted
from kvrelease.binding.deployment import Deployment, Replica, prepare
from kvrelease.binding.observe import Leg, known_total
from kvrelease.engines.base import EngineClient, EngineIdentity, Request
from kvrelease.errors import KvreleaseError
from kvrelease.ledger.store import Ledger
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.workload.prompt_set import Prompt

# Eight greedy tokens and the first token's top 20: what docs/statistics.md measured, and vLLM's --max-logprobs.
MAX_TOKENS = 8
TOP_LOGPROBS = 20


def as_probe(request: Request) -> Request:
    """A request of production as a probe: a few tokens long, with log-probabilities."""
    return msgspec.structs.replace(request, max_tokens=MAX_TOKENS, top_logprobs=TOP_LOGPROBS)


def probe_request(replica: Replica, prompt: Prompt, *, salt: str | None) -> Request:
    """The prompt as production sends it, as a probe."""
    return as_probe(replica.request(prompt, salt=salt, max_tokens=MAX_TOKENS))


class EngineRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine was observed."""

    kind: str
    version: str | None
    url: str
    model: str
    labels: dict[str, str] = {}


class RecordedObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of the set, observed once as production."""

    id: str
    prefix: str
    weight: float
    leg: Leg


class Record(Artifact, frozen=True, kw_only=True, tag="kvrelease/record"):
    """What `kvrelease record` saves; `--golden` and `--baseline` read it.

    Attributes:
        release: that was said to be served.
        namespace: of that release.
        weights: digest of its; None where the record is older than that.
        key_space: the name of the one that requests asked in, never a secret; None for unsalted.
        prompt_set: digest of the prompt set.
        engine: that was observed.
        observations: in the order sent.
        foreign_tokens: hits that this release did not compute: a record with any is no golden; None when not known.
        interrupted: the run was cut short.
        faults: what ended it early, and what could not be written down.
    """

    release: ReleaseRef
    namespace: str
    key_space: str | None
    prompt_set: str
    engine: EngineRef
    observations: tuple[RecordedObservation, ...]
    foreign_tokens: int | None
    weights: str | None = None
    interrupted: bool = False
    faults: tuple[Fault, ...] = ()

    def is_like(self, identity: EngineIdentity) -> bool:
        """Whether it comes from the same kind and version of engine, so that kernels hardly differ."""
        engine = self.engine
        return engine.version is not None and (engine.kind, engine.version) == (identity.kind, identity.version)

    @property
    def ended_early(self) -> str | None:
        """Why it is not the whole prompt set from one engine process; None where it is.

        A ledger that could not be written is a fault of the record's, and takes nothing from what was observed.
        """
        if self.interrupted:
            return "it was cut short"
        return next((fault.message for fault in self.faults if fault.where == self.engine.url), None)


async def record(
    engine: EngineClient,
    *,
    deployment: Deployment,
    ledger: Ledger,
    max_tokens: int = MAX_TOKENS,
    progress: Progress = silent,
) -> Record:
    """Observes every prompt of the set once, as production sends it, one at a time.

    Returns:
        The record; also when it was cancelled or the engine failed midway, with what was observed so far.

    Raises:
        KvreleaseError: the engine could not even be prepared.
    """
    replica = await prepare(engine, deployment=deployment, memory=ledger, max_tokens=max_tokens)
    identity = replica.identity
    observations: list[RecordedObservation] = []
    fault: Fault | None = None
    with until_interrupted() as interruption:
        try:
            for prompt in deployment.prompt_set.prompts:
                request = probe_request(replica, prompt, salt=deployment.salt)
                leg = await replica.observer.observe(msgspec.structs.replace(request, max_tokens=max_tokens))
                observations.append(
                    RecordedObservation(id=prompt.id, prefix=replica.prefixes[prompt.id], weight=prompt.weight, leg=leg)
                )
                progress(
                    ProgressEvent(
                        stage="recording", done=len(observations), total=len(deployment.prompt_set), unit="requests"
                    )
                )
            await replica.observer.require_same_process()
        except KvreleaseError as error:
            if not observations:
                raise
            fault = fault_of(error, where=identity.url)
    closing = close_run(
        [replica],
        deployment=deployment,
        ledger=ledger,
        command="record",
        verdict=None,
        reason=f"{len(observations)} observations",
    )
    foreign = [one.leg.foreign_tokens for one in observations]
    return Record(
        release=deployment.release,
        namespace=deployment.namespace,
        weights=deployment.weights,
        key_space=deployment.key_space,
        prompt_set=deployment.prompt_set.digest,
        engine=EngineRef(
            kind=str(identity.kind),
            version=identity.version,
            url=identity.url,
            model=identity.model,
            labels=identity.labels,
        ),
        observations=tuple(observations),
        foreign_tokens=known_total(foreign),
        interrupted=interruption.happened,
        faults=((fault,) if fault else ()) + closing,
    )
