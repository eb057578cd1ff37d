"""A baseline alone can show that nothing was upgraded, and never that something was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import Observation
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import Calibration, Isolation, ReferencePair, ReplicaEvidence
from kvrelease.verify.identity import check_identity
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.twins import Twins
from kvrelease.verify.unchanged import EQUAL_NATS
from tests.engines.scripted import ScriptedEngine
from tests.verify.builders import leg, observation, probe, replica
from tests.verify.deployments import TWO_FIFTHS, deployment, recorded, verified
from tests.verify.scenarios.verdicts import check

FAIL, INCONCLUSIVE, NOTE = CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE, CheckVerdict.NOTE
QUIET = NoiseFloor(pairs=4, p50=0.0, max=0.0, quantum=0.01, candidates=20)
NOISY = replace(QUIET, max=0.02)
WEIGHTS = "kvfp1-full/llama.1:"


def against_baseline(
    *witnesses: Observation, floor: NoiseFloor = QUIET, weights_differ: bool | None = True, **fields: object
) -> Check:
    """The check of an engine whose clean answers are all `observation()`, against a baseline with these."""
    pairs = tuple(ReferencePair(probe=f"p{number}", witness=one) for number, one in enumerate(witnesses))
    seen: ReplicaEvidence = replace(
        replica(), **({"old_pairs": pairs, "old_is_alike": True, "weights_differ": weights_differ} | fields)
    )
    return check_identity(seen, floor=floor)


EQUAL = [observation()] * 5


def test_answers_equal_to_the_old_releases_on_every_prompt_fail_where_the_weights_are_known_to_differ() -> None:
    found = against_baseline(*EQUAL)
    assert found.verdict is FAIL
    assert "still answers like the old release" in found.detail
    assert "all 5" in found.detail
    assert "kvrelease record" in found.detail


def test_what_noise_may_explain_and_the_bound_does_not_hide_is_equal_as_well() -> None:
    shifted = [observation(0.03)] * 5  # 0.015 nats: within the noise of this run
    assert against_baseline(*shifted, floor=NOISY).verdict is FAIL
    assert against_baseline(*shifted, floor=QUIET).verdict is INCONCLUSIVE
    # However noisy the run: more than this a step of fine-tuning makes too.
    beyond = [observation(2 * EQUAL_NATS + 0.02)] * 5
    assert against_baseline(*beyond, floor=replace(NOISY, max=0.1)).verdict is INCONCLUSIVE


@pytest.mark.parametrize("weights_differ", [None, False])
def test_equal_answers_prove_nothing_where_the_weights_may_be_the_same(weights_differ: bool | None) -> None:
    found = against_baseline(*EQUAL, weights_differ=weights_differ)
    assert found.verdict is INCONCLUSIVE
    assert "--golden" in found.detail


def test_a_few_prompts_or_few_candidates_do_not_fail_and_do_not_pass() -> None:
    assert against_baseline(*EQUAL[:3]).verdict is INCONCLUSIVE
    few = observation()
    few = replace(few, tokens=tuple(replace(token, top=token.top[:4]) for token in few.tokens))
    assert against_baseline(*[few] * 5).verdict is INCONCLUSIVE


def test_one_prompt_that_differs_is_no_proof_and_the_median_still_does_not_pass() -> None:
    found = against_baseline(*EQUAL, observation(1.0))
    assert found.verdict is INCONCLUSIVE
    assert "5 of 6" in found.detail


def test_answers_that_differ_from_the_old_releases_are_unproven_and_a_note() -> None:
    found = against_baseline(*[observation(0.4)] * 5)
    assert found.verdict is NOTE
    assert "baseline 0.200 nats" in found.detail
    # Of another engine kernels explain as much.
    assert against_baseline(*[observation(0.2)] * 5).verdict is NOTE
    assert against_baseline(*[observation(0.2)] * 5, old_is_alike=False).verdict is INCONCLUSIVE


def test_whoever_knows_the_new_releases_answers_decides() -> None:
    new = tuple(ReferencePair(probe=f"p{number}", witness=observation()) for number in range(5))
    found = against_baseline(*EQUAL, identity_pairs=new, identity_source="golden", identity_is_alike=True)
    assert found.verdict is CheckVerdict.PASS


def test_texts_alone_tell_nothing_of_weights() -> None:
    assert against_baseline(*[observation(logprobs=False)] * 5).verdict is NOTE


def by_way_of(reference: float, engine: float) -> Check:
    """A second engine so far from the baseline, and this one so far from that."""
    unique = Calibration(
        name="u0",
        engine=(leg(engine, cached=0), leg(engine)),
        reference=(leg(cached=0), leg()),
    )
    probes = tuple(probe(f"p{number}", cold=leg(reference, cached=0)) for number in range(5))
    return against_baseline(*EQUAL, isolation=Isolation.REFERENCE, calibration=(unique,), probes=probes)


def test_a_reference_engine_that_answers_like_the_old_release_speaks_of_an_engine_that_answers_like_it() -> None:
    assert by_way_of(0.0, 0.0).verdict is FAIL
    assert "reference engine" in by_way_of(0.0, 0.0).detail
    assert by_way_of(0.0, 0.1).verdict is INCONCLUSIVE
    assert by_way_of(1.0, 0.0).verdict is NOTE
    other = by_way_of(0.0, 1.0)
    assert other.verdict is INCONCLUSIVE
    assert "One of the two engines" in other.detail


def test_an_engine_that_was_never_reloaded_fails_by_its_baseline_alone_and_a_reloaded_one_passes() -> None:
    old, new = deployment("old", weights=f"{WEIGHTS}01"), deployment("new", weights=f"{WEIGHTS}02")
    with ScriptedEngine(release="old") as engine:
        twins = Twins(baseline=recorded(engine, deployed=old))
        assert twins.baseline is not None
        assert twins.baseline.weights == f"{WEIGHTS}01"
        report = verified(engine, deployed=new, limits=TWO_FIFTHS, twins=twins)
        assert (report.verdict, check(report, CheckId.IDENTITY).verdict) == (Verdict.FAIL, FAIL)
        # Who recorded it did not say which weights: then it is not proved, and does not pass.
        nameless = Twins(baseline=replace(twins.baseline, weights=None))
        report = verified(engine, deployed=new, limits=TWO_FIFTHS, twins=nameless)
        assert check(report, CheckId.IDENTITY).verdict is INCONCLUSIVE
        engine.reload("new", reset=True)
        report = verified(engine, deployed=new, limits=TWO_FIFTHS, twins=twins)
        assert report.verdict is Verdict.PASS, report.reason
