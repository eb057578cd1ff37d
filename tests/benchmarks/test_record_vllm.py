"""Recording pools of a vLLM: what is written is what runs are drawn from, and what went wrong is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.gate.levels import ENTRIES, VLLM_LEVELS, WRITTEN_AGAIN
from benchmarks.gate.pool import PooledPrompt, PoolWriter, load, pool_name, save
from benchmarks.gate.record_vllm import MODEL, record, record_from
from benchmarks.gate.releases import WEIGHTS
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient, EngineKind, Observation
from kvrelease.verify.distance import distance
from kvrelease.verify.record import TOP_LOGPROBS
from kvrelease.workload.prompt_set import PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.verify import deployments
from tests.verify.builders import identity

NEW = "all-36"


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    """Short ones: two questions to each of three desks."""
    return deployments.prompts(per_desk=2)


@pytest.fixture
def releases(tmp_path: Path) -> Mapping[str, Path]:
    """The old release and the new one, as directories whose weights have a digest."""
    for name in ("old", NEW):
        (tmp_path / name).mkdir()
        (tmp_path / name / WEIGHTS).write_text(name)
    return {name: tmp_path / name for name in ("old", NEW)}


def answers(release: str, prompts: PromptSet) -> dict[str, Observation]:
    """What a server that was started with a release says to each prompt."""

    async def ask(clients: list[EngineClient]) -> dict[str, Observation]:
        return {
            prompt.id: await clients[0].complete(
                production_request(
                    prompt,
                    production=Production(),
                    model=MODEL,
                    kind=EngineKind.VLLM,
                    salt=None,
                    max_tokens=1,
                    top_logprobs=TOP_LOGPROBS,
                )
            )
            for prompt in prompts.prompts
        }

    with ScriptedEngine(release=release, model=MODEL) as engine:
        return deployments.with_clients([engine], ask)


def save_in_process(release: str, prompts: PromptSet, folder: Path) -> None:
    """The pool of the in-process engine, which answers as a server that was started with the release does."""
    writer, seen = PoolWriter(), answers(release, prompts)
    twins = tuple(
        PooledPrompt(
            id=prompt.id,
            prefix=prompt.prefix or "",
            weight=prompt.weight,
            prompt_tokens=0,
            cached_tokens=0,
            shared_tokens=0,
            cold=(),
            alone=(),
            company=(),
            again=(),
            stale=(),
            clean_in_process=number,
            stale_in_process=number,
            old_in_process=number,
        )
        for prompt in prompts.prompts
        for number in [writer.add(seen[prompt.id])]
    )
    made = writer.pool(engine="local", level="reading", release=NEW, about={}, identity=identity(), prompts=twins)
    save(made, folder)


def recorded_from(
    engine: ScriptedEngine, releases: Mapping[str, Path], prompts: PromptSet, folder: Path, *, say: list[str]
) -> None:
    asyncio.run(
        record_from(
            engine.url, releases["old"], {NEW: releases[NEW]}, prompts, folder, say=say.append, pause=lambda: None
        )
    )


def test_a_server_whose_weights_are_reloaded_in_place_fills_pools_that_show_it_once(
    releases: Mapping[str, Path], prompts: PromptSet, tmp_path: Path
) -> None:
    save_in_process(NEW, prompts, tmp_path)
    told: list[str] = []
    with ScriptedEngine(release="old", model=MODEL) as engine:
        recorded_from(engine, releases, prompts, tmp_path, say=told)
        sent = len(engine.cached_of)
    for level in VLLM_LEVELS:
        pool = load(tmp_path / pool_name("vllm", level, NEW))
        seen = pool.observations()
        for prompt in pool.prompts:
            assert (len(prompt.company), len(prompt.again), len(prompt.stale)) == (ENTRIES, WRITTEN_AGAIN, ENTRIES)
            clean, stale = (seen[entries[0][0]] for entries in (prompt.alone, prompt.stale))
            assert 0 < prompt.shared_tokens <= prompt.cached_tokens < prompt.prompt_tokens
            assert distance(clean, seen[prompt.again[1][0]]).nats == 0
            assert (distance(clean, stale).nats or 0) > 0
    # Every request but those that write the old release's entries is counted, the last one too.
    asked = sent - ENTRIES * len(prompts)
    assert told[-1] == f"vllm, {NEW}: {asked} of {asked} requests"
    # Whole pools need no server: there is none to be started here.
    again = record(releases["old"], {NEW: releases[NEW]}, prompts, tmp_path, say=told.append, pause=lambda: None)
    asyncio.run(again)
    assert told[-1] == "vllm: pools of 1 of 1 releases are there already"


def test_entries_that_were_evicted_before_they_were_read_end_the_recording(
    releases: Mapping[str, Path], prompts: PromptSet, tmp_path: Path
) -> None:
    save_in_process(NEW, prompts, tmp_path)
    with (
        ScriptedEngine(release="old", model=MODEL, capacity_blocks=40) as engine,
        pytest.raises(SystemExit, match="entries were evicted"),
    ):
        recorded_from(engine, releases, prompts, tmp_path, say=[])


def test_a_reload_that_did_not_load_the_release_ends_the_recording(
    releases: Mapping[str, Path], prompts: PromptSet, tmp_path: Path
) -> None:
    save_in_process("another", prompts, tmp_path)
    with (
        ScriptedEngine(release="old", model=MODEL) as engine,
        pytest.raises(SystemExit, match="did not load it"),
    ):
        recorded_from(engine, releases, prompts, tmp_path, say=[])
