"""The element types of GGUF tensors: their words in a digest, and how many bytes a row takes.

Source: llama.cpp b11434, ggml/include/ggml.h (`enum ggml_type`), ggml/src/ggml.c (`type_traits`) and
ggml/src/ggml-common.h (the sizes of the `block_*` structures).
"""

from __future__ import annotations

import msgspec


class GgmlType(msgspec.Struct, frozen=True, kw_only=True):
    """How elements are packed.

    Attributes:
        word: the dtype that a digest covers.
        block: elements that are packed together; rows are whole blocks.
        block_bytes: that a block takes.
    """

    word: str
    block: int
    block_bytes: int


def _type(word: str, block: int, block_bytes: int) -> GgmlType:
    return GgmlType(word=word, block=block, block_bytes=block_bytes)


# By the number in the file. The words are part of `kvfp1`: a number that is not in this table is `GGML_<number>` there
# for good, also after ggml gave it a name. 4, 5, 31 to 33 and 36 to 38 were removed from ggml and have no size.
GGML_TYPES = {
    0: _type("F32", 1, 4),
    1: _type("F16", 1, 2),
    2: _type("Q4_0", 32, 18),
    3: _type("Q4_1", 32, 20),
    6: _type("Q5_0", 32, 22),
    7: _type("Q5_1", 32, 24),
    8: _type("Q8_0", 32, 34),
    9: _type("Q8_1", 32, 36),
    10: _type("Q2_K", 256, 84),
    11: _type("Q3_K", 256, 110),
    12: _type("Q4_K", 256, 144),
    13: _type("Q5_K", 256, 176),
    14: _type("Q6_K", 256, 210),
    15: _type("Q8_K", 256, 292),
    16: _type("IQ2_XXS", 256, 66),
    17: _type("IQ2_XS", 256, 74),
    18: _type("IQ3_XXS", 256, 98),
    19: _type("IQ1_S", 256, 50),
    20: _type("IQ4_NL", 32, 18),
    21: _type("IQ3_S", 256, 110),
    22: _type("IQ2_S", 256, 82),
    23: _type("IQ4_XS", 256, 136),
    24: _type("I8", 1, 1),
    25: _type("I16", 1, 2),
    26: _type("I32", 1, 4),
    27: _type("I64", 1, 8),
    28: _type("F64", 1, 8),
    29: _type("IQ1_M", 256, 56),
    30: _type("BF16", 1, 2),
    34: _type("TQ1_0", 256, 54),
    35: _type("TQ2_0", 256, 66),
    39: _type("MXFP4", 32, 17),
    40: _type("NVFP4", 64, 36),
    41: _type("Q1_0", 128, 18),
    42: _type("Q2_0", 64, 18),
}


def type_word(number: int) -> str:
    """The dtype that a digest covers."""
    known = GGML_TYPES.get(number)
    return f"GGML_{number}" if known is None else known.word
