"""A release that is written to while it is read has no fingerprint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease.errors import InputError, NotFound
from kvrelease.progress import ProgressEvent
from kvrelease.release.adapted import fingerprint_adapter_with_text
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import LocalFile, LocalSource, open_directory
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.steady import SteadySource
from tests.release.adapters import write_adapter
from tests.release.builders import write_json, write_release, write_text_side
from tests.release.mount_tables import DATED

Change = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", shards=2))


def once(change: Change, model: Path) -> Callable[[ProgressEvent], None]:
    done: list[ProgressEvent] = []

    def act(event: ProgressEvent) -> None:
        if not done:
            change(model)
        done.append(event)

    return act


def edit_config(model: Path) -> None:
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text.replace("10000.0", "20000.0"))


def replace_index(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    copy = index.with_suffix(".new")
    copy.write_bytes(index.read_bytes())
    copy.replace(index)


def edit_tokenizer(model: Path) -> None:
    write_json(model / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 1}}})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (edit_config, "config.json"),
        (replace_index, "model.safetensors.index.json"),
        (edit_tokenizer, "tokenizer.json"),
    ],
)
def test_a_small_file_that_changes_while_the_weights_are_read_is_an_error(
    model: Path, mode: Mode, change: Change, name: str
) -> None:
    with pytest.raises(InputError, match=rf"reading .*/{name}: the file changed while the release was read"):
        load_release(model, mode=mode, progress=once(change, model))


def test_a_small_file_that_vanishes_meanwhile_is_an_error(model: Path) -> None:
    with pytest.raises(InputError, match="generation_config"):
        load_release(model, progress=once(lambda where: (where / "generation_config.json").unlink(), model))


def add_a_shard(model: Path) -> None:
    shutil.copy(model / "model-00001-of-00002.safetensors", model / "model-00003-of-00003.safetensors")


def add_a_template(model: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")


def add_added_tokens(model: Path) -> None:
    write_json(model / "added_tokens.json", {"<new>": 2})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (add_a_shard, "model-00003-of-00003.safetensors"),
        (add_a_template, "additional_chat_templates/tool_use.jinja"),
        (add_added_tokens, "added_tokens.json"),
    ],
)
def test_a_file_that_appears_while_the_release_is_read_is_an_error(
    model: Path, mode: Mode, change: Change, name: str
) -> None:
    """A copy that is still under way: what was read is a release that never was."""
    with pytest.raises(InputError, match=f"changed while it was read: '{name}' appeared") as caught:
        load_release(model, mode=mode, progress=once(change, model))
    assert "copy or download has finished" in (caught.value.hint or "")


def test_weights_that_vanish_without_having_been_read_are_an_error(model: Path) -> None:
    left_over = model / "other.safetensors"
    shutil.copy(model / "model-00001-of-00002.safetensors", left_over)
    with pytest.raises(InputError, match=r"changed while it was read: 'other.safetensors' vanished"):
        load_release(model, progress=once(lambda _: left_over.unlink(), model))


def test_files_that_nobody_reads_may_come_and_go(model: Path) -> None:
    (model / "notes.txt").touch()

    def change(where: Path) -> None:
        (where / "notes.txt").unlink()
        (where / "kvrelease.json").write_text("{}")
        (where / ".model.safetensors.tmp").touch()

    expected = load_release(model).digests
    assert load_release(model, progress=once(change, model)).digests == expected


def test_a_shard_that_appears_beside_an_adapter_is_an_error(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    change = once(lambda where: shutil.copy(where / "adapter_model.safetensors", where / "m.safetensors"), adapter)
    with pytest.raises(InputError, match=r"'m.safetensors' appeared"):
        load_release(adapter, progress=change)


class SourceWrittenTo(LocalSource):
    """A directory in which somebody writes a file once another was looked at."""

    def __init__(self, directory: Path, *, change: Callable[[], object], after: str) -> None:
        super().__init__(directory, origin=open_directory(directory).origin)
        self._change, self._after = change, after

    def file(self, name: str) -> LocalFile:
        found = super().file(name)
        if name == self._after:
            found.identity()
            change, self._change = self._change, lambda: None
            change()
        return found


@pytest.mark.parametrize("name", ["tokenizer_config.json", "added_tokens.json"])
def test_the_tokenizer_beside_an_adapter_is_looked_at_again_too(tmp_path: Path, name: str) -> None:
    """Its text side is read after its weights."""
    adapter = write_text_side(write_adapter(tmp_path / "lora"))
    source = SourceWrittenTo(
        adapter, change=lambda: write_json(adapter / name, {"bos_token": "<x>"}), after="generation_config.json"
    )
    with pytest.raises(InputError, match=rf"{name}.*(changed while|appeared)"):
        fingerprint_adapter_with_text(source)


def test_a_remembered_shard_that_changes_meanwhile_is_an_error(tmp_path: Path, model: Path) -> None:
    """The first shard's content is remembered and the second hashed; then somebody writes to the first."""
    memo = Memo(tmp_path / "memo", settled_ns=0, mounts=DATED)
    first, second = sorted(model.glob("*.safetensors"))
    load_release(model, memo=memo)
    data = second.read_bytes()
    second.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def touch(_: Path) -> None:
        first.write_bytes(first.read_bytes())

    with pytest.raises(InputError, match=f"reading .*/{first.name}: the file changed while it was read"):
        load_release(model, memo=memo, progress=once(touch, model))


def test_a_file_is_what_it_was_at_the_first_of_several_looks(model: Path) -> None:
    """Looked at by two readers, and written to in between: one of them read another file than the other."""
    source = SteadySource(open_directory(model))
    source.file("tokenizer.json")
    edit_tokenizer(model)
    source.file("tokenizer.json")
    with pytest.raises(InputError, match=r"tokenizer.json: the file changed while the release was read"):
        source.require_unchanged()


def test_a_file_that_cannot_be_looked_at_is_the_business_of_whoever_opens_it(model: Path) -> None:
    source = SteadySource(open_directory(model))
    absent = source.file("preprocessor_config.json")
    source.require_unchanged()
    with pytest.raises(NotFound, match="preprocessor_config"), absent.open():
        pass


def test_a_release_at_rest_is_read_twice_alike(model: Path) -> None:
    assert load_release(model).digests == load_release(model).digests
