"""A block size that the user states, for an engine that does not tell its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.hits import Unattributed
from kvrelease.errors import UsageError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import serve_users, warmed


def silent_engine(release: str) -> ScriptedEngine:
    """Usage tells hits, and nothing tells the block, which is 16."""
    return ScriptedEngine(release=release, has_metrics=False, has_dev_routes=False)


def test_without_it_the_block_size_is_named_as_what_is_not_known() -> None:
    with silent_engine("new") as engine:
        report = warmed(engine)
    (found,) = report.replicas
    assert (report.verdict, found.unattributed) == (Verdict.INCONCLUSIVE, Unattributed.NO_BLOCK)
    assert "does not tell its block size" in report.reason
    assert "--block-tokens N" in report.reason
    assert "token ids" not in report.reason
    assert report.plan.prompt_tokens is not None
    assert report.plan.lower_bound_tokens is None
    assert any("no figures: the server does not tell its block size" in note for note in report.notes)


def test_with_it_there_are_figures_and_the_report_says_whose_word_they_rest_on() -> None:
    with silent_engine("new") as engine:
        report = warmed(engine, block_tokens=16)
    (found,) = report.replicas
    assert report.verdict is Verdict.PASS, report.reason
    assert (found.hit_rate_after, found.over_lower_bound, found.foreign_tokens) == (1.0, 1.0, 0)
    assert report.plan.stated_block_tokens == 16
    assert "blocks of 16 tokens are what --block-tokens states; the server does not tell its own" in report.notes


@pytest.mark.parametrize("block", [4, 16, 32])
def test_a_run_that_knew_no_block_leaves_nothing_that_the_next_one_calls_foreign(block: int) -> None:
    with (
        ScriptedEngine(release="new", block_tokens=block, has_metrics=False, has_dev_routes=False) as engine,
        Ledger(IN_MEMORY) as ledger,
    ):
        first = warmed(engine, ledger=ledger)
        second = warmed(engine, ledger=ledger, block_tokens=block)
    assert first.replicas[0].unattributed is Unattributed.NO_BLOCK
    assert second.verdict is (Verdict.INCONCLUSIVE if block == 4 else Verdict.PASS), second.reason
    assert not second.replicas[0].foreign_tokens


def test_what_another_release_left_is_dirty_after_a_run_that_knew_no_block() -> None:
    with silent_engine("old") as engine, Ledger(IN_MEMORY) as ledger:
        serve_users(engine)
        engine.reload("new")
        warmed(engine, ledger=ledger)
        report = warmed(engine, ledger=ledger, block_tokens=16)
    assert report.verdict is Verdict.FAIL
    assert "--allow-flush" not in report.reason, "this engine takes no flush"


def test_a_dirty_verdict_says_that_no_process_could_be_told(tmp_path: Path) -> None:
    async def untold(_address: object) -> None:
        return None

    place = f"sqlite:///{tmp_path / 'ledger.db'}"
    with pytest.MonkeyPatch.context() as patch, silent_engine("new") as engine, Ledger(place) as ledger:
        patch.setattr("kvrelease.engines.vllm.process_behind", untold)
        warmed(engine, ledger=ledger, block_tokens=16)
        again = warmed(engine, ledger=ledger, block_tokens=16)
    assert again.verdict is Verdict.FAIL
    assert not again.replicas[0].is_identified
    assert "nothing tells this engine's process" in again.reason
    assert "looks the same" in again.reason


@pytest.mark.parametrize("stated", [32, 48, 24])
def test_a_size_that_is_wrong_makes_nothing_dirty(stated: int) -> None:
    with silent_engine("new") as engine:
        report = warmed(engine, block_tokens=stated)
    assert report.verdict is not Verdict.PASS
    assert not report.replicas[0].foreign_tokens, report.reason
    assert report.replicas[0].unattributed is Unattributed.OTHER_BLOCK


def test_what_another_release_left_is_dirty_by_a_stated_block_too() -> None:
    for stated in (16, 48):
        with silent_engine("old") as engine:
            serve_users(engine)
            engine.reload("new")
            report = warmed(engine, block_tokens=stated)
        assert report.verdict is Verdict.FAIL, (stated, report.reason)


def test_an_engine_that_tells_another_block_is_believed() -> None:
    with ScriptedEngine(release="new") as engine:
        with pytest.raises(UsageError, match=r"--block-tokens 32: a hit of .* is a multiple of 16 tokens") as told:
            warmed(engine, block_tokens=32)
        assert "leave --block-tokens out" in str(told.value.hint)
        assert not engine.generations()
        assert warmed(engine, block_tokens=16).plan.stated_block_tokens is None, "it tells the same"
