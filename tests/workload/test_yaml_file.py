from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kvrelease.errors import PromptSetError
from kvrelease.workload import yaml_file
from kvrelease.workload.prompt_set import Prompt, PromptKind
from tests.workload.builders import chat_body, load_text

SETUP = """\
defaults: {temperature: 0}
systems:
  desk: You work at the desk.
openings:
  examples: "A: b\\n"
  turns:
    - {role: system, content: Be brief.}
    - {role: user, content: Hi}
    - {role: assistant, content: Hello}
prompts:
"""


def test_entries_borrow_what_is_written_once(tmp_path: Path) -> None:
    text = SETUP + textwrap.indent(
        textwrap.dedent("""\
            - {id: asked, weight: 4, system: desk, user: Opening hours, body: {top_p: 0.5, temperature: 1}}
            - {id: completed, opening: examples, prompt: 'C:'}
            - {id: turned, opening: turns, user: 'How are you?'}
            - id: own
              prefix: mine
              messages: [{role: user, content: Alone}]
            - {id: whole, body: {prompt: Raw, max_tokens: 5}}
            """),
        "  ",
    )
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How are you?"},
    ]
    assert load_text(tmp_path, text).prompts == (
        Prompt(
            id="asked",
            weight=4.0,
            kind=PromptKind.CHAT,
            body=chat_body("Opening hours", system="You work at the desk.", temperature=1, top_p=0.5),
            prefix="system:desk",
        ),
        Prompt(
            id="completed",
            weight=1.0,
            kind=PromptKind.COMPLETIONS,
            body={"temperature": 0, "prompt": "A: b\nC:"},
            prefix="opening:examples",
        ),
        Prompt(
            id="turned",
            weight=1.0,
            kind=PromptKind.CHAT,
            body={"temperature": 0, "messages": turns},
            prefix="opening:turns",
        ),
        Prompt(id="own", weight=1.0, kind=PromptKind.CHAT, body=chat_body("Alone", temperature=0), prefix="mine"),
        Prompt(
            id="whole",
            weight=1.0,
            kind=PromptKind.COMPLETIONS,
            body={"temperature": 0, "prompt": "Raw", "max_tokens": 5},
        ),
    )


def test_an_explicit_label_wins_over_the_borrowed_name(tmp_path: Path) -> None:
    text = SETUP + "  - {system: desk, user: Hi, prefix: greeting}"
    assert load_text(tmp_path, text).prompts[0].prefix == "greeting"


def test_the_set_is_named_by_itself_or_by_its_file(tmp_path: Path) -> None:
    assert load_text(tmp_path, "prompts: [{prompt: a}]", name="mine.yaml").name == "mine"
    assert load_text(tmp_path, "name: theirs\nprompts: [{prompt: a}]", name="mine.yaml").name == "theirs"


@pytest.mark.parametrize(
    ("entry", "found", "hint"),
    [
        ("{user: Hi, temperature: 1}", "unknown key 'temperature'", "go under `body:`"),
        ("{user: Hi, wieght: 1}", "unknown key 'wieght'", "did you mean 'weight'?"),
        ("{system: dsek, user: Hi}", "`system` is 'dsek', which `systems:` does not define", "did you mean 'desk'?"),
        ("{system: [desk], user: Hi}", "`system` is a list", "known here: desk"),
        ("{opening: desk, user: Hi}", "`opening` is 'desk'", "examples, turns"),
        ("{system: desk, opening: turns, user: Hi}", "both `system` and `opening`", "the opening's messages"),
        ("{system: desk}", "neither `user` nor `messages`", "add `user: TEXT`"),
        ("{user: Hi, prompt: Hi}", "in 2 ways: user, prompt", "keep one"),
        ("{user: Hi, body: {messages: []}}", "in 2 ways: user, body.messages", "keep one"),
        ("{user: yes}", "`user` is true or false, expected text", "in quotes"),
        ("{user: 12:30}", "`user` is a number, expected text", "in quotes"),
        ("{user: ' '}", "`user` is empty", "in quotes"),
        ("{opening: examples, user: Hi}", "its shared opening is text, for `prompt:`", None),
        ("{opening: turns, prompt: Hi}", "its shared opening is messages", None),
        ("{system: desk, messages: [{role: system, content: Hi}]}", "precedes its own system message", "keep one"),
        ("{messages: [{role: boss, content: Hi}]}", "message 1 has the role 'boss'", "system"),
        ("{weight: .nan, user: Hi}", "`weight` is nan", "share of traffic"),
        ("{weight: 0, user: Hi}", "`weight` is 0", "share of traffic"),
        ("{body: {when: 2020-01-02}, user: Hi}", "body.when is a date", "in quotes"),
        ("just text", "it is text, expected a map", "{system: NAME, user: TEXT}"),
    ],
)
def test_a_wrong_entry_is_named_by_line_and_number_with_the_remedy(
    tmp_path: Path, entry: str, found: str, hint: str | None
) -> None:
    text = SETUP + f"  - {{prompt: fine}}\n  - {entry}\n"
    line = SETUP.count("\n") + 2
    with pytest.raises(PromptSetError) as caught:
        load_text(tmp_path, text)
    assert f"set.yaml, line {line}, prompt 2" in caught.value.message
    assert found in caught.value.message
    assert hint is None or (caught.value.hint is not None and hint in caught.value.hint)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
        ("prompts:", "it holds no prompts"),
        ("prompts: []", "it holds no prompts"),
        ("prompts: text", "`prompts` is text, expected a list"),
        ("name: x", "it has no `prompts:` list"),
        ("- {prompt: a}", "the file is a list"),
        ("prompt: [{prompt: a}]", "unknown key 'prompt'"),
        ("prompts: [{prompt: a}]\ndefaults: {messages: []}", "`defaults` has 'messages'"),
        ("prompts: [{prompt: a}]\ndefaults: text", "defaults is text"),
        ("prompts: [{prompt: a}]\nsystems: {a b: text}", "the name 'a b' in systems"),
        ("prompts: [{prompt: a}]\nsystems: {a: }", "systems.a is nothing, expected text"),
        ("prompts: [{prompt: a}]\nopenings: {a: []}", "openings.a is a list, expected text"),
        ("prompts: [{prompt: a}]\nname: [x]", "the name a list in `name`"),
    ],
)
def test_a_wrong_file_is_refused_with_what_was_found(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(PromptSetError) as caught:
        load_text(tmp_path, text)
    assert found in caught.value.message
    assert "set.yaml" in caught.value.message


def test_a_small_file_cannot_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MAX_EXPANDED_CHARACTERS", 1000)
    text = f"systems: {{big: {'x' * 400}}}\nprompts:\n" + "  - {system: big, user: Hi}\n" * 3
    with pytest.raises(PromptSetError, match=r"line 5, prompt 3: with its shared openings written out"):
        load_text(tmp_path, text)
