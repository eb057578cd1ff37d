"""Whatever the bytes: a reader answers with requests, or with errors of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvrelease.errors import InputError
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs import json_array, lines, plain_text
from kvrelease.workload.logs.json_array import json_elements
from kvrelease.workload.logs.lines import LogFile
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import read_log

# Records of every format, so that damage is found deep inside as well as at the surface.
SEEDS = (
    {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "cache_salt": "s"},
    {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": [1, 2]}},
    {"id": "c", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
    {"call_type": "completion", "startTime": 1.5, "model": "m", "messages": "Once", "model_parameters": {"n": 1}},
    {"timestamp": 1, "input_length": 3, "hash_ids": [1]},
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [
        {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
        {"key": "gen_ai.input.messages", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": [
            {"key": "role", "value": {"stringValue": "user"}},
            {"key": "parts", "value": {"stringValue": "x"}}]}}]}}}],
        "events": [{"name": "gen_ai.tool.message", "attributes": {"id": 3, "content": "x"}}]}]}]}]},
    {"name": "chat", "attributes": {"gen_ai.request.model": "m", "gen_ai.prompt.0.content": "x",
                                    "gen_ai.prompt.0.tool_calls.0.name": "f"}},
)  # fmt: skip
TABLE = b"prompt,messages,user,weight,timestamp\na,,,2,1\n,[],,x,\n"
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8),
    st.just([]), st.just({}), st.just([None]), st.just([{}]), st.just({"values": [3]}),
)  # fmt: skip

QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """A record in which one value, however deep, is another."""
    record = json.loads(json.dumps(draw(st.sampled_from(SEEDS))))
    spot: dict[str, object] | list[object] = record
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        inner = spot[key]  # type: ignore[index, call-overload]
        if isinstance(inner, dict | list) and draw(st.booleans()):
            spot = inner
            continue
        spot[key] = draw(VALUES)  # type: ignore[index, call-overload]
        break
    return json.dumps(record).encode()


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """Lines of every kind, with some of their bytes cut out or put in."""
    seeds = [json.dumps(seed).encode() for seed in SEEDS]
    records = draw(st.lists(st.sampled_from([*seeds, TABLE, b"text \f more", b"[", b"]", b",", b'"']), max_size=4))
    data = draw(st.sampled_from([b"\n", b",", b"\r\n"])).join(records)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    return data


def everything(path: Path, form: LogFormat | None) -> None:
    """Reads it all; only errors of ours may come."""
    bad: list[InputError] = []
    try:
        for request in read_log(path, source="log", format=form, on_bad_line=bad.append):
            assert isinstance(request, LoggedRequest)
    except InputError as error:
        bad.append(error)
    assert all(error.message.startswith("reading the log log") for error in bad)


@settings(QUIET, max_examples=60)
@given(data=st.one_of(damaged_records(), damaged_bytes()), form=st.sampled_from([None, *LogFormat]))
def test_no_reader_ends_with_anything_but_errors_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, form: LogFormat | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.log"
    path.write_bytes(data)
    everything(path, form)


JSON = st.recursive(
    st.one_of(st.integers(), st.text('"\\[]{},\n a', max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text('"\\,', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(QUIET, max_examples=40)
@given(values=st.lists(JSON, max_size=5), indent=st.sampled_from([None, 0, 1]), piece=st.integers(1, 40))
def test_elements_of_an_array_are_cut_as_a_parser_would_wherever_the_pieces_end(
    scratch: Path, values: list[object], indent: int | None, piece: int
) -> None:
    text = json.dumps(values, indent=indent)
    path = scratch / "array.json"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, LogFile(path, source="log") as file:
        patch.setattr(json_array, "_PIECE_BYTES", piece)
        found = list(json_elements(file))
    assert [json.loads(one.data) for one in found] == values
    for one in found:
        assert one.data.splitlines()[0].strip() in text.splitlines()[one.number - 1].encode()


@pytest.mark.parametrize("length", [5_000, 5_001])
def test_a_record_that_is_too_long_is_passed_over_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    for module in (lines, json_array, plain_text):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 2_000)
        if hasattr(module, "_PIECE_BYTES"):
            monkeypatch.setattr(module, "_PIECE_BYTES", 500)
    good = json.dumps({"prompt": "a"})
    huge = json.dumps({"prompt": '\\"[' * length})
    for text, form in (
        (f"{good}\n{huge}\n{good}\n", LogFormat.OPENAI),
        (f"[{good},\n{huge},\n{good}]", LogFormat.OPENAI),
        (f"a\f\n{huge}\fb", LogFormat.DOCUMENTS),
        (f'user\na\n"{"x" * length}"\nb\n', LogFormat.CSV),
    ):
        (tmp_path / "log").write_text(text, encoding="utf-8")
        bad: list[InputError] = []
        found = list(read_log(tmp_path / "log", source="log", format=form, on_bad_line=bad.append))
        assert (len(found), len(bad)) == (2, 1), form
        assert "more than" in bad[0].message or "field larger" in bad[0].message
