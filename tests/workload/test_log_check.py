"""A log is added up in one pass, and nothing of its texts is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import kvrelease
from kvrelease.artifacts import Verdict, to_json
from kvrelease.errors import TrafficLogError
from kvrelease.workload import log_check
from kvrelease.workload.complaints import Complaint, complaint_verdict
from kvrelease.workload.log_check import LogCheck
from kvrelease.workload.log_report import LoggedTokens, LogReport
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import read_log
from kvrelease.workload.prompt_set import PromptKind
from kvrelease.workload.release_tokenizer import ReleaseTokenizer
from tests.workload.builders import chat_body

DEMO = Path(kvrelease.__file__).parent / "data" / "demo" / "v1"
DESK = "You answer for a shop. " * 8


def checked(directory: Path, *lines: object, form: LogFormat = LogFormat.OPENAI, **how: Any) -> LogReport:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (directory / "log").write_text(text, encoding="utf-8")
    adding = LogCheck(**how)
    for request in read_log(directory / "log", source="log", format=form, on_bad_line=adding.bad_line):
        adding.add(request)
    return adding.report(source="log", form=form)


def test_what_a_log_holds(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        {"timestamp": 100, "weight": 3, "body": chat_body("One?", system=DESK, model="a", cache_salt="SECRET")},
        {"timestamp": 50, "body": chat_body("Two?", system=DESK, model="a", cache_salt="SECRET")},
        {"body": chat_body("Mail ann@acme-shop.de", system="Today is 2026-01-02. " + DESK)},
        "damage with a SECRET",
        {"prompt": [1, 2, 3]},
    )
    assert (report.requests, report.weight, report.chat, report.completions, report.damaged) == (4, 6.0, 3, 1, 1)
    assert (report.from_s, report.until_s, report.tokens) == (50.0, 100.0, None)
    assert [(one.requests, one.characters) for one in report.top_openings] == [(4.0, len(DESK)), (1.0, len(DESK) + 21)]
    assert [(one.model, one.salt is None, one.requests) for one in report.top_key_spaces] == [
        ("a", False, 4.0),
        (None, True, 2.0),
    ]
    assert [(one.kind, one.first) for one in report.volatile] == [("current-date", "log, line 3")]
    assert [(one.kind, one.count, one.is_secret) for one in report.sensitive] == [("e-mail", 1, False)]
    assert (report.secrets, report.not_searched) == (0, 1)
    text = to_json(report)
    assert not [word for word in ("SECRET", "ann@", "shop", "2026-01-02") if word in text]


def test_one_system_prompt_of_several_models_and_tenants_is_one(tmp_path: Path) -> None:
    lines = [chat_body("Hi", system=DESK, model=model, cache_salt=salt) for model in "ab" for salt in ("x", "y")]
    report = checked(tmp_path, *lines)
    assert (report.openings, report.key_spaces) == (1, 4)
    assert [one.requests for one in report.top_openings] == [4.0]


def test_what_is_told_apart_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_check, "MAX_DISTINCT", 2)
    lines = [chat_body("Hi", system=f"{DESK}{number}", model=f"m{number}") for number in (0, 1, 2, 0)]
    report = checked(tmp_path, *lines)
    assert (report.openings, report.key_spaces, report.uncounted_distinct) == (2, 2, True)
    assert report.top_openings[0].requests == 2.0


@pytest.mark.parametrize(
    ("line", "complaint", "verdict"),
    [
        (chat_body("Hi"), Complaint.SECRETS, Verdict.PASS),
        (chat_body("AKIA" + "ABCDEFGHIJKLMNOP"), Complaint.SECRETS, Verdict.FAIL),
        (chat_body("AKIA" + "ABCDEFGHIJKLMNOP"), Complaint.PERSONAL, Verdict.PASS),
        (chat_body("ann@acme-shop.de"), Complaint.PERSONAL, Verdict.FAIL),
        (chat_body("Hi", system="Today is 2026-01-02."), Complaint.VOLATILE, Verdict.FAIL),
        (chat_body("Hi", system="Today is 2026-01-02."), Complaint.ANY, Verdict.FAIL),
        (chat_body("Hi"), Complaint.UNCACHEABLE, Verdict.INCONCLUSIVE),
        (chat_body("Hi"), Complaint.ANY, Verdict.INCONCLUSIVE),
        ({"prompt": [1, 2]}, Complaint.SECRETS, Verdict.INCONCLUSIVE),
        ({"prompt": [1, 2]}, Complaint.PERSONAL, Verdict.INCONCLUSIVE),
        ({"prompt": [1, 2]}, Complaint.VOLATILE, Verdict.INCONCLUSIVE),
    ],
)
def test_a_complaint_is_answered_or_said_not_to_be_known(
    tmp_path: Path, line: dict[str, object], complaint: Complaint, verdict: Verdict
) -> None:
    assert complaint_verdict(checked(tmp_path, line), complaint)[0] is verdict


def traced(tokens: int) -> dict[str, object]:
    return {"timestamp": 1, "input_length": tokens, "hash_ids": [1]}


def test_tokens_are_those_that_the_log_tells(tmp_path: Path) -> None:
    report = checked(tmp_path, *map(traced, (16, 17, 600)), form=LogFormat.MOONCAKE)
    assert report.tokens == LoggedTokens(
        by="the log", counted=3, total=633, longest=600, block_tokens=16, uncacheable=1, unknown=0
    )
    assert report.without_text == 3
    assert complaint_verdict(report, Complaint.UNCACHEABLE)[0] is Verdict.FAIL


def test_a_tokenizer_goes_before_the_logs_own_word_and_what_has_no_text_is_not_known(tmp_path: Path) -> None:
    tokenizer = ReleaseTokenizer(DEMO, name="v1")
    count = len(tokenizer.tokens(chat_body("Hi"), kind=PromptKind.CHAT))
    text = {
        "call_type": "completion",
        "model_parameters": {},
        "messages": chat_body("Hi")["messages"],
        "prompt_tokens": 9_999,
    }
    redacted = {**text, "messages": "redacted-by-litellm"}
    report = checked(tmp_path, text, redacted, form=LogFormat.LITELLM, tokenizer=tokenizer, block_tokens=1)
    assert report.tokens == LoggedTokens(
        by="v1", counted=1, total=count, longest=count, block_tokens=1, uncacheable=0, unknown=1
    )
    assert complaint_verdict(report, Complaint.UNCACHEABLE) == (Verdict.INCONCLUSIVE, "not known: uncacheable")
    for complaint in (Complaint.SECRETS, Complaint.PERSONAL, Complaint.VOLATILE):
        assert complaint_verdict(report, complaint)[0] is Verdict.INCONCLUSIVE


def test_where_every_prompt_is_long_enough_nothing_is_uncacheable(tmp_path: Path) -> None:
    report = checked(tmp_path, traced(17), form=LogFormat.MOONCAKE)
    assert complaint_verdict(report, Complaint.UNCACHEABLE)[0] is Verdict.PASS


def test_images_and_requests_with_secrets_are_counted(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://here.example/a.png"}}
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    report = checked(
        tmp_path,
        {"messages": [{"role": "user", "content": [image]}]},
        chat_body(f"{key} and {key[:-1]}A, ann@acme-shop.de"),
        chat_body("bob@acme-shop.de"),
    )
    assert (report.with_images, report.secrets) == (1, 1)
    assert [(one.kind, one.requests, one.count, one.is_secret) for one in report.sensitive] == [
        ("api-key", 1, 2, True),
        ("e-mail", 2, 2, False),
    ]


@pytest.mark.parametrize(
    "damage",
    [{"messages": [{"role": "operator", "content": "sk-proj-" + "A1b2" * 10}]}, '{"messages": "cut o', "x" * 200],
)
def test_what_could_not_be_read_is_not_known_to_be_clean(tmp_path: Path, damage: object) -> None:
    report = checked(tmp_path, chat_body("Hi"), damage)
    assert report.damaged == 1
    for complaint in Complaint:
        assert complaint_verdict(report, complaint)[0] is Verdict.INCONCLUSIVE
    found = checked(tmp_path, chat_body("ann@acme-shop.de"), damage)
    assert complaint_verdict(found, Complaint.PERSONAL)[0] is Verdict.FAIL


def test_tokens_are_counted_of_records_that_can_be_read_alone() -> None:
    tokens = LoggedTokens(by="x", counted=1, total=99, longest=99, block_tokens=16, uncacheable=0, unknown=0)
    whole = replace(LogCheck().report(source="log", form=LogFormat.OPENAI), tokens=tokens)
    assert complaint_verdict(whole, Complaint.UNCACHEABLE)[0] is Verdict.PASS
    assert complaint_verdict(replace(whole, damaged=1), Complaint.UNCACHEABLE)[0] is Verdict.INCONCLUSIVE


def test_a_log_of_damage_alone_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(
        TrafficLogError, match=r"none of its records can be read; the first: reading the log log, line 1"
    ):
        checked(tmp_path, "SECRET", "SECRET")
