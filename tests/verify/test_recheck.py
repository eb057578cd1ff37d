"""After a failure, where it is permitted: the cache is emptied, and stale probes are asked again. Cache, or model?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.binding.observe import Leg
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.diagnosis import Diagnosis
from kvrelease.verify.evidence import Evidence, FlushEvidence, Limits, Recheck
from kvrelease.verify.floor import judged_by_floor
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.next_step import Action
from kvrelease.verify.recheck import Cause, CauseFound, cause_of
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.builders import CACHED_TOKENS, leg, replica, stale_probe
from tests.verify.deployments import deployment, observed, prompts, serve_users, verified, warmed

SMALL = prompts(per_desk=1, desks=("returns",))
LIMITS = Limits(stale_below=0.9)
UNSALTED = deployment(prompt_set=SMALL)
FLUSH = "/reset_prefix_cache"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


@pytest.fixture
def stale() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="old", strength_nats=3.0) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        yield engine


def flushes(engine: ScriptedEngine) -> list[int]:
    """Where in the log the cache was emptied."""
    return [place for place, seen in enumerate(engine.requests) if seen.path == FLUSH]


def only(report: VerifyReport) -> Diagnosis:
    (found,) = report.diagnosis
    return found


def test_clean_over_an_emptied_cache_is_the_cache_s_fault_and_the_ledger_forgets(
    stale: ScriptedEngine, ledger: Ledger
) -> None:
    report = verified(stale, deployed=UNSALTED, limits=LIMITS, ledger=ledger, allows_flush=True)
    assert report.verdict is Verdict.FAIL
    assert only(report).cause.cause is Cause.CACHE
    assert [step.action for step in only(report).next_steps] == [Action.PREWARM, Action.BIND]
    # Once, with nothing but the stale probe after it.
    (place,) = flushes(stale)
    assert [seen.path for seen in stale.requests[place:] if seen.body.get("messages")] == ["/v1/chat/completions"]
    # What is there now is the release's own: prewarming it finds nothing foreign.
    assert warmed(stale, deployed=UNSALTED, ledger=ledger).verdict is Verdict.PASS


def test_where_nobody_permits_it_nothing_is_emptied_and_the_report_says_what_it_would_take(
    stale: ScriptedEngine,
) -> None:
    report = verified(stale, deployed=UNSALTED, limits=LIMITS)
    assert flushes(stale) == []
    assert only(report).cause.cause is None
    assert "--allow-flush" in only(report).cause.why


class TwoBehindOneAddress(ScriptedEngine):
    """A route by salt: what has none goes to a server that still runs the old weights."""

    is_mended = False

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        self.release = "new" if body.get("cache_salt") or self.is_mended else "old"
        return super().generate(prompt, body)


def test_still_different_over_an_emptied_cache_is_the_model_s_fault(ledger: Ledger) -> None:
    with TwoBehindOneAddress(release="old", strength_nats=3.0) as engine:
        serve_users(engine, prompt_set=SMALL)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, ledger=ledger, allows_flush=True)
        assert report.verdict is Verdict.FAIL, report.reason
        assert only(report).cause.cause is Cause.MODEL
        assert [step.action for step in only(report).next_steps] == [Action.LOAD]
        # What other weights computed explains no later hit.
        engine.is_mended = True
        assert warmed(engine, deployed=UNSALTED, ledger=ledger).verdict is Verdict.FAIL


def test_a_flush_that_lies_tells_nothing_apart(stale: ScriptedEngine) -> None:
    stale.flush_reply = (200, b'{"success": true}')
    report = verified(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
    assert report.verdict is Verdict.FAIL
    assert only(report).cause.cause is None
    assert "were cached again after the flush" in only(report).cause.why
    assert Action.PREWARM not in [step.action for step in only(report).next_steps]


def cause_by(*rechecks: Leg) -> CauseFound:
    """Of two stale prefixes, asked again after a flush that one probe proves."""
    probes = [stale_probe("a", prefix="one"), stale_probe("b", prefix="two")]
    seen = replace(
        replica(probes),
        flush=FlushEvidence(probe="a", cached_before=192, requests_before=9, is_done=True, cached_after=0),
        rechecks=tuple(Recheck(probe=one.id, leg=leg) for one, leg in zip(probes, rechecks, strict=False)),
    )
    floor, judged = judged_by_floor(seen)
    return cause_of(seen, judged, floor=floor, runs_other_weights=False)


def test_a_stale_answer_over_entries_that_a_tier_below_brought_back_is_not_the_model_s_fault() -> None:
    refilled = leg(0.6, foreign=CACHED_TOKENS)
    assert cause_by(leg(cached=0), refilled).cause is Cause.CACHE
    assert cause_by(leg(0.6, cached=0), refilled).cause is Cause.MODEL
    for other in (refilled, leg(0.6, foreign=None)):
        found = cause_by(other, other)
        assert found.cause is None
        assert "a tier below filled the cache" in found.why


def test_a_flush_that_is_refused_tells_nothing_apart(stale: ScriptedEngine) -> None:
    stale.flush_reply = (200, b'{"success": false}')
    report = verified(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
    assert "refused to empty its cache" in only(report).cause.why
    assert only(report).next_steps[0].action is Action.FLUSH


def test_a_clean_engine_is_not_emptied_though_it_may_be() -> None:
    two = prompts(per_desk=2, desks=("returns",))
    with ScriptedEngine(release="new") as engine:
        serve_users(engine, prompt_set=two)
        report = verified(engine, deployed=deployment(prompt_set=two), limits=LIMITS, allows_flush=True)
        assert report.verdict is Verdict.PASS, report.reason
        assert flushes(engine) == []


def test_saved_evidence_tells_the_same_cause(stale: ScriptedEngine, tmp_path: Any) -> None:
    evidence = observed(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True).evidence
    artifacts.write(tmp_path / "seen.json", evidence)
    assert only(judge(artifacts.read(tmp_path / "seen.json", Evidence))).cause == only(judge(evidence)).cause
