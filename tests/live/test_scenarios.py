"""Scenarios of real engines, each once stale, once clean: the gate fails the one and passes the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import scenarios
from tests.live.conftest import Pair
from tests.live.scenarios import Scenario, Stage
from tests.live.servers import Server

# The others are told by test_vllm.py and test_llamacpp.py, or are the benchmark's: `python -m benchmarks.scenarios`.
LLAMACPP = ("slot restore, quantised KV",)
VLLM = ("salt misspelt", "rollback", "old weights under the new label")
ON_VLLM = scenarios.VLLM[0]

both_states = pytest.mark.parametrize("stale", [True, False], ids=["stale", "clean"])


def played(every: tuple[Scenario, ...], names: tuple[str, ...]) -> pytest.MarkDecorator:
    """Those of an engine that CI plays."""
    return pytest.mark.parametrize("scenario", [one for one in every if one.name in names], ids=lambda one: one.name)


@pytest.fixture(scope="module")
def vllm(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ON_VLLM.start(pair, directory=tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture
def stage(pair: Pair, prompts: Path, tmp_path: Path, stale: bool) -> Stage:
    return Stage(pair=pair, prompts=prompts, directory=tmp_path, stale=stale)


@both_states
@played(scenarios.LLAMACPP, LLAMACPP)
def test_llamacpp(scenario: Scenario, stage: Stage) -> None:
    assert not scenario.wrong(scenario.play(stage), stale=stage.stale)


@both_states
@played(ON_VLLM.scenarios, VLLM)
def test_vllm(scenario: Scenario, stage: Stage, vllm: Server) -> None:
    assert not scenario.wrong(scenario.play(stage, vllm), stale=stage.stale)
