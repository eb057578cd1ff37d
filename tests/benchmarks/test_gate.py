"""The benchmark of the gate's error rates: pools come back as they were, drawn runs are judged, counts go on."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from benchmarks.gate.counting import counted, jobs, judging_sources, read_chunks
from benchmarks.gate.drawing import PROBES, Drawing, Outcome
from benchmarks.gate.pool import Pool, is_recorded, load, save, trimmed
from kvrelease.artifacts import Verdict
from kvrelease.engines.base import Observation
from kvrelease.verify.peers import PEERS
from tests.benchmarks.pools import STALE_NATS, made_pool
from tests.verify.builders import identity, observation


@pytest.fixture(scope="module")
def pool() -> Pool:
    return made_pool()


def candidates(seen: Observation) -> dict[str, float]:
    return {one.token: one.logprob for one in seen.tokens[0].top}


def test_a_pool_comes_back_and_keeps_equal_observations_once(pool: Pool, tmp_path: Path) -> None:
    again = load(save(pool, tmp_path))
    assert again == pool
    first = again.prompts[0]
    assert candidates(again.observations()[first.clean_in_process]) == pytest.approx(candidates(observation()))
    assert {one.clean_in_process for one in again.prompts} == {first.clean_in_process}


def test_what_a_pool_says_of_its_size_is_counted(pool: Pool) -> None:
    assert pool.about["entries"] == "alone 1, company 2, again 3, stale 1"
    assert pool.about["reads"] == "alone 4, company 4, again 4, stale 4, cold 4"
    assert trimmed(pool, reads=2).about["reads"] == "alone 2, company 2, again 2, stale 2, cold 2"


def test_a_pool_names_no_place_of_the_machine_that_recorded_it(pool: Pool) -> None:
    assert identity().url not in str(msgspec.to_builtins(pool.identity))


def test_a_pool_that_was_recorded_otherwise_is_recorded_again(pool: Pool, tmp_path: Path) -> None:
    path = save(pool, tmp_path)
    assert is_recorded(path, {"prompts": "some"})
    assert not is_recorded(path, {"prompts": "others"})
    assert not is_recorded(path, {"prompts": "some", "seed": "1"})
    assert not is_recorded(tmp_path / "nothing.pool", {})


def drawn(pool: Pool, *, stale_share: float, seed: int = 0) -> Outcome:
    return asyncio.run(Drawing(pool).run(seed, stale_share=stale_share))


def test_drawn_runs_are_judged_by_the_gate_and_repeat_by_their_seed(pool: Pool) -> None:
    clean, stale = drawn(pool, stale_share=0.0), drawn(pool, stale_share=1.0)
    assert (clean.verdict, clean.stale) == (Verdict.PASS, 0)
    assert (stale.verdict, stale.stale, stale.visible, stale.failed) == (
        Verdict.FAIL,
        PROBES,
        PROBES,
        ("consistency",),
    )
    assert 3 * PROBES < clean.requests <= 3.5 * PROBES < stale.requests
    assert drawn(pool, stale_share=1.0) == stale


def test_drawn_runs_tell_small_staleness_by_entries_written_again() -> None:
    small, large = (drawn(made_pool(stale_nats=nats), stale_share=1.0) for nats in (0.1, STALE_NATS))
    assert (small.verdict, small.failed) == (Verdict.FAIL, ("consistency",))
    written_and_read = 2
    assert small.requests - large.requests >= written_and_read * PEERS[3] * 3


def test_counts_of_another_pool_or_judge_are_not_taken(pool: Pool, tmp_path: Path) -> None:
    path, results = save(pool, tmp_path), tmp_path / "counts.jsonl"
    wanted = jobs([path], runs=10, chunk=10)
    results.write_text('{"pool": "another"}\n{"cut sh')
    assert read_chunks(results) == []
    with pytest.raises(SystemExit, match="4 of 4 chunks are not counted"):
        counted(wanted, results)


def test_counts_are_kept_by_everything_that_draws_a_run() -> None:
    sources = judging_sources()
    draws = {path for path in sources if path.parent.name == "gate"}
    assert draws
    assert {path.stem for path in draws} >= {name for path in draws for name in modules_of_the_benchmark(path)} - {
        "places"  # where files lie
    }


def modules_of_the_benchmark(path: Path) -> Sequence[str]:
    """Those that a module imports."""
    prefix = "benchmarks.gate."
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return [one.module.removeprefix(prefix) for one in found if one.module and one.module.startswith(prefix)]
