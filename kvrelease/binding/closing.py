"""How a run on engines ends: interrupted or not, the ledger gets what was learnt, and the report is never lost."""

from __future__ import annotations

import asyncio
import datetime
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


def _everybody(_replica: Replica) -> bool:
    return True


def close_run(
    replicas: Sequence[Replica],
    *,
    deployment: Deployment,
    ledger: Ledger,
    command: str,
    verdict: Verdict | None,
    reason: str,
    ran_the_release: Callable[[Replica], bool] = _everybody,
) -> tuple[Fault, ...]:
    """Writes a run into the ledger: what served where, the verdict, and which prefixes the release computed.

    Args:
        replicas: that were asked.
        deployment: what was asked of them.
        ledger: where to write.
        command: `prewarm`, `record` or `verify`.
        verdict: None for commands that judge nothing.
        reason: one sentence.
        ran_the_release: False for a replica that was seen to run other weights: what it computed is not remembered as
            the release's, or it would explain stale hits later.

    Returns:
        The fault of a ledger that could not be written; the run's own result stands.
    """
    try:
        for replica in replicas:
            if ran_the_release(replica):
                replica.observer.remember()
            ledger.write(
                Event(
                    at=datetime.datetime.now(datetime.UTC),
                    command=command,
                    release_name=deployment.release.name,
                    version=deployment.release.version,
                    kv_name=deployment.release.kv_name,
                    namespace=deployment.namespace,
                    key_space=deployment.salt,
                    replica=replica.identity.url,
                    process=replica.identity.process,
                    verdict=verdict,
                    reason=reason,
                )
            )
    except KvreleaseError as error:
        return (fault_of(error, where="the ledger"),)
    return ()
