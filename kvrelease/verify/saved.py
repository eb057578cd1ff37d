"""Saved observations, read again for `--from`: a file that was cut, merged or edited is told, and not judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kvrelease import artifacts
from kvrelease.errors import InputError
from kvrelease.verify.evidence import Evidence, Limits, ReplicaEvidence


def read_evidence(path: Path) -> Evidence:
    """The evidence that a run saved with `--observations`.

    Raises:
        InputError: it is no such file, or its parts do not belong together.
    """
    evidence = artifacts.read(path, Evidence)
    amiss = what_is_amiss(evidence)
    if amiss is not None:
        raise InputError(
            f"reading {path}: {amiss}, so its parts are not of one run",
            hint="judge the file as kvrelease wrote it; to have less of a run, run it with fewer --probes",
        )
    return evidence


def what_is_amiss(evidence: Evidence) -> str | None:
    """What no run leaves behind, one clause; None where nothing is."""
    found = _of_limits(evidence.limits)
    if found is not None:
        return found
    shown = [replica.identity.shown for replica in evidence.replicas]
    if twice := _first_repeated(shown):
        return f"the replica {twice} is there twice"
    amiss = (_of_replica(replica) for replica in evidence.replicas)
    return next((f"{name}: {what}" for name, what in zip(shown, amiss, strict=True) if what is not None), None)


def _of_limits(limits: Limits) -> str | None:
    for name, share in (("confidence", limits.confidence), ("stale_below", limits.stale_below)):
        if not 0 < share < 1:
            return f"limits.{name} is {share}, and lies between 0 and 1"
    return None


def _of_replica(replica: ReplicaEvidence) -> str | None:
    ids = [probe.id for probe in replica.probes]
    if twice := _first_repeated(ids):
        return f"the probe {twice} is there twice"
    for probe in replica.probes:
        if not probe.production:
            return f"the probe {probe.id} has no production leg"
    known = set(ids)
    for part, named in _named_probes(replica):
        if (stranger := next((name for name in named if name not in known), None)) is not None:
            return f"{part} names the probe {stranger}, which is not there"
    if not all(one.engine and one.reference for one in replica.calibration):
        return "a unique prompt of calibration has no answer of one engine"
    if replica.identity_pairs and replica.identity_source not in ("golden", "release"):
        return f"identity_pairs are from {replica.identity_source!r}, which is no source of them"
    return None


def _named_probes(replica: ReplicaEvidence) -> Iterable[tuple[str, Iterable[str]]]:
    """Each part that is about probes, and those that it names."""
    yield "exposure", (one.probe for one in replica.exposure)
    yield "lookups", (one.probe for one in replica.lookups)
    yield "bisections", (one.probe for one in replica.bisections)
    yield "in_process", (one.probe for one in replica.in_process)
    yield "rechecks", (one.probe for one in replica.rechecks)
    if replica.flush is not None:
        yield "flush", (replica.flush.probe,)


def _first_repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
