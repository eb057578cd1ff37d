from __future__ import annotations

import msgspec
import pytest

from kvrelease.artifacts import from_json, now, to_json
from kvrelease.workload.check import PromptsReport, SharedPrefix, check_prompt_set
from kvrelease.workload.prompt_findings import KeySpaceShare
from kvrelease.workload.prompt_warnings import WarningCode
from tests.workload.builders import chat_body, prompt, prompt_set

DESK = "You work at the desk. " * 5


def test_the_report_counts_what_the_set_holds() -> None:
    prompts = prompt_set(
        prompt("a", chat_body("One?", system=DESK), weight=2, prefix="system:desk"),
        prompt("b", chat_body("Two?", system=DESK), weight=1, prefix="system:desk"),
        prompt("c", {"prompt": "Alone"}, weight=1),
    )
    moment = now()
    report = msgspec.structs.replace(check_prompt_set(prompts), created=moment)
    assert report == PromptsReport(
        created=moment,
        name="here",
        source="here.yaml",
        digest=prompts.digest,
        prompts=3,
        chat=2,
        completions=1,
        total_weight=4.0,
        largest_share=0.5,
        effective_prompts=1 / (0.25 + 0.0625 + 0.0625),
        shared_prefixes=(
            SharedPrefix(prefix="system:desk", prompts=2, share=0.75, characters=len(f"system\n{DESK}\nuser\n")),
            SharedPrefix(prefix="unshared", prompts=1, share=0.25, characters=len("Alone")),
        ),
        warnings=(),
        key_spaces=(KeySpaceShare(model=None, salt=None, prompts=3, share=1.0),),
    )
    assert from_json(to_json(report).encode(), PromptsReport, source="-") == report


@pytest.mark.parametrize(
    ("first", "second", "code", "ids"),
    [
        (chat_body("One?", system="Today is 2025-03-01. " + DESK), {"prompt": "x"}, "volatile-prefix", ("a",)),
        (chat_body("One?", system=DESK), chat_body("One?", system=DESK), "same-body", ("a", "b")),
        (chat_body("One?"), chat_body("Two?"), "nothing-shared", ()),
    ],
)
def test_what_looks_wrong_is_a_warning_with_its_prompts(
    first: dict[str, object], second: dict[str, object], code: str, ids: tuple[str, ...]
) -> None:
    report = check_prompt_set(prompt_set(prompt("a", first), prompt("b", second)))
    assert (WarningCode(code), ids) in [(warning.code, warning.prompt_ids) for warning in report.warnings]


def test_warnings_quote_no_prompt() -> None:
    report = check_prompt_set(prompt_set(prompt("a", chat_body("One?", system="Secret. Today is 2025-03-01."))))
    assert report.warnings
    assert not any("Secret" in warning.message or "2025" in warning.message for warning in report.warnings)


def test_a_single_prompt_is_not_blamed_for_sharing_nothing() -> None:
    assert check_prompt_set(prompt_set(prompt("a", chat_body("One?")))).warnings == ()


def test_a_tenant_with_a_salt_and_an_image_are_told_without_showing_either() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "https://here.example/a.png"}}]
    body: dict[str, object] = {"messages": [{"role": "user", "content": parts}]}
    report = check_prompt_set(prompt_set(prompt("a", body, salt="tenant-a"), prompt("b", chat_body("One?"))))
    assert [(warning.code, warning.prompt_ids) for warning in report.warnings[:2]] == [
        (WarningCode.OWN_SALT, ("a",)),
        (WarningCode.IMAGES, ("a",)),
    ]
    assert not any("tenant-a" in warning.message or "here" in warning.message for warning in report.warnings)


def test_tenants_share_nothing_and_may_send_the_same() -> None:
    bodies = chat_body("One?", system=DESK)
    report = check_prompt_set(prompt_set(prompt("a", bodies, salt="s"), prompt("b", bodies, salt="t")))
    assert [warning.code for warning in report.warnings] == [WarningCode.OWN_SALT, WarningCode.NOTHING_SHARED]
