"""What a fixed text becomes, whatever the tokenizer does with the process that asks it."""

from __future__ import annotations

import json

import pytest
import tokenizers

from kvrelease.release.tokenizer_probe import PROBE_NAME, PROBE_TEXT, ProbeFailed, probe_tokenizer


def tokenizer(**changes: object) -> bytes:
    """Of single characters; an unknown one is 0."""
    vocab = {"<unk>": 0} | {character: number for number, character in enumerate(sorted(set(PROBE_TEXT)), start=1)}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "model": model, **changes}).encode()


def test_the_ids_are_those_that_the_library_makes_in_process() -> None:
    found = probe_tokenizer(tokenizer())
    assert list(found.ids) == tokenizers.Tokenizer.from_buffer(tokenizer()).encode(PROBE_TEXT).ids
    assert (found.text, found.library) == (PROBE_NAME, f"tokenizers {tokenizers.__version__}")


def test_padding_and_truncation_do_not_count() -> None:
    padding = {
        "strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    assert probe_tokenizer(tokenizer(padding=padding, truncation=truncation)).ids == probe_tokenizer(tokenizer()).ids


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", tokenizer(normalizer={"type": "NFX"}), b"\0" * 1000])
def test_what_the_library_refuses_is_told_with_its_words(data: bytes) -> None:
    with pytest.raises(ProbeFailed, match="the tokenizers library refuses it: "):
        probe_tokenizer(data)


def test_a_text_that_grows_without_end_ends_in_bounded_memory() -> None:
    double = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
    data = tokenizer(normalizer={"type": "Sequence", "normalizers": [double] * 40})
    with pytest.raises(ProbeFailed, match="gave up within its bounds"):
        probe_tokenizer(data, memory_bytes=256 * 1024**2)


def test_one_that_takes_too_long_is_stopped() -> None:
    data = tokenizer(normalizer={"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 100_000})
    with pytest.raises(ProbeFailed, match=r"did not finish within 0\.001 s"):
        probe_tokenizer(data, timeout_s=0.001)
