"""Prewarming real (scripted) servers over sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import EngineClient, EngineKind, Request, Route
from kvrelease.errors import Unreachable
from kvrelease.fleet.opening import Fleet
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.prewarm.journal import Journal
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.result import PrewarmPlan, PrewarmReport, ReplicaResult
from kvrelease.prewarm.run import journal_key, plan_only, prewarm
from kvrelease.progress import ProgressEvent
from tests.engines.clients import ask, identity, use
from tests.engines.never_hits import NeverHits
from tests.engines.scripted import Break, Generation, ScriptedEngine
from tests.engines.scripted_routes import GENERATIONS
from tests.fleet.names import NAME, Resolver
from tests.fleet.test_opening import reached, with_fleet
from tests.verify.deployments import (
    DOZEN,
    chat_body,
    deployment,
    namespace_of,
    prompts,
    question,
    recorded,
    serve_users,
    warmed,
    with_clients,
)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def only(report: PrewarmReport) -> ReplicaResult:
    """The one replica, with the report's plan as its own."""
    (found,) = report.replicas
    return msgspec.structs.replace(found, plan=report.plan)


def plan_of(found: ReplicaResult) -> Plan:
    assert found.plan is not None
    return found.plan


def dirty_engine() -> ScriptedEngine:
    return ScriptedEngine(release="old")


# --- clean ----------------------------------------------------------------------------------------------------------


def test_a_cold_engine_becomes_warm_and_passes() -> None:
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine)
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.foreign_tokens, found.hit_rate_before) == (0, 0.0)
        assert found.hit_rate_after is not None
        assert found.hit_rate_after >= 0.9
        assert found.ttft_cold_ms.p50 is not None
        assert found.ttft_warm_ms.p95 is not None
        assert found.witness == "usage"
        assert not found.is_flushed


def test_a_cold_engine_computes_exactly_the_lower_bound() -> None:
    with ScriptedEngine(release="new") as engine:
        found = only(warmed(engine, concurrency=1))
        assert found.computed_tokens == plan_of(found).lower_bound_tokens
        assert found.sent == len(plan_of(found).order)
        assert found.touched == found.sent
        assert (found.over_lower_bound, found.given_tokens) == (1.0, 0)
        messages = {prompt.id: prompt.body["messages"] for prompt in prompts()}
        touched = [seen.body["messages"] for seen in engine.generations()[8:14]]
        assert touched == [messages[prompt_id] for prompt_id in reversed(plan_of(found).order)], "most valuable last"


def test_llamacpp_with_fewer_slots_than_prompts_ends_with_the_most_valuable_resident() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, release="new") as engine:
        report = warmed(engine)
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert found.touched == 0
        assert plan_of(found).order[-1] == "returns-0"
        last = engine.generations()[-1].body["messages"]
        assert last == chat_body("returns", question(0))["messages"]


def test_requests_carry_the_whole_body_of_production_and_its_salt() -> None:
    deployed = deployment(salt="release")
    with ScriptedEngine(release="new") as engine:
        warmed(engine, deployed=deployed)
        sent = [seen.body for seen in engine.generations()]
        assert {body["cache_salt"] for body in sent} == {deployed.namespace}
        bodies = [prompt.body["messages"] for prompt in deployed.prompt_set]
        assert all(messages in [body["messages"] for body in sent] for messages in bodies)


# --- dirty ----------------------------------------------------------------------------------------------------------


def test_a_dirty_cache_fails_with_the_remedy_and_nothing_more_is_sent() -> None:
    with dirty_engine() as engine:
        serve_users(engine)
        engine.reload("new")
        before = len(engine.generations())
        report = warmed(engine)
        assert report.verdict is Verdict.FAIL
        assert "--allow-flush" in report.reason
        assert "--new-epoch" not in report.reason
        found = only(report)
        assert found.foreign_tokens
        assert found.hit_rate_before
        assert found.hit_rate_after is None
        assert (found.sent, len(engine.generations()) - before) == (1, 1)


def test_a_dirty_cache_leaves_no_journal(tmp_path: Path) -> None:
    with dirty_engine() as engine:
        serve_users(engine)
        engine.reload("new")
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            assert warmed(engine, journal=journal).verdict is Verdict.FAIL
        assert not (tmp_path / "j").exists()


