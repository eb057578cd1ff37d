"""A log is added up in one pass, and nothing of its texts is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.artifacts import Verdict, to_json
from kvrelease.workload import log_check
from kvrelease.workload.complaints import Complaint, complaint_verdict
from kvrelease.workload.log_check import LogCheck
from kvrelease.workload.log_report import LogReport
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import read_log
from tests.workload.builders import chat_body

DESK = "You answer for a shop. " * 8


def checked(directory: Path, *lines: object) -> LogReport:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (directory / "log").write_text(text, encoding="utf-8")
    adding = LogCheck()
    for request in read_log(directory / "log", source="log", format=LogFormat.OPENAI, on_bad_line=adding.bad_line):
        adding.add(request)
    return adding.report(source="log", form=LogFormat.OPENAI)


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
