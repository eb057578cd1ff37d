"""The verdict on whole runs, from pure evidence."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvrelease import artifacts
from kvrelease.artifacts import Fault, Verdict
from kvrelease.binding.ranks import RankProof
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.evidence import (
    Evidence,
    Isolation,
    Limits,
    PowerPair,
    ProbeEvidence,
    ReferencePair,
    ReplicaEvidence,
)
from kvrelease.verify.judge import VerifyReport, judge
from tests.verify.builders import (
    BOUND,
    CACHED_TOKENS,
    URL,
    clean_probes,
    evidence,
    identity,
    leg,
    observation,
    probe,
    replica,
    stale_probe,
)

STALE = stale_probe()


def verdict_of(report: VerifyReport, check: CheckId) -> CheckVerdict:
    (found,) = [one.verdict for one in report.checks if one.id is check]
    return found


def test_a_clean_bound_run_passes_and_states_its_claim() -> None:
    report = judge(evidence())
    assert report.verdict is Verdict.PASS
    assert report.reason.startswith("with confidence 95%, fewer than 25% of requests meet a stale prefix")
    assert report.binding.bound
    assert (report.stale.count, report.stale.of, report.prefixes) == (0, 12, 3)
    assert 0 < report.stale.upper < 0.25


def test_suspects_may_all_be_stale_as_far_as_the_interval_goes() -> None:
    suspect = [probe(f"s{number}", production=[leg(0.6)]) for number in range(8)]
    stale = judge(evidence(replica([*suspect, *(replace(STALE, id=f"x{number}") for number in range(3))]))).stale
    assert (stale.count, stale.suspect, stale.of, stale.upper) == (3, 8, 11, 1.0)
    assert stale.lower == pytest.approx(0.0602, abs=1e-4)  # scipy.stats.binomtest(3, 11), as before
    assert judge(evidence(replica([*suspect, *clean_probes(3)]))).stale.upper == pytest.approx(0.9398, abs=1e-4)


def test_replicas_that_were_sent_the_same_probes_are_no_larger_sample() -> None:
    one, two = replica(url="http://a"), replica(clean_probes(6), url="http://b")
    stale = judge(evidence(one, two)).stale
    assert (stale.of, stale.replica) == (6, "http://b")
    assert stale.upper == judge(evidence(two)).stale.upper


def test_prompts_too_short_to_probe_are_not_part_of_the_claim() -> None:
    report = judge(evidence(skipped=("short",)))
    assert "the 11 prompts of the set that are long enough" in report.claim.population
    assert report.skipped == ("short",)


@pytest.mark.parametrize(
    ("run", "check"),
    [
        (evidence(replica([*clean_probes(), STALE])), CheckId.CONSISTENCY),
        (evidence(replica([probe(production=[leg(foreign=9)])], is_fresh=True)), CheckId.FIRST_TOUCH),
        (evidence(replica(binding=replace(BOUND, fresh_salt=leg()))), CheckId.BINDING),
        (
            evidence(replica([*clean_probes(), probe("d", production=[leg(seen=observation(texts=("!",) * 8))])])),
            CheckId.DEGENERATE,
        ),
    ],
)
def test_any_failed_check_fails_the_gate_and_is_named(run: Evidence, check: CheckId) -> None:
    report = judge(run)
    assert report.verdict is Verdict.FAIL
    assert str(check) in report.reason
    assert judge(replace(run, interrupted=True)).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (evidence(interrupted=True), "ended before all evidence"),
        (evidence(replica(control=None)), "control"),
        (evidence(replica(isolation=Isolation.NONE)), "bypass"),
        (evidence(replica(clean_probes(3))), "consistency"),
        (evidence(replica([])), "first-touch"),
        (replace(evidence(), replicas=()), "no replica was observed"),
        (evidence(replica([probe(production=[leg(cached=None)])])), "first-touch"),
        (evidence(limits=Limits(stale_below=0.25, requires_power=True)), "power"),
        (evidence(limits=Limits(stale_below=0.05)), "consistency"),
    ],
)
def test_missing_evidence_is_inconclusive_never_a_pass(run: Evidence, words: str) -> None:
    report = judge(run)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert words in report.reason


def test_clean_answers_that_disagree_hide_nothing() -> None:
    # The "clean" hits are not the cold answer: noise, or a layer below the reference's keys that serves old entries.
    contaminated = [probe(f"p{n}", production=[leg(0.6)], clean=[leg(0.6), leg(0.6)]) for n in range(12)]
    assert judge(evidence(replica(contaminated))).verdict is Verdict.INCONCLUSIVE
    known = PowerPair(probe="p0", stale=observation(0.6), clean=observation())
    assert judge(replace(evidence(replica(contaminated)), power=(known,))).verdict is Verdict.INCONCLUSIVE


def test_power_below_the_floor_is_inconclusive_unless_first_touch_decided() -> None:
    weak = PowerPair(probe="p0", stale=observation(), clean=observation())
    report = judge(replace(evidence(), power=(weak,)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert (report.power.status, report.power.stale_clean_distance) == ("below-floor", 0.0)
    strong = judge(replace(evidence(), power=(replace(weak, stale=observation(0.6)),)))
    assert (strong.verdict, strong.power.status) == (Verdict.PASS, "sufficient")
    dirty = evidence(replica([probe(production=[leg(foreign=9)])], is_fresh=True))
    assert verdict_of(judge(replace(dirty, power=(weak,))), CheckId.POWER) is CheckVerdict.NOTE


def test_unknown_power_passes_and_is_told() -> None:
    assert judge(evidence()).power.status == "unknown"


def test_a_reference_of_another_kind_is_too_blunt_for_a_pass_without_power() -> None:
    other = identity("http://ref", kind=identity().kind)
    blunt = replica(isolation=Isolation.REFERENCE, reference=replace(other, version="0.31.0"))
    assert judge(evidence(blunt)).verdict is Verdict.INCONCLUSIVE
    strong = PowerPair(probe="p0", stale=observation(1.0), clean=observation())
    assert judge(replace(evidence(blunt), power=(strong,))).verdict is Verdict.PASS
    same = replica(isolation=Isolation.REFERENCE, reference=other)
    assert judge(evidence(same)).verdict is Verdict.PASS


def test_hits_that_nobody_can_attribute_are_of_unknown_origin_in_the_line_of_a_pass_and_for_power() -> None:
    unattributed = [probe(f"p{number}", production=[leg(foreign=None)]) for number in range(12)]
    report = judge(evidence(replica(unattributed)))
    assert report.verdict is Verdict.PASS
    assert f"{12 * CACHED_TOKENS} hit tokens are of unknown origin" in report.reason
    # 0.01 nats of noise: staleness of one fine-tuning step hides below the threshold.
    noisy = [replace(one, clean=(leg(0.02), leg())) for one in unattributed]
    assert verdict_of(judge(evidence(replica(noisy))), CheckId.POWER) is CheckVerdict.INCONCLUSIVE
    explained = [probe(f"p{number}", clean=[leg(0.02), leg()]) for number in range(12)]
    assert verdict_of(judge(evidence(replica(explained))), CheckId.POWER) is CheckVerdict.NOTE


def test_one_stale_replica_fails_all_and_is_named() -> None:
    report = judge(evidence(replica(url="http://a"), replica([*clean_probes(), STALE], url="http://b")))
    assert report.verdict is Verdict.FAIL
    (found,) = [check for check in report.checks if check.id is CheckId.REPLICAS]
    assert found.detail == "failed: http://b"


def test_ranks_behind_one_url_are_judged_and_named_each_by_itself() -> None:
    def of_rank(rank: int, *probes: ProbeEvidence) -> ReplicaEvidence:
        one = replica(probes)
        return replace(one, identity=replace(one.identity, rank=rank, ranks=(0, 1)), rank_proof=RankProof.PROVEN)

    report = judge(evidence(of_rank(0, *clean_probes(), STALE), of_rank(1, *clean_probes())))
    assert report.verdict is Verdict.FAIL
    (found,) = [check for check in report.checks if check.id is CheckId.REPLICAS]
    assert found.detail == f"failed: {URL} (rank 0)"
    assert [one.replica for one in report.isolation] == [f"{URL} (rank 0)", f"{URL} (rank 1)"]
    assert len(report.probes) == 2 * 12 + 1
    assert {probe.replica for probe in report.probes if probe.verdict is ProbeVerdict.STALE} == {f"{URL} (rank 0)"}
    # A fault of a rank that was asked is not one of a replica that nobody asked.
    fault = Fault(where=f"{URL} (rank 1)", exit_code=5, message="it died")
    again = judge(replace(evidence(of_rank(0, *clean_probes()), of_rank(1, *clean_probes())), faults=(fault,)))
    assert verdict_of(again, CheckId.REPLICAS) is CheckVerdict.PASS


def test_replicas_with_other_weights_are_named_as_mixed() -> None:
    def identified(url: str, shift: float) -> Any:
        pairs = (ReferencePair(probe="p0", witness=observation(shift)),)
        return replace(replica(url=url), identity_pairs=pairs, identity_source="golden")

    report = judge(evidence(identified("http://a", 0.1), identified("http://b", 2.0)))
    (found,) = [check for check in report.checks if check.id is CheckId.REPLICAS]
    assert (found.verdict, found.detail) == (CheckVerdict.FAIL, "other weights than the rest: http://b")


def test_saved_evidence_judged_again_gives_the_same_report() -> None:
    run = evidence(replica([*clean_probes(), STALE]), replica(url="http://b"))
    again = artifacts.from_json(artifacts.to_json(run).encode(), Evidence, source="memory")
    first, second = judge(run), judge(again)
    assert replace(second, created=first.created) == first


def test_evidence_of_the_first_schema_without_later_keys_is_still_read() -> None:
    import json

    saved = json.loads(artifacts.to_json(evidence()))
    for one in saved["replicas"]:
        for key in ("noise", "old_identity_pairs"):
            one.pop(key, None)
    again = artifacts.from_json(json.dumps(saved).encode(), Evidence, source="memory")
    assert judge(again).verdict is Verdict.PASS
