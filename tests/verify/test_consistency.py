"""Production legs against clean ones: one probe at a time, then error rates by simulation."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.verify.consistency import (
    LEGS_THAT_PROVE,
    ProbeJudgement,
    ProbeVerdict,
    clean_twin,
    is_suspect,
    judge_probes,
    threshold_nats,
    widened,
)
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import NoiseFloor, noise_floor
from tests.verify.builders import BASE, leg, observation, probe
from tests.verify.simulation import Noise, batches, bursty, gaussian, quiet, rates, rounded

QUIET = NoiseFloor(pairs=4, p50=0.0, max=0.0, quantum=0.01)
NOISY = NoiseFloor(pairs=4, p50=0.01, max=0.02, quantum=0.01)
UNMEASURED = NoiseFloor(pairs=0, p50=None, max=None, quantum=0.01)
BF16 = NoiseFloor(pairs=4, p50=0.0, max=0.0, quantum=0.125)

# One candidate, one step of 0.125 beside.
ONE_QUANTUM = [0.125, *(0.0 for _ in BASE[1:])]


def judged(*probes: ProbeEvidence, floor: NoiseFloor = QUIET) -> list[ProbeJudgement]:
    return list(judge_probes(probes, floor=floor, replica="here", old={}))


def verdicts(*probes: ProbeEvidence, floor: NoiseFloor = QUIET) -> list[ProbeVerdict]:
    return [one.verdict for one in judged(*probes, floor=floor)]


def stale(name: str = "p0", shift: float | list[float] = 0.6) -> ProbeEvidence:
    return probe(name, production=[leg(shift) for _ in range(LEGS_THAT_PROVE)])


def test_a_difference_in_every_repeat_is_stale() -> None:
    assert verdicts(stale()) == [ProbeVerdict.STALE]
    assert verdicts(stale(), floor=NOISY) == [ProbeVerdict.STALE]


def test_a_difference_within_three_times_the_floor_is_clean() -> None:
    assert threshold_nats(NOISY) == pytest.approx(0.06)
    assert verdicts(stale(shift=0.11), floor=NOISY) == [ProbeVerdict.CLEAN]
    assert verdicts(stale(shift=0.13), floor=NOISY) == [ProbeVerdict.STALE]


def test_a_difference_that_was_not_repeated_is_suspect_and_never_clean() -> None:
    for count in range(1, LEGS_THAT_PROVE):
        assert verdicts(probe(production=[leg(0.6)] * count)) == [ProbeVerdict.SUSPECT]


def test_a_difference_that_does_not_reproduce_is_suspect_and_never_stale() -> None:
    assert verdicts(probe(production=[leg(0.6), leg(), leg(0.6), leg(0.6)])) == [ProbeVerdict.SUSPECT]
    assert verdicts(probe(production=[leg(), leg(), leg(0.6), leg()])) == [ProbeVerdict.SUSPECT]


def test_a_first_leg_that_missed_does_not_clear_the_hits_after_it() -> None:
    # The first request found nothing (a block was evicted, a tier answered late); what users get next is stale.
    found = judged(probe(production=[leg(cached=0), *(leg(0.6) for _ in range(LEGS_THAT_PROVE))]))
    assert found[0].verdict is ProbeVerdict.STALE
    assert found[0].distance == pytest.approx(0.3)
    assert found[0].cached_tokens == 192


def test_a_later_leg_makes_a_probe_suspect_too() -> None:
    assert is_suspect(probe(production=[leg(cached=0), leg(0.6)]), QUIET)
    assert not is_suspect(probe(production=[leg(cached=0), leg()]), QUIET)


def test_like_is_compared_with_like() -> None:
    found = probe(production=[leg(cached=0), leg()], cold=leg(0.2, cached=0), clean=[leg(0.4), leg(0.6)])
    assert clean_twin(found, 0) == observation(0.2)
    assert clean_twin(found, 1) == observation(0.6)
    assert clean_twin(probe(clean=[]), 0) == leg(cached=0).observation
    no_cold = ProbeEvidence(id="p", prefix="d", weight=1.0, production=(leg(cached=0),))
    assert clean_twin(no_cold, 0) is None
    assert verdicts(no_cold) == [ProbeVerdict.UNJUDGED]


def test_an_odd_clean_hit_disturbs_one_comparison_and_fails_nobody() -> None:
    clean = [leg(0.6), *(leg() for _ in range(LEGS_THAT_PROVE - 1))]
    assert verdicts(probe(production=[leg() for _ in range(LEGS_THAT_PROVE)], clean=clean)) == [ProbeVerdict.SUSPECT]


def test_one_quantum_on_one_probe_is_no_proof_and_on_two_it_is() -> None:
    weak = [stale(f"p{number}", ONE_QUANTUM) for number in range(2)]
    assert verdicts(weak[0], probe("p9"), floor=BF16) == [ProbeVerdict.SUSPECT, ProbeVerdict.CLEAN]
    assert verdicts(*weak, floor=BF16) == [ProbeVerdict.STALE, ProbeVerdict.STALE]


def test_two_quanta_on_one_probe_are_proof() -> None:
    two = [0.25, *(0.0 for _ in BASE[1:])]
    assert verdicts(stale(shift=two), floor=BF16) == [ProbeVerdict.STALE]


def test_without_a_measured_floor_nothing_is_proven_stale_and_nothing_that_differs_is_clean() -> None:
    found = judged(stale(), floor=UNMEASURED)
    assert found[0].verdict is ProbeVerdict.SUSPECT
    assert "no clean pair" in found[0].detail
    assert verdicts(probe(), floor=UNMEASURED) == [ProbeVerdict.CLEAN]


def test_without_log_probabilities_equal_texts_prove_nothing_and_other_texts_do() -> None:
    silent, other = observation(logprobs=False), observation(texts=("z",), logprobs=False)
    clean = [leg(seen=silent)] * LEGS_THAT_PROVE
    same = probe(production=[leg(seen=silent)], cold=leg(seen=silent, cached=0), clean=clean)
    assert verdicts(same, floor=UNMEASURED) == [ProbeVerdict.UNJUDGED]
    differs = probe(production=[leg(seen=other)] * LEGS_THAT_PROVE, cold=leg(seen=silent, cached=0), clean=clean)
    assert verdicts(differs, floor=UNMEASURED) == [ProbeVerdict.STALE]


def test_a_failure_says_whether_the_answer_is_closer_to_the_old_release() -> None:
    old = {"p0": observation(0.7)}
    (found,) = judge_probes((stale(),), floor=QUIET, replica="here", old=old)
    assert found.closer_to == "old"
    (found,) = judge_probes((stale(shift=0.1),), floor=QUIET, replica="here", old=old)
    assert found.closer_to == "new"
    assert judged(stale())[0].closer_to is None


def test_a_reference_of_another_kind_widens_the_floor_to_the_bound_between_kernels() -> None:
    assert threshold_nats(widened(QUIET, to_threshold=0.35)) == pytest.approx(0.35)
    loud = NoiseFloor(pairs=1, p50=1.0, max=1.0, quantum=None)
    assert widened(loud, to_threshold=0.35).max == 1.0


# --- error rates ----------------------------------------------------------------------------------------------------

RUNS = 25  # in 4,200 clean runs of 14 such models, run by hand, none failed


@pytest.mark.parametrize(
    "noise",
    [quiet, gaussian(0.005), bursty(0.01), batches(0.02), batches(0.02, share=0.03), rounded(share=0.002)],
    ids=["quiet", "gaussian", "bursty", "batches", "rare batches", "bf16"],
)
def test_clean_noisy_engines_never_fail(noise: Noise) -> None:
    assert rates(RUNS, noise=noise)[Verdict.FAIL] == 0.0


@pytest.mark.parametrize("noise", [quiet, gaussian(0.005), batches(0.02)], ids=["quiet", "gaussian", "batches"])
def test_one_step_of_fine_tuning_is_never_missed_on_a_quiet_engine(noise: Noise) -> None:
    # 0.06 nats: the median of stale against clean after one step (docs/statistics.md).
    assert rates(RUNS, noise=noise, stale_nats=0.06)[Verdict.PASS] == 0.0


def test_staleness_below_the_noise_may_pass_and_is_what_power_is_for() -> None:
    assert rates(RUNS, noise=gaussian(0.02), stale_nats=0.03)[Verdict.PASS] > 0.5


def test_the_floor_of_a_run_that_is_stale_everywhere_is_still_clean() -> None:
    assert noise_floor([stale()]).max == 0.0
