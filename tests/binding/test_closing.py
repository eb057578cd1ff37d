"""A run's result survives its ledger and its interruption."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.binding.closing import Doubt, close_run, until_interrupted
from kvrelease.binding.deployment import prepare
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.errors import ExitCode
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, warmed, with_clients


def test_a_ledger_that_cannot_be_written_is_a_fault_and_the_report_stands(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(f"sqlite:///{path}") as ledger, ScriptedEngine(release="new") as engine:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        report = warmed(engine, deployed=deployment("new", salt="release"), ledger=ledger)
    assert report.verdict is Verdict.PASS
    (fault,) = report.faults
    assert fault.where == "the ledger"
    assert fault.exit_code in (ExitCode.INPUT, ExitCode.SERVICE)


def test_a_run_without_replicas_writes_nothing(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        asked = deployment("new")
        assert close_run([], deployment=asked, ledger=ledger, command="prewarm", verdict=None, reason="") == ()
        assert ledger.events() == ()


def test_an_interrupted_block_hands_over_what_it_has_and_the_task_goes_on() -> None:
    async def main() -> tuple[list[int], bool]:
        done: list[int] = []
        task = asyncio.current_task()
        assert task is not None
        with until_interrupted() as interruption:
            done.append(1)
            task.cancel()
            await asyncio.sleep(0)
            done.append(2)
        await asyncio.sleep(0)  # the cancellation is over
        return done, interruption.happened

    assert asyncio.run(main()) == ([1], True)


def test_a_block_that_ends_was_not_interrupted() -> None:
    with until_interrupted() as interruption:
        pass
    assert interruption.happened is False


def test_what_is_in_doubt_of_a_key_space_is_forgotten_of_its_adapters_too() -> None:
    body: JsonObject = {"prompt": "word " * 40, "model": "scripted:lora"}
    prompt = Prompt(id="a", weight=1.0, kind=PromptKind.COMPLETIONS, body=body)
    asked = deployment(prompt_set=PromptSet(name="a", prompts=(prompt,), source="a"))

    with ScriptedEngine(EngineKind.SGLANG, release="new") as engine, Ledger(IN_MEMORY) as ledger:

        def foreign_tokens(doubt: Doubt) -> int | None:
            async def main(clients: list[EngineClient]) -> int | None:
                replica = await prepare(clients[0], deployment=asked, memory=ledger, max_tokens=1)
                leg = await replica.observer.observe(replica.request(prompt, salt=None, max_tokens=1))
                close_run(
                    [replica],
                    deployment=asked,
                    ledger=ledger,
                    command="verify",
                    verdict=None,
                    reason="",
                    doubt_of=lambda _: doubt,
                )
                return leg.foreign_tokens

            return with_clients([engine], main)

        found = [foreign_tokens(doubt) for doubt in (Doubt.NONE, Doubt.KEY_SPACE, Doubt.NONE)]
    assert found == [0, 0, 32]
