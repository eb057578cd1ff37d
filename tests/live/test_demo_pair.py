"""The demo's releases are real: vLLM and llama.cpp load them, make the same token ids and give the same answers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from kvrelease.demo.arm import request_of
from kvrelease.demo.pair import DemoPair, shipped_pair
from kvrelease.engines.base import EngineClient, Request
from kvrelease.engines.detect import open_engine
from kvrelease.engines.local import open_local
from tests.live.conftest import REPOSITORY
from tests.live.servers import PATIENT_THREADS, Server, installed, llamacpp_server, vllm_server

Answers = dict[str, tuple[tuple[int, ...], str]]
"""Token ids of the prompt and the answer, by prompt id."""


@pytest.fixture(scope="module")
def demo_pair() -> DemoPair:
    return shipped_pair()


async def answers(engine: EngineClient, pair: DemoPair) -> Answers:
    identity = await engine.identify()
    found: Answers = {}
    for prompt in pair.prompts.prompts:
        plain = request_of(prompt)
        request: Request = msgspec.structs.replace(plain, body={**plain.body, "model": identity.model})
        token_ids = await engine.tokenize(request)
        assert token_ids is not None
        found[prompt.id] = (token_ids, (await engine.complete(request)).text)
    return found


async def answers_of_server(server: Server, pair: DemoPair) -> Answers:
    async with aclosing(await open_engine(server.url)) as engine:
        return await answers(engine, pair)


@pytest.fixture(scope="module")
def in_process(demo_pair: DemoPair) -> Mapping[str, Answers]:
    async def both() -> dict[str, Answers]:
        async with await open_local(demo_pair.old) as old, await open_local(demo_pair.new) as new:
            return {"v1": await answers(old, demo_pair), "v2": await answers(new, demo_pair)}

    return asyncio.run(both())


def test_vllm_serves_the_new_release(demo_pair: DemoPair, in_process: Mapping[str, Answers], tmp_path: Path) -> None:
    with vllm_server(
        demo_pair.new,
        served_model_name="demo",
        log_path=tmp_path / "vllm.log",
        extra_args=("--max-model-len", "1024"),
        dtype="float32",
    ) as server:
        assert asyncio.run(answers_of_server(server, demo_pair)) == in_process["v2"]


@pytest.mark.parametrize("release", ["v1", "v2"])
def test_llamacpp_serves_both_releases_as_gguf(
    release: str, demo_pair: DemoPair, in_process: Mapping[str, Answers], tmp_path: Path
) -> None:
    gguf = tmp_path / f"{release}.gguf"
    directory = {"v1": demo_pair.old, "v2": demo_pair.new}[release]
    writer = Path(__file__).with_name("write_gguf.py")
    subprocess.run([installed("vllm-python"), writer, directory, gguf], check=True)
    with llamacpp_server(gguf, log_path=tmp_path / "llamacpp.log", extra_args=("-c", "1024")) as server:
        assert asyncio.run(answers_of_server(server, demo_pair)) == in_process[release]


def test_the_shipped_pair_passes_its_checks() -> None:
    script = REPOSITORY / "scripts" / "train_demo_pair.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_training_again_gives_a_pair_that_passes_the_same_checks(tmp_path: Path) -> None:
    script = REPOSITORY / "scripts" / "train_demo_pair.py"
    done = subprocess.run(
        [sys.executable, script, "--into", tmp_path / "pair"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **PATIENT_THREADS},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (tmp_path / "pair" / "v2" / "model.safetensors").is_file()
