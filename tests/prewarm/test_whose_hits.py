"""A clean cache is never called dirty for what a server leaves out or a connection loses, and a dirty one is."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.hits import Unattributed
from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.scripted import Break, Json, ScriptedEngine
from tests.engines.scripted_routes import GENERATIONS
from tests.verify.deployments import deployment, prompts, serve_users, warmed


class LeavesMissesOut(ScriptedEngine):
    """vLLM before it asked for `is not None`, SGLang's usage: a count of zero is left out."""

    def usage(self, usage: Json) -> Json:
        details = usage["prompt_tokens_details"]
        return usage | {"prompt_tokens_details": details if details and details["cached_tokens"] else None}


class Exaggerates(ScriptedEngine):
    """Ten times the cached tokens."""

    def usage(self, usage: Json) -> Json:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage | {"prompt_tokens_details": {"cached_tokens": 10 * cached}}


def sglang_without_its_report(release: str, *, has_metrics: bool = True) -> ScriptedEngine:
    return ScriptedEngine(EngineKind.SGLANG, release=release, reports_cached_tokens=False, has_metrics=has_metrics)


def old_vllm(release: str, *, has_metrics: bool = True) -> ScriptedEngine:
    return LeavesMissesOut(release=release, has_metrics=has_metrics)


TELL_HITS_ALONE = [sglang_without_its_report, old_vllm]


@pytest.mark.parametrize("started", TELL_HITS_ALONE)
def test_where_usage_tells_hits_alone_the_counters_prove_the_rest(started: Callable[..., ScriptedEngine]) -> None:
    with started("new") as engine:
        report = warmed(engine)
    assert report.verdict is Verdict.PASS, report.reason
    assert (report.replicas[0].foreign_tokens, report.replicas[0].over_lower_bound) == (0, 1.0)


@pytest.mark.parametrize("started", TELL_HITS_ALONE)
def test_without_counters_it_is_inconclusive_with_what_to_open(started: Callable[..., ScriptedEngine]) -> None:
    with started("new", has_metrics=False) as engine:
        report = warmed(engine)
    assert (report.verdict, report.replicas[0].foreign_tokens) == (Verdict.INCONCLUSIVE, None)
    assert report.replicas[0].unattributed is Unattributed.UNTOLD
    assert "--enable-metrics" in report.reason


@pytest.mark.parametrize("has_metrics", [True, False])
@pytest.mark.parametrize("started", TELL_HITS_ALONE)
def test_what_another_release_left_is_dirty_there_too(
    started: Callable[..., ScriptedEngine], *, has_metrics: bool
) -> None:
    with started("old", has_metrics=has_metrics) as engine:
        serve_users(engine)
        engine.reload("new")
        report = warmed(engine)
    assert report.verdict is Verdict.FAIL, report.reason
    assert "did not compute" in report.reason


def test_impossible_counts_leave_the_counters_to_decide() -> None:
    with Exaggerates(release="new") as engine:
        report = warmed(engine)
    assert report.verdict is Verdict.PASS, report.reason
    assert report.replicas[0].over_lower_bound == 1.0


def test_a_connection_that_broke_after_the_engine_computed_is_not_known_and_not_dirty_in_the_next_run_either() -> None:
    with ScriptedEngine(release="new") as engine, Ledger(IN_MEMORY) as ledger:
        engine.break_with(Break.DROP, times=1)
        first = warmed(engine, ledger=ledger)
        second = warmed(engine, ledger=ledger)
    assert (first.verdict, second.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert "broke after it had been sent" in first.reason
    assert "sent without being told" in second.reason
    assert "--allow-flush" in first.reason


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP])
def test_an_engine_that_is_named_by_another_url_knows_its_own_entries(kind: EngineKind) -> None:
    class ByName(ScriptedEngine):
        """Reached by a name once it is asked to be."""

        is_named = False

        @property
        def url(self) -> str:
            return super().url.replace("127.0.0.1", "localhost") if self.is_named else super().url

    with ByName(kind, release="new", slots=8) as engine, Ledger(IN_MEMORY) as ledger:
        warmed(engine, ledger=ledger)
        engine.is_named = True
        by_name = warmed(engine, ledger=ledger)
        engine.is_named = False
        again = warmed(engine, ledger=ledger)
        assert [one.replicas[0].url for one in (by_name, again)] != [engine.url, engine.url]
    assert (by_name.verdict, again.verdict) == (Verdict.PASS, Verdict.PASS), (by_name.reason, again.reason)