def test_the_journal_of_a_deployment_does_not_hold_its_salt(tmp_path: Path) -> None:
    key = journal_key(deployment(salt="a-secret"))
    with Journal(tmp_path / "j", key=key):
        assert b"a-secret" not in (tmp_path / "j").read_bytes()
    assert len({key.file_name, *(journal_key(deployment(salt=salt)).file_name for salt in ("another", None))}) == 3


def test_the_namespace_of_its_own_is_clean_on_the_same_server(ledger: Ledger) -> None:
    with dirty_engine() as engine:
        serve_users(engine)
        engine.reload("new")
        report = warmed(engine, deployed=deployment(salt="release"), ledger=ledger)
        assert report.verdict is Verdict.PASS, report.reason


def test_dirt_under_one_prefix_only_ends_the_run_before_all_is_sent() -> None:
    with dirty_engine() as engine:
        serve_users(engine, prompt_set=prompts(per_desk=1, desks=("repairs",)))
        engine.reload("new")
        report = warmed(engine)
        assert report.verdict is Verdict.FAIL
        assert only(report).sent < 6


def test_a_store_below_that_ignores_salts_is_dirty_also_for_the_namespace() -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=store) as engine:
        serve_users(engine)
        engine.restart("new")
        assert warmed(engine, deployed=deployment(salt="release")).verdict is Verdict.FAIL


def test_users_who_came_first_are_not_explained_by_anything() -> None:
    with ScriptedEngine(release="new") as engine:
        serve_users(engine)
        assert warmed(engine).verdict is Verdict.FAIL


# --- who says so ----------------------------------------------------------------------------------------------------


def test_counters_are_the_witness_where_usage_is_null() -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False) as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).witness == "counters"
        assert only(report).computed_tokens == report.plan.lower_bound_tokens


def test_counters_find_a_dirty_cache_too() -> None:
    with ScriptedEngine(release="old", reports_cached_tokens=False) as engine:
        serve_users(engine)
        engine.reload("new")
        assert warmed(engine).verdict is Verdict.FAIL


def test_without_usage_and_counters_the_run_is_inconclusive_and_null_is_never_zero() -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as engine:
        report = warmed(engine)
        found = only(report)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "not known is not zero" in report.reason
        assert (found.foreign_tokens, found.cached_tokens, found.hit_rate_before, found.hit_rate_after) == (None,) * 4


class SpeaksLate(ScriptedEngine):
    """Tells cached tokens from its second generation on."""

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        self.reports_cached_tokens = len(self.cached_of) != self.silent_at
        return super().generate(prompt, body, **more)

    silent_at = -1


def test_one_leg_that_nobody_witnessed_does_not_hide_the_dirt_of_another() -> None:
    with SpeaksLate(release="old", has_metrics=False) as engine:
        serve_users(engine)
        engine.reload("new")
        engine.silent_at = len(engine.cached_of)
        report = warmed(engine)
        assert report.verdict is Verdict.FAIL
        assert only(report).foreign_tokens


def test_a_server_without_a_tokenizer_or_blocks_is_inconclusive() -> None:
    """https://github.com/ollama/ollama/issues/2617
    https://github.com/mondoohq/mql/pull/9372
    """
    with ScriptedEngine(EngineKind.OPENAI, release="new") as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert report.plan.cacheable_tokens is None


def test_a_block_larger_than_the_prompts_is_inconclusive_with_the_likely_cause() -> None:
    with ScriptedEngine(release="new", block_tokens=2048) as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "cannot be cached" in report.reason
        assert engine.generations() == []


def test_a_cache_that_is_off_is_inconclusive_with_the_likely_causes() -> None:
    with NeverHits(release="new") as engine:
        report = warmed(engine)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "prefix caching is off" in report.reason


class ClaimsHits(ScriptedEngine):
    """Reports every full block as cached, whatever was read (a counter stamped at look-up)."""

    is_lying = False

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        made = super().generate(prompt, body, **more)
        if self.is_lying and len(prompt) < 70:  # a nonce
            made.cached = made.prompt_tokens - 1
        return made


def test_a_control_that_hits_the_first_time_is_no_control() -> None:
    with ClaimsHits(release="new") as engine:
        engine.is_lying = True
        found = only(warmed(engine))
        assert found.control is not None
        assert found.control.hits is False


# --- capacity -------------------------------------------------------------------------------------------------------


