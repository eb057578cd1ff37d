"""Results: data on stdout, everything else on stderr, in every format, and no outcome lost on the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Artifact, Verdict
from kvrelease.binding.namespace import NamespaceReport
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.release.diff_record import Diff
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.record import Record
from kvrelease.workload.check import PromptsReport
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, prompts_file
from tests.engines.scripted import Break, ScriptedEngine

KINDS: dict[str, type[Artifact]] = {
    "fingerprint": Fingerprint,
    "diff": Diff,
    "namespace": NamespaceReport,
    "prompts": PromptsReport,
    "prewarm": PrewarmReport,
    "record": Record,
    "verify": VerifyReport,
}
CODES = dict.fromkeys(KINDS, 0)
# Three prompts, of which three clean probes prove less than 64 %: what is told of a run hangs on no number of them.
PROMPTS = prompts_file(3)
CLAIM = ("--stale-below", "0.65")
Commands = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def few_prompts(workdir: Path) -> None:
    (workdir / "prompts.yaml").write_text(PROMPTS, encoding="utf-8")


@pytest.fixture
def server() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


@pytest.fixture
def argv(releases: Releases, server: ScriptedEngine) -> Commands:
    new, old = str(releases.new), str(releases.old)
    engine = ["--release", new, "--engine-url", server.url, "--prompts", "prompts.yaml"]
    return {
        "fingerprint": ["fingerprint", new],
        "diff": ["diff", old, new],
        "namespace": ["namespace", new, "--engine", "vllm"],
        "prompts": ["prompts", "check", "prompts.yaml"],
        "prewarm": ["prewarm", *engine],
        "record": ["record", *engine],
        "verify": ["verify", *engine, *CLAIM],
    }.__getitem__


@pytest.mark.parametrize("name", KINDS)
def test_json_on_stdout_is_the_artifact_and_nothing_else(kv: Kv, argv: Commands, name: str) -> None:
    result = kv(*argv(name), "--format", "json")
    assert result.code == CODES[name], result.err
    found = artifacts.from_json(result.out.encode(), KINDS[name], source="stdout")
    assert json.loads(result.out)["kind"] == f"kvrelease/{name}"
    assert found.schema == artifacts.schema_of(KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_text_on_stdout_has_no_escape_codes(kv: Kv, argv: Commands, name: str) -> None:
    result = kv(*argv(name))
    assert result.out
    assert "\x1b" not in result.out + result.err
    assert not result.errors


@pytest.mark.parametrize(
    ("name", "file"), [*((name, "r.html") for name in KINDS), ("diff", "r.XML"), ("diff", "r.jsonl")]
)
def test_a_suffix_of_a_format_that_is_not_written_is_told_before_work_starts(
    kv: Kv, argv: Commands, name: str, file: str, workdir: Path
) -> None:
    result = kv(*argv(name), "-o", file)
    assert (result.code, result.out, len(result.errors)) == (2, "", 1)
    assert f"--output {file}: " in result.errors[0]
    assert "next: end it in .json, .md or .txt, or name the format: --format json" in result.err
    assert not (workdir / file).exists()


@pytest.mark.parametrize("file", ["r", "r.log", "r-v1.2", "r.txt"])
def test_other_names_are_text_and_a_named_format_goes_into_any_file(
    kv: Kv, argv: Commands, workdir: Path, file: str
) -> None:
    assert kv(*argv("diff"), "-o", file).code == 0
    assert "is the old KV still valid?" in (workdir / file).read_text(encoding="utf-8")
    assert kv(*argv("diff"), "-o", "r.html", "--format", "markdown").code == 0
    assert (workdir / "r.html").read_text(encoding="utf-8").startswith("#")


@pytest.mark.parametrize("name", KINDS)
def test_an_output_file_takes_its_format_from_its_suffix(kv: Kv, argv: Commands, name: str, workdir: Path) -> None:
    result = kv(*argv(name), "-o", "r.md")
    assert (result.code, result.out) == (CODES[name], "")
    assert (workdir / "r.md").read_text().startswith("## ")


def test_json_text_and_a_format_that_beats_the_suffix(kv: Kv, argv: Commands, workdir: Path) -> None:
    for name in ("r.json", "r.txt", "r.MD", "r"):
        kv(*argv("fingerprint"), "--output", name)
    kv(*argv("fingerprint"), "--output", "x.md", "--format", "json")
    begins = {path.name: path.read_text()[:3] for path in workdir.iterdir() if path.name[0] in "rx"}
    assert begins == {"r.json": "{\n ", "r.txt": "Rel", "r.MD": "## ", "r": "Rel", "x.md": "{\n "}


def test_warnings_go_to_stderr(kv: Kv, argv: Commands) -> None:
    result = kv(*argv("namespace"), "--format", "json")
    assert result.err.startswith("warning: the runtime is undeclared")


# --- the incident ---


def test_a_dirty_cache_fails_the_gate_and_a_clean_one_passes(
    kv: Kv, argv: Commands, server: ScriptedEngine, releases: Releases
) -> None:
    """https://github.com/EntityProcess/agentv/issues/882: RESULT: FAIL is printed, and the exit code is 0."""
    server.reload("old")
    assert kv(*argv("record"), "--release", releases.old).code == 0
    server.reload("new")
    assert kv(*argv("prewarm")).code == 1
    failed = kv(*argv("verify"), "--format", "json")
    assert failed.code == 1
    assert json.loads(failed.out)["verdict"] == "fail"
    assert kv(*argv("prewarm"), "--namespace", "release").code == 0
    assert kv(*argv("verify"), "--namespace", "release").code == 0
    assert kv(*argv("verify")).code == 1


