"""A tokenizer taken apart: one thing in two notations is one part, and what is not read is said."""

from __future__ import annotations

import json

import msgspec
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.details import MERGES, VOCABULARY
from kvrelease.release.tokenizer_parts import ADDED, Anatomy, take_apart, take_gguf_apart

WHOLE = {"tokenizer.json": b"\0" * 32}


def tokenizer(**model: object) -> JsonObject:
    return {
        "version": "1.0",
        "truncation": None,
        "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
        "normalizer": {"type": "NFC"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], **model},
    }


def apart(value: JsonObject, *, indent: int | None = None) -> Anatomy:
    return take_apart({"tokenizer.json": json.dumps(value, indent=indent).encode()}, WHOLE, {})


def changed(old: Anatomy, new: Anatomy) -> set[str]:
    names = old.digests.keys() | new.digests.keys()
    return {name for name in names if old.digests.get(name) != new.digests.get(name)}


def test_two_notations_of_one_tokenizer_have_the_same_parts() -> None:
    assert apart(tokenizer()).digests == apart(tokenizer(merges=["a b"]), indent=2).digests
    assert apart(tokenizer()).digests == apart(tokenizer(vocab={"ab": 2, "b": 1, "a": 0})).digests


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"normalizer": None}, "normalizer"),
        ({"added_tokens": []}, ADDED),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer"),
        ({"post_processor": {"type": "ByteLevel"}}, "post-processor"),
        ({"decoder": {"type": "ByteLevel"}}, "decoder"),
        ({"truncation": {"max_length": 1}}, "truncation"),
        ({"of_the_future": 1}, "of_the_future"),
        ({"model": tokenizer(vocab={"a": 0})["model"]}, VOCABULARY),
        ({"model": tokenizer(vocab={"a": 1, "b": 0, "ab": 2})["model"]}, VOCABULARY),
        ({"model": tokenizer(merges=[])["model"]}, MERGES),
        ({"model": tokenizer(dropout=0.1)["model"]}, "model settings"),
    ],
)
def test_each_change_is_in_its_own_part(change: JsonObject, part: str) -> None:
    assert changed(apart(tokenizer()), apart(tokenizer() | change)) == {part}


def test_counts_are_of_items() -> None:
    assert apart(tokenizer()).counts == {VOCABULARY: 3, MERGES: 1, ADDED: 1}


def test_a_unigram_vocabulary_has_ids_by_place_and_scores_of_its_own() -> None:
    one = apart(tokenizer(vocab=[["a", -1.0], ["b", -2.0]]))
    assert one.vocabulary == {"a": 0, "b": 1}
    assert changed(one, apart(tokenizer(vocab=[["a", -1.0], ["b", -3.0]]))) == {"scores"}


def test_vocab_json_and_merges_txt_are_taken_apart_where_they_are_alone() -> None:
    raw = {"vocab.json": b'{"a": 0, "b": 1, "ab": 2}', "merges.txt": b"#version: 0.2\na b\n"}
    slow = take_apart(raw, {"vocab.json": b"\0" * 32, "merges.txt": b"\1" * 32}, {})
    fast = apart(tokenizer())
    assert slow.digests == {part: fast.digests[part] for part in (VOCABULARY, MERGES)}
    assert slow.not_read == ()


@pytest.mark.parametrize("name", ["tokenizer.model", "qwen.tiktoken", "tekken.json", "spiece.model"])
def test_a_format_that_is_not_read_is_compared_as_a_whole_and_said(name: str) -> None:
    one, two = (take_apart({}, {name: digest * 32}, {}) for digest in (b"\0", b"\1"))
    assert changed(one, two) == {name}
    assert one.not_read == (f"{name} is compared as a whole: its format is not read",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1",
        b"[]",
        b'{"model": []}',
        b'{"model": {"vocab": {"a": "b"}}}',
        b'{"model": {"merges": ["a b c"]}}',
        b'{"model": {"merges": [["a"]]}}',
        b'{"normalizer": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"normalizer": "\\ud800"}',
        b'{"model": {"vocab": {"\\ud800": 1}}}',
        b'{"normalizer": ' + b"[" * 100_000,
        b'{"decoder": "' + b"x" * 2_000_000 + b'"}',
        b'{"model": {"merges": [' + b",".join([b"0"] * 2_500_002) + b"]}}",
        b"\xff\xfe",
    ],
    ids=lambda data: str(data[:24]),
)
def test_whatever_a_file_claims_it_is_then_compared_as_a_whole(data: bytes) -> None:
    found = take_apart({"tokenizer.json": data}, WHOLE, {"tokenizer_config.json": {"a": 1}})
    assert found.digests.keys() == {"tokenizer.json", "tokenizer_config.json"}
    assert found.not_read[0].startswith("tokenizer.json is compared as a whole: it could not be taken apart (")
    assert len(found.not_read[0]) < 300


def test_settings_are_parts_by_their_file_and_their_values_are_kept() -> None:
    found = take_apart({}, {}, {"tokenizer_config.json": {"bos_token": "<s>"}})
    assert found.values == {"tokenizer_config.json": {"bos_token": "<s>"}}


def test_the_metadata_of_a_gguf_file_are_parts_by_their_keys() -> None:
    keys = {"tokenizer.ggml.tokens": b"\0" * 32, "tokenizer.ggml.merges": b"\1" * 32, "tokenizer.ggml.x": b"\2" * 32}
    found = take_gguf_apart(keys)
    assert found.digests.keys() == {VOCABULARY, MERGES, "tokenizer.ggml.x"}
    assert "which tokens changed is not read" in found.not_read[0]


def test_parts_are_plain_values() -> None:
    assert msgspec.convert(msgspec.to_builtins(apart(tokenizer())), Anatomy) == apart(tokenizer())