def test_prompts_that_do_not_fit_are_listed_and_the_run_is_complete() -> None:
    with ScriptedEngine(release="new", capacity_blocks=10) as engine:
        report = warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=2)))
        assert "repairs-0" in report.plan.dropped
        assert report.plan.blocks_available == 10
        assert not report.faults


def test_evictions_by_other_traffic_fail_with_the_rate() -> None:
    with ScriptedEngine(release="new") as engine:

        def disturb(event: ProgressEvent) -> None:
            if event.done == 14:  # the plan, the control and the touch pass are through
                engine.flush()
                engine.capacity_blocks = 1
                engine.cache.capacity_blocks = 1  # type: ignore[attr-defined]

        report = warmed(engine, progress=disturb)
        assert report.verdict is Verdict.FAIL
        assert "evicted" in report.reason


# --- several replicas -----------------------------------------------------------------------------------------------


def test_a_replica_that_dies_midway_is_told_and_the_other_completes() -> None:
    with ScriptedEngine(release="new") as good, ScriptedEngine(release="new") as bad:

        def kill(event: ProgressEvent) -> None:
            if event.done == 3:
                bad.break_with(Break.CRASHING)

        report = warmed(good, bad, progress=kill, max_retries=0)
        fine, broken = report.replicas
        assert report.verdict is Verdict.INCONCLUSIVE
        assert bad.url in report.reason
        assert (fine.fault, fine.hit_rate_after) == (None, 1.0)
        assert broken.fault is not None
        assert broken.fault.exit_code == 5
        assert broken.errors == 1
        assert [fault.where for fault in report.faults] == [bad.url]


def test_a_replica_that_restarts_during_its_proof_is_no_pass() -> None:
    with ScriptedEngine(release="new") as engine:

        def restart(event: ProgressEvent) -> None:
            if event.done == 16:
                engine.restart()

        report = warmed(engine, progress=restart)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "changed during the run" in report.reason


def test_one_dirty_replica_fails_the_run_and_is_named() -> None:
    with ScriptedEngine(release="new") as clean, dirty_engine() as dirty:
        serve_users(dirty)
        dirty.reload("new")
        report = warmed(clean, dirty)
        assert report.verdict is Verdict.FAIL
        assert dirty.url in report.reason


def test_replicas_plan_for_themselves_where_one_of_them_caches_nothing() -> None:
    with ScriptedEngine(release="new") as off, ScriptedEngine(release="new") as on:
        off.cache_labels = {"enable_prefix_caching": False}
        report = warmed(off, on)
        first, other = report.replicas
        assert report.plan.cannot_be_cached is not None
        assert (first.sent, other.sent, other.hit_rate_after) == (0, 6, 1.0)


def test_a_name_that_is_gone_at_the_end_costs_no_result(ledger: Ledger) -> None:
    async def changes() -> tuple[()]:
        raise Unreachable("looking up llm.prod.svc: the name has no address")

    with ScriptedEngine(release="new") as engine:

        async def main(clients: list[EngineClient]) -> PrewarmReport:
            return await prewarm(clients, deployment=deployment(), ledger=ledger, changes=changes)

        report = with_clients([engine], main)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "llm.prod.svc: the name has no address; of the others: foreign hits 0" in report.reason
        assert [fault.exit_code for fault in report.faults] == [5]
        assert only(report).hit_rate_after == 1.0
        assert [event.command for event in ledger.events()] == ["prewarm"]


