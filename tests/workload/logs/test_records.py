"""What `docs/logs.md` says of each format, rule by rule: one record, and the body that it becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.errors import TrafficLogError
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import read_log
from tests.workload.logs.test_formats import MODEL, attributes, span, user

HI = {"messages": [user("Hi")]}
LITELLM = {"call_type": "completion", "model_parameters": {}, "messages": [user("Hi")]}

TURNS = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "Hi",
    "gen_ai.prompt.1.role": "assistant",
    "gen_ai.prompt.1.tool_calls.0.id": "c1",
    "gen_ai.prompt.1.tool_calls.0.name": "get",
    "gen_ai.prompt.1.tool_calls.0.arguments": "{}",
    "gen_ai.prompt.2.role": "tool",
    "gen_ai.prompt.2.content": "ok",
    "gen_ai.prompt.2.tool_call_id": "c1",
    "llm.request.functions.0.name": "get",
    "llm.request.functions.0.parameters": '{"a": 1}',
}


def read(directory: Path, record: object) -> list[LoggedRequest]:
    (directory / "log").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return list(read_log(directory / "log", source="log"))


def parts(*found: dict[str, object], role: str = "user") -> dict[str, object]:
    messages = json.dumps([{"role": role, "parts": found}])
    return span(*MODEL, *attributes(gen_ai__input__messages=messages))


def flat(**pairs: object) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in pairs.items()}
    return {"name": "chat", "attributes": {"gen_ai.request.model": "acme", **named}}


@pytest.mark.parametrize(
    ("record", "body"),
    [
        # OpenAI: what stands beside the body is not sent.
        ({**HI, "id": "a", "weight": 2, "timestamp": 1715299200}, HI),
        ({"request": HI}, HI),
        ({"custom_id": "a", "url": "https://host/v1/chat/completions/", "body": HI}, HI),
        # ShareGPT.
        ({"conversations": [{"from": "human", "value": "Hi"}], "system": "Be brief."},
         {"messages": [{"role": "system", "content": "Be brief."}, user("Hi")]}),
        # LiteLLM.
        (LITELLM, HI),
        ({"standard_logging_object": LITELLM}, HI),
        ({**LITELLM, "call_type": "text_completion", "messages": "Once"}, {"prompt": "Once"}),
        ({**LITELLM, "model_parameters": {"n": None, "api_key": "k", "headers": {}, "seed": 1}}, {"seed": 1, **HI}),
        # OpenTelemetry.
        (span(*attributes(gen_ai__operation__name="generate_content", gen_ai__prompt="Hi")), HI),
        (span(*attributes(gen_ai__operation__name="text_completion", gen_ai__prompt="Once")), {"prompt": "Once"}),
        (flat(gen_ai__prompt="Hi", gen_ai__request__max_tokens=5), {"model": "acme", **HI, "max_tokens": 5}),
        (parts({"type": "text", "content": "Hi"}), {"model": "acme", **HI}),
        (parts({"type": "reasoning", "content": "hm"}, {"type": "text", "content": "Hi"}), {"model": "acme", **HI}),
        (parts({"type": "uri", "modality": "image", "uri": "https://h/a.png"}),
         {"model": "acme", "messages": [
             {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/a.png"}}]}]}),
        (parts({"type": "blob", "modality": "image", "content": "QQ==", "mime_type": "image/png"}),
         {"model": "acme", "messages": [{"role": "user", "content": [
             {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}]}]}),
        (flat(**TURNS),
         {"model": "acme", "messages": [
             user("Hi"),
             {"role": "assistant", "content": None, "tool_calls": [
                 {"type": "function", "id": "c1", "function": {"name": "get", "arguments": "{}"}}]},
             {"role": "tool", "content": "ok", "tool_call_id": "c1"}],
          "tools": [{"type": "function", "function": {"name": "get", "parameters": {"a": 1}}}]}),
        ({"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [
            {"attributes": [*MODEL, *attributes(gen_ai__prompt="Hi")]}]}]}]}, {"model": "acme", **HI}),
    ],
)  # fmt: skip
def test_the_body_of_a_record(tmp_path: Path, record: object, body: dict[str, object]) -> None:
    (found,) = read(tmp_path, record)
    assert found.body == body


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({**LITELLM, "prompt_tokens": 7}, 7),
        ({**LITELLM, "prompt_tokens": 0}, None),
        ({**LITELLM, "prompt_tokens": 0, "messages": "redacted-by-litellm"}, None),
        (flat(gen_ai__usage__input_tokens=7), 7),
        (flat(gen_ai__usage__prompt_tokens=7), 7),
        (flat(gen_ai__prompt="Hi"), None),
    ],
)
def test_tokens_that_were_not_told_are_not_known(tmp_path: Path, record: object, tokens: int | None) -> None:
    (found,) = read(tmp_path, record)
    assert found.prompt_tokens == tokens


@pytest.mark.parametrize(
    "time",
    [1715299200.5, 1715299200500, 1715299200500000, 1715299200500000000, "1715299200500", "2024-05-10T00:00:00.5Z",
     "2024-05-10T02:00:00.5+02:00", "2024-05-10T00:00:00.5"],
)  # fmt: skip
def test_a_time_is_told_by_its_size_and_one_without_a_zone_is_utc(tmp_path: Path, time: object) -> None:
    (found,) = read(tmp_path, {**HI, "timestamp": time})
    assert found.at_s == 1715299200.5


def test_one_key_of_litellm_alone_may_be_there_by_chance(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {**HI, "response_cost": 1})
    assert found.body == {**HI, "response_cost": 1}


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\ufeff" + json.dumps(HI) + "\n", encoding="utf-8")
    (found,) = read_log(tmp_path / "log", source="log")
    assert found.body == HI
    (tmp_path / "log").write_text("\ufeffuser,weight\nHi,2\n", encoding="utf-8")
    (row,) = read_log(tmp_path / "log", source="log", format=LogFormat.CSV)
    assert (row.body, row.weight) == (HI, 2.0)


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,model,model\nHi,a,b\n", encoding="utf-8")
    with pytest.raises(TrafficLogError, match="the column 'model' twice"):
        list(read_log(tmp_path / "log.csv", source="log.csv"))


def test_an_attribute_that_is_nested_too_deeply_is_damage(tmp_path: Path) -> None:
    value: dict[str, object] = {"stringValue": "x"}
    for _ in range(80):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(TrafficLogError, match="nested deeper than 64"):
        read(tmp_path, span(*MODEL, {"key": "gen_ai.prompt", "value": value}))
