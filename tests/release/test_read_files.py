"""One list of the files that are read, for whoever reads, whoever looks for what is missing, and the last look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import InputError
from kvrelease.release.address import open_source
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.fingerprinting import fingerprint_with_text
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import LocalFile, LocalReader, LocalSource
from kvrelease.release.read_files import is_read, may_count
from kvrelease.release.release_file import FileRole
from tests.release.adapters import write_adapter
from tests.release.builders import config_json, write_json, write_release, write_text_side

# Names as they lie in repositories, read or not.
_NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "configuration_x.py",
    "generation_config.json",
    "hf_quant_config.json",
    "kvrelease.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "quant_config.json",
    "quantize_config.json",
    "qwen.tiktoken",
    "README.md",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tokenizer_config.json",
    "training_args.bin",
    "vocab.json",
    "vocab.txt",
    ".gitattributes",
)
# Each also with something in front, something behind, in folders, and in another case.
NAMES = sorted(
    {
        variant
        for name in _NAMES
        for variant in (
            name,
            f"x_{name}",
            f"{name}.bak",
            f"sub/{name}",
            f"additional_chat_templates/{name}",
            name.upper(),
        )
    }
    | {"additional_chat_templates/tool_use.jinja", "additional_chat_templates/sub/tool_use.jinja"}
)


class WatchedSource(LocalSource):
    """A directory that keeps the names of the files that were opened."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, origin=open_source(directory).origin)
        self.opened: set[str] = set()

    def file(self, name: str) -> LocalFile:
        return WatchedFile(path=self.directory / name, name=name, opened=self.opened)


class WatchedFile(LocalFile, frozen=True, kw_only=True):
    """One of its files."""

    opened: set[str]

    @contextmanager
    def open(self) -> Iterator[LocalReader]:
        self.opened.add(self.name)
        with super().open() as reader:
            yield reader


def outcome(directory: Path) -> tuple[object, set[str]]:
    """Digests and rows, or the error; and what was opened. Weights in forms that nobody reads are only listed."""
    source = WatchedSource(directory)
    try:
        found, _ = fingerprint_with_text(source)
    except InputError as error:
        return error.message, source.opened
    rows = [row for row in found.files if row.role is not FileRole.EXTRA or is_read(row.path)]
    return (found.digests, rows), source.opened


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = config_json(auto_map={"AutoConfig": "configuration_x.X"})
    return write_text_side(write_release(tmp_path / "model", config=config))


def test_a_file_counts_exactly_if_it_is_on_the_list(model: Path) -> None:
    before, _ = outcome(model)
    wrong = {}
    for name in NAMES:
        path = model / name
        saved = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text('{"x": [1, 2]}')
        after, opened = outcome(model)
        if not all(map(is_read, opened)) or (after != before) != (may_count(name) and not is_elsewhere(name)):
            wrong[name] = (after != before, may_count(name), sorted(opened))
        path.unlink() if saved is None else path.write_bytes(saved)
    assert wrong == {}
    assert outcome(model)[0] == before


def is_elsewhere(name: str) -> bool:
    """Weights in a sub-folder count where an index names them."""
    return "/" in name and name.endswith((".safetensors", ".gguf"))


def test_what_is_opened_of_an_adapter_is_on_the_list(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    write_json(adapter / "README.json", {})
    source = WatchedSource(adapter)
    from kvrelease.release.adapted import fingerprint_adapter_with_text

    fingerprint_adapter_with_text(source)
    assert source.opened == {"adapter_config.json", "adapter_model.safetensors"}
    assert all(map(is_read, source.opened))


@pytest.mark.parametrize(
    "name", ["\udcff.tiktoken", "additional_chat_templates/\udcff.jinja", "\udcff.py", "\udcff.safetensors"]
)
def test_a_file_that_counts_and_whose_name_no_digest_can_hold_is_refused(model: Path, name: str) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    if name.endswith(".safetensors"):
        (model / "model.safetensors").rename(model / name)
    else:
        (model / name).write_text("x")
    with pytest.raises(InputError, match=r"\\udcff.*: its name is not valid UTF-8") as caught:
        load_release(model)
    assert caught.value.hint == "rename that file"


def test_a_name_that_no_digest_can_hold_harms_nobody_where_the_file_does_not_count(model: Path) -> None:
    expected = load_release(model)
    for name in ("README\udcff", "old\udcff.bin", "pytorch_model\udcff.bin"):
        (model / name).touch()
    found = load_release(model)
    assert (found.digests, found.files) == (expected.digests, expected.files)
    assert artifacts.from_json(artifacts.to_json(found).encode(), Fingerprint, source="") == found