def test_an_address_of_a_name_is_told_with_the_name(resolver: Resolver, ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        resolver.addresses[NAME] = ["127.0.0.1"]
        serve_users(engine)

        async def main(fleet: Fleet) -> tuple[PrewarmReport, PrewarmPlan]:
            planned = await plan_only(fleet.engines, deployment=deployment(), ledger=ledger)
            return await prewarm(fleet.engines, deployment=deployment(), ledger=ledger), planned

        report, planned = with_fleet(reached(f"dns+http://{NAME}:{engine.port}"), main)
        place = f"http://127.0.0.1:{engine.port} ({NAME})"
        assert report.reason.startswith(f"{place}: ")
        assert [one.shown for one in report.replicas] == [one.shown for one in planned.replicas] == [place]


# --- budget, Ctrl-C, resuming ---------------------------------------------------------------------------------------


def test_a_budget_of_just_what_the_plan_takes_is_enough() -> None:
    with ScriptedEngine(release="new") as engine:
        bound = warmed(engine, budget_s=1e-9).plan.lower_bound_tokens
        assert warmed(engine, budget_tokens=bound).verdict is Verdict.PASS


class TurnsAway(ScriptedEngine):
    """Answers 503 to some generations, by their number from 0, and computes nothing of them."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(release="new")
        self.turned_away, self.refused_status = numbers, 503

    def refuses(self, path: str, body: Any) -> bool:
        return path in GENERATIONS and len(self.generations()) - 1 in self.turned_away


def test_what_failed_spends_no_budget_of_tokens() -> None:
    asked = deployment(prompt_set=prompts(per_desk=1))
    with ScriptedEngine(release="new") as engine:
        bound = warmed(engine, deployed=asked, budget_s=1e-9).plan.lower_bound_tokens
    assert bound is not None
    for budget, sent in ((bound * 2 // 3, 2), (bound * 2 // 3 - 1, 1)):
        with TurnsAway(0) as engine:
            report = warmed(
                engine, deployed=asked, budget_tokens=budget, max_error_rate=0.4, max_retries=0, concurrency=1
            )
            assert len(engine.generations()[:4]) == 4
        assert (only(report).errors, "budget" in report.reason) == (1, sent == 1), report.reason


def test_what_earlier_passes_over_the_sample_took_counts_as_well() -> None:
    asked = deployment(prompt_set=prompts(per_desk=1))
    with TurnsAway(3 + 2 + 3) as engine:
        report = warmed(engine, deployed=asked, passes=2, concurrency=1)
        assert len(engine.generations()) == 3 + 2 + 3 + 3 + 3 + 1
    assert report.verdict is Verdict.PASS, report.reason
    assert (only(report).retries, only(report).asked_again) == (1, 3)


def test_a_spent_budget_is_incomplete_and_says_how_far_it_came() -> None:
    with ScriptedEngine(release="new") as engine:
        report = warmed(engine, budget_s=1e-9)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "0 of 6 requests" in report.reason
        assert engine.generations() == []


def cancelled(
    engine: ScriptedEngine, *, ledger: Ledger, after: int, concurrency: int = 4
) -> tuple[PrewarmReport, list[int]]:
    """The report of a run that is cancelled once `after` requests were answered."""
    done: list[int] = []

    async def main(clients: list[EngineClient]) -> PrewarmReport:
        task = asyncio.current_task()
        assert task is not None

        def stop(event: ProgressEvent) -> None:
            done.append(event.done)
            if event.done == after:
                task.cancel()

        return await prewarm(clients, deployment=deployment(), ledger=ledger, concurrency=concurrency, progress=stop)

    return with_clients([engine], main), done


def test_ctrl_c_keeps_what_was_measured_and_is_no_pass(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        report, _ = cancelled(engine, ledger=ledger, after=4, concurrency=1)
        assert report.interrupted
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "interrupted" in report.reason
        assert 1 <= only(report).sent < 6


class Slow(ScriptedEngine):
    """From the second wave on, answers one request, and the others only when it is let go: they are in flight."""

    is_slow = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.let_go = threading.Event()

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        made = super().generate(prompt, body, **more)
        if self.is_slow:
            self.let_go.wait(timeout=5.0)
        return made


def test_after_ctrl_c_the_second_run_computes_only_what_is_missing(ledger: Ledger) -> None:
    deployed = deployment(prompt_set=DOZEN)
    with Slow(release="new") as engine:

        async def main(clients: list[EngineClient]) -> PrewarmReport:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None

            def stop(event: ProgressEvent) -> None:
                if event.done == 5:  # the first wave of three and the control; the second wave comes four at a time
                    engine.is_slow = True
                    loop.create_task(interrupt())

            async def interrupt() -> None:
                while len(engine.cached_of) < 9:  # noqa: ASYNC110 - four computed, none answered; another thread counts
                    await asyncio.sleep(0)
                assert task is not None
                task.cancel()
                loop.call_soon(engine.let_go.set)

            return await prewarm(clients, deployment=deployed, ledger=ledger, concurrency=4, progress=stop)

        first = only(with_clients([engine], main))
        assert first.sent < len(DOZEN)
        report = warmed(engine, deployed=deployed, ledger=ledger)
        second = only(report)
        # What was in flight at Ctrl-C is resident, and not foreign.
        assert report.verdict is Verdict.PASS, report.reason
        assert second.foreign_tokens == 0
        assert second.computed_tokens is not None
        assert second.computed_tokens < (plan_of(second).lower_bound_tokens or 0)


def begun_elsewhere(path: Path, engine: ScriptedEngine, *prompt_ids: str) -> None:
    """Leaves the journal of a run that was killed after these prompts; their blocks are not in the engine."""
    with Journal(path, key=journal_key(deployment())) as journal:
        journal.follow(engine.url, process=f"started:{engine.started:.2f}")
        for prompt_id in prompt_ids:
            journal.begin(engine.url, prompt_id)
            journal.finish(engine.url, prompt_id)


def send_to_its_slot(engine: ScriptedEngine, plan: Plan, prompt_id: str) -> int:
    """Sends one prompt as the plan has it; returns the tokens that this computed."""
    prompt = next(one for one in prompts() if one.id == prompt_id)
    request = Request(route=Route.CHAT, body=prompt.body, slot=plan.slot_of.get(prompt_id))
    (found,) = ask(engine.url, request)
    assert found.prompt_tokens is not None
    assert found.cached_tokens is not None
    return found.prompt_tokens - found.cached_tokens


def test_what_a_killed_run_had_answered_is_not_sent_again(tmp_path: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        begun_elsewhere(tmp_path / "j", engine, "returns-0", "billing-1")
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            report = warmed(engine, journal=journal)
        assert report.verdict is Verdict.PASS, report.reason
        assert (only(report).sent, only(report).resumed, only(report).restarted) == (4, 2, False)
        assert not (tmp_path / "j").exists()


def test_a_run_that_was_killed_after_its_plan_asks_for_no_times_where_usage_speaks(tmp_path: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, journal=None)
        begun_elsewhere(tmp_path / "j", engine, *(prompt.id for prompt in deployment().prompt_set))
        before = len(engine.generations())
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            report = warmed(engine, journal=journal)
        assert report.verdict is Verdict.PASS, report.reason
        assert (only(report).sent, only(report).resumed, only(report).times) == (0, 6, None)
        assert {seen.body.get("cache_salt") for seen in engine.generations()[before:]} == {None}


def test_after_a_restart_everything_is_sent_anew_and_said_so(tmp_path: Path) -> None:
    """https://github.com/llm-d/llm-d-router/issues/2853
    https://github.com/llm-d/llm-d-kv-cache/issues/396
    https://github.com/llm-d-incubation/py-inference-scheduler/pull/35
    """
    with ScriptedEngine(release="new") as engine:
        begun_elsewhere(tmp_path / "j", engine, "returns-0")
        engine.restart()
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            report = warmed(engine, journal=journal)
        assert (only(report).sent, only(report).resumed, only(report).restarted) == (6, 0, True)
        assert any("sent anew" in note for note in report.notes)


def test_a_flush_makes_the_journal_void(tmp_path: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        begun_elsewhere(tmp_path / "j", engine, "returns-0")
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            report = warmed(engine, journal=journal, allows_flush=True)
        assert (only(report).sent, only(report).resumed) == (6, 0)


@pytest.mark.parametrize("sent", [1, 3, 4, 5, 6])
def test_on_slots_a_run_that_was_cut_short_ends_with_each_slot_warm(tmp_path: Path, sent: int) -> None:
    """Three of six prompts stay, and the control of the second run throws out none of those that are there."""
    deployed = deployment(prompt_set=prompts(per_desk=2))
    key = journal_key(deployed)
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=3) as engine:
        whole = only(warmed(engine, deployed=deployed))
    with ScriptedEngine(EngineKind.LLAMACPP, release="new", slots=3) as engine:
        process = use(engine.url, identity).process
        assert process is not None
        computed = 0
        with Journal(tmp_path / "j", key=key) as journal:
            journal.follow(engine.url, process=process)
            for prompt_id in plan_of(whole).order[:sent]:
                journal.begin(engine.url, prompt_id)
                computed += send_to_its_slot(engine, plan_of(whole), prompt_id)
                journal.finish(engine.url, prompt_id)
        with Journal(tmp_path / "j", key=key) as journal:
            report = warmed(engine, deployed=deployed, journal=journal)
    found = only(report)
    assert report.verdict is Verdict.PASS, report.reason
    assert (found.sent, found.resumed, found.touched) == (6 - sent, sent, 1 + (sent == 6))
    assert found.expected_hit_rate == pytest.approx(plan_of(found).expected_hit_rate), "of what stays alone"
    assert [(one.slot, one.is_warm) for one in found.slots] == [(slot, True) for slot in range(3)]
    assert whole.computed_tokens is not None
    # The few words with which all system prompts begin are found in one slot or another.
    assert computed + (found.computed_tokens or 0) <= whole.computed_tokens + 10


def test_a_run_that_was_cut_short_leaves_its_journal(tmp_path: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            warmed(engine, journal=journal, budget_tokens=200)
        with Journal(tmp_path / "j", key=journal_key(deployment())) as journal:
            report = warmed(engine, journal=journal)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).resumed > 0
        assert only(report).foreign_tokens == 0
        assert only(report).expected_hit_rate == pytest.approx(report.plan.expected_hit_rate)


# --- flushing -------------------------------------------------------------------------------------------------------


def test_an_allowed_flush_empties_a_dirty_cache_and_is_proved() -> None:
    """https://github.com/vllm-project/vllm/pull/46125"""
    with dirty_engine() as engine:
        serve_users(engine)
        engine.reload("new")
        report = warmed(engine, allows_flush=True)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).is_flushed


