"""What `--fail-on` answers of a prompt set; `test_log_check.py` asks the same of logs."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.workload.check import check_prompt_set
from kvrelease.workload.complaints import Complaint, complaint_verdict
from kvrelease.workload.tokens import Tokens
from tests.workload.builders import chat_body, prompt, prompt_set

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
IDS: JsonObject = {"prompt": [1, 2, 3]}


@pytest.mark.parametrize(
    ("body", "complaint", "verdict"),
    [
        (chat_body("Hi"), Complaint.SECRETS, Verdict.PASS),
        (chat_body("Hi"), Complaint.PERSONAL, Verdict.PASS),
        (chat_body("Hi"), Complaint.VOLATILE, Verdict.PASS),
        (chat_body("Hi"), Complaint.UNCACHEABLE, Verdict.INCONCLUSIVE),
        (chat_body("Hi"), Complaint.ANY, Verdict.INCONCLUSIVE),
        (chat_body(KEY), Complaint.SECRETS, Verdict.FAIL),
        (chat_body(KEY), Complaint.PERSONAL, Verdict.PASS),
        (chat_body(KEY), Complaint.ANY, Verdict.FAIL),
        (chat_body("ann@acme-shop.de"), Complaint.PERSONAL, Verdict.FAIL),
        (chat_body("ann@acme-shop.de"), Complaint.SECRETS, Verdict.PASS),
        (chat_body("Hi", system="Today is 2026-01-02."), Complaint.VOLATILE, Verdict.FAIL),
        (chat_body("Hi", system="Today is 2026-01-02."), Complaint.UNCACHEABLE, Verdict.INCONCLUSIVE),
        (IDS, Complaint.SECRETS, Verdict.INCONCLUSIVE),
        (IDS, Complaint.PERSONAL, Verdict.INCONCLUSIVE),
        (IDS, Complaint.VOLATILE, Verdict.INCONCLUSIVE),
    ],
)
def test_a_complaint_about_a_set_is_answered_or_said_not_to_be_known(
    body: JsonObject, complaint: Complaint, verdict: Verdict
) -> None:
    found = check_prompt_set(prompt_set(prompt("a", body)))
    assert complaint_verdict(found, complaint)[0] is verdict


@pytest.mark.parametrize(
    ("counted", "unknown", "verdict"),
    [
        ({"a": 17, "b": 17}, {}, Verdict.PASS),
        ({"a": 17, "b": 16}, {}, Verdict.FAIL),
        ({"a": 17}, {"b": "images"}, Verdict.INCONCLUSIVE),
        ({"a": 16}, {"b": "images"}, Verdict.FAIL),
    ],
)
def test_what_is_too_short_to_be_cached_is_known_where_every_prompt_was_counted(
    counted: dict[str, int], unknown: dict[str, str], verdict: Verdict
) -> None:
    tokens = Tokens(by="x", ids={name: tuple(range(length)) for name, length in counted.items()}, unknown=unknown)
    given = prompt_set(prompt("a", chat_body("One")), prompt("b", chat_body("Two")))
    found = check_prompt_set(given, tokens=tokens, block_tokens=16)
    assert complaint_verdict(found, Complaint.UNCACHEABLE)[0] is verdict


def test_what_is_not_known_for_want_of_tokens_says_how_to_count_them() -> None:
    found = check_prompt_set(prompt_set(prompt("a", chat_body("Hi"))))
    how = "; no tokens were counted: name --tokenizer MODEL or --engine-url URL"
    assert complaint_verdict(found, Complaint.UNCACHEABLE)[1] == f"not known: uncacheable{how}"
    assert complaint_verdict(found, Complaint.ANY)[1] == f"not known: uncacheable{how}"


def test_the_answer_names_what_was_found() -> None:
    found = check_prompt_set(prompt_set(prompt("a", chat_body(f"{KEY} ann@acme-shop.de"))))
    assert complaint_verdict(found, Complaint.ANY) == (Verdict.FAIL, "found: secrets, personal")
    ids = check_prompt_set(prompt_set(prompt("a", IDS)))
    assert complaint_verdict(ids, Complaint.VOLATILE) == (Verdict.INCONCLUSIVE, "not known: volatile")
    assert complaint_verdict(check_prompt_set(prompt_set(prompt("a", chat_body("Hi")))), Complaint.SECRETS) == (
        Verdict.PASS,
        "none found: secrets",
    )
