"""Bad input: its exit code, and one paragraph that says what was tried, what was found, and what to do."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Kv
from tests.cli.shell import Releases, Result
from tests.engines.scripted import Break, ScriptedEngine


@pytest.fixture
def server() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


def the_one_error(result: Result, *, code: int) -> str:
    """The one error, and its hint; nothing on stdout, no traceback."""
    assert result.code == code, result.err
    assert result.out == ""
    assert len(result.errors) == 1, result.err
    assert "Traceback" not in result.err
    return result.err.partition("error: ")[2]


def prewarm(kv: Kv, releases: Releases, url: str, *more: object, prompts: str = "prompts.yaml") -> Result:
    return kv("prewarm", "--release", releases.new, "--engine-url", url, "--prompts", prompts, "--timeout", "5", *more)


# --- releases ---


@pytest.mark.parametrize("command", [["fingerprint"], ["diff", "new.json"], ["namespace", "--engine", "vllm"]])
def test_no_such_directory(kv: Kv, releases: Releases, command: list[str]) -> None:
    parts = [str(releases.new) if part == "new.json" else part for part in command]
    text = the_one_error(kv(*parts, "models/none"), code=4)
    assert "models/none" in text


@pytest.mark.parametrize(
    "command",
    [
        ["fingerprint"],
        ["fingerprint", "--publish"],
        ["fingerprint", "--check"],
        ["diff", "new.json"],
        ["namespace", "--engine", "vllm"],
    ],
)
def test_an_empty_name_is_not_the_working_directory(
    kv: Kv, releases: Releases, workdir: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a variable that a pipeline did not set; the release that lies there is none that anybody named."""
    shutil.copytree(releases.directory, workdir / "m")
    monkeypatch.chdir(workdir / "m")
    parts = [str(releases.new) if part == "new.json" else part for part in command]
    assert "no release is named" in the_one_error(kv(*parts, ""), code=2)
    assert not Path("kvrelease.json").exists()


def test_an_empty_name_of_an_option_is_not_the_working_directory(kv: Kv, releases: Releases) -> None:
    for argv in (["--adapter", ""], ["--against", ""]):
        assert the_one_error(kv("fingerprint", releases.directory, *argv), code=2)


def test_an_empty_directory(kv: Kv, workdir: Path) -> None:
    (workdir / "empty").mkdir()
    assert "empty" in the_one_error(kv("fingerprint", "empty"), code=4)


def test_a_missing_shard_is_named(kv: Kv, releases: Releases, workdir: Path) -> None:
    shutil.copytree(releases.directory, workdir / "m")
    (workdir / "m" / "model.safetensors").rename(workdir / "m" / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (workdir / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors" in the_one_error(kv("fingerprint", "m"), code=4)


def test_a_truncated_shard_is_named(kv: Kv, releases: Releases, workdir: Path) -> None:
    shutil.copytree(releases.directory, workdir / "m")
    weights = workdir / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in the_one_error(kv("fingerprint", "m"), code=4)


def test_an_artifact_of_another_kind_is_no_release(kv: Kv, releases: Releases) -> None:
    kv("diff", releases.old, releases.new, "-o", "diff.json")
    assert "kvrelease/diff" in the_one_error(kv("namespace", "diff.json", "--engine", "vllm"), code=4)


def test_a_fingerprint_with_a_kv_name_that_was_tampered_with(kv: Kv, releases: Releases, workdir: Path) -> None:
    content = json.loads(releases.new.read_text())
    content["release"]["kv_name"] = "../../etc"
    (workdir / "evil.json").write_text(json.dumps(content))
    text = the_one_error(kv("namespace", "evil.json", "--engine", "vllm"), code=4)
    assert "kv name" in text
    assert "../../etc" not in text


# --- engines ---


def test_an_unreachable_url(kv: Kv, releases: Releases) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert url in the_one_error(prewarm(kv, releases, url, "--timeout", "0.5"), code=5)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "", "http://user:hunter2@a:1"])
def test_what_is_no_url_is_told_before_anything_is_hashed(kv: Kv, url: str) -> None:
    text = the_one_error(kv("prewarm", "--release", "none", "--engine-url", url, "--prompts", "prompts.yaml"), code=2)
    assert "URL" in text
    assert "hunter2" not in text


