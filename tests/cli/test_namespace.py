"""`kvrelease namespace`: settings for a shell and for Kubernetes, and `--check` against an engine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvrelease.binding.target import BindingTarget
from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.engines.base import EngineKind
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, Result
from tests.engines.scripted import ScriptedEngine

HOSTILE = '/kv/it\'s "$(touch pwned)"\n# `rm`;&'


@pytest.fixture
def namespace(kv: Kv, releases: Releases) -> str:
    """The new release's, made already."""
    return str(json.loads(kv("namespace", releases.new, "--engine", "vllm", "--format", "json").out)["namespace"])


@pytest.fixture
def server(namespace: str) -> Iterator[ScriptedEngine]:
    """vLLM, started as the settings say."""
    with ScriptedEngine(release="new") as engine:
        engine.fingerprint = namespace
        yield engine


def asked(kv: Kv, releases: Releases, url: str, *more: str, engine: str = "vllm") -> Result:
    return kv("namespace", releases.new, "--engine", engine, "--check", url, "--format", "json", *more)


def answers(result: Result) -> dict[str, str]:
    return {finding["id"]: finding["answer"] for finding in json.loads(result.out)["checked"]["findings"]}


# --- what machines read ---


@pytest.mark.parametrize("target", list(BindingTarget))
@pytest.mark.parametrize("root", ["/var/lib/kvrelease", HOSTILE])
def test_a_shell_gets_every_setting_and_runs_nothing(
    kv: Kv, releases: Releases, workdir: Path, target: BindingTarget, root: str
) -> None:
    common = ("namespace", releases.new, "--engine", target, "--store-root", root, "--model", "it's $HOME")
    found = json.loads(kv(*common, "--format", "json").out)
    script = kv(*common, "--shell").out
    read = " ".join(f'"${name}"' for name in (*found["settings"]["env"], "kvrelease_namespace", "kvrelease_body", "@"))
    code = f"set -- first\neval {shlex.quote(script)}\nprintf '%s\\0' {read}"
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-euc", code], capture_output=True, text=True, check=True, env=path)
    assert done.stderr == ""
    values = done.stdout.split("\0")[:-1]
    expected = [*found["settings"]["env"].values(), found["namespace"]]
    assert values[: len(expected)] == expected
    body, *arguments = values[len(expected) :]
    assert json.loads(body) == found["settings"]["body"]
    assert arguments == ["first", *found["settings"]["flags"]]
    assert not (workdir / "pwned").exists()


@pytest.mark.parametrize("target", list(BindingTarget))
def test_kubernetes_gets_a_patch_that_merges_by_name(kv: Kv, releases: Releases, target: BindingTarget) -> None:
    common = ("namespace", releases.new, "--engine", target, "--store-root", HOSTILE)
    found = json.loads(kv(*common, "--format", "json").out)
    text = kv(*common, "--kubernetes", "--container", "engine").out
    template = yaml.safe_load(text)["spec"]["template"]
    assert template["metadata"]["annotations"] == {"kvrelease/namespace": found["namespace"]}
    (container,) = template["spec"]["containers"]
    env = found["settings"]["env"]
    assert container == {"name": "engine"} | (
        {"env": [{"name": name, "value": value} for name, value in env.items()]} if env else {}
    )
    if flags := found["settings"]["flags"]:
        line = next(line for line in text.splitlines() if line.startswith("# append to this container's args: "))
        assert json.loads(line.partition("args: ")[2]) == flags


def test_a_patch_names_the_engines_kind_where_no_container_is_named(kv: Kv, releases: Releases) -> None:
    patch = yaml.safe_load(kv("namespace", releases.new, "--engine", "vllm", "--kubernetes").out)
    assert patch["spec"]["template"]["spec"]["containers"][0]["name"] == "vllm"


