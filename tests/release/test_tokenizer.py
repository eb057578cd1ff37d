from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.local_source import open_directory
from kvrelease.release.release_file import FileRole
from kvrelease.release.tokenizer import TextSide, read_text_side
from tests.release.builders import write_json, write_text_side


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(tmp_path)


def read(directory: Path, config: JsonObject | None = None) -> TextSide:
    return read_text_side(open_directory(directory), model_config={"eos_token_id": 2} if config is None else config)


def changed(before: TextSide, after: TextSide) -> set[str]:
    return {name for name in ("tokenizer", "template", "generation") if getattr(before, name) != getattr(after, name)}


def test_each_file_changes_its_own_digest_only(model: Path) -> None:
    """Outputs change though weights do not: https://github.com/vllm-project/vllm/pull/15281, https://github.com/OpenPipe/ART/pull/140"""
    before = read(model)
    write_json(model / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 1, "b": 0}}})
    assert changed(before, read(model)) == {"tokenizer"}
    before = read(model)
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ other }}"})
    assert changed(before, read(model)) == {"template"}
    before = read(model)
    write_json(model / "tokenizer_config.json", {"bos_token": "<bos>", "chat_template": "{{ other }}"})
    assert changed(before, read(model)) == {"tokenizer"}
    before = read(model)
    write_json(model / "generation_config.json", {"temperature": 0.7})
    assert changed(before, read(model)) == {"generation"}


@pytest.mark.parametrize(
    "name",
    [
        *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
        *("qwen.tiktoken", "tiktoken.model", "spm.model", "tokenizer.model.v3"),
        *("vocab.txt", "tekken.json", "spiece.model", "sentencepiece.bpe.model"),
    ],
)
def test_every_vocabulary_file_counts(model: Path, name: str) -> None:
    before = read(model)
    (model / name).write_text("{}")
    after = read(model)
    assert changed(before, after) == {"tokenizer"}
    (model / name).write_text('{"a": 1}')
    assert changed(after, read(model)) == {"tokenizer"}


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json"])
def test_small_files_count_by_what_they_say_and_not_by_their_formatting(model: Path, name: str) -> None:
    """Programs write them with other blanks, and keys in another order."""
    (model / name).write_text('{"a": "<a>", "b": {"c": 1}}')
    before = read(model)
    (model / name).write_text('{\n  "b": {"c": 1.0},\n  "a": "<a>"\n}\n')
    assert changed(before, read(model)) == set()


def test_who_saved_the_files_does_not_count(model: Path) -> None:
    before = read(model)
    write_json(
        model / "tokenizer_config.json",
        {
            "name_or_path": "x",
            "_name_or_path": "/mnt/x",
            "_commit_hash": "0123abcd",
            "transformers_version": "5.24.0",
            "is_local": True,
            "local_files_only": False,
            "special_tokens_map_file": "/home/me/.cache/special_tokens_map.json",
            "tokenizer_file": "/home/me/.cache/tokenizer.json",
            "chat_template": "{{ messages }}",
            "bos_token": "<s>",
        },
    )
    write_json(model / "generation_config.json", {"transformers_version": "5.24.0", "temperature": 0.6})
    assert changed(before, read(model)) == set()


def test_jinja_file_wins_over_tokenizer_config(model: Path) -> None:
    """Engines differ in which they read: https://github.com/huggingface/text-generation-inference/issues/3247,
    https://github.com/pytorch/torchtitan/pull/2455
    """
    (model / "chat_template.jinja").write_text("{{ jinja }}")
    with_jinja = read(model)
    assert "differ" in with_jinja.warnings[0]
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ ignored }}"})
    assert changed(with_jinja, read(model)) == set()


