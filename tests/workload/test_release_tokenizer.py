"""Tokens without an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import kvrelease
from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, InputError, NotFound
from kvrelease.workload.prompt_set import PromptKind
from kvrelease.workload.release_tokenizer import ReleaseTokenizer, Uncountable
from tests.workload.builders import chat_body

DEMO = Path(kvrelease.__file__).parent / "data" / "demo" / "v1"


def release(directory: Path, *, template: str | None = None, **config: object) -> Path:
    """A byte-level tokenizer whose post-processor begins a text with <s>."""
    tokenizer = Tokenizer(
        models.BPE(
            vocab={"<s>": 0, **{c: n + 1 for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}, merges=[]
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, **config}))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def count(tokenizer: ReleaseTokenizer, body: JsonObject) -> int:
    return len(tokenizer.tokens(body, kind=PromptKind.CHAT if "messages" in body else PromptKind.COMPLETIONS))


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (
            chat_body("May I return it?", system="Be brief."),
            (1, 526, 289, 330, 73, 74, 18, 4, 2, 49, 280, 299, 343, 282, 35, 4, 3),
        ),
        ({"prompt": "Once upon a time"}, (641, 328, 715, 307, 262, 261, 77, 81, 73)),
        ({"prompt": ["Once upon a time"]}, (641, 328, 715, 307, 262, 261, 77, 81, 73)),
        ({"prompt": [5, 6, 7]}, (5, 6, 7)),
    ],
)
def test_ids_are_those_of_transformers(body: JsonObject, ids: tuple[int, ...]) -> None:
    """Made by transformers 5.24.0: `apply_chat_template(…, add_generation_prompt=True)`, and the tokenizer itself."""
    kind = PromptKind.CHAT if "messages" in body else PromptKind.COMPLETIONS
    assert ReleaseTokenizer(DEMO, name="demo").tokens(body, kind=kind) == ids


def test_a_template_gets_what_transformers_gives_it(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.at }}{% break %}{% endfor %}{% endfor %}"
        "{{ tools | tojson }}{% if add_generation_prompt %}>{% endif %}{{ thinking }}"
    )
    tokenizer = ReleaseTokenizer(release(tmp_path, template=template), name="here")
    call = {"type": "function", "function": {"name": "f", "arguments": '{"at": "P"}'}}
    body: JsonObject = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [{"é": 1}],
        "chat_template_kwargs": {"thinking": "on"},
    }
    rendered = '<s>HiP[{"é": 1}]>on'
    assert count(tokenizer, body) == 1 + len(rendered.removeprefix("<s>").encode())
    assert tokenizer.bos_id == 0


def test_the_template_may_stand_in_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    for template in ("{{ messages[0].content }}", named):
        tokenizer = ReleaseTokenizer(release(tmp_path, chat_template=template), name="here")
        assert count(tokenizer, chat_body("four")) == 4


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses it"),
        ("{{ messages.append(1) }}", "refuses it"),
    ],
)
def test_what_cannot_be_counted_says_why(tmp_path: Path, template: str | None, found: str) -> None:
    tokenizer = ReleaseTokenizer(release(tmp_path, template=template), name="here")
    with pytest.raises(Uncountable, match=found):
        count(tokenizer, chat_body("Hi"))
    assert count(tokenizer, {"prompt": "Hi"}) == 3


def test_images_and_several_parts_are_the_engines_to_count(tmp_path: Path) -> None:
    tokenizer = ReleaseTokenizer(release(tmp_path, template="x"), name="here")
    text = {"type": "text", "text": "a"}
    image = {"type": "image_url", "image_url": {"url": "https://h/a"}}
    for parts, found in (([text, image], "images"), ([text, text], "several parts")):
        with pytest.raises(Uncountable, match=found):
            count(tokenizer, {"messages": [{"role": "user", "content": parts}]})


def test_a_template_that_reads_the_clock_is_known(tmp_path: Path) -> None:
    tokenizer = ReleaseTokenizer(release(tmp_path, template="{{ strftime_now('%d %b %Y') }}"), name="here")
    assert not tokenizer.reads_clock
    count(tokenizer, chat_body("Hi"))
    assert tokenizer.reads_clock


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no tokenizer.json"):
        ReleaseTokenizer(tmp_path, name="here")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedFile, match=r"tokenizer.json is none"):
        ReleaseTokenizer(tmp_path, name="here")
    release(tmp_path, template="{% for %}")
    with pytest.raises(InputError, match="chat template of here, line 1"):
        ReleaseTokenizer(tmp_path, name="here")
    shutil.copy(DEMO / "tokenizer.json", tmp_path / "alone.json")
    with pytest.raises(Uncountable, match="no chat template"):
        count(ReleaseTokenizer(tmp_path / "alone.json", name="alone"), chat_body("Hi"))
