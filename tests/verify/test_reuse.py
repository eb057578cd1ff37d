"""Hits of this release's own entries against the same prompts computed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.report.document import Notes, Table
from kvrelease.report.verify import verify_document
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.evidence import ControlEvidence, Isolation, ReferencePair
from kvrelease.verify.judge import judge
from kvrelease.verify.next_step import Action
from kvrelease.verify.recheck import Cause
from kvrelease.verify.reuse import check_reuse
from tests.verify.builders import clean_probes, evidence, leg, observation, probe, replica


def control(shift: float) -> ControlEvidence:
    return ControlEvidence(legs=(leg(cached=0), leg(shift)), counted_hits=None)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, None), (0.2, None), (0.4, CheckVerdict.NOTE), (2.0, CheckVerdict.FAIL)]
)
def test_what_a_hit_gives_back_is_told_apart_from_kernels_and_from_eight_bits(
    shift: float, verdict: CheckVerdict | None
) -> None:
    # `shift` moves every second candidate: the distance is half of it.
    found = check_reuse(replica((), control=control(shift)))
    assert (None if found is None else found.verdict) is verdict


def test_reference_legs_that_found_something_and_those_of_another_engine_do_not_count() -> None:
    warm = probe(cold=leg(cached=16), clean=[leg(2.0), leg(2.0)])
    assert check_reuse(replica([warm], control=control(0.0))) is None
    cold = probe(cold=leg(cached=0), clean=[leg(2.0), leg(2.0)])
    elsewhere = replica([cold, cold], control=control(0.0), isolation=Isolation.REFERENCE)
    assert check_reuse(elsewhere) is None
    here = check_reuse(replica([cold, cold], control=control(0.0)))
    assert here is not None
    assert here.verdict is CheckVerdict.FAIL


def test_a_run_without_a_control_and_without_hits_says_nothing() -> None:
    assert check_reuse(replica(clean_probes(2), control=None)) is None
    assert check_reuse(replica([probe(clean=())], control=None)) is None


def test_a_cache_that_gives_back_what_was_not_put_in_is_switched_off_and_not_flushed() -> None:
    probes = [probe(f"p{number}", production=[leg(2.0)], clean=[leg(2.0)] * 2) for number in range(12)]
    report = judge(evidence(replica(probes, control=control(2.0))))
    (found,) = report.diagnosis
    assert (report.verdict, found.prefixes, found.cause.cause) == (Verdict.FAIL, (), Cause.REUSE)
    (step,) = found.next_steps
    assert (step.action, step.call) == (Action.DISABLE, "--no-enable-prefix-caching")
    titles = [block.title for block in verify_document(report).blocks if isinstance(block, Table | Notes)]
    assert "Where" not in titles
    assert "Next" in titles


def test_other_weights_come_before_a_cache_that_gives_back_other_entries() -> None:
    pairs = (ReferencePair(probe="p0", witness=observation(2.0)),)
    probes = [probe(f"p{number}", production=[leg(2.0)], clean=[leg(2.0)] * 2) for number in range(12)]
    seen = replace(replica(probes, control=control(2.0)), identity_pairs=pairs, identity_source="golden")
    (found,) = judge(evidence(seen)).diagnosis
    assert [step.action for step in found.next_steps] == [Action.LOAD]
