"""A release that is written to while it is read has no fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease.errors import InputError
from kvrelease.progress import ProgressEvent
from kvrelease.release.fingerprint import load_release
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from tests.release.builders import write_json, write_release, write_text_side

Change = Callable[[Path], None]


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


def test_a_remembered_shard_that_changes_meanwhile_is_an_error(tmp_path: Path, model: Path) -> None:
    """The first shard's content is remembered and the second hashed; then somebody writes to the first."""
    memo = Memo(tmp_path / "memo", settled_ns=0)
    first, second = sorted(model.glob("*.safetensors"))
    load_release(model, memo=memo)
    data = second.read_bytes()
    second.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def touch(_: Path) -> None:
        first.write_bytes(first.read_bytes())

    with pytest.raises(InputError, match=f"reading .*/{first.name}: the file changed while it was read"):
        load_release(model, memo=memo, progress=once(touch, model))


def test_a_release_at_rest_is_read_twice_alike(model: Path) -> None:
    assert load_release(model).digests == load_release(model).digests