def test_nothing_is_flushed_without_leave() -> None:
    with dirty_engine() as engine:
        serve_users(engine)
        warmed(engine)
        assert not [seen for seen in engine.requests if seen.path == "/reset_prefix_cache"]


@pytest.mark.parametrize("reply", [(200, b'{"success": false}'), (409, b"{}"), (500, b"{}")])
def test_a_refused_flush_is_told_and_nothing_is_sent(reply: tuple[int, bytes]) -> None:
    """https://github.com/llm-d/llm-d-benchmark/pull/1918
    https://github.com/vllm-project/vllm/pull/12284
    """
    with dirty_engine() as engine:
        engine.flush_reply = reply
        report = warmed(engine, allows_flush=True)
        found = only(report)
        assert found.fault is not None
        assert "refused" in found.fault.message
        assert found.fault.exit_code == 2
        assert engine.generations() == []


@pytest.mark.parametrize("reply", [(200, b'{"success": true}'), (200, b""), (200, b"{}")])
def test_a_flush_that_kept_the_cache_is_found_by_the_first_hit(reply: tuple[int, bytes]) -> None:
    """https://github.com/vllm-project/vllm/issues/57727
    https://github.com/vllm-project/vllm-omni/issues/6739
    """
    with dirty_engine() as engine:
        serve_users(engine)
        engine.reload("new")
        engine.flush_reply = reply
        report = warmed(engine, allows_flush=True)
        assert report.verdict is Verdict.FAIL
        assert not only(report).is_flushed


