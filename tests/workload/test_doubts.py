"""What `--fail-on` answers of a prompt set; `test_log_check.py` asks the same of logs."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.workload.check import check_prompt_set
from kvrelease.workload.doubts import Doubt, doubt_verdict
from kvrelease.workload.tokens import Tokens
from tests.workload.builders import chat_body, prompt, prompt_set

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
IDS: JsonObject = {"prompt": [1, 2, 3]}


@pytest.mark.parametrize(
    ("body", "doubt", "verdict"),
    [
        (chat_body("Hi"), Doubt.SECRETS, Verdict.PASS),
        (chat_body("Hi"), Doubt.PERSONAL, Verdict.PASS),
        (chat_body("Hi"), Doubt.VOLATILE, Verdict.PASS),
        (chat_body("Hi"), Doubt.UNCACHEABLE, Verdict.INCONCLUSIVE),
        (chat_body("Hi"), Doubt.ANY, Verdict.INCONCLUSIVE),
        (chat_body(KEY), Doubt.SECRETS, Verdict.FAIL),
        (chat_body(KEY), Doubt.PERSONAL, Verdict.PASS),
        (chat_body(KEY), Doubt.ANY, Verdict.FAIL),
        (chat_body("ann@acme-shop.de"), Doubt.PERSONAL, Verdict.FAIL),
        (chat_body("ann@acme-shop.de"), Doubt.SECRETS, Verdict.PASS),
        (chat_body("Hi", system="Today is 2026-01-02."), Doubt.VOLATILE, Verdict.FAIL),
        (chat_body("Hi", system="Today is 2026-01-02."), Doubt.UNCACHEABLE, Verdict.INCONCLUSIVE),
        (IDS, Doubt.SECRETS, Verdict.INCONCLUSIVE),
        (IDS, Doubt.PERSONAL, Verdict.INCONCLUSIVE),
        (IDS, Doubt.VOLATILE, Verdict.INCONCLUSIVE),
    ],
)
def test_a_doubt_about_a_set_is_answered_or_said_not_to_be_known(
    body: JsonObject, doubt: Doubt, verdict: Verdict
) -> None:
    found = check_prompt_set(prompt_set(prompt("a", body)))
    assert doubt_verdict(found, doubt)[0] is verdict


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
    assert doubt_verdict(found, Doubt.UNCACHEABLE)[0] is verdict


def test_the_answer_names_what_was_found() -> None:
    found = check_prompt_set(prompt_set(prompt("a", chat_body(f"{KEY} ann@acme-shop.de"))))
    assert doubt_verdict(found, Doubt.ANY) == (Verdict.FAIL, "found: secrets, personal")
    ids = check_prompt_set(prompt_set(prompt("a", IDS)))
    assert doubt_verdict(ids, Doubt.VOLATILE) == (Verdict.INCONCLUSIVE, "not known: volatile")
    assert doubt_verdict(check_prompt_set(prompt_set(prompt("a", chat_body("Hi")))), Doubt.SECRETS) == (
        Verdict.PASS,
        "none found: secrets",
    )
