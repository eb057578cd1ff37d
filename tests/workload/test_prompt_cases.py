"""What went wrong elsewhere with prompts of a warming, and what a prompt set does about it (docs/cases.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject, from_json
from kvrelease.workload.check import PromptsReport, check_prompt_set
from kvrelease.workload.prompt_findings import UncacheableReason
from kvrelease.workload.prompt_set import PromptKind, PromptSet
from kvrelease.workload.prompt_warnings import WarningCode
from kvrelease.workload.release_tokenizer import ReleaseTokenizer
from kvrelease.workload.tokens import Tokens, release_tokens
from kvrelease.workload.volatile import Volatility, volatile_spots
from tests.workload.builders import chat_body, load_text, prompt, prompt_set
from tests.workload.test_release_tokenizer import release

TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if thinking %}<think>{% endif %}"
)


def counted(directory: Path, found: PromptSet, template: str = TEMPLATE) -> tuple[Tokens, PromptsReport]:
    tokens = release_tokens(found, ReleaseTokenizer(release(directory, template=template), name="here"))
    return tokens, check_prompt_set(found, tokens=tokens)


def test_the_whole_body_decides_the_tokens(tmp_path: Path) -> None:
    """What was stored and what was asked differed in the opening of the answer.

    https://github.com/Blaizzy/mlx-vlm/issues/1077
    """
    plain = chat_body("Hi")
    bodies: dict[str, JsonObject] = {
        "plain": plain,
        "tools": {**plain, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "kwargs": {**plain, "chat_template_kwargs": {"thinking": True}},
        "bare": {**plain, "add_generation_prompt": False},
        "role": {"messages": [{"role": "developer", "content": "Hi"}]},
        "route": {"prompt": "[user]Hi[assistant]"},
    }
    tokens, _ = counted(tmp_path, prompt_set(*(prompt(name, body) for name, body in bodies.items())))
    assert len(set(tokens.ids.values())) == len(bodies)


def test_a_set_keeps_route_tools_and_template_arguments_of_a_log(tmp_path: Path) -> None:
    """https://github.com/Blaizzy/mlx-vlm/issues/1077."""
    line = '{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"a": 1}], "chat_template_kwargs": {"b": 2}}'
    (only,) = load_text(tmp_path, line, name="x.jsonl").prompts
    assert only.kind is PromptKind.CHAT
    assert (only.body["tools"], only.body["chat_template_kwargs"]) == ([{"a": 1}], {"b": 2})


def test_a_text_that_begins_itself_begins_twice(tmp_path: Path) -> None:
    """Two tokens that begin a text on one route, one on the other.

    https://github.com/vllm-project/vllm/issues/9519, https://github.com/vllm-project/vllm/issues/2012
    """
    found = prompt_set(prompt("twice", {"prompt": "<s>Once"}), prompt("once", {"prompt": "Once"}))
    tokens, report = counted(tmp_path, found)
    assert tokens.ids["twice"][:2] == (0, 0)
    assert (WarningCode.DOUBLE_BOS, ("twice",)) in [(one.code, one.prompt_ids) for one in report.warnings]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        # https://github.com/dimagi/open-chat-studio/issues/3625: `%A, %d %B %Y %H:%M:%S %Z` in every system prompt
        ("You are a bot. Friday, 12 June 2026 14:03:22 UTC. Be kind.", Volatility.DATE_TIME),
        # https://github.com/open-webui/open-webui/issues/28527
        ("The time is {{CURRENT_TIME}} on a {{ CURRENT_WEEKDAY }}.", Volatility.TEMPLATE),
        ("Now: {{CURRENT_DATETIME}}", Volatility.TEMPLATE),
        ("You talk to {{USER_NAME}}.", Volatility.TEMPLATE),
        # https://github.com/Mintplex-Labs/anything-llm/issues/6398: `{datetime}`, filled by moment().format("LLLL")
        ("The current date and time is {datetime}.", Volatility.TEMPLATE),
        ("The current date and time is Thursday, September 17, 2026 3:07 PM.", Volatility.DATE_TIME),
        # https://github.com/unslothai/unsloth/issues/9177
        ("The current time is {{$now}}", Volatility.TEMPLATE),
        # https://github.com/CherryHQ/cherry-studio/issues/16398
        ("The time is 3:07:42 PM.", Volatility.CURRENT_DATE),
        ("<current_datetime>", Volatility.TEMPLATE),
    ],
)
def test_a_time_near_the_front_is_found(text: str, kind: Volatility) -> None:
    """The date or time in front of a shared prefix kills every hit behind it."""
    assert kind in [spot for spot, _ in volatile_spots(text)]
    report = check_prompt_set(prompt_set(prompt("a", chat_body("One?", system=text))))
    assert [(one.reason, one.prompt_ids) for one in report.uncacheable] == [(UncacheableReason.VOLATILE, ("a",))]
    told = [warning.message for warning in report.warnings if "what is warmed is good" in warning.message]
    assert told
    assert not any(",," in message or ")," in message for message in told)


