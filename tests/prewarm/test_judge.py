"""The verdict on replicas, from pure values."""

from __future__ import annotations

import json

import msgspec
import pytest

from kvrelease.artifacts import Fault, Verdict, from_json, to_json
from kvrelease.prewarm.judge import MAX_OVER_BOUND, judge
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.result import (
    ControlResult,
    Limits,
    Percentiles,
    PrewarmReport,
    ReplicaResult,
    SecondWitness,
    TimeWitness,
)
from tests import builders

PLAN = Plan(
    prompts=2,
    prompt_tokens=400,
    cacheable_tokens=384,
    lower_bound_tokens=300,
    blocks_needed=20,
    blocks_available=None,
    order=("a", "b"),
)
NO_TIMES = Percentiles(p50=None, p95=None)
WARM = ReplicaResult(
    url="http://one:8000",
    plan=PLAN,
    sent=2,
    touched=2,
    errors=0,
    retries=0,
    foreign_tokens=0,
    computed_tokens=300,
    cached_tokens=100,
    hit_rate_before=0.0,
    hit_rate_after=1.0,
    evicted=0,
    ttft_cold_ms=NO_TIMES,
    ttft_warm_ms=NO_TIMES,
    control=ControlResult(hits=True, cached_tokens=48, prompt_tokens=64),
    witness="usage",
)


def verdict(*replicas: ReplicaResult, interrupted: bool = False) -> tuple[Verdict, str]:
    return judge(replicas, plan=PLAN, limits=Limits(), interrupted=interrupted)


def changed(**fields: object) -> ReplicaResult:
    return msgspec.structs.replace(WARM, **fields)


def test_a_clean_warm_replica_passes() -> None:
    assert verdict(WARM) == (Verdict.PASS, "foreign hits 0; asked again, 100% of the cacheable tokens hit")


def test_a_pass_says_what_the_cache_has_no_room_for() -> None:
    small = msgspec.structs.replace(PLAN, dropped=tuple(f"p{number}" for number in range(19)), expected_hit_rate=0.06)
    found, reason = verdict(changed(plan=small))
    assert found is Verdict.PASS
    assert f"19 of {19 + len(PLAN.order)} prompts do not fit the cache and stay cold: expect 6% of this set" in reason


def test_a_foreign_hit_fails_and_says_what_to_do() -> None:
    found, reason = verdict(WARM, changed(foreign_tokens=80))
    assert found is Verdict.FAIL
    assert "80 cached tokens" in reason
    assert "--allow-flush" in reason
    assert "epoch" not in reason, "it changes nothing for requests without the namespace"


def test_an_engine_that_takes_no_flush_is_to_be_restarted() -> None:
    _, reason = verdict(changed(foreign_tokens=80, has_flush=False))
    assert "Empty this engine's cache: restart it. If" in reason
    assert "--allow-flush" not in reason


def test_where_requests_carry_the_namespace_a_new_epoch_is_a_way_out() -> None:
    _, reason = judge([changed(foreign_tokens=80)], plan=PLAN, limits=Limits(), interrupted=False, is_bound=True)
    assert "--allow-flush; a new epoch does as well (kvrelease namespace --new-epoch)" in reason