def test_after_a_flush_the_ledger_explains_nothing_from_before(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, ledger=ledger)
        engine.flush_reply = (200, b"")  # says nothing, does nothing
        assert warmed(engine, ledger=ledger, allows_flush=True).verdict is Verdict.FAIL


def test_an_engine_that_cannot_flush_says_so() -> None:
    with ScriptedEngine(release="new", has_dev_routes=False) as engine:
        report = warmed(engine, allows_flush=True)
        assert only(report).fault is not None
        assert "--allow-flush" in report.reason


def test_one_flush_empties_every_rank_behind_a_url(ledger: Ledger) -> None:
    async def main(fleet: Fleet) -> PrewarmReport:
        return await prewarm(fleet.engines, deployment=deployment(), ledger=ledger, allows_flush=True)

    with ScriptedEngine(release="new", ranks=2) as engine:
        report = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), main)
        assert report.verdict is Verdict.PASS, report.reason
        assert [one.is_flushed for one in report.replicas] == [True, True]
        assert len([seen for seen in engine.requests if seen.path == "/reset_prefix_cache"]) == 1


# --- the ledger -----------------------------------------------------------------------------------------------------


def test_a_second_prewarm_is_explained_by_the_first_and_computes_only_tails(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, ledger=ledger)
        report = warmed(engine, ledger=ledger)
        found = only(report)
        assert report.verdict is Verdict.PASS, report.reason
        assert (found.foreign_tokens, found.hit_rate_before) == (0, 0.0)
        assert 0 < (found.computed_tokens or 0) < (plan_of(found).lower_bound_tokens or 0) / 4
        assert found.over_lower_bound == 1.0
        assert (found.computed_tokens or 0) + (found.given_tokens or 0) == plan_of(found).lower_bound_tokens