def test_a_wrong_model_name_lists_what_is_served(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    text = the_one_error(prewarm(kv, releases, server.url, "--model", "gpt-7"), code=2)
    assert "gpt-7" in text
    assert "'scripted'" in text


def test_401_says_which_option_and_shows_no_key(kv: Kv, releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-wrong-secret")
    with ScriptedEngine(api_key="sk-right") as server:
        text = the_one_error(prewarm(kv, releases, server.url, "--api-key-env", "MY_KEY"), code=5)
    assert "401" in text
    assert "sk-wrong-secret" not in text
    assert "--api-key-env" in text


def test_a_server_that_answers_html(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    server.break_with(Break.HTML, path="/v1/models")
    assert "HTML" in the_one_error(prewarm(kv, releases, server.url), code=5)


def test_the_same_replica_twice(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    result = prewarm(kv, releases, server.url, "--engine-url", f"{server.url}/v1/", "--format", "json")
    assert f"{server.url} is named twice: it has one cache" in result.err
    assert [one["url"] for one in json.loads(result.out)["replicas"]] == [server.url]


def test_a_reference_that_is_the_replica_itself(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    argv = ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
    assert "vouch for itself" in the_one_error(kv("verify", *argv, "--reference", f"{server.url}/"), code=2)


def test_no_engine_no_prompts_no_release(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    assert "no engine" in the_one_error(kv("prewarm"), code=2)
    assert "no prompt set" in the_one_error(kv("prewarm", "--engine-url", server.url), code=2)
    assert "no release" in the_one_error(kv("prewarm", "--engine-url", server.url, "--prompts", "prompts.yaml"), code=2)


# --- prompts ---


@pytest.mark.parametrize("content", ["", "prompts: []\n", "\n\n"])
def test_an_empty_prompt_set(kv: Kv, workdir: Path, content: str) -> None:
    for name in ("e.yaml", "e.jsonl"):
        if name == "e.jsonl" and content.startswith("prompts"):
            continue
        (workdir / name).write_text(content)
        assert name in the_one_error(kv("prompts", "check", name), code=4)


def test_a_missing_prompt_set(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    assert "none.yaml" in the_one_error(prewarm(kv, releases, server.url, prompts="none.yaml"), code=4)


def test_a_prompt_longer_than_the_context(kv: Kv, releases: Releases) -> None:
    with ScriptedEngine(context_tokens=64) as server:
        text = the_one_error(prewarm(kv, releases, server.url), code=4)
        assert not server.generations()
    assert "the shortest, 'q" in text
    assert "context of 64 tokens" in text
    assert "Every rule" not in text


# --- the command line itself ---


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["prewrm"], "Did you mean 'prewarm'?"),
        (["prewarm", "--modl", "x"], "--model"),
        (["prewarm", "--concurrency", "0"], "--concurrency"),
        (["prewarm", "--concurrency", "many"], "--concurrency"),
        (["prewarm", "--engine", "vlm"], "'vllm'"),
        (["fingerprint"], "MODEL"),
        (["fingerprint", "a", "b"], "b"),
        (["prompts", "chek", "x"], "Did you mean 'check'?"),
        (["prewarm", "--header", "no-equals-sign", "--engine-url", "http://a"], "--header number 1"),
        (["namespace", "x", "--engine", "vllm", "--new-epoch", "--no-ledger"], "--new-epoch"),
    ],
)
def test_a_wrong_command_line_points_at_the_word(kv: Kv, argv: list[str], said: str) -> None:
    assert said in the_one_error(kv(*argv), code=2)


@pytest.mark.parametrize(
    ("command", "option"),
    [("prewarm", "--min-hit-rate"), ("prewarm", "--timeout"), ("prewarm", "--budget"), ("verify", "--stale-below")],
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_would_pass_every_gate(kv: Kv, command: str, option: str, value: str) -> None:
    assert option in the_one_error(kv(command, option, value), code=2)


@pytest.mark.parametrize(
    ("argv", "said", "takes"),
    [
        (["prewarm", "--budget", "5m"], "--budget: '5m' is no number", "seconds, as 300, at least 0.1"),
        (["prewarm", "--min-hit-rate", "90%"], "--min-hit-rate: '90%' is no number", "a share, as 0.9, from 0 to 1"),
        (["prewarm", "--min-hit-rate", "90"], "--min-hit-rate: 90.0 is out of range", "a share, as 0.9, from 0 to 1"),
        (
            ["prewarm", "--concurrency", "4.5"],
            "--concurrency: '4.5' is no whole number",
            "a whole number, from 1 to 1024",
        ),
        (["prewarm", "--max-ttft-ms", "1s"], "--max-ttft-ms: '1s' is no number", "milliseconds, as 250, at least 0"),
        (
            ["prompts", "select", "x", "--tokens", "8k"],
            "--tokens: '8k' is no whole number",
            "a whole number, at least 1",
        ),
    ],
)
def test_a_value_that_is_none_is_answered_by_unit_form_and_bounds(
    kv: Kv, argv: list[str], said: str, takes: str
) -> None:
    text = the_one_error(kv(*argv), code=2)
    command = " ".join(argv[: 2 if argv[0] == "prompts" else 1])
    assert text == f"{said}\n  next: it takes {takes}; kvrelease {command} --help\n"


def test_a_value_that_is_none_says_where_it_stood(kv: Kv, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "kvrelease.yaml").write_text("budget: 0.01\n")
    assert the_one_error(kv("prewarm"), code=2).startswith("--budget (kvrelease.yaml): 0.01 is out of range")
    monkeypatch.setenv("KVRELEASE_BUDGET", "6m")
    assert the_one_error(kv("prewarm"), code=2).startswith("--budget (KVRELEASE_BUDGET): '6m' is no number")
    named = the_one_error(kv("prewarm", "--budget", "7m", "--engine", "vlm"), code=2)
    assert "env var" not in named


@pytest.mark.parametrize("urls", ["http://a:8000,http://b:8000", "a:8000,b:8000"])
def test_several_urls_in_one_are_told_how_each_is_named(kv: Kv, releases: Releases, urls: str) -> None:
    assert "repeat --engine-url for each" in the_one_error(prewarm(kv, releases, urls), code=2)


def test_options_that_judging_again_ignores_are_refused_by_name(kv: Kv) -> None:
    argv = ("--engine-url", "http://a", "--stale-below", "0.05", "--no-ledger", "--release", "x", "--expect-cold")
    text = the_one_error(kv("verify", "--from", "seen.json", "-o", "r.json", *argv), code=2)
    named = "--release, --engine-url, --expect-cold, --stale-below, --no-ledger have no effect"
    assert named in text.partition("next:")[0]


def test_no_command_shows_the_help_as_it_is(kv: Kv) -> None:
    result = kv()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: kvrelease [OPTIONS] COMMAND")
    assert "\\n" not in result.err


def test_a_header_is_never_repeated(kv: Kv, releases: Releases) -> None:
    result = kv("prewarm", "--engine-url", "http://127.0.0.1:1", "--header", "sk-secret")
    assert "sk-secret" not in the_one_error(result, code=2)


@pytest.mark.parametrize("places", [["missing"], ["empty"], ["."], ["empty", "."]])
def test_the_in_process_engine_reads_one_store_of_blocks(
    kv: Kv, releases: Releases, workdir: Path, places: list[str]
) -> None:
    (workdir / "empty").mkdir()
    options = [part for place in places for part in ("--engine-url", place)]
    result = kv(
        *("verify", "--engine", "local", "--release", releases.directory, "--prompts", "prompts.yaml", *options)
    )
    text = the_one_error(result, code=2)
    assert places[0] in text


def test_the_in_process_engine_asks_no_server(kv: Kv, releases: Releases) -> None:
    options = ("--engine-url", "http://127.0.0.1:1", "--stale-below", "0.9", "--no-ledger")
    result = kv(
        *("verify", "--engine", "local", "--release", releases.directory, "--prompts", "prompts.yaml", *options)
    )
    assert result.code == 4, result.err  # the prompts do not fit this release; nobody was asked
    assert "http://127.0.0.1:1 is not used" in result.err


def test_a_usage_error_of_a_grouped_command_leads_to_its_own_help(kv: Kv) -> None:
    wrong = kv("prompts", "select", "log.jsonl", "--requests", "0")
    assert wrong.code == 2
    assert "kvrelease prompts select --help" in wrong.err
    assert "next: kvrelease prompts check --help" in the_one_error(kv("prompts", "check"), code=2)
    assert "next: kvrelease prewarm --help" in the_one_error(kv("--verbose", "prewarm", "--modl", "x"), code=2)


def test_a_log_that_is_not_there_or_empty_has_a_next_step(kv: Kv, workdir: Path) -> None:
    (workdir / "traffic.jsonl").write_text("")
    misspelt = the_one_error(kv("prompts", "select", "trafic.jsonl"), code=4)
    assert f"next: did you mean {workdir / 'traffic.jsonl'}?" in misspelt
    assert "next: name the file that" in the_one_error(kv("prompts", "select", "traffic.jsonl"), code=4)
    empty = the_one_error(kv("prompts", "check", "traffic.jsonl"), code=4)
    assert "next: it takes one request body a line" in empty
    (workdir / "set.yaml").write_text("prompts: []\n")
    assert "add at least one under `prompts:`" in the_one_error(kv("prompts", "check", "set.yaml"), code=4)
