"""Saved observations whose parts do not belong together are an input error, never a traceback and never a verdict."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvrelease import artifacts
from kvrelease.artifacts import Fault
from kvrelease.errors import InputError
from kvrelease.verify.evidence import (
    Bisection,
    Calibration,
    Evidence,
    ExposureEvidence,
    FlushEvidence,
    InProcessAnswers,
    Limits,
    Recheck,
    ReferencePair,
    ReplicaEvidence,
)
from kvrelease.verify.judge import judge
from kvrelease.verify.saved import read_evidence
from tests.verify.builders import clean_probes, evidence, leg, observation, probe, replica, stale_probe

SEEN = observation()
PAIR = ReferencePair(probe="p0", witness=SEEN)


def read_again(found: Evidence, tmp_path: Path) -> Evidence:
    artifacts.write(tmp_path / "seen.json", found)
    return read_evidence(tmp_path / "seen.json")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"exposure": (ExposureEvidence(key_space=None, probe="gone", leg=leg()),)}, "exposure names the probe gone"),
        ({"rechecks": (Recheck(probe="gone", leg=leg()),)}, "rechecks names"),
        ({"bisections": (Bisection(probe="gone", prefix="desk", block_tokens=16),)}, "bisections names"),
        ({"in_process": (InProcessAnswers(probe="gone", old=SEEN, stale=SEEN, clean=SEEN),)}, "in_process names"),
        ({"flush": FlushEvidence(probe="gone", cached_before=1, requests_before=1)}, "flush names"),
        ({"identity_pairs": (PAIR,), "identity_source": "none"}, "'none', which is no source"),
        ({"identity_pairs": (PAIR,), "identity_source": "a friend"}, "'a friend', which is no source"),
        ({"calibration": (Calibration(name="u", engine=(), reference=(leg(),)),)}, "no answer of one engine"),
        ({"probes": (replace(probe(), production=()),)}, "no production leg"),
        ({"probes": (probe(), probe())}, "p0 is there twice"),
    ],
)
def test_parts_that_are_not_of_one_run_are_an_input_error(parts: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_again(evidence(msgspec.structs.replace(replica(), **parts)), tmp_path)


def test_limits_that_nothing_can_be_shown_for_and_a_replica_twice_are_too(tmp_path: Path) -> None:
    for limits in (Limits(stale_below=0.0), Limits(stale_below=0.1, confidence=1.0)):
        with pytest.raises(InputError, match="between 0 and 1"):
            read_again(evidence(limits=limits), tmp_path)
    with pytest.raises(InputError, match="twice"):
        read_again(evidence(replica(), replica()), tmp_path)


def test_what_a_run_leaves_is_read_whole(tmp_path: Path) -> None:
    def ranked(rank: int) -> ReplicaEvidence:
        one = replica([*clean_probes(), stale_probe()])
        return replace(one, identity=replace(one.identity, rank=rank, ranks=(0, 1)))

    found = evidence(ranked(0), ranked(1))
    found = replace(found, faults=(Fault(where="elsewhere", exit_code=5, message="it died"),))
    again = read_again(found, tmp_path)
    assert again == found
    assert judge(again).verdict is judge(found).verdict
