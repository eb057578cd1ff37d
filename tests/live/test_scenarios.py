"""Scenarios of real engines, each once stale, once clean: the gate fails the one and passes the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import scenarios
from tests.live.conftest import Pair
from tests.live.scenarios import Stage
from tests.live.servers import Server

# The others are told by test_vllm.py and test_llamacpp.py, or are the benchmark's: `python -m benchmarks.scenarios`.
LLAMACPP = ("slot restore, quantised KV",)
VLLM = ("salt misspelt", "rollback", "old weights under the new label")

both_states = pytest.mark.parametrize("stale", [True, False], ids=["stale", "clean"])


@pytest.fixture(scope="module")
def vllm(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with scenarios.vllm(pair, directory=tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture
def stage(pair: Pair, prompts: Path, tmp_path: Path, stale: bool) -> Stage:
    return Stage(pair=pair, prompts=prompts, directory=tmp_path, stale=stale)


@both_states
@pytest.mark.parametrize("name", LLAMACPP)
def test_llamacpp(name: str, stage: Stage) -> None:
    scenarios.LLAMACPP[name](stage).expect(int(stage.stale))


@both_states
@pytest.mark.parametrize("name", VLLM)
def test_vllm(name: str, stage: Stage, vllm: Server) -> None:
    scenarios.VLLM[name](stage, vllm).expect(int(stage.stale))
