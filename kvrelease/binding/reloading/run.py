"""Loads a release in place of another on every replica, one after the other, and writes down what serves where."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from kvrelease.artifacts import Fault, fault_of
from kvrelease.binding.reloading.drive import Drive, Witness
from kvrelease.binding.reloading.plan import Ending, may_have_swapped
from kvrelease.binding.reloading.ready import Ready, all_ready, ready
from kvrelease.binding.reloading.result import (
    Reloading,
    ReloadReport,
    ReplicaReload,
    whole_reason,
    whole_verdict,
)
from kvrelease.binding.unready import Unready
from kvrelease.engines.base import EngineClient, EngineIdentity
from kvrelease.engines.gate import GateState
from kvrelease.errors import KvreleaseError
from kvrelease.ledger.records import Event
from kvrelease.ledger.store import Ledger
from kvrelease.progress import Progress, silent

_COMMAND = "reload"


async def reload(
    engines: Sequence[EngineClient | Unready],
    *,
    reloading: Reloading,
    token: str,
    witness: Callable[[EngineIdentity, GateState], Witness | None],
    ledger: Ledger,
    is_dry: bool = False,
    progress: Progress = silent,
) -> ReloadReport:
    """Reloads every replica, one after the other, and stops at the first that does not end with the new release.

    All are asked first whether anything speaks against it; until then nothing is changed.

    Args:
        engines: open.
        reloading: what is to be done.
        token: controls every replica's gate; never repeated.
        witness: of each replica, by who it is and what its gate says; None where there is nothing to ask.
        ledger: learns what served where.
        is_dry: stop after asking.
        progress: called at each step.

    Raises:
        UsageError: a replica cannot be reloaded in place.
        ServiceError: one did not answer properly; nothing was changed.
    """
    found_ready = [await ready(engine, reloading=reloading, token=token) for engine in all_ready(engines)]
    replicas: list[ReplicaReload] = []
    faults: tuple[Fault, ...] = ()
    interrupted = False
    for one in found_ready:
        if is_dry:
            replicas.append(_untouched(one, reloading=reloading))
            continue
        asked = witness(one.identity, one.gate)
        async with one.engine.gate(token=token) as gate:
            drive = Drive(one, gate=gate, reloading=reloading, witness=asked, progress=progress)
            found = await drive.run()
        replicas.append(found)
        interrupted = drive.was_interrupted
        faults += drive.faults + _written(found, drive=drive, one=one, reloading=reloading, ledger=ledger)
        if found.ending is not Ending.NEW or interrupted:
            break
    left = tuple(one.identity.shown for one in found_ready[len(replicas) :])
    return ReloadReport(
        release=reloading.release,
        namespace=reloading.namespace,
        replicas=tuple(replicas),
        not_reached=left,
        verdict=None if is_dry else whole_verdict(replicas, left=left),
        reason=whole_reason(replicas, left=left, is_dry=is_dry),
        interrupted=interrupted,
        faults=faults,
    )


def _untouched(one: Ready, *, reloading: Reloading) -> ReplicaReload:
    return ReplicaReload(
        url=one.identity.shown,
        old_namespace=one.gate.namespace,
        new_namespace=reloading.namespace,
        gate=one.gate.state,
        reason=f"nothing speaks against it; {one.gate.in_flight} requests are in flight",
    )


_NOT_KNOWN = "not known"  # of a namespace that another ledger made


def _written(
    found: ReplicaReload, *, drive: Drive, one: Ready, reloading: Reloading, ledger: Ledger
) -> tuple[Fault, ...]:
    """Writes what served where: the old namespace's end and the new one's beginning. The fault, if it cannot be."""
    identity, release = one.identity, reloading.release
    changes = found.old_namespace != found.new_namespace
    try:
        if may_have_swapped(drive.taken) and identity.process is not None:
            # Entries of this process may be anybody's now, and a hit that is not explained is looked into.
            ledger.forget(replica=identity.url, process=identity.process)
        if found.ending is Ending.NEW and changes:
            old = next((one for one in ledger.events() if one.namespace == found.old_namespace), None)
            ledger.write(
                Event(
                    at=datetime.datetime.now(datetime.UTC),
                    command=_COMMAND,
                    release_name=old.release_name if old is not None else _NOT_KNOWN,
                    version=old.version if old is not None else None,
                    kv_name=old.kv_name if old is not None else None,
                    namespace=found.old_namespace,
                    key_space=found.old_namespace,
                    replica=identity.url,
                    process=identity.process,
                    reason=f"ended here: {found.new_namespace} took its place",
                )
            )
        ledger.write(
            Event(
                at=datetime.datetime.now(datetime.UTC),
                command=_COMMAND,
                release_name=release.name,
                version=release.version,
                kv_name=release.kv_name,
                namespace=found.new_namespace,
                key_space=found.new_namespace if found.ending is Ending.NEW else None,
                replica=identity.url,
                process=identity.process,
                verdict=found.verdict,
                reason=found.reason,
            )
        )
    except KvreleaseError as error:
        return (fault_of(error, where="the ledger"),)
    return ()