def test_one_engine_that_is_named_twice_in_a_run_is_told_as_what_may_be_the_cause() -> None:
    class ByName(ScriptedEngine):
        """Reached by two names."""

        names: tuple[str, ...] = ("127.0.0.1", "localhost")

        @property
        def url(self) -> str:
            first, *rest = self.names
            type(self).names = (*rest, first)
            return f"http://{first}:{self.port}"

    with ByName(release="new") as engine:
        report = warmed(engine, engine)
    assert report.verdict is Verdict.FAIL
    assert any("tells the same process as" in note and "name it once" in note for note in report.notes)


def test_two_replicas_of_one_run_that_started_in_one_moment_are_two() -> None:
    with ScriptedEngine(release="new") as one, ScriptedEngine(release="new") as two, Ledger(IN_MEMORY) as ledger:
        assert one.started == two.started
        warmed(one, two, ledger=ledger)
        ledger.forget(replica=two.url, process=f"started:{two.started:.2f}")
        assert warmed(one, ledger=ledger).verdict is Verdict.PASS


def test_a_busy_server_hides_nothing() -> None:
    with ScriptedEngine(release="old") as engine:
        serve_users(engine)
        engine.reload("new")
        engine.break_with(Break.BUSY, times=1)
        report = warmed(engine)
    assert report.verdict is Verdict.FAIL


def test_other_tokens_than_the_tokenizers_are_named_and_bound_to_no_figure() -> None:
    class Adds(ScriptedEngine):
        def generate(self, prompt, body):  # type: ignore[no-untyped-def]
            return super().generate([9, *prompt], body)

    with Adds(release="new") as engine:
        report = warmed(engine, deployed=deployment())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "counts other prompt tokens than its tokenizer route tells" in report.reason
    assert report.replicas[0].over_lower_bound is None


class TurnsOneAwayOnce(ScriptedEngine):
    """The first request for a desk is answered 429, and nothing of it is computed."""

    turned_away = False

    def refuses(self, path: str, body: Json) -> bool:
        is_first = (
            not self.turned_away and path in GENERATIONS and "You answer for the repairs desk" in json.dumps(body)
        )
        self.turned_away = self.turned_away or is_first
        return is_first


def test_dirt_that_the_touch_pass_meets_first_ends_it() -> None:
    asked = prompts(per_desk=1)
    dirty = msgspec.structs.replace(asked, prompts=tuple(one for one in asked.prompts if one.id == "repairs-0"))
    with TurnsOneAwayOnce(release="old") as engine:
        engine.turned_away = True
        serve_users(engine, prompt_set=dirty)
        engine.turned_away, engine.refused_status = False, 429
        engine.reload("new")
        report = warmed(engine, deployed=deployment(prompt_set=asked), max_error_rate=0.5, max_retries=0, concurrency=1)
    assert report.verdict is Verdict.FAIL, report.reason
    assert (report.replicas[0].sent, report.replicas[0].touched, report.replicas[0].asked_again) == (3, 0, 0)


def test_without_a_ledger_a_second_run_says_that_the_first_one_looks_the_same() -> None:
    with ScriptedEngine(release="new") as engine:
        assert warmed(engine).verdict is Verdict.PASS
        report = warmed(engine)
    assert report.verdict is Verdict.FAIL
    assert "it knows of no earlier one (--no-ledger)" in report.reason
