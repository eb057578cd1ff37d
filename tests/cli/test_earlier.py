"""A run that ends without a result leaves no earlier verdict where its own was to be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrelease.cli.earlier import drop, put_aside
from kvrelease.errors import InputError
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, prompts_file
from tests.engines.scripted import Break, ScriptedEngine

KINDS = ("kvrelease/verify",)
PASSED = json.dumps({"kind": "kvrelease/verify", "verdict": "pass"}, indent=2)
PAGES = ("Verifying v1.3\n\nPASS  with confidence", "## Verifying v1.3\n\n**PASS**: with confidence")


@pytest.fixture
def server() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


def engine_argv(releases: Releases, server: ScriptedEngine) -> tuple[object, ...]:
    Path("prompts.yaml").write_text(prompts_file(3), encoding="utf-8")
    return ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")


@pytest.mark.parametrize("name", ["r.json", "r.md", "r.txt"])
@pytest.mark.parametrize("command", ["verify", "prewarm"])
def test_no_earlier_pass_stands_after_a_run_that_nobody_answered_and_none_is_left_after_one_that_did(
    kv: Kv, releases: Releases, server: ScriptedEngine, command: str, name: str
) -> None:
    workdir = Path.cwd()
    argv = (command, *engine_argv(releases, server), *(("--stale-below", "0.65") if command == "verify" else ()))
    assert kv(*argv, "-o", name).code == 0
    passed = (workdir / name).read_bytes()
    server.break_with(Break.UNAUTHORIZED, path="/")
    assert kv(*argv, "-o", name).code == 5
    assert not (workdir / name).exists()
    assert (workdir / f"{name}.earlier").read_bytes() == passed
    server.mend()
    assert kv(*argv, "-o", name).code == 0
    assert (workdir / name).exists()
    assert not (workdir / f"{name}.earlier").exists()


def test_nor_after_an_input_error_of_any_command_with_a_verdict(kv: Kv, releases: Releases, workdir: Path) -> None:
    shutil.copytree(releases.directory, "model")
    assert kv("fingerprint", "model", "--publish").code == 0
    assert kv("fingerprint", "model", "--check", "-o", "check.json").code == 0
    assert kv("diff", releases.old, releases.new, "-o", "diff.json").code == 0
    (workdir / "model" / "kvrelease.json").write_text("{", encoding="utf-8")
    assert kv("fingerprint", "model", "--check", "-o", "check.json").code == 4
    assert kv("diff", releases.old, "none", "-o", "diff.json").code == 4
    assert not (workdir / "check.json").exists()
    assert not (workdir / "diff.json").exists()
    (workdir / "store").mkdir()
    stamped = ("stores", "stamp", "store", "--namespace", "kv1-abc-undeclared-e0")
    assert (kv(*stamped).code, kv(*stamped, "--check", "-o", "stamp.json").code) == (0, 0)
    (workdir / "store").rename(workdir / "gone")
    assert kv(*stamped, "--check", "-o", "stamp.json").code == 4
    assert not (workdir / "stamp.json").exists()


def test_nor_after_an_engine_that_is_asked_whether_it_is_bound_and_does_not_answer(
    kv: Kv, releases: Releases, server: ScriptedEngine, workdir: Path
) -> None:
    argv = ("namespace", releases.new, "--engine", "vllm", "--check", server.url, "-o", "bound.json")
    kv(*argv)
    assert (workdir / "bound.json").exists()
    server.break_with(Break.UNAUTHORIZED, path="/")
    assert kv(*argv).code == 5
    assert not (workdir / "bound.json").exists()


def test_while_watching_a_run_that_nobody_answered_takes_the_report_of_the_last_one_away(
    kv: Kv, releases: Releases, server: ScriptedEngine, workdir: Path
) -> None:
    argv = ("verify", *engine_argv(releases, server), "--stale-below", "0.65", "-o", "r.json")
    assert kv(*argv).code == 0
    server.break_with(Break.UNAUTHORIZED, path="/")
    assert kv(*argv, "--watch", "0.001").code == 5
    assert not (workdir / "r.json").exists()


@pytest.mark.parametrize("ours", [PASSED, *PAGES])
def test_a_verdict_is_put_aside_and_removed_when_there_is_another(workdir: Path, ours: str) -> None:
    (workdir / "r").write_text(ours, encoding="utf-8")
    put_aside(Path("r"), kinds=KINDS)
    assert (workdir / "r.earlier").read_text() == ours
    put_aside(Path("r"), kinds=KINDS)
    drop(Path("r"), kind=KINDS[0])
    assert not (workdir / "r.earlier").exists()


@pytest.mark.parametrize("theirs", ["", "my notes\n", '{"kind": "kvrelease/evidence"}', '{"verdict": "pass"}', "PASS"])
def test_what_is_no_verdict_of_this_kind_is_left_alone(workdir: Path, theirs: str) -> None:
    (workdir / "r").write_text(theirs, encoding="utf-8")
    put_aside(Path("r"), kinds=KINDS)
    assert (workdir / "r").read_text() == theirs
    (workdir / "r.earlier").write_text(theirs, encoding="utf-8")
    drop(Path("r"), kind=KINDS[0])
    assert (workdir / "r.earlier").read_text() == theirs
    (workdir / "r").write_text(PASSED, encoding="utf-8")
    with pytest.raises(InputError, match="no report"):
        put_aside(Path("r"), kinds=KINDS)


def test_a_link_keeps_leading_to_the_place_that_was_meant(workdir: Path) -> None:
    (workdir / "there.json").write_text(PASSED, encoding="utf-8")
    (workdir / "link.json").symlink_to("there.json")
    put_aside(Path("link.json"), kinds=KINDS)
    assert (workdir / "there.json.earlier").exists()
    assert (workdir / "link.json").is_symlink()