def test_a_foreign_hit_fails_even_when_the_run_was_cut_short_or_a_replica_broke() -> None:
    fault = Fault(where="x", exit_code=5, message="gone")
    assert verdict(changed(foreign_tokens=80, fault=fault), interrupted=True)[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (changed(over_lower_bound=1.051), "it computed 1.05 times"),
        (changed(over_lower_bound=1.32), "Several engines or ranks answer behind this URL"),
        (changed(foreign_tokens=None, witness="nobody"), "not known is not zero"),
        (changed(foreign_tokens=None), "does not tell token ids"),
        (changed(fault=Fault(where="x", exit_code=5, message="the engine died")), "the engine died"),
        (changed(control=None), "the control got no proper answer"),
        (changed(control=ControlResult(hits=None, cached_tokens=None, prompt_tokens=64)), "nobody witnessed"),
        (changed(control=ControlResult(hits=False, cached_tokens=0, prompt_tokens=64)), "prefix caching is off"),
        (changed(hit_rate_after=None), "block size"),
        (changed(hit_rate_after=None, errors=1, asked_again=1), "block size"),
        (changed(hit_rate_after=None, errors=2), "no request that was asked again got a proper answer"),
        (changed(plan=msgspec.structs.replace(PLAN, order=())), "shorter than one block"),
        (changed(plan=msgspec.structs.replace(PLAN, order=(), dropped=("a", "b"))), "2 prompts do not fit"),
    ],
)
def test_what_is_not_known_is_inconclusive_and_named(broken: ReplicaResult, words: str) -> None:
    found, reason = verdict(WARM, broken)
    assert found is Verdict.INCONCLUSIVE
    assert words in reason


def test_a_low_hit_rate_fails_and_names_the_likely_causes() -> None:
    found, reason = verdict(changed(hit_rate_after=0.5, lost=("a", "b", "c")))
    assert found is Verdict.FAIL
    assert "50%" in reason
    assert "3 prompts were evicted" in reason


def test_branches_that_the_touch_pass_missed_fail_though_the_sample_hit() -> None:
    found, reason = verdict(changed(hit_rate_touched=0.89))
    assert found is Verdict.FAIL
    assert "every branch asked again, 89%" in reason
    assert verdict(changed(hit_rate_touched=0.9))[0] is Verdict.PASS


def test_an_interrupted_run_is_never_a_pass_and_says_how_far_it_came_and_what_that_is_worth() -> None:
    assert verdict(WARM, interrupted=True)[0] is Verdict.INCONCLUSIVE
    planned = msgspec.structs.replace(PLAN, expected_hit_rate=0.9)
    _, alone = verdict(changed(plan=planned, sent=1, expected_hit_rate=0.623), interrupted=True)
    so_far = "after 1 of 2 requests: expect 62% of this set's traffic to hit, 90% with all of them; run it again"
    assert alone.startswith(f"interrupted {so_far}")
    least = changed(url="http://two:8000", plan=planned, sent=0, resumed=1, expected_hit_rate=0.623)
    _, several = verdict(changed(plan=planned), least, interrupted=True)
    assert several.startswith(f"interrupted (http://two:8000) {so_far}")
    assert verdict(WARM, interrupted=True)[1].startswith("interrupted after 2 of 2 requests; run it again")
    assert verdict(interrupted=True)[0] is Verdict.INCONCLUSIVE


def test_no_replica_at_all_is_no_pass() -> None:
    assert verdict()[0] is Verdict.INCONCLUSIVE


SILENT = changed(foreign_tokens=None, cached_tokens=None, hit_rate_after=None, witness="nobody")


def test_times_alone_pass_nothing_unless_they_may_decide() -> None:
    warm = msgspec.structs.replace(SILENT, times=TimeWitness(pairs=5, ratio=0.1))
    found, reason = verdict(warm)
    assert found is Verdict.INCONCLUSIVE
    assert "likely warm, which --accept-ttft lets decide" in reason
    found, reason = judge([warm], plan=PLAN, limits=Limits(accepts_ttft=True), interrupted=False)
    assert found is Verdict.PASS
    assert "foreign hits are not known" in reason


def test_times_that_do_not_differ_decide_nothing_though_they_may() -> None:
    cold = msgspec.structs.replace(SILENT, times=TimeWitness(pairs=5, ratio=0.9))
    assert judge([cold], plan=PLAN, limits=Limits(accepts_ttft=True), interrupted=False)[0] is Verdict.INCONCLUSIVE


