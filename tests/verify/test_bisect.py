"""Stale prefixes searched on real (scripted) servers over sockets: which block, which tier, or why not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.engines.base import EngineKind, Request, Route
from kvrelease.verify.bisect import cut_request
from kvrelease.verify.diagnosis import StalePrefix
from kvrelease.verify.evidence import Evidence, Limits
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.next_step import Action
from kvrelease.verify.tier import Tier
from tests.engines.scripted import Break, ScriptedEngine
from tests.verify.deployments import (
    deployment,
    observed,
    prompts,
    serve_users,
    verified,
)

# One prefix: what is asked again of it takes most of the time.
SMALL = prompts(per_desk=1, desks=("returns",))
LIMITS = Limits(stale_below=0.9)
UNSALTED = deployment(prompt_set=SMALL)
SALTED = deployment(salt="release", prompt_set=SMALL)
BLOCK = 16


def where(report: VerifyReport) -> dict[str, StalePrefix]:
    return {prefix.prefix: prefix for one in report.diagnosis for prefix in one.prefixes}


def actions(report: VerifyReport) -> list[Action]:
    return [step.action for one in report.diagnosis for step in one.next_steps]


def stale_from_block(engine: ScriptedEngine, block: int) -> None:
    """Users filled the cache under the old release; the first blocks are the new release's all the same."""
    serve_users(engine, prompt_set=SMALL)
    engine.reload("new")
    for ids in {tuple(ids) for seen in engine.generations() for ids in engine.prompt_ids(seen.path, seen.body)}:
        for key in engine.cache._keys(ids[: block * BLOCK], None):  # type: ignore[attr-defined]
            engine.cache.blocks[key] = "new"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "block"), [(EngineKind.VLLM, 0), (EngineKind.VLLM, 3), (EngineKind.SGLANG, 1)])
def test_the_first_stale_block_is_named(kind: EngineKind, block: int) -> None:
    with ScriptedEngine(kind, release="old", strength_nats=3.0) as engine:
        stale_from_block(engine, block)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert {name: found.stale_from for name, found in where(report).items()} == {"returns": block * BLOCK}
        assert where(report)["returns"].why_not_from is None


def test_each_stale_prefix_is_searched_and_a_clean_one_is_not() -> None:
    desks = prompts(per_desk=1)
    with ScriptedEngine(release="old", strength_nats=3.0) as engine:
        serve_users(engine, prompt_set=prompts(per_desk=1, desks=("billing", "repairs")))
        engine.reload("new")
        report = verified(engine, deployed=deployment(prompt_set=desks), limits=LIMITS, max_probes=3)
        assert {name: found.stale_from for name, found in where(report).items()} == {"billing": 0, "repairs": 0}


def test_through_the_bypass_where_a_layer_below_ignores_salts() -> None:
    with ScriptedEngine(release="old", strength_nats=3.0, ignores_salt=True) as engine:
        stale_from_block(engine, 2)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert {found.stale_from for found in where(report).values()} == {2 * BLOCK}


def test_from_a_second_engine_where_nothing_else_isolates() -> None:
    with (
        ScriptedEngine(release="old", strength_nats=3.0, ignores_salt=True, honours_bypass=False) as engine,
        ScriptedEngine(release="new", strength_nats=3.0) as reference,
    ):
        stale_from_block(engine, 2)
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, reference=reference)
        assert {found.stale_from for found in where(report).values()} == {2 * BLOCK}


def test_saved_evidence_gives_the_same_diagnosis(tmp_path: Any) -> None:
    with ScriptedEngine(release="old", strength_nats=3.0) as engine:
        stale_from_block(engine, 1)
        evidence = observed(engine, deployed=UNSALTED, limits=LIMITS).evidence
    path = tmp_path / "seen.json"
    artifacts.write(path, evidence)
    again = judge(artifacts.read(path, Evidence))
    assert again.diagnosis == judge(evidence).diagnosis
    assert {found.stale_from for found in where(again).values()} == {BLOCK}


def test_a_clean_engine_is_asked_nothing_more_and_gets_no_diagnosis() -> None:
    with ScriptedEngine(release="new") as engine:
        two = prompts(per_desk=2, desks=("returns",))
        serve_users(engine, prompt_set=two)
        report = verified(engine, deployed=deployment(prompt_set=two), limits=LIMITS)
        assert report.verdict is Verdict.PASS, report.reason
        assert report.diagnosis == ()
        assert {seen.path for seen in engine.generations()} == {Route.CHAT}


