"""`prewarm` as a process that is killed and run again, and its plan without a run."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.prewarm.result import PrewarmPlan, PrewarmReport
from tests.cli.shell import Releases, Result, finish, start
from tests.engines.scripted import Break, Generation, ScriptedEngine

Kv = Callable[..., Result]

PROMPTS = (
    "systems:\n"
    + "".join(f"  {desk}: '{' '.join(f'{desk}-{n}' for n in range(40))}'\n" for desk in ("a", "b", "c"))
    + "prompts:\n"
    + "".join(
        f"  - {{id: {desk}{number}, system: {desk}, user: '{' '.join(f'q{number}-{n}' for n in range(20))}'}}\n"
        for desk in ("a", "b", "c")
        for number in range(4)
    )
)


class Stalls(ScriptedEngine):
    """Computes, and after so many generations answers no more until it is let go."""

    def __init__(self, *, after: int) -> None:
        super().__init__(release="new")
        self.after = after
        self.let_go, self.stalled = threading.Event(), threading.Event()
        self.computed: Counter[tuple[int, ...]] = Counter()
        self.guard = threading.Lock()

    def generate(self, prompt: Sequence[int], body: Any, **more: Any) -> Generation:
        made = super().generate(prompt, body, **more)
        size = self.block_tokens
        with self.guard:
            # The last token is computed every time, and with it its block.
            self.computed.update(tuple(prompt[:end]) for end in range(made.cached + size, len(prompt), size))
            self.after -= 1
            waits = self.after < 0
        if waits and not self.let_go.is_set():
            self.stalled.set()
            self.let_go.wait(timeout=30.0)
        return made


def arguments(releases: Releases, *urls: str) -> list[str]:
    named = [part for url in urls for part in ("--engine-url", url)]
    return ["prewarm", "--release", str(releases.new), *named, "--prompts", "set.yaml", "--concurrency", "3"]


@pytest.fixture
def prompt_set(workdir: Path) -> Path:
    path = workdir / "set.yaml"
    path.write_text(PROMPTS, encoding="utf-8")
    return path


@pytest.mark.usefixtures("prompt_set")
def test_killed_after_a_third_and_run_again_computes_no_prompt_twice(releases: Releases, workdir: Path) -> None:
    with Stalls(after=6) as engine:
        process = start(*arguments(releases, engine.url), "-o", "r.json")
        assert engine.stalled.wait(timeout=60.0), process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert not (workdir / "r.json").exists()
        engine.let_go.set()
        result = finish(*arguments(releases, engine.url), "-o", "r.json")
        assert result.code == 0, result.err
        report = artifacts.read(workdir / "r.json", PrewarmReport)
        (found,) = report.replicas
        assert report.verdict is Verdict.PASS
        assert (found.foreign_tokens, found.hit_rate_after) == (0, 1.0)
        assert found.resumed + found.sent == 12
        # Seven requests came in, two of them the control's, and at most three were in flight.
        assert found.resumed >= 2
        assert any("cut short" in note for note in report.notes)
        assert report.plan.blocks_needed is not None
        assert len(engine.computed) >= report.plan.blocks_needed
        assert set(engine.computed.values()) == {1}
    assert list((workdir.parent / "state" / "kvrelease").glob("*.jsonl")) == []


@pytest.mark.usefixtures("prompt_set")
def test_one_dead_address_is_named_and_the_others_are_warmed(kv: Kv, releases: Releases, workdir: Path) -> None:
    with socket.socket() as closed, ScriptedEngine(release="new") as one, ScriptedEngine(release="new") as two:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = kv(*arguments(releases, one.url, dead, two.url), "-o", "r.json", "--timeout", "1")
        assert result.code == 5
        assert dead in result.err
        report = artifacts.read(workdir / "r.json", PrewarmReport)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert dead in report.reason
        assert [found.hit_rate_after for found in report.replicas] == [1.0, 1.0]
        assert [fault.where for fault in report.faults] == [dead]


@pytest.mark.usefixtures("prompt_set")
def test_a_dry_run_prints_the_plan_and_its_cost_and_generates_nothing(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    with ScriptedEngine(release="new") as engine:
        asked = arguments(releases, engine.url)
        page = kv(*asked, "--dry-run")
        assert page.code == 0, page.err
        assert "not known" in page.out
        assert kv(*asked, "--dry-run", "--rate", "100", "-o", "plan.json").code == 0
        plan = artifacts.read(workdir / "plan.json", PrewarmPlan)
        assert engine.generations() == []
        assert len(plan.plan.order) == 12
        assert plan.plan.lower_bound_tokens is not None
        assert plan.replicas[0].seconds == plan.plan.lower_bound_tokens / 100
        assert f"{plan.plan.lower_bound_tokens:,}" in page.out
        assert kv(*asked, "-o", "r.json").code == 0
        assert artifacts.read(workdir / "r.json", PrewarmReport).plan == plan.plan


@pytest.mark.usefixtures("prompt_set")
def test_a_key_space_that_nobody_declared_is_told(kv: Kv, releases: Releases, workdir: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        asked = (*arguments(releases, engine.url), "--dry-run")
        assert "unsalted keys are asked" in kv(*asked).err
        assert "unsalted keys are asked" not in kv(*asked, "--namespace", "none").err
        (workdir / "kvrelease.yaml").write_text("production: {salt: release}\n")
        assert "unsalted keys are asked" not in kv(*asked).err


@pytest.mark.usefixtures("prompt_set")
def test_a_rate_without_a_dry_run_is_refused_for_it_limits_nothing(kv: Kv, releases: Releases) -> None:
    refused = kv(*arguments(releases, "http://127.0.0.1:9"), "--rate", "100")
    assert refused.code == 2
    assert "it limits nothing" in refused.err


@pytest.mark.usefixtures("prompt_set")
def test_whatever_ends_a_run_whose_report_goes_to_a_file_the_log_has_the_verdict(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    with ScriptedEngine(release="new") as engine, ScriptedEngine() as page:
        page.break_with(Break.HTML, path="/")  # answered at once, where a dead address is tried again for seconds
        partly = kv(*arguments(releases, engine.url, page.url), "-o", "r.json")
        passed = kv(*arguments(releases, engine.url), "-o", "r.json")
    assert (partly.code, passed.code) == (5, 0)
    assert f"could not be asked: {page.url}; the other one is warm. Written to r.json" in partly.err
    assert "PASS  foreign hits 0; asked again, 100% of the cacheable tokens hit. Written to r.json" in passed.err
    with Stalls(after=6) as engine:
        process = start(*arguments(releases, engine.url), "-o", "r.json")
        assert engine.stalled.wait(timeout=60.0), process.communicate()
        process.send_signal(signal.SIGTERM)
        engine.let_go.set()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "INCONCLUSIVE  interrupted after" in told
    assert "run it again, what is resident will not be computed twice. Written to r.json" in told
    assert artifacts.read(workdir / "r.json", PrewarmReport).interrupted


@pytest.mark.usefixtures("prompt_set")
def test_a_dry_run_leaves_nothing_behind_and_holds_up_nobody(kv: Kv, releases: Releases, workdir: Path) -> None:
    with ScriptedEngine(release="new") as engine:
        assert kv(*arguments(releases, engine.url), "--dry-run").code == 0
        assert not [path for path in (workdir.parent / "state").rglob("*") if path.is_file()]
        assert kv(*arguments(releases, engine.url), "--dry-run", "--journal", "j").code == 0
        assert not (workdir / "j").exists()


@pytest.mark.usefixtures("prompt_set")
def test_a_journal_that_cannot_be_written_is_refused_where_it_was_named(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    with ScriptedEngine(release="new") as engine:
        refused = kv(*arguments(releases, engine.url), "--journal", "set.yaml")
        assert refused.code == 4
        assert "reading the journal set.yaml, line 1: it is no journal" in refused.err
        for dry in ((), ("--dry-run",)):
            nowhere = kv(*arguments(releases, engine.url), "--journal", "none/j", *dry)
            assert nowhere.code == 2
            assert f"--journal none/j: no such directory {workdir / 'none'}" in nowhere.err
        assert not (workdir / "none").exists()
        both = kv(*arguments(releases, engine.url), "--journal", "j", "--no-journal")
        assert both.code == 2
        assert engine.generations() == []


@pytest.mark.usefixtures("prompt_set")
def test_a_second_run_of_the_same_set_beside_the_first_is_refused_and_a_plan_is_not(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    with Stalls(after=3) as engine:
        process = start(*arguments(releases, engine.url), "-o", "r.json")
        assert engine.stalled.wait(timeout=60.0), process.communicate()
        second = kv(*arguments(releases, engine.url))
        planned = kv(*arguments(releases, engine.url), "--dry-run")
        engine.let_go.set()
        process.communicate(timeout=60)
    assert (second.code, planned.code, process.returncode) == (4, 0, 0), second.err
    assert "another kvrelease prewarm of this prompt set is running" in second.err
    assert artifacts.read(workdir / "r.json", PrewarmReport).verdict is Verdict.PASS


@pytest.mark.usefixtures("prompt_set")
def test_a_block_size_that_the_settings_file_states_is_told_as_stated(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    (workdir / "kvrelease.yaml").write_text("block-tokens: 16\n", encoding="utf-8")
    with ScriptedEngine(release="new", has_metrics=False, has_dev_routes=False) as server:
        result = kv(*arguments(releases, server.url))
    assert result.code == 0, result.err
    assert "blocks of 16 tokens are what --block-tokens states" in " ".join(result.out.split())