def test_witnesses_that_disagree_are_no_proof() -> None:
    found, reason = verdict(changed(second=SecondWitness(usage_tokens=384, counter_tokens=0)))
    assert found is Verdict.INCONCLUSIVE
    assert "384" in reason


def test_what_was_measured_and_fell_short_outweighs_what_was_not_measured() -> None:
    dead = changed(fault=Fault(where="x", exit_code=5, message="the engine died"))
    assert verdict(dead, changed(hit_rate_after=0.5))[0] is Verdict.FAIL


def test_a_replica_that_could_not_be_asked_is_named_and_no_pass() -> None:
    found, reason = judge([WARM, WARM], plan=PLAN, limits=Limits(), interrupted=False, unready=["http://dead:8000"])
    assert found is Verdict.INCONCLUSIVE
    assert reason == "could not be asked: http://dead:8000; the other 2 are warm"


def test_errors_are_a_share_of_the_plan_and_decide_nothing_by_themselves() -> None:
    some, none = Limits(max_error_rate=0.29), Limits()
    assert [some.allows_errors(errors, planned=100) for errors in (0, 29, 30)] == [True, True, False]
    assert [none.allows_errors(errors, planned=9) for errors in (0, 1)] == [True, False]
    assert [none.allows_errors(errors, planned=0) for errors in (0, 1)] == [True, False]
    assert verdict(changed(errors=1))[0] is Verdict.PASS


def test_a_rank_and_a_name_are_told_with_the_url() -> None:
    assert "http://one:8000 (rank 3)" in verdict(changed(rank=3, foreign_tokens=16))[1]
    assert verdict(changed(name="llm.prod.svc", foreign_tokens=16))[1].startswith("http://one:8000 (llm.prod.svc): ")


def test_a_report_of_the_first_schema_is_still_read() -> None:
    report = json.loads(to_json(builders.prewarm()))
    report["schema"] = 1
    report["plan"]["waves"] = [["a", "b"], ["c"]]
    for name in ("order", "key_spaces", "head_room_blocks", "cannot_be_cached"):
        del report["plan"][name]
    for one in report["replicas"]:
        one["plan"] = report["plan"]
        for name in ("planned", "name", "second", "resumed", "over_lower_bound", "given_tokens", "miss_causes"):
            del one[name]
    found = from_json(json.dumps(report).encode(), PrewarmReport, source="old.json")
    assert (found.schema, found.replicas[0].sent, found.plan.prompts) == (1, 3, 66)


def test_a_low_rate_is_no_fail_where_the_witnesses_of_it_disagree() -> None:
    lying = SecondWitness(usage_tokens=10, counter_tokens=300)
    assert verdict(changed(hit_rate_after=0.1, second=lying))[0] is Verdict.INCONCLUSIVE


def test_limits_are_reached_by_what_equals_them() -> None:
    assert verdict(changed(over_lower_bound=MAX_OVER_BOUND))[0] is Verdict.PASS
    quick = changed(hit_rate_after=0.9, ttft_warm_ms=Percentiles(p50=50.0, p95=100.0))
    assert judge([quick], plan=PLAN, limits=Limits(max_ttft_ms=100.0), interrupted=False)[0] is Verdict.PASS
    assert judge([quick], plan=PLAN, limits=Limits(max_ttft_ms=99.9), interrupted=False)[0] is Verdict.FAIL


def test_a_limit_of_times_without_times_is_inconclusive() -> None:
    found, reason = judge([WARM], plan=PLAN, limits=Limits(max_ttft_ms=100.0), interrupted=False)
    assert found is Verdict.INCONCLUSIVE
    assert "no time to the first token was told" in reason


def test_a_shortfall_names_the_blocks_of_the_replicas_own_plan() -> None:
    own = msgspec.structs.replace(PLAN, blocks_needed=77)
    assert "77 blocks" in verdict(changed(plan=own, hit_rate_after=0.5))[1]
    assert "20 blocks" in verdict(changed(plan=None, hit_rate_after=0.5))[1]