@pytest.mark.parametrize("form", ["--shell", "--kubernetes"])
def test_it_goes_into_a_file_and_a_formats_variable_does_not_bend_it(
    kv: Kv, releases: Releases, workdir: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("KVRELEASE_FORMAT", "json")
    result = kv("namespace", releases.new, "--engine", "vllm", form, "-o", "binding.yaml")
    assert (result.code, result.out) == (0, "")
    assert "PYTHONHASHSEED" in (workdir / "binding.yaml").read_text()


@pytest.mark.parametrize(
    "more",
    [
        ("--shell", "--kubernetes"),
        ("--shell", "--format", "json"),
        ("--kubernetes", "--check", "http://127.0.0.1:1"),
        ("--store-root", "here"),
        ("--shell", "-o", "nowhere/x"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(kv: Kv, releases: Releases, more: tuple[str, ...]) -> None:
    result = kv("namespace", releases.new, "--engine", "vllm", *more)
    assert (result.code, result.out, len(result.errors)) == (2, "", 1)
    assert more[0] in result.err or more[1] in result.err


# --- tenants ---


def test_a_tenants_salt_is_combined_from_option_or_production(kv: Kv, releases: Releases, namespace: str) -> None:
    wanted = bound_salt(namespace, "team @7")
    argv = ("namespace", releases.new, "--engine", "vllm", "--format", "json")
    told = kv(*argv, "--tenant-salt", "team @7")
    assert json.loads(told.out)["settings"]["body"] == {"cache_salt": wanted}
    Path("kvrelease.yaml").write_text("production: {salt: 'team @7'}")
    told = kv(*argv)
    assert json.loads(told.out)["settings"]["body"] == {"cache_salt": wanted}
    assert "production.salt is a text of its own" in told.err
    assert "team @7" not in told.out + told.err
    for word in ("none", "release"):
        Path("kvrelease.yaml").write_text(f"production: {{salt: {word}}}")
        assert json.loads(kv(*argv).out)["settings"]["body"] == {"cache_salt": namespace}


# --- --check ---


def test_an_engine_that_was_started_so_passes(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    result = asked(kv, releases, server.url)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["verdict"] == "pass"
    assert answers(result) == {"key-space": "yes", "label": "yes", "store": "yes", "hash-root": "unknown"}
    assert "hash-root" in found["reason"]


def test_it_asks_exactly_with_the_printed_fields_and_sets_nothing(
    kv: Kv, releases: Releases, server: ScriptedEngine, namespace: str
) -> None:
    asked(kv, releases, server.url, "--tenant-salt", "t")
    first, again, fresh = (one.body for one in server.generations())
    assert first["cache_salt"] == again["cache_salt"] == bound_salt(namespace, "t")
    assert fresh["cache_salt"] not in (namespace, first["cache_salt"])
    assert first["messages"] == again["messages"] == fresh["messages"]
    assert {one.path for one in server.requests if one.method == "POST"} == {"/v1/chat/completions", "/tokenize"}


def test_a_page_says_what_was_asked_and_found(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    page = kv("namespace", releases.new, "--engine", "vllm", "--check", server.url).out
    assert "PASS  requests with these fields have a key space of the namespace's own" in page
    assert f"Asked: vllm 0.32.0 at {server.url}" in page


def test_an_engine_that_drops_the_salt_fails(kv: Kv, releases: Releases, namespace: str) -> None:
    with ScriptedEngine(release="new", ignores_salt=True) as engine:
        engine.fingerprint = namespace
        result = asked(kv, releases, engine.url)
    assert result.code == 1
    assert answers(result)["key-space"] == "no"


def test_an_engine_under_another_label_fails(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    server.fingerprint = None
    result = asked(kv, releases, server.url)
    assert (result.code, answers(result)["label"]) == (1, "no")
    server.fingerprint = f"kv1-{'a' * 32}-undeclared-e0"
    assert "another namespace" in asked(kv, releases, server.url).out


def test_the_namespace_as_a_second_name_is_asked_for_where_the_settings_say_so(
    kv: Kv, releases: Releases, server: ScriptedEngine, namespace: str
) -> None:
    missing = asked(kv, releases, server.url, "--model", "scripted")
    assert (missing.code, answers(missing)["served-name"]) == (1, "no")
    server.other_names = (namespace,)
    listed = asked(kv, releases, server.url, "--model", "scripted")
    assert (listed.code, answers(listed)["served-name"]) == (0, "yes")
    assert asked(kv, releases, server.url).code == 0  # several names of one model are one model


@pytest.mark.parametrize("ignores_salt", [False, True])
def test_a_connectors_directory_has_to_be_the_namespaces(
    kv: Kv, releases: Releases, namespace: str, ignores_salt: bool
) -> None:
    with ScriptedEngine(release="new", store={}, ignores_salt=ignores_salt) as engine:
        engine.fingerprint = namespace
        shared = asked(kv, releases, engine.url)
        assert (shared.code, answers(shared)["store"]) == (1, "no")
        engine.store_path = f"/var/lib/kvrelease/vllm/{namespace}"
        own = asked(kv, releases, engine.url)
        # The scripted store ignores salts, as ExampleConnector does: its directory is right, and a hit tells the rest.
        assert answers(own)["store"] == "yes"
        assert (own.code, answers(own)["key-space"]) == (1, "no")


def test_without_development_mode_counters_tell_that_there_is_no_store(
    kv: Kv, releases: Releases, namespace: str
) -> None:
    for has_metrics, code, store in ((True, 0, "yes"), (False, 3, "unknown")):
        with ScriptedEngine(release="new", has_dev_routes=False, has_metrics=has_metrics) as engine:
            engine.fingerprint = namespace
            result = asked(kv, releases, engine.url)
        assert (result.code, answers(result)["store"]) == (code, store)


def test_an_engine_that_does_not_tell_hits_is_inconclusive(kv: Kv, releases: Releases, namespace: str) -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as engine:
        engine.fingerprint = namespace
        result = asked(kv, releases, engine.url)
    assert (result.code, answers(result)["key-space"]) == (3, "unknown")


def test_sglang_is_asked_by_its_own_field_and_label(kv: Kv, releases: Releases, namespace: str) -> None:
    with ScriptedEngine(kind=EngineKind.SGLANG, release="new") as engine:
        wrong = asked(kv, releases, engine.url, engine="sglang")
        assert (wrong.code, answers(wrong)["label"], answers(wrong)["key-space"]) == (1, "no", "yes")
        engine.weight_versions = [namespace]
        right = asked(kv, releases, engine.url, engine="sglang")
        assert engine.generations()[-2].body["extra_key"] == namespace
    assert (right.code, answers(right)) == (0, {"key-space": "yes", "label": "yes", "store": "yes"})


def test_llamacpp_has_no_key_space_to_prove(kv: Kv, releases: Releases, namespace: str) -> None:
    with ScriptedEngine(kind=EngineKind.LLAMACPP, release="new", model=namespace) as engine:
        result = asked(kv, releases, engine.url, engine="llamacpp")
        assert not engine.generations()
    assert (result.code, answers(result)) == (3, {"key-space": "unknown", "label": "yes", "store": "unknown"})


@pytest.mark.parametrize("engine", ["lmcache", "dynamo", "aibrix"])
def test_a_layer_below_an_engine_is_never_proven_by_the_engines_own_cache(
    kv: Kv, releases: Releases, server: ScriptedEngine, engine: str
) -> None:
    result = asked(kv, releases, server.url, engine=engine)
    assert result.code == 3
    assert (answers(result)["key-space"], answers(result)["store"]) == ("yes", "unknown")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--engine", "vllm", "--check", "http://127.0.0.1:1", "--timeout", "1"), 5, "cannot connect"),
        (("--engine", "local", "--check", "http://127.0.0.1:1"), 2, "--engine local has none"),
        (("--engine", "vllm", "--check", "here"), 2, "here"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_an_error(
    kv: Kv, releases: Releases, argv: tuple[str, ...], code: int, words: str
) -> None:
    result = kv("namespace", releases.new, *argv)
    assert (result.code, result.out) == (code, "")
    assert words in result.err


def test_a_saved_check_reads_back(kv: Kv, releases: Releases, server: ScriptedEngine) -> None:
    from kvrelease import artifacts
    from kvrelease.binding.namespace import NamespaceReport

    asked(kv, releases, server.url, "-o", "checked.json")
    found: Any = artifacts.read(Path("checked.json"), NamespaceReport)
    assert found.checked.engine == "vllm"
