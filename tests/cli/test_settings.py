"""Flags, then `KVRELEASE_*` variables, then `kvrelease.yaml`, then defaults: through the command line itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.engines.scripted import ScriptedEngine


@pytest.fixture
def server() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


def write(**settings: object) -> None:
    Path("kvrelease.yaml").write_text(json.dumps({name.replace("_", "-"): v for name, v in settings.items()}))


def salt_of_last(server: ScriptedEngine) -> object:
    return server.generations()[-1].body.get("cache_salt")


def test_precedence(kv: Kv, releases: Releases, server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    write(release=str(releases.new), engine_url=server.url, prompts="prompts.yaml", max_tokens=1)
    seen = []
    assert kv("record").code == 0
    seen.append(salt_of_last(server))
    write(release=str(releases.new), engine_url=[server.url], prompts="prompts.yaml", namespace="from-file")
    kv("record")
    seen.append(salt_of_last(server))
    monkeypatch.setenv("KVRELEASE_NAMESPACE", "from-variable")
    kv("record")
    seen.append(salt_of_last(server))
    kv("record", "--namespace", "from-flag")
    seen.append(salt_of_last(server))
    assert seen == [None, "from-file", "from-variable", "from-flag"]


def test_production_is_the_last_resort_for_url_model_and_salt(
    kv: Kv, releases: Releases, server: ScriptedEngine
) -> None:
    write(production={"url": server.url, "model": "scripted", "salt": "team", "body": {"user": "u"}})
    result = kv("record", "--release", releases.new, "--prompts", "prompts.yaml")
    assert result.code == 0, result.err
    body = server.generations()[-1].body
    assert (body["model"], body["user"], body["cache_salt"]) == ("scripted", "u", "team")


UNDECLARED = "warning: nobody declared which salt users send"


@pytest.mark.parametrize("command", ["prewarm", "record", "verify"])
def test_keys_that_nobody_declared_are_said_to_be_undeclared_by_every_command(
    kv: Kv, releases: Releases, server: ScriptedEngine, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = (command, "--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
    undeclared: tuple[dict[str, Any], ...] = ({}, {"production": {"headers": {"X-Team": "a"}}})
    declared: tuple[dict[str, Any], ...] = ({"production": {"salt": "none"}}, {"namespace": "release"})
    for settings in undeclared:
        write(**settings)
        assert UNDECLARED in kv(*argv).err
    for settings in declared:
        write(**settings)
        assert "nobody declared" not in kv(*argv).err
    write()
    assert "nobody declared" not in kv(*argv, "--namespace", "none").err
    monkeypatch.setenv("KVRELEASE_NAMESPACE", "none")
    assert "nobody declared" not in kv(*argv).err


def test_a_verdict_on_keys_that_nobody_declared_says_so_itself(
    kv: Kv, releases: Releases, server: ScriptedEngine
) -> None:
    argv = ("verify", "--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
    undeclared = kv(*argv, "--format", "json", "--observations", "seen.json")
    for result in (undeclared, kv("verify", "--from", "seen.json", "--format", "json")):
        assert any("production.salt" in one for one in json.loads(result.out)["not_covered"])
    declared = kv(*argv, "--namespace", "none", "--format", "json")
    assert not any("production.salt" in one for one in json.loads(declared.out)["not_covered"])


def test_variables_alone_are_enough(
    kv: Kv, releases: Releases, server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "RELEASE": releases.new,
        "ENGINE_URL": server.url,
        "ENGINE": "vllm",
        "MODEL": "scripted",
        "PROMPTS": "prompts.yaml",
        "HEADER": "X-Team=a b\nX-Other=c",
        "TIMEOUT": "9",
        "CONCURRENCY": "2",
        "NO_LEDGER": "1",
        "FORMAT": "json",
        "MIN_HIT_RATE": "0.5",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"KVRELEASE_{name}", str(value))
    result = kv("prewarm")
    assert result.code == 0, result.err
    assert json.loads(result.out)["limits"]["min_hit_rate"] == 0.5
    headers = server.generations()[-1].headers
    assert (headers["x-team"], headers["x-other"]) == ("a b", "c")


def test_several_replicas_in_one_variable(kv: Kv, releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedEngine(release="new") as one, ScriptedEngine(release="new") as two:
        monkeypatch.setenv("KVRELEASE_ENGINE_URL", f"{one.url} {two.url}")
        result = kv("prewarm", "--release", releases.new, "--prompts", "prompts.yaml", "--format", "json")
    assert [replica["url"] for replica in json.loads(result.out)["replicas"]] == [one.url, two.url]


@pytest.mark.parametrize(
    ("settings", "option"),
    [({"engine": "vlm"}, "--engine"), ({"concurrency": 0}, "--concurrency"), ({"min_hit_rate": 2}, "--min-hit-rate")],
)
def test_a_wrong_value_in_the_file_is_told_by_its_option(kv: Kv, settings: dict[str, object], option: str) -> None:
    write(**settings)
    result = kv("prewarm")
    assert result.code == 2
    assert option in result.errors[0]


def test_a_wrong_header_is_told_by_where_it_stands(
    kv: Kv, workdir: Path, server: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(header=["X-Team: sk-secret"])
    from_file = kv("prewarm", "--engine-url", server.url)
    write()
    monkeypatch.setenv("KVRELEASE_HEADER", "X-Team: sk-secret")
    from_variable = kv("prewarm", "--engine-url", server.url)
    monkeypatch.delenv("KVRELEASE_HEADER")
    from_flag = kv("prewarm", "--engine-url", server.url, "--header", "X-Team: sk-secret")
    for result, where in (
        (from_file, str(workdir / "kvrelease.yaml")),
        (from_variable, "KVRELEASE_HEADER"),
        (from_flag, "--header number 1"),
    ):
        assert result.code == 2
        assert where in result.errors[0]
        assert "sk-secret" not in result.err


def test_an_unknown_key_ends_2_with_a_suggestion(kv: Kv) -> None:
    write(modle="x")
    result = kv("prompts", "check", "prompts.yaml")
    assert result.code == 2
    assert "next: did you mean 'model'?" in result.err


def test_the_served_models_name_is_no_directory_to_fingerprint(kv: Kv) -> None:
    write(model="support-chat")
    assert "Missing argument 'MODEL'" in kv("fingerprint").errors[0]


def test_a_missing_key_variable_is_told_before_anything_is_hashed(kv: Kv) -> None:
    write(engine_url="http://127.0.0.1:1", prompts="prompts.yaml", release="none", api_key_env="NOT_SET")
    result = kv("prewarm")
    assert result.code == 2
    assert "--api-key-env" in result.errors[0]


@pytest.mark.parametrize("salt", ["", "None", "Release"])
def test_a_misspelt_production_salt_is_refused(kv: Kv, releases: Releases, server: ScriptedEngine, salt: str) -> None:
    write(engine_url=server.url, prompts="prompts.yaml", release=str(releases.new), production={"salt": salt})
    assert kv("verify").code == 2
    assert server.generations() == []


def test_a_ledger_that_two_commands_share_explains_the_second(
    kv: Kv, releases: Releases, server: ScriptedEngine
) -> None:
    engine = ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
    ledger = ("--ledger", "sqlite:///my ledger.db")
    assert kv("prewarm", *engine, *ledger).code == 0
    assert kv("prewarm", *engine, *ledger).code == 0
    assert Path("my ledger.db").exists()
    assert kv("prewarm", *engine, "--no-ledger").code == 1


def test_a_new_epoch_is_remembered(kv: Kv, releases: Releases) -> None:
    argv = ("namespace", releases.new, "--engine", "vllm", "--format", "json")
    epochs = [json.loads(kv(*argv, *more).out)["epoch"] for more in ((), ("--new-epoch",), ())]
    assert epochs == [0, 1, 1]


def test_a_namespace_for_another_engine_than_the_declared_is_a_warning(kv: Kv, releases: Releases) -> None:
    write(runtime={"engine": "sglang", "version": "0.5.23"})
    argv = ("namespace", releases.new, "--format", "json", "--engine")
    result = kv(*argv, "vllm")
    (warning,) = json.loads(result.out)["warnings"]
    assert result.err == f"warning: {warning}\n"
    for part in ("stands for sglang", "kvrelease.yaml", "settings are for vllm", "--engine", "runtime.engine"):
        assert part in warning
    assert kv(*argv, "sglang").err == ""
