from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.errors import InputError, NotFound, PromptSetError
from kvrelease.workload import loading
from kvrelease.workload.loading import find_prompt_set, load_prompt_set, shipped_prompt_sets

ONE = "prompts: [{id: a, prompt: Mine}]"


def test_the_shipped_set_answers_where_the_working_directory_has_none(tmp_path: Path) -> None:
    for what in ("prompts/support.yaml", "support"):
        loaded = load_prompt_set(what, directory=tmp_path)
        assert (loaded.name, loaded.source) == ("support", what)


def test_the_working_directory_comes_first(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "support.yaml").write_text(ONE)
    for what in ("prompts/support.yaml", "support"):
        assert [prompt.id for prompt in load_prompt_set(what, directory=tmp_path).prompts] == ["a"]


def test_the_wheel_s_copy_comes_before_the_checkout_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, checkout = tmp_path / "wheel", tmp_path / "checkout"
    for root in (wheel, checkout):
        root.mkdir()
        (root / "both.yaml").write_text(ONE)
    (checkout / "one.yaml").write_text(ONE)
    monkeypatch.setattr(loading, "SHIPPED_DIRECTORIES", (wheel, checkout))
    assert find_prompt_set("prompts/both.yaml", directory=tmp_path) == wheel / "both.yaml"
    assert find_prompt_set("prompts/one.yaml", directory=tmp_path) == checkout / "one.yaml"
    assert shipped_prompt_sets() == ("both", "one")


@pytest.mark.parametrize(
    "what", ["support.yaml", "my/prompts/support.yaml", "../prompts/support.yaml", "support.jsonl"]
)
def test_no_other_path_leads_to_a_shipped_set(tmp_path: Path, what: str) -> None:
    with pytest.raises(NotFound, match="no such file"):
        load_prompt_set(what, directory=tmp_path)


def test_an_absolute_path_needs_no_directory(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(ONE)
    assert load_prompt_set(str(tmp_path / "x.yml"), directory=Path("/nowhere")).name == "x"


def test_a_misspelt_name_is_answered_with_the_closest_shipped_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        load_prompt_set("prompts/suport.yaml", directory=tmp_path)
    assert caught.value.hint == "did you mean 'support'?"


@pytest.mark.parametrize("what", ["", "a\0b", "x" * 5000, "x/" * 3000])
def test_impossible_names_are_not_found(tmp_path: Path, what: str) -> None:
    with pytest.raises(NotFound):
        load_prompt_set(what, directory=tmp_path)


def test_a_directory_is_no_prompt_set(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match="it is a directory"):
        load_prompt_set(str(tmp_path), directory=tmp_path)


def test_an_unknown_suffix_is_refused_rather_than_guessed(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(ONE)
    with pytest.raises(PromptSetError, match=r"the suffix '.toml' does not tell its format"):
        load_prompt_set("x.toml", directory=tmp_path)


@pytest.mark.parametrize("name", ["x.yaml", "x.jsonl"])
def test_too_large_a_file_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(loading, "MAX_YAML_BYTES", 1024**2)
    monkeypatch.setattr(loading, "MAX_JSONL_BYTES", 1024**2)
    (tmp_path / name).write_bytes(b"#" * (1024**2 + 1))
    with pytest.raises(PromptSetError, match="larger than 1 MiB"):
        load_prompt_set(name, directory=tmp_path)


@pytest.mark.parametrize("name", ["x.yaml", "x.jsonl"])
def test_invalid_utf8_is_named_by_line_and_byte(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"prompts:\n  - prompt: \xff\n")
    with pytest.raises(PromptSetError, match=f"{name}, line 2: invalid UTF-8 .* at byte 21"):
        load_prompt_set(name, directory=tmp_path)


def test_utf16_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(ONE.encode("utf-16"))
    with pytest.raises(PromptSetError, match="UTF-16"):
        load_prompt_set("x.yaml", directory=tmp_path)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbf" + ONE.encode())
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "a", "prompt": "Mine"}')
    assert load_prompt_set("x.yaml", directory=tmp_path).digest == load_prompt_set("x.jsonl", directory=tmp_path).digest


def test_a_file_that_vanishes_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(self: Path, mode: str = "r") -> object:
        raise FileNotFoundError(2, "No such file or directory")

    (tmp_path / "x.yaml").write_text(ONE)
    monkeypatch.setattr(Path, "open", vanish)
    with pytest.raises(InputError, match="No such file"):
        load_prompt_set("x.yaml", directory=tmp_path)
