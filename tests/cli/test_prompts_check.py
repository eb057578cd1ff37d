"""`kvrelease prompts check` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import kvrelease
from kvrelease.artifacts import JsonObject
from kvrelease.workload.prompt_set import PromptKind
from kvrelease.workload.release_tokenizer import ReleaseTokenizer
from tests.cli.conftest import Kv
from tests.engines.scripted import ScriptedEngine

DEMO = Path(kvrelease.__file__).parent / "data" / "demo" / "v1"
CHAT = {"conversations": [{"from": "human", "value": "Mail ann@acme-shop.de"}]}


def test_a_set_is_counted_by_a_release(kv: Kv) -> None:
    result = kv("prompts", "check", "prompts.yaml", "--tokenizer", DEMO, "--format", "json", "--fail-on", "any")
    assert result.code == 0, result.err
    tokens = json.loads(result.out)["tokens"]
    assert (tokens["by"], tokens["counted"], tokens["block_tokens"]) == (str(DEMO), 12, 16)
    assert 0 < tokens["unique"] < tokens["cacheable"] < tokens["total"]


def test_a_set_is_counted_by_a_server_and_nothing_is_generated(kv: Kv) -> None:
    with ScriptedEngine(release="new") as server:
        result = kv("prompts", "check", "prompts.yaml", "--engine-url", server.url, "--format", "json")
        assert result.code == 0, result.err
        assert json.loads(result.out)["tokens"]["counted"] == 12
        assert server.generations() == []


def test_without_a_tokenizer_tokens_are_not_known_and_a_gate_on_them_is_inconclusive(kv: Kv) -> None:
    result = kv("prompts", "check", "prompts.yaml", "--fail-on", "uncacheable")
    assert result.code == 3
    assert "not known: name --tokenizer MODEL or --engine-url" in result.out
    assert "--fail-on uncacheable: not known" in result.err


def test_a_log_is_summed_up_with_its_damage_and_without_its_text(kv: Kv, workdir: Path) -> None:
    (workdir / "log.jsonl").write_text(json.dumps(CHAT) + "\nSECRET\n")
    result = kv("prompts", "check", "log.jsonl", "--tokenizer", DEMO, "--fail-on", "personal")
    assert result.code == 1
    assert "sharegpt" in result.out
    assert "log.jsonl, line 2" in result.out
    assert not [word for word in ("SECRET", "ann@") if word in result.out + result.err]
    body: JsonObject = {"messages": [{"role": "user", "content": "Mail ann@acme-shop.de"}]}
    count = len(ReleaseTokenizer(DEMO, name="-").tokens(body, kind=PromptKind.CHAT))
    assert f"{count} in 1 request, " in result.out


def test_any_file_is_a_log_when_its_format_is_named(kv: Kv, workdir: Path) -> None:
    (workdir / "notes").write_text("One\nTwo\n")
    result = kv("prompts", "check", "notes", "--log-format", "text", "--format", "json")
    assert json.loads(result.out)["requests"] == 2


def test_two_counters_are_one_too_many(kv: Kv) -> None:
    result = kv("prompts", "check", "prompts.yaml", "--tokenizer", DEMO, "--engine-url", "http://127.0.0.1:1")
    assert result.code == 2
    assert "name one of them" in result.err
