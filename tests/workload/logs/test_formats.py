"""What each format of log becomes; the records are in the words of their writers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kvrelease.errors import InputError, TrafficLogError
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import read_log

Json = dict[str, object]


def requests(directory: Path, text: str, *, name: str = "log", form: LogFormat | None = None) -> list[LoggedRequest]:
    (directory / name).write_text(text, encoding="utf-8")
    return list(read_log(directory / name, source=name, format=form))


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def attributes(**values: object) -> list[dict[str, object]]:
    return [{"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in values.items()]


def span(*pairs: dict[str, object], **more: object) -> dict[str, object]:
    inner = {"name": "chat", "startTimeUnixNano": "1715299200500000000", "attributes": list(pairs), **more}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [inner]}]}]}


def test_batch_file(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [user("Hi")]}
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (found,) = requests(tmp_path, lines(line))
    assert (found.place.id, found.body, found.model) == ("r-1", body, "m")
    with pytest.raises(TrafficLogError, match="neither chat nor completions"):
        requests(tmp_path, lines({**line, "url": "/v1/embeddings"}))


@pytest.mark.parametrize("is_array", [True, False])
def test_each_user_turn_of_a_conversation_is_a_request_with_the_turns_before_it(tmp_path: Path, is_array: bool) -> None:
    one = {
        "id": "c1",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": 'Hi [}\\"'},
            {"from": "gpt", "value": "Hello"},
            {"from": "human", "value": "Bye"},
            {"from": "gpt", "value": "So long"},
        ],
    }
    text = json.dumps([one, {**one, "id": "c2"}], indent=1) if is_array else lines(one, {**one, "id": "c2"})
    found = requests(tmp_path, text)
    assert [request.place.id for request in found] == ["c1.1", "c1.2", "c2.1", "c2.2"]
    assert found[0].body == {"messages": [{"role": "system", "content": "Be brief."}, user('Hi [}\\"')]}
    assert found[1].body is not None
    assert found[1].body["messages"] == [
        {"role": "system", "content": "Be brief."},
        user('Hi [}\\"'),
        {"role": "assistant", "content": "Hello"},
        user("Bye"),
    ]
    assert found[0].place.line == (2 if is_array else 1)


def test_plain_text_is_a_user_message_a_line(tmp_path: Path) -> None:
    found = requests(tmp_path, "One: two\n\nThree\n", name="log.txt")
    assert [(request.place.line, request.body) for request in found] == [
        (1, {"messages": [user("One: two")]}),
        (3, {"messages": [user("Three")]}),
    ]


def test_a_form_feed_separates_documents_and_dashes_do_not(tmp_path: Path) -> None:
    found = requests(tmp_path, "# One\n---\nmore\n\f\nTwo\n", name="log.txt")
    assert [(request.place.line, request.body) for request in found] == [
        (1, {"messages": [user("# One\n---\nmore")]}),
        (5, {"messages": [user("Two")]}),
    ]


def test_csv(tmp_path: Path) -> None:
    text = (
        "user,system,weight,model,salt,timestamp\n"
        '"Hi, there\nyou",Be brief.,3,lora-a,tenant,2024-05-10T00:00:00Z\n'
        "Bye,,,,,\n"
    )
    first, second = requests(tmp_path, text)
    assert first.body == {
        "model": "lora-a",
        "messages": [{"role": "system", "content": "Be brief."}, user("Hi, there\nyou")],
    }
    assert (first.weight, first.model, first.salt, first.at_s) == (3.0, "lora-a", "tenant", 1715299200.0)
    assert (second.place.line, second.body) == (4, {"messages": [user("Bye")]})
    (other,) = requests(tmp_path, 'messages,cost\n"[{""role"": ""user"", ""content"": ""Hi""}]",3\n', name="x.csv")
    assert other.body == {"messages": [user("Hi")]}


@pytest.mark.parametrize(
    ("row", "found"),
    [("a,b,c,d", "4 cells"), (",,m", "no prompt"), ("a,b,", "in 2 columns"), ('"a', "no valid CSV")],
)
def test_csv_row_that_tells_no_prompt_is_named(tmp_path: Path, row: str, found: str) -> None:
    with pytest.raises(TrafficLogError, match=rf"line 2: .*{found}"):
        requests(tmp_path, f"prompt,user,model\n{row}\n", name="x.csv")


def test_litellm(tmp_path: Path) -> None:
    payload = {
        "id": "chatcmpl-1",
        "call_type": "acompletion",
        "status": "success",
        "startTime": 1715299200.5,
        "prompt_tokens": 9,
        "custom_llm_provider": "hosted_vllm",
        "model": "hosted_vllm/acme",
        "messages": [user("Hi")],
        "model_parameters": {
            "max_tokens": 5,
            "extra_headers": {"Authorization": "x"},
            "extra_body": {"cache_salt": "tenant"},
        },
    }
    redacted = {**payload, "messages": [{"role": "user", "content": "redacted-by-litellm"}]}
    (first, second, third) = requests(
        tmp_path,
        lines(
            payload,
            {**payload, "call_type": "aembedding"},
            {**payload, "status": "failure"},
            {**payload, "cache_hit": True},
            redacted,
            {**payload, "call_type": "atext_completion", "messages": [user("Once")], "model_parameters": {}},
        ),
    )
    assert first.body == {"model": "acme", "max_tokens": 5, "messages": [user("Hi")]}
    assert (first.model, first.salt, first.at_s, first.prompt_tokens) == ("acme", "tenant", 1715299200.5, 9)
    assert (second.body, second.kind, second.prompt_tokens) == (None, None, 9)
    assert third.body == {"model": "acme", "prompt": "Once"}


LITELLM = {"call_type": "acompletion", "response_cost": 0.1, "model": "m", "messages": [user("Hi")]}
BODY = {"messages": [user("Hi")]}
SPAN = span(*attributes(gen_ai__operation__name="chat", gen_ai__request__model="m"))


def test_what_is_passed_over_is_counted_by_its_reason(tmp_path: Path) -> None:
    reasons: list[str] = []
    records = [
        LITELLM,
        *({**LITELLM, "cache_hit": True} for _ in range(2)),
        {**LITELLM, "status": "failure"},
        {**LITELLM, "call_type": "aembedding"},
    ]
    tool = span(*attributes(gen_ai__operation__name="execute_tool"))
    for values in (records, [SPAN, tool]):
        (tmp_path / "log").write_text(lines(*values), encoding="utf-8")
        assert len(list(read_log(tmp_path / "log", source="log", on_passed_over=reasons.append))) == 1
    assert Counter(reasons) == {
        PassedOver.OWN_CACHE: 2,
        PassedOver.FAILED: 1,
        PassedOver.OTHER_CALL: 1,
        PassedOver.OTHER_SPAN: 1,
    }


@pytest.mark.parametrize("first", [BODY, LITELLM, SPAN], ids=["openai", "litellm", "otel"])
def test_a_record_of_another_format_is_damage_and_nothing_of_it_is_sent(
    tmp_path: Path, first: dict[str, object]
) -> None:
    others = [{**one, "api_key": "SECRET"} for one in (BODY, LITELLM, SPAN) if one is not first]
    (tmp_path / "log").write_text(lines(first, *others), encoding="utf-8")
    bad: list[InputError] = []
    assert len(list(read_log(tmp_path / "log", source="log", on_bad_line=bad.append))) == 1
    assert ["the record is of the format" in one.message for one in bad] == [True, True]
    assert not any("SECRET" in str(one) for one in bad)


def test_bodies_and_batch_files_are_read_as_one_another(tmp_path: Path) -> None:
    batch = {"custom_id": "r-1", "url": "/v1/chat/completions", "body": BODY}
    beside = {"id": "a", "body": BODY, "name": "gateway", "attributes": {}}
    assert len(requests(tmp_path, lines({"body": BODY}, batch, beside))) == 3
    assert len(requests(tmp_path, lines(batch, {"body": BODY}))) == 2


def test_otel_span_with_structured_messages(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "get", "arguments": {"at": "P"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rainy"}]},
    ]
    function = {"name": "get", "description": "Weather", "parameters": {"type": "object"}}
    pairs = attributes(
        gen_ai__operation__name="chat",
        gen_ai__request__model="acme",
        gen_ai__system_instructions=json.dumps([{"type": "text", "content": "Be brief."}]),
        gen_ai__input__messages=json.dumps(messages),
        gen_ai__tool__definitions=json.dumps([{"type": "function", **function}]),
    )
    tokens: dict[str, object] = {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "97"}}
    (found,) = requests(tmp_path, lines(span(*pairs, tokens)))
    assert (found.model, found.prompt_tokens, found.at_s) == ("acme", 97, 1715299200.5)
    call = {"type": "function", "id": "c1", "function": {"name": "get", "arguments": '{"at":"P"}'}}
    assert found.body == {
        "model": "acme",
        "messages": [
            {"role": "system", "content": "Be brief."},
            user("Weather in Paris?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rainy"},
        ],
        "tools": [{"type": "function", "function": function}],
    }


OLD = {"name": "gen_ai.content.prompt", "attributes": attributes(gen_ai__prompt=json.dumps([user("Hi")]))}
OLDER = {"name": "gen_ai.user.message", "attributes": attributes(gen_ai__event__content='{"content": "Hi"}')}
MODEL = attributes(gen_ai__request__model="acme")
INDEXED = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "gen_ai.request.model": "acme"}


@pytest.mark.parametrize(
    "line",
    [
        span(*MODEL, *attributes(gen_ai__prompt=json.dumps([user("Hi")]))),
        span(*MODEL, events=[OLD]),
        span(*MODEL, events=[OLDER]),
        {"name": "chat", "attributes": INDEXED, "start_time": "2024-05-10T00:00:00.5Z"},
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "1715299200500000000", "attributes": [
            *MODEL, *attributes(gen_ai__input__messages=json.dumps([user("Hi")]))]}]}]}]},
    ],
    ids=["attribute", "content event", "message event", "indexed", "log record"],
)  # fmt: skip
def test_older_forms_of_otel(tmp_path: Path, line: dict[str, object]) -> None:
    (found,) = requests(tmp_path, lines(line))
    assert (found.body, found.at_s) == ({"model": "acme", "messages": [user("Hi")]}, 1715299200.5)


def test_otel_spans_that_are_no_inference_are_passed_over_and_uncaptured_content_is_a_request_without_text(
    tmp_path: Path,
) -> None:
    tool = span(*attributes(gen_ai__operation__name="execute_tool"))
    agent = span(*MODEL, *attributes(gen_ai__operation__name="invoke_agent"))
    (found,) = requests(tmp_path, lines(tool, agent, span({"key": "http.method", "value": {}}), span(*MODEL)))
    assert (found.place.line, found.body, found.model) == (4, None, "acme")


def record(role: str, body: dict[str, object], *, span_id: str = "s1", is_named_by_attribute: bool = False) -> Json:
    name = f"gen_ai.{role}.message"
    named = {"attributes": attributes(event__name=name)} if is_named_by_attribute else {"eventName": name}
    pairs = [{"key": key, "value": value} for key, value in body.items()]
    ids = {"traceId": "t1", "spanId": span_id} if span_id else {}
    return {"timeUnixNano": "1715299200500000000", **ids, **named, "body": {"kvlistValue": {"values": pairs}}}


def records(*found: Json) -> Json:
    half = len(found) // 2
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [*found[:half]]}, {"logRecords": [*found[half:]]}]}]}


def said(text: str) -> dict[str, object]:
    return {"content": {"stringValue": text}}


def test_otel_messages_that_are_log_records_of_their_own_are_joined_by_the_span_that_they_name(tmp_path: Path) -> None:
    calls = {"arrayValue": {"values": [{"kvlistValue": {"values": [{"key": "id", "value": {"stringValue": "c1"}}]}}]}}
    line = records(
        record("system", said("Be brief.")),
        record("user", said("Other"), span_id="s2", is_named_by_attribute=True),
        record("user", said("Hi")),
        record("assistant", {"tool_calls": calls}),
        record("tool", {"id": {"stringValue": "c1"}, **said("rainy")}),
        {**record("user", said("The answer")), "eventName": "gen_ai.choice"},
        {"traceId": "t1", "spanId": "s1", "body": {"stringValue": "a line of the program's own log"}},
    )
    first, second = requests(tmp_path, lines(line))
    assert first.body == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            user("Hi"),
            {"role": "assistant", "tool_calls": [{"id": "c1"}]},
            {"role": "tool", "content": "rainy", "tool_call_id": "c1"},
        ]
    }
    assert (second.body, second.at_s) == ({"messages": [user("Other")]}, 1715299200.5)


def test_otel_messages_belong_to_the_record_of_their_inference_where_the_line_has_it(tmp_path: Path) -> None:
    inference: Json = {
        "traceId": "t1",
        "spanId": "s1",
        "attributes": [*MODEL, *attributes(gen_ai__operation__name="chat")],
    }
    (found,) = requests(tmp_path, lines(records(record("user", said("Hi")), inference)))
    assert (found.model, found.body) == ("acme", {"model": "acme", "messages": [user("Hi")]})


def test_otel_messages_that_name_no_span_are_damage_beside_whole_requests(tmp_path: Path) -> None:
    line = records(
        record("user", said("Hi"), span_id=""), record("user", said("Bye"), span_id=""), record("user", said("Yes"))
    )
    (tmp_path / "log").write_text(lines(line), encoding="utf-8")
    bad: list[InputError] = []
    (found,) = read_log(tmp_path / "log", source="log", on_bad_line=bad.append)
    assert found.body == {"messages": [user("Yes")]}
    assert ["line 1: 2 of its log records are messages without" in error.message for error in bad] == [True]


def test_traces_have_no_text(tmp_path: Path) -> None:
    (one,) = requests(
        tmp_path, lines({"timestamp": 3052, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]})
    )
    assert (one.at_s, one.prompt_tokens, one.block_hashes, one.body) == (3.052, 655, (46, 47), None)
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    (two,) = requests(tmp_path, text)
    assert (two.at_s, two.prompt_tokens, two.body) == (1700158623.97996, 4808, None)


def test_a_format_that_is_not_recognised_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TrafficLogError, match="no format") as told:
        requests(tmp_path, "Hello there\n")
    assert told.value.hint is not None
    assert "--log-format" in told.value.hint
    assert len(requests(tmp_path, "Hello there\n", form=LogFormat.TEXT)) == 1


def test_an_array_that_is_cut_off_is_damage(tmp_path: Path) -> None:
    whole = json.dumps([{"prompt": "a"}, {"prompt": "b"}])
    for cut in (whole[:-1], whole[:-5], whole + " x"):
        (tmp_path / "log").write_text(cut, encoding="utf-8")
        bad: list[InputError] = []
        found = list(read_log(tmp_path / "log", source="log", on_bad_line=bad.append))
        assert (len(found), len(bad)) == ((1, 1) if cut == whole[:-5] else (2, 1))
