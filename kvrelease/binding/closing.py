"""How a run on engines ends: interrupted or not, the ledger gets what was learnt, and the report is never lost."""

from __future__ import annotations

import asyncio
import datetime
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvrelease.artifacts import Fault, Verdict, fault_of
from kvrelease.binding.deployment import Deployment, Replica
from kvrelease.errors import KvreleaseError
from kvrelease.ledger.records import Event
from kvrelease.ledger.store import Ledger


class Interruption:
    """Whether a block was cut short by Ctrl-C or SIGTERM."""

    happened = False


@contextmanager
def until_interrupted() -> Iterator[Interruption]:
    """Runs a block that may be cancelled once, and goes on after it with what the block has measured so far."""
    interruption = Interruption()
    try:
        yield interruption
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        task.uncancel()
        interruption.happened = True


class Doubt(enum.Enum):
    """What a run has shown of the entries that a replica holds."""

    NONE = "nothing speaks against them"
    ORIGIN = "they may be another rank's: nothing of this run is remembered, and nothing is forgotten"
    KEY_SPACE = "production's key space holds entries of others"
    PROCESS = "the process runs other weights"


def _no_doubt(_replica: Replica) -> Doubt:
    return Doubt.NONE


def _spaces_of_production(replica: Replica, deployment: Deployment) -> tuple[str | None, ...]:
    within = replica.observer.spaces_within
    return tuple(dict.fromkeys(space for salt in deployment.salts for space in within(salt)))


def close_run(
    replicas: Sequence[Replica],
    *,
    deployment: Deployment,
    ledger: Ledger,
    command: str,
    verdict: Verdict | None,
    reason: str,
    doubt_of: Callable[[Replica], Doubt] = _no_doubt,
) -> tuple[Fault, ...]:
    """Writes a run into the ledger: what served where, the verdict, and which prefixes the release computed.

    Args:
        replicas: that were asked.
        deployment: what was asked of them.
        ledger: where to write.
        command: `prewarm`, `record` or `verify`.
        verdict: None for commands that judge nothing.
        reason: one sentence.
        doubt_of: what is in doubt of a replica: nothing in doubt is remembered as the release's own, and what was
            remembered before is forgotten, or it would explain stale hits later (but for an origin in doubt).

    Returns:
        The fault of a ledger that could not be written; the run's own result stands.
    """
    try:
        for replica in replicas:
            doubt = doubt_of(replica)
            if doubt in (Doubt.NONE, Doubt.KEY_SPACE):
                replica.observer.remember()
            if doubt in (Doubt.KEY_SPACE, Doubt.PROCESS) and replica.identity.process is not None:
                ledger.forget(
                    replica=replica.identity.url,
                    process=replica.identity.process,
                    key_spaces=None if doubt is Doubt.PROCESS else _spaces_of_production(replica, deployment),
                )
        # Events last of all: by them the ledger knows an engine under another URL, and two replicas of one run whose
        # processes started in the same moment are no such thing.
        for replica in replicas:
            ledger.write(
                Event(
                    at=datetime.datetime.now(datetime.UTC),
                    command=command,
                    release_name=deployment.release.name,
                    version=deployment.release.version,
                    kv_name=deployment.release.kv_name,
                    namespace=deployment.namespace,
                    key_space=deployment.key_space,
                    replica=replica.identity.url,
                    process=replica.identity.process,
                    verdict=verdict,
                    reason=reason,
                )
            )
    except KvreleaseError as error:
        return (fault_of(error, where="the ledger"),)
    return ()
