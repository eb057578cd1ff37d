"""Traffic logs as prompt sets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvrelease.errors import PromptSetError, TrafficLogError
from kvrelease.workload import loading, log_set
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.prompt_set import Prompt, PromptKind
from tests.workload.builders import chat_body, load_text


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_a_batch_file_is_a_set_with_its_ids_and_its_tenants(tmp_path: Path) -> None:
    bodies = [chat_body("Hi", cache_salt="tenant"), {"prompt": "Once"}]
    text = lines(
        *({"custom_id": f"r{n}", "method": "POST", "url": "/v1", "body": body} for n, body in enumerate(bodies))
    )
    loaded = load_text(tmp_path, text.replace('"/v1"', '"/v1/completions"'), name="batch.jsonl")
    assert loaded.prompts == (
        Prompt(id="r0", weight=1.0, kind=PromptKind.CHAT, body=chat_body("Hi"), salt="tenant"),
        Prompt(id="r1", weight=1.0, kind=PromptKind.COMPLETIONS, body={"prompt": "Once"}),
    )


def test_a_compressed_log_is_a_set(tmp_path: Path) -> None:
    (tmp_path / "chats.json.gz").write_bytes(
        gzip.compress(json.dumps([{"id": "c", "conversations": [{"from": "human", "value": "Hi"}]}]).encode())
    )
    loaded = load_prompt_set("chats.json.gz", directory=tmp_path)
    assert (loaded.name, [prompt.id for prompt in loaded.prompts]) == ("chats", ["c.1"])


def test_requests_of_one_id_are_told_apart(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "id,user\na,One\na,Two\n", name="x.csv")
    assert [prompt.id for prompt in loaded.prompts] == ["a", "a.2"]


def test_a_number_that_tells_requests_apart_is_no_id_of_another(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "id,user\na,1\na.2,2\na,3\na,4\na.2,5\n", name="x.csv")
    assert [prompt.id for prompt in loaded.prompts] == ["a", "a.2", "a.3", "a.4", "a.2.2"]


def test_a_trace_without_text_is_no_set_and_the_error_says_what_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match="2 requests and the text of none") as told:
        load_text(tmp_path, lines(*[{"timestamp": 1, "input_length": 5, "hash_ids": [1]}] * 2), name="trace.jsonl")
    assert "planning and simulation" in str(told.value.hint)


def test_a_log_of_the_size_of_traffic_is_to_be_selected_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_set, "MAX_PROMPTS", 2)
    with pytest.raises(PromptSetError, match="more than 2 requests") as told:
        load_text(tmp_path, "a\nb\nc\n", name="x.txt")
    assert "prompts select" in str(told.value.hint)
    monkeypatch.setattr(loading, "MAX_JSONL_BYTES", 1024**2)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"x" * 2 * 1024**2))
    with pytest.raises(TrafficLogError, match="more than 1 MiB of text"):
        load_prompt_set("bomb.txt.gz", directory=tmp_path)


@pytest.mark.parametrize("line", [{"cache_salt": "s"}, {"extra_key": "s"}, {"cache_salt": "s", "extra_key": "s"}])
def test_a_salt_in_a_body_is_taken_out_of_it(tmp_path: Path, line: dict[str, str]) -> None:
    (only,) = load_text(tmp_path, lines({"prompt": "Once", **line}), name="x.jsonl").prompts
    assert (only.body, only.salt) == ({"prompt": "Once"}, "s")


def test_a_salt_may_stand_beside_a_body(tmp_path: Path) -> None:
    (one,) = load_text(tmp_path, lines({"salt": "s", "body": {"prompt": "Once"}}), name="x.jsonl").prompts
    (other,) = load_text(tmp_path, "prompts: [{prompt: Once, salt: s}]").prompts
    assert (one.body, one.salt) == (other.body, other.salt) == ({"prompt": "Once"}, "s")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"salt": "SECRET", "prompt": "Once"}, "`salt` stands among the fields of the body"),
        ({"cache_salt": "SECRET", "extra_key": "t", "prompt": "Once"}, "hold different salts"),
        ({"salt": "SECRET", "body": {"cache_salt": "t", "prompt": "Once"}}, "salt and cache_salt hold different salts"),
        ({"cache_salt": ["SECRET"], "prompt": "Once"}, "`cache_salt` is a list"),
        ({"cache_salt": "SECRET" * 999, "prompt": "Once"}, "has 5994 characters"),
    ],
)
def test_a_salt_that_is_unclear_is_refused_and_not_shown(tmp_path: Path, line: dict[str, object], found: str) -> None:
    with pytest.raises(PromptSetError) as told:
        load_text(tmp_path, lines(line), name="x.jsonl")
    assert found in told.value.message
    assert "SECRET" not in f"{told.value.message}{told.value.hint}"
