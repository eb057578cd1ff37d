"""Production legs against clean ones: one probe at a time, then error rates by simulation."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import GeneratedToken, Observation, TopLogprob
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict, judge_probes
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.judge import judge
from kvrelease.verify.noise import NoiseFloor, noise_floor
from kvrelease.verify.peers import PEERS
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, MAX_REPEATED, REPEATS
from kvrelease.verify.suspicion import WRITTEN_APART_NATS, clean_twin, is_suspect, threshold_nats, widened
from kvrelease.verify.weighing import is_proven
from tests.verify.builders import BASE, PROMPT_TOKENS, leg, observation, probe, repeats, stale_probe
from tests.verify.simulation import Noise, batches, bursty, gaussian, observed_run, quiet, rates, rounded

QUIET = NoiseFloor(pairs=40, p50=0.0, max=0.0, quantum=0.01, apart=40)
NOISY = NoiseFloor(pairs=40, p50=0.01, max=0.02, quantum=0.01, apart=40)
UNMEASURED = NoiseFloor(pairs=0, p50=None, max=None, quantum=0.01)
BF16 = NoiseFloor(pairs=40, p50=0.0, max=0.0, quantum=0.125, apart=40)

# One candidate, one step of 0.125 beside.
ONE_QUANTUM = [0.125, *(0.0 for _ in BASE[1:])]


def judged(*probes: ProbeEvidence, floor: NoiseFloor = QUIET) -> list[ProbeJudgement]:
    return list(judge_probes(probes, floor=floor, replica="here"))


def verdicts(*probes: ProbeEvidence, floor: NoiseFloor = QUIET) -> list[ProbeVerdict]:
    return [one.verdict for one in judged(*probes, floor=floor)]


def test_a_difference_that_reproduces_in_fresh_legs_is_stale_and_tells_how_sure_it_is() -> None:
    assert verdicts(stale_probe()) == [ProbeVerdict.STALE]
    assert verdicts(stale_probe(), floor=NOISY) == [ProbeVerdict.STALE]
    (found,) = judged(stale_probe())
    assert found.p == pytest.approx(2 / 12870)
    assert "8 of 8 fresh legs above the threshold, p = 0.0002, excess 0.3000" in found.detail
    assert is_proven(stale_probe(), QUIET)


def test_a_difference_within_three_times_the_floor_is_clean() -> None:
    assert threshold_nats(NOISY) == pytest.approx(0.06)
    assert verdicts(stale_probe(shift=0.11), floor=NOISY) == [ProbeVerdict.CLEAN]
    assert verdicts(stale_probe(shift=0.13), floor=NOISY) == [ProbeVerdict.STALE]


def test_a_difference_that_was_not_repeated_is_suspect_and_never_clean() -> None:
    assert verdicts(probe(production=[leg(0.6)])) == [ProbeVerdict.SUSPECT]
    assert verdicts(probe(production=[leg(0.6)] * 9)) == [ProbeVerdict.SUSPECT], "screening legs prove nothing"


def test_too_few_fresh_legs_to_exclude_chance_are_no_proof() -> None:
    for legs in range(2, REPEATS):
        assert verdicts(stale_probe(legs=legs)) == [ProbeVerdict.SUSPECT], legs


def test_a_suspect_whose_difference_is_gone_in_the_fresh_legs_is_clean() -> None:
    # 0.1 nats, of which noise explains 0.12 in a leg that stands alone (test_clearing has what else it takes).
    gone = probe(production=[leg(0.2)], repeats=repeats(*[leg()] * LEGS_THAT_CLEAR))
    assert verdicts(gone, floor=NOISY) == [ProbeVerdict.CLEAN]
    assert "in none of the legs" in judged(gone, floor=NOISY)[0].detail
    fewer = probe(production=[leg(0.2)], repeats=repeats(*[leg()] * (LEGS_THAT_CLEAR - 1)))
    assert verdicts(fewer, floor=NOISY) == [ProbeVerdict.SUSPECT]


def test_a_difference_in_some_fresh_legs_is_suspect_one_replica_of_several_may_answer_there() -> None:
    some = probe(production=[leg(0.6)], repeats=repeats(leg(0.6), *[leg()] * (REPEATS - 1)))
    assert verdicts(some) == [ProbeVerdict.SUSPECT]
    half = probe(production=[leg(0.6)], repeats=repeats(*[leg(0.6), leg()] * (REPEATS // 2)))
    assert verdicts(half) == [ProbeVerdict.SUSPECT]


def test_noise_that_both_kinds_of_leg_show_is_no_staleness() -> None:
    both = [leg(0.6), leg()] * (REPEATS // 2)
    found = probe(production=[leg(0.6)], repeats=repeats(*both, clean=both))
    assert verdicts(found) == [ProbeVerdict.CLEAN]


def test_a_first_leg_that_missed_does_not_clear_the_hits_after_it() -> None:
    # The first request found nothing (a block was evicted, a tier answered late); what users get next is stale.
    fresh = repeats(*[leg(0.6)] * REPEATS)
    (found,) = judged(probe(production=[leg(cached=0), leg(0.6)], repeats=fresh))
    assert found.verdict is ProbeVerdict.STALE
    assert found.distance == pytest.approx(0.3)
    assert found.cached_tokens == 192


def test_a_later_leg_makes_a_probe_suspect_too() -> None:
    assert is_suspect(probe(production=[leg(cached=0), leg(0.6)]), QUIET)
    assert not is_suspect(probe(production=[leg(cached=0), leg()]), QUIET)


def test_like_is_compared_with_like() -> None:
    found = probe(production=[leg(cached=0), leg()], cold=leg(0.2, cached=0), clean=[leg(0.4), leg(0.6)])
    assert clean_twin(found, 0) == observation(0.2)
    assert clean_twin(found, 1) == observation(0.4)
    assert clean_twin(probe(clean=[]), 0) == leg(cached=0).observation
    no_cold = ProbeEvidence(id="p", prefix="d", weight=1.0, production=(leg(cached=0),))
    assert clean_twin(no_cold, 0) is None
    assert verdicts(no_cold) == [ProbeVerdict.UNJUDGED]


@pytest.mark.parametrize(
    ("nats", "clean_hits", "expected"),
    [(0.2, 0, ProbeVerdict.SUSPECT), (0.2, 64, ProbeVerdict.STALE), (0.8, 0, ProbeVerdict.STALE)],
)
def test_hits_that_stand_against_misses_prove_only_what_no_cached_format_explains(
    nats: float, clean_hits: int, expected: ProbeVerdict
) -> None:
    clean = leg(cached=clean_hits)
    probes = [
        probe(
            f"p{number}",
            prefix=f"desk-{number}",
            production=[leg(nats)],
            cold=leg(cached=0),
            clean=[clean],
            repeats=repeats(*[leg(nats)] * REPEATS, clean=[clean] * REPEATS),
        )
        for number in range(3)
    ]
    assert verdicts(*probes) == [expected] * 3


def test_of_more_suspects_than_the_error_rate_is_shared_among_the_worst_are_tested() -> None:
    # An engine that a reference leg heals has repeats of every suspect.
    many = [stale_probe(f"p{number}", 0.6 + number / 10, prefix=f"d{number}") for number in range(MAX_REPEATED + 4)]
    found = judged(*many)
    assert [one.verdict for one in found] == [ProbeVerdict.SUSPECT] * 4 + [ProbeVerdict.STALE] * MAX_REPEATED
    assert "was not tested" in found[0].detail
    gone = [
        probe(f"g{number}", production=[leg(0.2)], prefix=f"e{number}", repeats=repeats(*[leg()] * REPEATS))
        for number in range(MAX_REPEATED + 4)
    ]
    assert set(verdicts(*gone, floor=NOISY)) == {ProbeVerdict.CLEAN}, "letting one go is no test"


def test_one_quantum_is_no_proof_and_is_where_no_entry_written_again_shows_it_under_three_prefixes() -> None:
    weak = [stale_probe(f"p{number}", ONE_QUANTUM, prefix=f"d{number}") for number in range(3)]
    assert verdicts(*weak, floor=BF16) == [ProbeVerdict.SUSPECT] * 3
    ranked = [replace(one, peers=(leg(),) * PEERS[3]) for one in weak]
    assert verdicts(*ranked, floor=BF16) == [ProbeVerdict.STALE] * 3
    assert "more shared prefixes than chance" in judged(*ranked, floor=BF16)[0].detail


def test_questions_under_one_prefix_share_its_entry_and_count_once() -> None:
    # How one entry was written moves all of them alike.
    weak = [stale_probe(f"p{number}", ONE_QUANTUM, prefix="one") for number in range(6)]
    assert set(verdicts(*weak, floor=BF16)) == {ProbeVerdict.SUSPECT}


def test_two_quanta_on_one_probe_are_proof() -> None:
    assert verdicts(stale_probe(shift=[0.25] * 10 + [0.0] * 10), floor=BF16) == [ProbeVerdict.STALE]


def test_a_difference_as_small_as_other_company_makes_is_no_proof_under_one_prefix() -> None:
    small = 2 * (WRITTEN_APART_NATS - 0.005)  # every second candidate moves
    assert verdicts(stale_probe(shift=small)) == [ProbeVerdict.SUSPECT]
    assert verdicts(stale_probe(shift=2 * (WRITTEN_APART_NATS + 0.005))) == [ProbeVerdict.STALE]


@pytest.mark.parametrize(("candidates", "expected"), [(20, ProbeVerdict.STALE), (5, ProbeVerdict.SUSPECT)])
def test_over_few_candidates_how_an_entry_was_written_moves_an_answer_more(
    candidates: int, expected: ProbeVerdict
) -> None:
    found = stale_probe(shift=2 * (WRITTEN_APART_NATS + 0.005))
    assert verdicts(found, floor=replace(QUIET, candidates=candidates)) == [expected]


def test_without_a_measured_floor_nothing_is_proven_stale_and_nothing_that_differs_is_clean() -> None:
    found = judged(stale_probe(), floor=UNMEASURED)
    assert found[0].verdict is ProbeVerdict.SUSPECT
    assert "no clean pair" in found[0].detail
    assert verdicts(probe(), floor=UNMEASURED) == [ProbeVerdict.CLEAN]


SILENT, OTHER = observation(logprobs=False), observation(texts=("z",), logprobs=False)


def by_text(name: str = "p", *, again: Observation = OTHER, prefix: str = "desk") -> ProbeEvidence:
    """A probe of a server without log-probabilities whose production leg is another text."""
    clean = [leg(seen=SILENT)] * REPEATS
    return probe(
        name,
        prefix=prefix,
        production=[leg(seen=OTHER)],
        cold=leg(seen=SILENT, cached=0),
        clean=clean[:1],
        repeats=repeats(*[leg(seen=again)] * REPEATS, clean=clean),
    )


def test_without_log_probabilities_neither_equal_texts_nor_other_ones_prove_anything() -> None:
    same = probe(production=[leg(seen=SILENT)], cold=leg(seen=SILENT, cached=0), clean=[leg(seen=SILENT)])
    assert verdicts(same, floor=UNMEASURED) == [ProbeVerdict.UNJUDGED]
    # What a near-tie, flipped by how the entry was written, does to every leg as well.
    (found,) = judged(by_text(), floor=UNMEASURED)
    assert found.verdict is ProbeVerdict.SUSPECT
    assert "no log-probabilities" in found.detail
    assert not is_proven(by_text(), UNMEASURED)


def test_another_text_once_and_equal_ones_after_it_prove_nothing_either() -> None:
    (found,) = judged(by_text(again=SILENT), floor=UNMEASURED)
    assert found.verdict is ProbeVerdict.UNJUDGED


def test_one_leg_without_log_probabilities_is_no_proof_by_its_text() -> None:
    legs = [leg(0.6)] * (REPEATS - 1)
    some = probe(production=[leg(0.6)], repeats=repeats(*legs, leg(seen=OTHER)))
    assert verdicts(some) == [ProbeVerdict.SUSPECT]


def told(logprob: float, *, text: str = "a") -> Observation:
    """Of a server that tells one candidate of each token."""
    only = GeneratedToken(token=text, logprob=logprob, top=(TopLogprob(token=text, logprob=logprob),))
    return Observation(text=text, tokens=(only,), prompt_tokens=PROMPT_TOKENS, total_s=0.1)


def one_candidate(production: Observation, clean: Observation) -> ProbeEvidence:
    return probe(
        production=[leg(seen=production)],
        cold=leg(seen=clean, cached=0),
        clean=[leg(seen=clean)],
        repeats=repeats(*[leg(seen=production)] * REPEATS, clean=[leg(seen=clean)] * REPEATS),
    )


def test_of_one_candidate_each_another_token_is_never_clean() -> None:
    (found,) = judged(one_candidate(told(-0.8, text="b"), told(-0.8)), floor=replace(QUIET, quantum=None))
    assert (found.distance, found.verdict) == (0.0, ProbeVerdict.SUSPECT)
    assert "no log-probabilities that tell by how much" in found.detail


def test_of_one_candidate_each_what_the_other_lacks_for_certain_is_proof() -> None:
    certain = one_candidate(told(-0.1, text="b"), told(-0.1))
    assert verdicts(certain, floor=replace(QUIET, quantum=None)) == [ProbeVerdict.STALE]


def test_one_step_of_logits_is_no_proof_where_no_list_tells_how_large_a_step_is() -> None:
    step, more = (one_candidate(told(-0.5 - by), told(-0.5)) for by in (0.125, 0.25))
    assert verdicts(step, floor=replace(QUIET, quantum=None)) == [ProbeVerdict.SUSPECT]
    assert verdicts(more, floor=replace(QUIET, quantum=None)) == [ProbeVerdict.STALE]


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


@pytest.mark.parametrize("seed", [45, 49, 117, 147, 218, 280])
def test_entries_of_another_kernel_are_no_proof_though_pairs_of_one_entry_agree(seed: int) -> None:
    # No entry that was written once more came from that kernel; in these runs users' did, under all three prefixes.
    report = judge(observed_run(seed, noise=quiet, written=batches(0.02)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.noise_floor.apart == 8


@pytest.mark.parametrize("noise", [quiet, gaussian(0.005), batches(0.02)], ids=["quiet", "gaussian", "batches"])
def test_one_step_of_fine_tuning_is_never_missed_on_a_quiet_engine(noise: Noise) -> None:
    # 0.06 nats: the median of stale against clean after one step (docs/statistics.md).
    assert rates(RUNS, noise=noise, stale_nats=0.06)[Verdict.PASS] == 0.0


def test_staleness_below_the_noise_may_pass_and_is_what_power_is_for() -> None:
    assert rates(RUNS, noise=gaussian(0.02), stale_nats=0.03)[Verdict.PASS] > 0.5


def test_the_floor_of_a_run_that_is_stale_everywhere_is_still_clean() -> None:
    assert noise_floor([stale_probe()]).max == 0.0
