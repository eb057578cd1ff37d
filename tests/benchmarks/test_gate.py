"""The benchmark of the gate's error rates: pools come back as they were, drawn runs are judged, counts go on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from benchmarks.gate.counting import counted, jobs, read_chunks
from benchmarks.gate.drawing import PROBES, Drawing
from benchmarks.gate.levels import VLLM_LEVELS
from benchmarks.gate.pool import Pool, PooledPrompt, PoolWriter, load, pool_name, save
from benchmarks.gate.prompts import prompt_set
from benchmarks.gate.record_vllm import record_from
from benchmarks.gate.table import Cell, broken_promises
from benchmarks.gate.template import load_template, nonce_tokens, save_template
from kvrelease.artifacts import Verdict
from kvrelease.engines.base import Observation
from kvrelease.verify.distance import distance
from tests.engines.scripted import ScriptedEngine
from tests.verify.builders import evidence, observation

READ_NATS = 0.002
STALE_NATS = 0.5


@pytest.fixture(scope="module")
def pool() -> Pool:
    source, writer = random.Random(0), PoolWriter()

    def reads(shift: float) -> tuple[int, ...]:
        return tuple(writer.add(observation(shift + source.uniform(-READ_NATS, READ_NATS))) for _ in range(2))

    prompts = tuple(
        PooledPrompt(
            id=f"p{number}",
            prefix=f"desk{number % 3}",
            weight=1.0 / (1 + number),
            prompt_tokens=200,
            cached_tokens=192,
            alone=(reads(0.0),),
            company=(reads(0.0), reads(0.0)),
            stale=(reads(STALE_NATS),),
            clean_in_process=writer.add(observation()),
            stale_in_process=writer.add(observation(STALE_NATS)),
            old_in_process=writer.add(observation(2 * STALE_NATS)),
        )
        for number in range(PROBES + 6)
    )
    return writer.pool(engine="local", level="reading", release="all-36", about={}, prompts=prompts)


def candidates(seen: Observation) -> dict[str, float]:
    return {one.token: one.logprob for one in seen.tokens[0].top}


def test_a_pool_comes_back_and_keeps_equal_observations_once(pool: Pool, tmp_path: Path) -> None:
    again = load(save(pool, tmp_path))
    assert again == pool
    first = again.prompts[0]
    assert candidates(again.observations()[first.clean_in_process]) == pytest.approx(candidates(observation()))
    assert {one.clean_in_process for one in again.prompts} == {first.clean_in_process}


def test_the_evidence_of_a_real_run_comes_back_without_its_probes(tmp_path: Path) -> None:
    real = evidence()
    save_template("local", real, tmp_path, probes=PROBES)
    kept = load_template("local", tmp_path)
    (found,) = kept.replicas
    assert kept.cost.requests == real.cost.requests + 3 * (PROBES - len(real.replicas[0].probes))
    assert nonce_tokens(kept) == (5, 5 * 200)
    assert found.probes == ()
    assert found.control is not None
    assert len(found.control.legs[0].observation.tokens) == 1


def test_drawn_runs_are_judged_by_the_gate_and_repeat_by_their_seed(pool: Pool) -> None:
    drawing = Drawing(pool, evidence())
    clean, stale = drawing.run(0, stale_share=0.0), drawing.run(0, stale_share=1.0)
    assert (clean.verdict, clean.stale) == (Verdict.PASS, 0)
    assert (stale.verdict, stale.stale, stale.failed) == (Verdict.FAIL, PROBES, ("consistency",))
    assert stale.requests > clean.requests
    assert drawing.run(0, stale_share=1.0) == stale


def test_counts_of_another_pool_or_judge_are_not_taken(pool: Pool, tmp_path: Path) -> None:
    path, results = save(pool, tmp_path), tmp_path / "counts.jsonl"
    wanted = jobs([path], runs=10, chunk=10)
    results.write_text('{"pool": "another"}\n{"cut sh')
    assert read_chunks(results) == []
    with pytest.raises(SystemExit, match="4 of 4 chunks are not counted"):
        counted(wanted, results)


def cell(share: float, *, runs: int = 2000, unmet: int = 0, **verdicts: int) -> Cell:
    return Cell(
        engine="local",
        level="reading",
        release="all-36",
        stale_share=share,
        runs=runs,
        verdicts=verdicts,
        failed={},
        open={},
        unmet=unmet,
        blind=0,
        requests=207 * runs,
        tokens=runs,
    )


@pytest.mark.parametrize(
    ("found", "is_broken"),
    [
        (cell(0.0, **{"pass": 1996, "fail": 4}), False),
        (cell(0.0, **{"pass": 1995, "fail": 5}), True),
        (cell(0.05, unmet=92, **{"pass": 92, "fail": 1908}), False),
        (cell(0.05, unmet=92, **{"pass": 150, "fail": 1850}), True),
        (cell(1.0, inconclusive=2000), False),
        (cell(1.0, **{"pass": 1, "fail": 1999}), True),
    ],
)
def test_a_promise_is_broken_by_a_fifth_false_fail_and_by_misses_beyond_the_claim(found: Cell, is_broken: bool) -> None:
    assert bool(broken_promises([found])) is is_broken


def test_a_server_whose_weights_are_reloaded_in_place_fills_pools_that_show_it(tmp_path: Path) -> None:
    prompts = prompt_set(limit=3)
    writer = PoolWriter()
    number = writer.add(observation())
    twins = tuple(
        PooledPrompt(
            id=prompt.id,
            prefix=prompt.id,
            weight=prompt.weight,
            prompt_tokens=0,
            cached_tokens=0,
            alone=(),
            company=(),
            stale=(),
            clean_in_process=number,
            stale_in_process=number,
            old_in_process=number,
        )
        for prompt in prompts.prompts
    )
    save(writer.pool(engine="local", level="reading", release="all-36", about={}, prompts=twins), tmp_path)
    save_template("vllm", evidence(), tmp_path, probes=PROBES)
    with ScriptedEngine(release="old", model="gate") as engine:
        recording = record_from(
            engine.url,
            tmp_path / "old",
            {"all-36": tmp_path / "all-36"},
            prompts,
            tmp_path,
            say=lambda _: None,
            pause=lambda: None,
        )
        asyncio.run(recording)
    for level in VLLM_LEVELS:
        pool = load(tmp_path / pool_name("vllm", level, "all-36"))
        seen = pool.observations()
        for prompt in pool.prompts:
            clean, stale = (seen[entries[0][0]] for entries in (prompt.alone, prompt.stale))
            assert 0 < prompt.cached_tokens < prompt.prompt_tokens
            assert distance(clean, seen[prompt.company[1][0]]).nats == 0
            assert (distance(clean, stale).nats or 0) > 0
