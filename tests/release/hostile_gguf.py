"""Random GGUF files, and changes to them that aim at the parts of the format; the same for the same seed."""

from __future__ import annotations

import random
import struct

from kvrelease.release.gguf_types import GGML_TYPES
from tests.release.gguf_writer import (
    ARRAY,
    CODES,
    STRING,
    Segment,
    Tensor,
    Value,
    array,
    segments_of,
    small_model,
    text,
    u32,
)

NUMBERS = (
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    255,
    256,
    4096,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
KEYS = (
    "llama.x",
    "tokenizer.ggml.tokens",
    "tokenizer.chat_template",
    "tokenizer.chat_template.",
    "general.name",
    "general.type",
    "general.sampling.temp",
    "split.count",
    "split.no",
    "\x1b[31mkey",
    "mmproj",
    "k" * 300,
)
NAMES = ("blk.", "\x1b[2J", "\u202e", "a/b\\c", "\n", "n" * 250)
# Terminal codes, a bell, a line break, a lone surrogate as bytes, a right-to-left override, a path.
TEXTS = (
    b"\x1b[31mred\x1b[0m",
    b"\x07\n\r\t",
    b"\xed\xa0\x80",
    "\u202etxt".encode(),
    b"../../etc/passwd",
    b"",
    b"\0" * 9,
)


def random_value(generator: random.Random, *, depth: int = 0) -> Value:
    """A value of any type that the format has."""
    kind = generator.choice([*CODES, STRING, STRING, ARRAY])
    if kind == STRING:
        return text(generator.choice(TEXTS))
    if kind != ARRAY:
        return Value(kind, random_number(kind, generator))
    item = generator.choice([*CODES, STRING, *([ARRAY] if depth < 5 else [])])
    count = generator.choice((0, 1, 3, 40))
    if item == ARRAY:
        return array(ARRAY, [nested_array(generator, depth=depth + 1) for _ in range(min(count, 3))])
    content = [generator.choice(TEXTS) if item == STRING else random_number(item, generator) for _ in range(count)]
    return array(item, content)


def nested_array(generator: random.Random, *, depth: int) -> Value:
    while (value := random_value(generator, depth=depth)).type != ARRAY:
        pass
    return value


def random_number(kind: int, generator: random.Random) -> object:
    raw = generator.randbytes(struct.calcsize(CODES[kind]))
    return struct.unpack(f"<{CODES[kind]}", raw)[0]


def random_file(generator: random.Random) -> list[Segment]:
    """A file that keeps the format's rules, with contents that nobody would write."""
    metadata = small_model() if generator.random() < 0.5 else {}
    for number in range(generator.randrange(6)):
        metadata[generator.choice(KEYS) + (str(number) if generator.random() < 0.5 else "")] = random_value(generator)
    alignment = generator.choice((8, 32, 64))
    if alignment != 32:
        metadata["general.alignment"] = u32(alignment)
    tensors = []
    for number in range(generator.choice((0, 1, 3, 20))):
        kind = generator.choice([*GGML_TYPES, 4, 99])
        known = GGML_TYPES.get(kind)
        rows = generator.choice((0, 1, 3)) if known else 1
        shape = (known.block, rows) if known else (7,)
        size_bytes = known.block_bytes * rows if known else generator.choice((1, 100))
        tensors.append(Tensor(f"{generator.choice(NAMES)}{number}", shape, kind, generator.randbytes(size_bytes)))
    return segments_of(metadata, tensors, version=generator.choice((2, 3)), alignment=alignment)


def mutate(segments: list[Segment], generator: random.Random) -> bytes:
    """Up to three changes, aimed at the parts of the format, then sometimes one that is not."""
    parts = list(segments)
    for _ in range(generator.choice((0, 0, 1, 1, 1, 2, 3))):
        place = generator.randrange(len(parts))
        part = parts[place]
        match generator.randrange(8):
            case 0 | 1 | 2 | 3 if len(part.data) in (1, 2, 4, 8):
                number = generator.choice(NUMBERS)
                if generator.random() < 0.3:
                    number = int.from_bytes(part.data, "little") + generator.choice((-1, 1, 8, 32))
                size_bytes = len(part.data)
                parts[place] = Segment(part.kind, (number % 2 ** (8 * size_bytes)).to_bytes(size_bytes, "little"))
            case 4:
                parts[place] = Segment(part.kind, generator.choice(parts).data)
            case 5:
                del parts[place : place + generator.randint(1, 3)]
                parts = parts or [Segment("magic", b"GGUF")]
            case 6:
                end = generator.randint(place, len(parts))
                parts[place:place] = parts[place:end]
            case _:
                data = generator.choice(TEXTS)
                if part.kind == "text" and place:
                    parts[place - 1] = Segment("length", struct.pack("<Q", len(data)))
                parts[place] = Segment(part.kind, data)
    whole = bytearray(b"".join(part.data for part in parts))
    place = generator.randrange(len(whole) + 1)
    match generator.randrange(10):
        case 0 if place < len(whole):
            whole[place] ^= 1 << generator.randrange(8)
        case 1:
            del whole[place:]
        case 2:
            whole[place:place] = generator.randbytes(generator.choice((1, 8, 64)))
        case _:
            pass
    return bytes(whole)