def test_saved_observations_are_judged_again_without_an_engine(kv: Kv, argv: Commands, workdir: Path) -> None:
    first = kv(*argv("verify"), "--observations", "seen.json", "--format", "json")
    again = kv("verify", "--from", "seen.json", "--format", "json")
    assert (first.code, again.code) == (0, 0)
    assert json.loads(first.out)["checks"] == json.loads(again.out)["checks"]


def test_settings_that_are_not_on_the_command_line_do_not_stop_judging_again(
    kv: Kv, argv: Commands, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv(*argv("verify"), "--observations", "seen.json")
    (workdir / "kvrelease.yaml").write_text("engine-url: http://a\nheader: X-Team=a\nno-ledger: true\n")
    monkeypatch.setenv("KVRELEASE_RELEASE", "somewhere")
    monkeypatch.setenv("KVRELEASE_STALE_BELOW", "0.1")
    result = kv("--verbose", "verify", "--from", "seen.json", "--format", "json", "--output", "r")
    assert (result.code, result.err.count("\n")) == (0, 1)
    assert result.err.startswith("PASS  ")
    assert result.err.endswith(". Written to r\n")


def test_an_engine_that_fails_midway_leaves_an_artifact_and_ends_5(
    kv: Kv, argv: Commands, server: ScriptedEngine, workdir: Path
) -> None:
    server.break_with(Break.NOT_JSON)  # told at once, where a status of 500 is asked again for seconds
    result = kv(*argv("prewarm"), "-o", "r.json")
    assert result.code == 5
    report = artifacts.read(workdir / "r.json", PrewarmReport)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.replicas[0].errors == 1
    assert len(result.errors) == 1


def test_nobody_knows_is_inconclusive(kv: Kv, releases: Releases) -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as server:
        common = ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
        assert kv("prewarm", *common).code == 3
        assert kv("verify", *common, *CLAIM).code == 3


# --- secrets ---


@pytest.mark.parametrize("name", ["prewarm", "record", "verify"])
def test_no_key_header_or_prompt_is_in_any_message_or_artifact(
    kv: Kv, releases: Releases, workdir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    (workdir / "kvrelease.yaml").write_text("production: {headers: {X-Tenant: tenant-secret}}\n")
    with ScriptedEngine(release="new", api_key="sk-very-secret") as server:
        result = kv(
            "--verbose", name, "--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml",
            "--api-key-env", "MY_KEY", "--header", "X-Team=team-secret", "-o", "r.json",
        )  # fmt: skip
        assert server.generations()[-1].headers["x-team"] == "team-secret"
        assert server.generations()[-1].headers["x-tenant"] == "tenant-secret"
    assert result.code in (0, 3), result.err
    written = (workdir / "r.json").read_text() + result.out + result.err
    for secret in ("sk-very-secret", "tenant-secret", "team-secret", "Every rule of this shop"):
        assert secret not in written


@pytest.mark.parametrize("name", ["prewarm", "record", "verify"])
def test_a_salt_that_is_a_text_is_written_nowhere(kv: Kv, releases: Releases, workdir: Path, name: str) -> None:
    (workdir / "kvrelease.yaml").write_text("production: {salt: gateway-secret-77}\n")
    with ScriptedEngine(release="new") as server:
        argv = ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml", "-o", "r.json")
        observed = ("--observations", "seen.json") if name == "verify" else ()
        results = [kv("--verbose", name, *argv, *observed) for _ in range(2)]
        assert server.generations()[-1].body["cache_salt"] == "gateway-secret-77" or name == "verify"
    written = "".join(result.out + result.err for result in results).encode()
    for path in workdir.parent.rglob("*"):
        if path.is_file() and path.name != "kvrelease.yaml":
            written += path.read_bytes()
    assert b"gateway-secret" not in written
    assert b"sha256:" in written
    # What the first run computed explains the hits of the second, by the salt's mark alone.
    assert [result.code for result in results] == ([0, 0] if name != "verify" else [3, 3])


def test_a_dry_run_tells_a_namespace_and_no_salt(kv: Kv, releases: Releases, workdir: Path, argv: Commands) -> None:
    assert '"key_space": "kv1-' in kv(*argv("prewarm"), "--dry-run", "--namespace", "release", "--format", "json").out
    (workdir / "kvrelease.yaml").write_text("production: {salt: gateway-secret-77}\n")
    for form in ("json", "text", "markdown"):
        plan = kv(*argv("prewarm"), "--dry-run", "--format", form)
        assert plan.code == 0
        assert "gateway-secret" not in plan.out + plan.err
        assert "sha256:" in plan.out


def test_verbose_shows_no_sql_and_no_library_debug(kv: Kv, argv: Commands) -> None:
    result = kv("--verbose", *argv("prewarm"))
    for noise in ("SELECT", "INSERT", "httpcore", "asyncio"):
        assert noise not in result.err


# --- where it cannot be written ---


def test_a_missing_output_directory_is_told_before_the_work(kv: Kv, argv: Commands, server: ScriptedEngine) -> None:
    for option in (("-o", "none/r.json"), ("-o", "."), ("--observations", "none/seen.json")):
        result = kv(*argv("verify"), *option)
        assert result.code == 2
    assert server.requests == []


def test_a_home_that_cannot_be_written_names_every_way_to_another_ledger(
    kv: Kv, argv: Commands, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/proc")  # not even root can make a directory there
    result = kv(*argv("namespace"))
    assert (result.code, result.out) == (4, "")
    assert "/proc/.local/state/kvrelease/ledger.db" in result.err
    for way in ("--ledger sqlite:////", "KVRELEASE_LEDGER", "--no-ledger"):
        assert way in result.err.partition("next: ")[2]
    ledger = f"sqlite:///{workdir / 'l.db'}"
    assert kv(*argv("namespace"), "--ledger", ledger).code == 0
    assert kv(*argv("namespace"), "--no-ledger").code == 0
    monkeypatch.setenv("KVRELEASE_LEDGER", ledger)
    assert kv(*argv("namespace")).code == 0


def test_a_result_that_cannot_be_written_goes_to_stdout_and_keeps_the_verdict(
    kv: Kv, argv: Commands, server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    clean = kv(*argv("prewarm"), "-o", "r.json")
    assert clean.code == 4
    assert json.loads(clean.out)["verdict"] == "pass"
    assert "No space left on device" in clean.errors[0]
    server.reload("old")
    server.cache.clear()
    kv(*argv("record"), "--no-ledger")
    dirty = kv(*argv("prewarm"), "-o", "r.json", "--no-ledger")
    assert dirty.code == 1
    assert json.loads(dirty.out)["verdict"] == "fail"


def test_observations_that_cannot_be_written_do_not_lose_the_verdict(
    kv: Kv, argv: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = kv(*argv("verify"), "--observations", "seen.json", "--format", "json")
    assert result.code == 4
    assert json.loads(result.out)["verdict"] == "pass"
    assert "seen.json" in result.errors[0]
