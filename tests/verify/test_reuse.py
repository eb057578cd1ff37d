"""Hits of this release's own entries against the same prompts computed."""

from __future__ import annotations

import pytest

from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.evidence import ControlEvidence, Isolation
from kvrelease.verify.reuse import check_reuse
from tests.verify.builders import clean_probes, leg, probe, replica


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