def test_what_an_earlier_run_left_does_not_hide_a_block_that_is_computed_twice(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=1, desks=("returns",))), ledger=ledger)

        def forget(event: ProgressEvent) -> None:
            if event.done == 5:
                engine.flush()

        found = only(warmed(engine, ledger=ledger, concurrency=1, progress=forget))
        assert found.given_tokens
        assert found.over_lower_bound is not None
        assert found.over_lower_bound > 1.1


def test_a_reload_in_between_voids_what_the_ledger_knows(ledger: Ledger) -> None:
    with dirty_engine() as engine:
        assert warmed(engine, deployed=deployment("old"), ledger=ledger).verdict is Verdict.PASS
        engine.reload("new")
        assert warmed(engine, deployed=deployment("new"), ledger=ledger).verdict is Verdict.FAIL


def test_there_and_back_nothing_in_the_process_is_explained_any_more(ledger: Ledger) -> None:
    here, there = prompts(per_desk=1, desks=("returns",)), prompts(per_desk=1, desks=("billing",))
    with dirty_engine() as engine:
        warmed(engine, deployed=deployment("old", prompt_set=here), ledger=ledger)
        engine.reload("new")
        between = warmed(engine, deployed=deployment("new", prompt_set=there), ledger=ledger)
        assert between.verdict is Verdict.PASS, between.reason
        engine.reload("old")
        assert warmed(engine, deployed=deployment("old", prompt_set=here), ledger=ledger).verdict is Verdict.FAIL


def test_a_restarted_process_is_another_cache(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, ledger=ledger)
        engine.restart()
        serve_users(engine)
        assert warmed(engine, ledger=ledger).verdict is Verdict.FAIL


def test_what_a_restarted_process_finds_in_the_store_it_filled_is_its_releases_own(ledger: Ledger) -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="new", store=store) as engine:
        warmed(engine, ledger=ledger)
        engine.restart()
        assert warmed(engine, ledger=ledger).verdict is Verdict.PASS


def test_another_epoch_of_the_same_release_is_another_origin(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, ledger=ledger)
        assert warmed(engine, deployed=deployment(epoch=1), ledger=ledger).verdict is Verdict.FAIL
        bumped = deployment(salt=namespace_of("new", epoch=1), epoch=1)
        assert warmed(engine, deployed=bumped, ledger=ledger).verdict is Verdict.PASS


def test_a_record_explains_a_later_prewarm(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        recorded(engine, ledger=ledger)
        assert warmed(engine, ledger=ledger).verdict is Verdict.PASS


def test_the_ledger_keeps_the_verdict(ledger: Ledger) -> None:
    with ScriptedEngine(release="new") as engine:
        warmed(engine, ledger=ledger)
        event = ledger.events()[0]
        assert (event.command, event.verdict, event.replica) == ("prewarm", Verdict.PASS, engine.url)


# --- transport ------------------------------------------------------------------------------------------------------


def test_a_busy_server_is_asked_again_and_the_retries_are_counted() -> None:
    with ScriptedEngine(release="new") as engine:
        engine.break_with(Break.BUSY, times=2)
        report = warmed(engine)
        assert report.verdict is Verdict.PASS, report.reason
        assert only(report).retries == 2


class Counting(ScriptedEngine):
    """Knows how many generations ran at once."""

    running = 0
    most = 0
    guard = threading.Lock()

    def generate(self, prompt: Any, body: Any, **more: Any) -> Generation:
        with self.guard:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return super().generate(prompt, body, **more)
        finally:
            with self.guard:
                self.running -= 1


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrency_never_exceeds_the_limit(limit: int) -> None:
    with Counting(release="new") as engine:
        warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=8)), concurrency=limit)
        assert engine.most <= limit


def test_slots_are_filled_one_at_a_time() -> None:
    with Counting(EngineKind.LLAMACPP, release="new", slots=4) as engine:
        warmed(engine, deployed=deployment(prompt_set=prompts(per_desk=2)), concurrency=5)
        assert engine.most == 1