def test_a_processors_template_counts_where_it_is_another(model: Path) -> None:
    """vLLM asks the processor first, so prompts change with it, and the tokenizer's stays for tool calls."""
    before = read(model)
    write_json(model / "chat_template.json", {"chat_template": "{{ messages }}"})
    assert changed(before, read(model)) == set()
    write_json(model / "chat_template.json", {"chat_template": "{{ other }}"})
    other = read(model)
    assert changed(before, other) == {"template"}
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ other }}"})
    assert changed(other, read(model)) == {"template"}
    (model / "tokenizer_config.json").unlink()
    assert read(model).template not in (None, other.template)
    write_json(model / "chat_template.json", {"chat_template": 1})
    with pytest.raises(DamagedFile, match="chat_template is no text"):
        read(model)


def test_code_of_a_tokenizer_counts_where_it_is_named(model: Path) -> None:
    (model / "tokenization_x.py").write_text("x = 1")
    before = read(model)
    (model / "tokenization_x.py").write_text("x = 2")
    assert changed(before, read(model)) == set()
    settings = {"bos_token": "<s>", "chat_template": "{{ messages }}"}
    write_json(model / "tokenizer_config.json", {**settings, "auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}})
    named = read(model)
    assert changed(before, named) == {"tokenizer"}
    assert ("tokenization_x.py", FileRole.CODE) in {(file.path, file.role) for file in named.files}
    (model / "tokenization_x.py").write_text("x = 3")
    assert changed(named, read(model)) == {"tokenizer"}
    assert named.warnings == ()
    code = {"AutoTokenizer": ["acme/code--tokenization_x.X", None]}
    write_json(model / "tokenizer_config.json", {**settings, "auto_map": code})
    (warning,) = read(model).warnings
    assert warning == (
        "tokenizer_config.json takes code from another repository, 'acme/code' (auto_map), which the tokenizer's "
        "digest does not cover"
    )


def test_one_template_in_either_place_is_one_digest(model: Path) -> None:
    before = read(model)
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>"})
    (model / "chat_template.jinja").write_bytes(b"{{ messages }}")
    after = read(model)
    assert changed(before, after) == set()
    assert after.warnings == ()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_a_template_do_not_count_wherever_it_lies(model: Path, end: str) -> None:
    lines = "{{ a }}\n{{ b }}\n"
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": lines})
    before = read(model)
    stated = lines.replace("\n", end)
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": stated})
    write_json(model / "chat_template.json", {"chat_template": stated})
    assert changed(before, read(model)) == set()
    (model / "chat_template.jinja").write_bytes(lines.encode())
    beside = read(model)
    assert changed(before, beside) == set()
    assert beside.warnings == ()


def test_named_templates_in_list_or_folder_are_one_digest(model: Path) -> None:
    templates = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": templates})
    before = read(model)
    named = {item["name"]: item["template"] for item in templates}
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": named})
    assert changed(before, read(model)) == set()
    write_json(model / "tokenizer_config.json", {"bos_token": "<s>"})
    (model / "chat_template.jinja").write_text("{{ a }}")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ b }}")
    assert changed(before, read(model)) == set()


@pytest.mark.parametrize("template", [1, ["text"], [{"name": "a"}], {"default": 1}])
def test_malformed_template_is_refused(model: Path, template: object) -> None:
    write_json(model / "tokenizer_config.json", {"chat_template": template})
    with pytest.raises(DamagedFile, match="chat_template is neither"):
        read(model)


def test_generation_defaults_come_from_config_where_there_is_no_file(model: Path) -> None:
    write_json(model / "generation_config.json", {"_from_model_config": True, "eos_token_id": 2, "pad_token_id": None})
    with_file = read(model)
    (model / "generation_config.json").unlink()
    assert changed(with_file, read(model)) == set()
    assert changed(with_file, read(model, {"eos_token_id": 3})) == {"generation"}


def test_a_release_without_text_side_has_none(tmp_path: Path) -> None:
    assert read_text_side(open_directory(tmp_path), model_config=None) == TextSide(
        tokenizer=None, template=None, generation=None, files=(), warnings=()
    )
