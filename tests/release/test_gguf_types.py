"""The table of element types: words that are part of the algorithm, and sizes from ggml's structures."""

from __future__ import annotations

import pytest

from kvrelease.release.gguf_types import GGML_TYPES, type_word

# Bits per element, from the comments beside the structures in llama.cpp b11434, ggml/src/ggml-common.h.
BITS = {
    "F32": 32.0,
    "F16": 16.0,
    "BF16": 16.0,
    "I8": 8.0,
    "I64": 64.0,
    "F64": 64.0,
    "Q4_0": 4.5,
    "Q8_0": 8.5,
    "Q2_K": 2.625,
    "Q3_K": 3.4375,
    "Q4_K": 4.5,
    "Q5_K": 5.5,
    "Q6_K": 6.5625,
    "IQ2_XXS": 2.0625,
    "IQ2_XS": 2.3125,
    "IQ2_S": 2.5625,
    "IQ3_XXS": 3.0625,
    "IQ3_S": 3.4375,
    "IQ1_S": 1.5625,
    "IQ1_M": 1.75,
    "TQ1_0": 1.6875,
    "TQ2_0": 2.0625,
    "IQ4_XS": 4.25,
    "MXFP4": 4.25,
    "NVFP4": 4.5,
}


@pytest.mark.parametrize(("word", "bits"), BITS.items())
def test_sizes_are_those_of_ggml(word: str, bits: float) -> None:
    (found,) = [known for known in GGML_TYPES.values() if known.word == word]
    assert found.block_bytes * 8 / found.block == bits


def test_a_number_without_a_word_keeps_its_number_for_good() -> None:
    """Were it given ggml's name later, digests of the same algorithm would change."""
    assert [type_word(number) for number in (4, 5, 31, 33, 36, 38, 43, 4096)] == [
        "GGML_4",
        "GGML_5",
        "GGML_31",
        "GGML_33",
        "GGML_36",
        "GGML_38",
        "GGML_43",
        "GGML_4096",
    ]
    words = [known.word for known in GGML_TYPES.values()]
    assert len(set(words)) == len(words) == 35