@pytest.mark.parametrize("kind", [EngineKind.LLAMACPP, EngineKind.OPENAI])
def test_where_it_cannot_be_found_out_the_reason_is_told(kind: EngineKind) -> None:
    second = ScriptedEngine(release="new", strength_nats=3.0)
    with ScriptedEngine(kind, release="old", strength_nats=3.0) as engine, second as reference:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS, reference=reference)
        assert report.diagnosis
        reasons = {found.why_not_from for found in where(report).values()}
        expected = "a reference leg replaces" if kind is EngineKind.LLAMACPP else "does not tell the token ids"
        assert all(reason is not None and expected in reason for reason in reasons), reasons
        assert actions(report) == [Action.RESTART]


def test_a_server_that_refuses_token_ids_loses_no_evidence() -> None:
    with ScriptedEngine(release="old") as engine:
        engine.break_with(Break.BAD_REQUEST, path="/v1/completions")
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert all("refused" in (found.why_not_from or "") for found in where(report).values())


# --- tiers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sources", "tier"),
    [
        (EngineKind.VLLM, None, Tier.OUTSIDE),
        (EngineKind.VLLM, "disk", Tier.STORAGE),
        (EngineKind.SGLANG, None, Tier.STORAGE),
    ],
)
def test_what_a_store_brought_back_is_told_apart_from_what_memory_held(
    kind: EngineKind, sources: str | None, tier: Tier
) -> None:
    with ScriptedEngine(kind, release="old", store={}) as engine:
        engine.external_source = sources
        serve_users(engine, prompt_set=SMALL)
        engine.restart("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert [set(found.tiers) for found in where(report).values()] == [{tier}]
        assert actions(report)[0] is Action.STORE
        detail = report.diagnosis[0].next_steps[0].detail
        assert ("kv_store=/kv/shared" if kind is EngineKind.VLLM else "hicache_storage_backend") in detail
        assert "hunter2" not in artifacts.to_json(report)


def test_memory_is_named_where_counters_tell_stores_apart_and_nothing_came_from_one() -> None:
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert [set(found.tiers) for found in where(report).values()] == [{Tier.DEVICE}]
        assert actions(report) == [Action.FLUSH, Action.BIND]


def test_without_counters_the_tier_is_not_known_and_the_advice_says_what_to_look_for() -> None:
    with ScriptedEngine(release="old", has_metrics=False) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=UNSALTED, limits=LIMITS)
        assert [found.tiers for found in where(report).values()] == [{}]
        assert "where hits come back" in report.diagnosis[0].next_steps[0].detail


# --- what to do -----------------------------------------------------------------------------------------------------


def test_users_that_are_bound_to_a_poisoned_namespace_get_a_new_epoch() -> None:
    with ScriptedEngine(release="old") as engine:
        serve_users(engine, salt=SALTED.namespace, prompt_set=SMALL)
        engine.reload("new")
        report = verified(engine, deployed=SALTED, limits=LIMITS)
        assert report.verdict is Verdict.FAIL
        assert actions(report) == [Action.BUMP]
        assert report.diagnosis[0].next_steps[0].call == "kvrelease namespace RELEASE --new-epoch"


def test_a_salt_that_is_ignored_makes_an_epoch_and_bound_clients_no_remedy() -> None:
    with ScriptedEngine(release="old", ignores_salt=True) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.reload("new")
        assert actions(verified(engine, deployed=SALTED, limits=LIMITS)) == [Action.FLUSH]


def test_foreign_hits_where_none_was_to_be_are_named_though_no_answer_differs() -> None:
    with ScriptedEngine(release="old", store={}, strength_nats=0.0) as engine:
        serve_users(engine, prompt_set=SMALL)
        engine.restart("new")
        report = verified(engine, deployed=UNSALTED, limits=msgspec.structs.replace(LIMITS, expects_cold=True))
        assert report.verdict is Verdict.FAIL
        assert {found.foreign_from for found in where(report).values()} == {0}
        assert {found.why_not_from for found in where(report).values()} == {"no answer differs from its clean twin"}


def test_a_cut_keeps_what_chooses_where_a_cache_is_read_and_nothing_that_makes_a_prompt() -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [],
        "stop": ["."],
        "model": "adapter",
        "kv_transfer_params": {"lmcache.tag.weights": "a"},
        "temperature": 0,
    }
    cut = cut_request(Request(route=Route.CHAT, body=body, salt="s", max_tokens=8), (1, 2, 3))
    assert cut == Request(
        route=Route.COMPLETIONS,
        body={
            "prompt": [1, 2, 3],
            "model": "adapter",
            "kv_transfer_params": {"lmcache.tag.weights": "a"},
            "temperature": 0,
        },
        salt="s",
        max_tokens=8,
    )
