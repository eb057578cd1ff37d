"""Replicas that share a store outside their processes: what one computed is no foreign hit of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.hits import Unattributed
from kvrelease.engines.base import EngineKind
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.scripted import Generation, ScriptedEngine
from tests.verify.deployments import deployment, prompts, serve_users, warmed

BOUND = deployment(salt="release")
STORES = [EngineKind.VLLM, EngineKind.SGLANG]


@contextmanager
def pod(
    store: dict[str, str] | None, *, kind: EngineKind = EngineKind.VLLM, number: int = 0
) -> Iterator[ScriptedEngine]:
    """One replica over a store; pods of other numbers began at other times."""
    with ScriptedEngine(kind, release="new", store=store) as engine:
        engine.started += 60.0 * number
        yield engine


@pytest.mark.parametrize("kind", STORES)
def test_replicas_that_are_warmed_at_once_explain_each_others_hits(kind: EngineKind) -> None:
    store: dict[str, str] = {}
    with pod(store, kind=kind) as one, pod(store, kind=kind, number=1) as other:
        report = warmed(one, other)
    assert report.verdict is Verdict.PASS, report.reason
    assert [one.foreign_tokens for one in report.replicas] == [0, 0]


@pytest.mark.parametrize("kind", STORES)
def test_a_pod_that_comes_later_finds_what_its_sisters_left(kind: EngineKind) -> None:
    store: dict[str, str] = {}
    with Ledger(IN_MEMORY) as ledger, pod(store, kind=kind) as one, pod(store, kind=kind, number=1) as later:
        warmed(one, ledger=ledger)
        report = warmed(later, ledger=ledger)
    assert report.verdict is Verdict.PASS, report.reason
    assert report.replicas[0].foreign_tokens == 0


def test_two_stale_hits_do_not_vouch_for_each_other() -> None:
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=store) as old:
        serve_users(old)
    with pod(store) as one, pod(store, number=1) as other:
        report = warmed(one, other)
    assert report.verdict is Verdict.FAIL
    assert "64 cached tokens" in report.reason


def test_an_entry_in_a_replicas_own_cache_is_none_of_its_sisters() -> None:
    """It was loaded in place over the old release's cache; the store is empty, and fills as its sister is warmed."""
    store: dict[str, str] = {}
    with ScriptedEngine(release="old", store=None) as stale, pod(store, number=1) as sister:
        serve_users(stale)
        stale.cache.store = store  # type: ignore[attr-defined]
        stale.reload("new")
        with Ledger(IN_MEMORY) as ledger:
            assert warmed(sister, ledger=ledger).verdict is Verdict.PASS
            assert warmed(stale, ledger=ledger).verdict is Verdict.FAIL


class Busy(ScriptedEngine):
    """Others use it as well: with each request of ours one of theirs, of another prompt."""

    def generate(self, prompt: Sequence[int], body: dict[str, Any]) -> Generation:
        self.queried_of_rank[0] += 1000
        return super().generate(prompt, body)


def test_where_others_use_the_engine_the_hit_is_unknown_and_never_foreign() -> None:
    store: dict[str, str] = {}
    with Ledger(IN_MEMORY) as ledger, pod(store) as one, Busy(release="new", store=store) as busy:
        busy.started += 60.0
        warmed(one, ledger=ledger)
        report = warmed(busy, ledger=ledger)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.replicas[0].unattributed is Unattributed.SISTER


def test_unsalted_sisters_explain_nothing_once_another_release_was_asked_under_these_keys() -> None:
    store: dict[str, str] = {}
    with Ledger(IN_MEMORY) as ledger, pod(store) as one, pod(store, number=1) as later:
        with ScriptedEngine(release="old") as old:
            warmed(old, deployed=deployment("old", prompt_set=prompts(desks=("other",))), ledger=ledger)
        warmed(one, ledger=ledger)
        assert warmed(later, ledger=ledger).verdict is Verdict.FAIL


def test_a_bound_fleet_is_explained_whatever_was_asked_unsalted() -> None:
    store: dict[str, str] = {}
    with Ledger(IN_MEMORY) as ledger, pod(store) as one, pod(store, number=1) as later:
        for engine in (one, later):
            engine.cache.store_keeps_salt = True  # type: ignore[attr-defined]
        with ScriptedEngine(release="old") as old:
            warmed(old, deployed=deployment("old"), ledger=ledger)
        warmed(one, deployed=BOUND, ledger=ledger)
        assert warmed(later, deployed=BOUND, ledger=ledger).verdict is Verdict.PASS
