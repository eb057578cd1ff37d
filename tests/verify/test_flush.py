"""The last resort: the cache is emptied, where that is permitted, and the same probes are sent once more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.errors import InputError, UsageError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.progress import ProgressEvent
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.evidence import Evidence, Isolation, Limits, Rung, RungOutcome
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.repeats import REPEATS
from kvrelease.verify.run import Observed, conclude, observe
from kvrelease.verify.twins import Twins
from tests.engines.scripted import ScriptedEngine
from tests.loops import run
from tests.verify.deployments import deployment, observed, prompts, serve_users, verified, warmed, with_clients
from tests.verify.scenarios.verdicts import check

SMALL = prompts(per_desk=1, desks=("returns", "billing"))
LIMITS = Limits(stale_below=0.8)  # two probes
UNSALTED = deployment(prompt_set=SMALL)
FLUSH = "/reset_prefix_cache"


def unisolated(release: str = "new", **settings: Any) -> ScriptedEngine:
    """Neither salts nor bypasses do anything: as vLLM before it had either, or behind a gateway that drops both."""
    return ScriptedEngine(release=release, ignores_salt=True, honours_bypass=False, **settings)


@pytest.fixture
def stale() -> Iterator[ScriptedEngine]:
    with unisolated("old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        yield engine


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(IN_MEMORY) as store:
        yield store


def flushes(engine: ScriptedEngine) -> list[int]:
    """Where in the log the cache was emptied."""
    return [place for place, seen in enumerate(engine.requests) if seen.path == FLUSH]


def rung(found: Observed | VerifyReport, way: Isolation = Isolation.FLUSH) -> Rung:
    told = found.evidence.replicas[0] if isinstance(found, Observed) else found.isolation[0]
    return next(one for one in told.rungs if one.isolation is way)


def test_a_stale_engine_that_nothing_isolates_fails_by_its_own_answers_after_a_flush(stale: ScriptedEngine) -> None:
    report = verified(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
    assert report.verdict is Verdict.FAIL, report.reason
    assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL
    assert "reference legs by flush" in check(report, CheckId.BYPASS).detail
    assert (rung(report).outcome, rung(report).proved) == (RungOutcome.USED, len(SMALL))
    detail = check(report, CheckId.FLUSH).detail
    assert "EMPTIED" in detail
    assert "and 0 after" in detail
    assert len(flushes(stale)) == 1


def test_a_clean_engine_that_nothing_isolates_passes_after_a_flush(ledger: Ledger) -> None:
    with unisolated() as engine:
        warmed(engine, deployed=UNSALTED, ledger=ledger)
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS, allows_flush=True)
        assert report.verdict is Verdict.PASS, report.reason
        assert report.noise_floor.pairs >= len(SMALL)


def test_clean_users_whom_nobody_remembers_pass_too_and_their_entries_are_asked_again_before_the_flush() -> None:
    with unisolated() as engine:
        serve_users(engine, prompt_set=SMALL)
        found = observed(engine, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
        assert judge(found.evidence).verdict is Verdict.PASS
        assert all(len(probe.repeats.production) == REPEATS for probe in found.evidence.replicas[0].probes)


def test_without_leave_nothing_is_flushed_and_the_report_says_that_it_could_be(stale: ScriptedEngine) -> None:
    report = verified(stale, deployed=UNSALTED, limits=LIMITS)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "--allow-flush" in check(report, CheckId.BYPASS).detail
    assert flushes(stale) == []


def test_what_is_permitted_and_not_needed_is_not_done() -> None:
    with ScriptedEngine(release="new") as engine:
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
        assert report.verdict is Verdict.PASS, report.reason
        assert rung(report).outcome is RungOutcome.UNNEEDED
        assert flushes(engine) == []


def test_an_engine_that_cannot_flush_is_refused_before_anything_is_sent() -> None:
    for kind, settings in ((EngineKind.VLLM, {"has_dev_routes": False}), (EngineKind.OPENAI, {})):
        with ScriptedEngine(kind, release="new", **settings) as engine:  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="cannot empty its cache") as caught:
                verified(engine, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
            assert caught.value.hint
            assert engine.generations() == []


@pytest.mark.parametrize("reply", [(200, b'{"success": true}'), (200, b"")])
def test_a_flush_that_lies_is_named_and_counts_as_not_had(stale: ScriptedEngine, reply: tuple[int, bytes]) -> None:
    stale.flush_reply = reply
    report = verified(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert check(report, CheckId.BYPASS).verdict is CheckVerdict.INCONCLUSIVE
    assert rung(report).outcome is RungOutcome.GIVEN_UP
    assert "nothing is proved to be emptied" in check(report, CheckId.FLUSH).detail
    assert len(stale.requests) == flushes(stale)[0] + 1 + len(after(stale)), "one probe shows the lie"
    assert len([seen for seen in after(stale) if seen.path.startswith("/v1/chat")]) == 1


def after(engine: ScriptedEngine) -> list[Any]:
    return engine.requests[flushes(engine)[0] + 1 :]


def test_a_flush_that_is_refused_empties_nothing_and_costs_the_ledger_nothing(ledger: Ledger) -> None:
    with unisolated() as engine:
        warmed(engine, deployed=UNSALTED, ledger=ledger)
        engine.flush_reply = (409, b"{}")
        report = verified(engine, deployed=UNSALTED, ledger=ledger, limits=LIMITS, allows_flush=True)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "nothing was emptied" in check(report, CheckId.FLUSH).detail
        assert warmed(engine, deployed=UNSALTED, ledger=ledger).verdict is Verdict.PASS


def test_where_nobody_witnesses_hits_a_flush_could_not_be_proved_and_is_not_done() -> None:
    with unisolated(reports_cached_tokens=False, has_metrics=False) as engine:
        found = observed(engine, deployed=UNSALTED, limits=LIMITS, allows_flush=True)
        assert rung(found).outcome is RungOutcome.GIVEN_UP
        assert flushes(engine) == []


def test_the_ledger_forgets_what_was_flushed_and_knows_what_came_after(stale: ScriptedEngine, ledger: Ledger) -> None:
    assert verified(stale, deployed=UNSALTED, ledger=ledger, limits=LIMITS, allows_flush=True).verdict is Verdict.FAIL
    # What the cache holds now was computed by this release: a prewarm finds nothing foreign.
    assert warmed(stale, deployed=UNSALTED, ledger=ledger).verdict is Verdict.PASS


def test_everything_is_recorded_and_saved_before_the_flush(stale: ScriptedEngine) -> None:
    saved: list[tuple[Evidence, int]] = []
    found = observed(
        stale,
        deployed=UNSALTED,
        limits=LIMITS,
        allows_flush=True,
        before_flush=lambda seen: saved.append((seen, len(flushes(stale)))),
    )
    ((before, flushed),) = saved
    assert flushed == 0
    (replica,) = before.replicas
    assert replica.flush is not None
    assert not replica.flush.is_done
    assert len(replica.probes) == len(SMALL)
    assert all(len(probe.repeats.production) == REPEATS for probe in replica.probes)
    assert replica.control is not None
    assert before.interrupted
    assert judge(before).verdict is Verdict.INCONCLUSIVE
    assert "about to be emptied" in check(judge(before), CheckId.FLUSH).detail
    assert judge(found.evidence).verdict is Verdict.FAIL


def test_what_cannot_be_saved_is_not_flushed(stale: ScriptedEngine) -> None:
    def fail(evidence: Evidence) -> None:
        raise InputError("writing seen.json: no space left; nothing was written")

    found = observed(stale, deployed=UNSALTED, limits=LIMITS, allows_flush=True, before_flush=fail)
    assert [fault.exit_code for fault in found.faults] == [4]
    assert judge(found.evidence).verdict is Verdict.INCONCLUSIVE
    assert flushes(stale) == []


def test_ctrl_c_during_the_flush_keeps_the_evidence_and_the_ledger_claims_nothing(
    stale: ScriptedEngine, ledger: Ledger
) -> None:
    async def main(clients: list[EngineClient]) -> Observed:
        task = asyncio.current_task()
        assert task is not None

        def stop(event: ProgressEvent) -> None:
            if event.stage.startswith("emptying"):
                task.cancel()

        return await observe(
            clients,
            deployment=UNSALTED,
            ledger=ledger,
            limits=LIMITS,
            twins=Twins(),
            allows_flush=True,
            progress=stop,
        )

    found = with_clients([stale], main)
    assert found.interrupted
    assert len(found.evidence.replicas[0].probes) == len(SMALL)
    report, _ = conclude(found, deployment=UNSALTED, ledger=ledger)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_an_engine_with_slots_whose_bypass_does_nothing_fails_by_a_flush_too() -> None:
    import httpx

    files: dict[str, tuple[list[int], list[str]]] = {}
    kind = EngineKind.LLAMACPP
    one = prompts(per_desk=2, desks=("returns",))
    with ScriptedEngine(kind, release="old", slot_files=files) as old:
        serve_users(old, prompt_set=prompts(per_desk=1, desks=("returns",)))
        httpx.post(f"{old.url}/slots/0?action=save", json={"filename": "s"})
    with ScriptedEngine(kind, release="new", slot_files=files, honours_bypass=False) as engine:
        httpx.post(f"{engine.url}/slots/0?action=restore", json={"filename": "s"})
        report = verified(engine, deployed=deployment(prompt_set=one), limits=LIMITS, allows_flush=True)
        assert check(report, CheckId.CONSISTENCY).verdict is CheckVerdict.FAIL
        assert "reference legs by flush" in check(report, CheckId.BYPASS).detail


def test_ranks_of_one_engine_are_all_observed_before_it_is_emptied_once() -> None:
    with unisolated("old", ranks=2) as engine:
        serve_users(engine, prompt_set=SMALL)
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        found = ranks_verified(engine)
        assert len(flushes(engine)) == 1
        asked = [seen.headers.get("x-data-parallel-rank") for seen in engine.requests[: flushes(engine)[0]]]
        assert {"0", "1"} <= set(asked)
        for replica in found.evidence.replicas:
            assert replica.flush is not None
            assert replica.flush.is_proved
            assert all(probe.cold is not None for probe in replica.probes)
        report = judge(found.evidence)
        stale = {probe.replica for probe in report.probes if probe.verdict is ProbeVerdict.STALE}
        assert stale == {f"{engine.url} (rank {rank})" for rank in (0, 1)}
        assert "(rank 0)" in check(report, CheckId.REPLICAS).detail


def ranks_verified(engine: ScriptedEngine) -> Observed:
    from kvrelease.fleet.access import access_of
    from kvrelease.fleet.listed import listed_replica
    from kvrelease.fleet.opening import open_fleet

    access = access_of(
        production=UNSALTED.production,
        urls=(),
        listed=[listed_replica(engine.url, rank=rank) for rank in (0, 1)],
        kind=engine.kind,
        model=None,
        timeout_s=5.0,
        key_variable=None,
        headers={},
        warn=pytest.fail,
    )

    async def main() -> Observed:
        async with open_fleet(access, release=None, warn=pytest.fail) as fleet:
            with Ledger(IN_MEMORY) as store:
                return await observe(
                    fleet.engines,
                    deployment=UNSALTED,
                    ledger=store,
                    limits=LIMITS,
                    twins=Twins(),
                    allows_flush=True,
                )

    return run(main())