def test_a_template_that_writes_the_date_is_told_with_how_long_it_is_good(tmp_path: Path) -> None:
    """The date may stand in the template, where no prompt shows it."""
    _, report = counted(tmp_path, prompt_set(prompt("a", chat_body("Hi"))), "{{ strftime_now('%d %b %Y') }}" + TEMPLATE)
    (warning,) = [one for one in report.warnings if one.code is WarningCode.TEMPLATE_CLOCK]
    assert "until the date changes" in warning.message


def test_a_budget_of_one_token_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    """A probe's own small `max_tokens` must change nothing of what is cached.

    https://github.com/BerriAI/litellm/issues/26987, https://github.com/NousResearch/hermes-agent/issues/46131
    """
    found = prompt_set(prompt("a", chat_body("Hi", max_tokens=1)), prompt("b", chat_body("Hi")))
    tokens, report = counted(tmp_path, found)
    assert tokens.ids["a"] == tokens.ids["b"]
    assert WarningCode.TOO_LONG not in [one.code for one in report.warnings]


def test_prompt_and_answer_must_fit_the_context_together(tmp_path: Path) -> None:
    """The prompt alone fits, and the request is refused.

    https://github.com/kubernetes-sigs/inference-perf/issues/617, https://github.com/vllm-project/vllm/issues/20409
    """
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    bodies = {
        "fits": chat_body("Hi", max_tokens=10),
        "long": chat_body("Hi", max_tokens=30),
        "alone": chat_body("x" * 99),
    }
    _, report = counted(tmp_path, prompt_set(*(prompt(name, body) for name, body in bodies.items())))
    (warning,) = [one for one in report.warnings if one.code is WarningCode.TOO_LONG]
    assert warning.prompt_ids == ("long", "alone")
    assert "context of 40 tokens" in warning.message


def test_a_prompt_of_less_than_a_block_cannot_be_cached(tmp_path: Path) -> None:
    """Prompts below a block never hit, and are no failure: https://github.com/vllm-project/vllm/issues/45238."""
    found = prompt_set(prompt("short", {"prompt": "Hi"}, weight=1), prompt("long", {"prompt": "x" * 40}, weight=3))
    _, report = counted(tmp_path, found)
    assert [(one.reason, one.prompt_ids, one.share) for one in report.uncacheable] == [
        (UncacheableReason.SHORT, ("short",), 0.25)
    ]
    assert report.tokens is not None
    assert (report.tokens.counted, report.tokens.total, report.tokens.cacheable, report.tokens.unique) == (
        2,
        44,
        32,
        32,
    )


def test_tokens_are_counted_or_not_known(tmp_path: Path) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/a"}}]}
    found = prompt_set(prompt("a", chat_body("Hi", system="s" * 40)), prompt("b", {"messages": [image]}))
    assert check_prompt_set(found).tokens is None
    _, report = counted(tmp_path, found)
    assert report.tokens is not None
    assert (report.tokens.counted, report.tokens.unknown) == (
        1,
        (("it has images, whose tokens the engine decides", 1),),
    )
    assert {one.prefix: one.tokens for one in report.shared_prefixes} == {"unshared": None}


def test_an_artifact_of_before_is_read() -> None:
    old = (
        b'{"kind": "kvrelease/prompts", "schema": 1, "tool": "0.1.0", "created": "2026-11-01T00:00:00Z", "name": "s", '
        b'"source": "s.yaml", "digest": "kvprompts1:0", "prompts": 1, "chat": 1, "completions": 0, "total_weight": 1.0,'
        b'"largest_share": 1.0, "effective_prompts": 1.0, "warnings": [{"code": "own-salt", "prompt_ids": ["a"], '
        b'"message": "m"}], "shared_prefixes": [{"prefix": "x", "prompts": 1, "share": 1.0, "characters": 3}]}'
    )
    report = from_json(old, PromptsReport, source="-")
    assert (report.tokens, report.key_spaces, report.shared_prefixes[0].tokens) == (None, (), None)
