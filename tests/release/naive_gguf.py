"""A second implementation of the GGUF part of docs/fingerprint.md, written from the document and sharing no code."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import blake3

from tests.release.naive import NAMES, digest, framed, pairs, u64, value

SPECIFICATION = Path(__file__).parents[2] / "docs" / "fingerprint.md"
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def words() -> dict[int, str]:
    """The words of the types, as the document lists them."""
    sentence = SPECIFICATION.read_text().partition("`enum ggml_type`")[2].partition("Any other number")[0]
    return {int(number): word for number, word in re.findall(r"(\d+)\s+`(\w+)`", sentence)}


def part_of(key: str) -> str:
    """The part of a release that a metadata key belongs to."""
    lists = NAMES["gguf"]
    if key in lists["layout"]:
        return "layout"
    if key in lists["labels"] or key.startswith(tuple(lists["label_prefixes"])):
        return "labels"
    if key.startswith("general.sampling."):
        return "generation"
    if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template."):
        return "template"
    if key.startswith("tokenizer.") and key != "tokenizer.ggml.token_type_count":
        return "tokenizer"
    return "configuration"


class Naive:
    """A whole file in memory, read front to back."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.place = 8
        tensor_count, key_count = self.number("Q"), self.number("Q")
        self.values: dict[str, tuple[bytes, object]] = {}
        for _ in range(key_count):
            key = self.text().decode()
            start = self.place
            item = self.value(self.number("I"))
            self.values[key] = (self.data[start : self.place], item)
        entries = []
        for _ in range(tensor_count):
            name = self.text().decode()
            shape = [self.number("Q") for _ in range(self.number("I"))]
            entries.append((name, shape, self.number("I"), self.number("Q")))
        alignment = self.values["general.alignment"][1] if "general.alignment" in self.values else 32
        assert isinstance(alignment, int)
        self.first = self.place + -self.place % alignment
        self.entries = entries

    def number(self, code: str) -> int:
        (found,) = struct.unpack_from(f"<{code}", self.data, self.place)
        self.place += struct.calcsize(code)
        return found  # type: ignore[no-any-return]

    def text(self) -> bytes:
        length = self.number("Q")
        self.place += length
        return self.data[self.place - length : self.place]

    def value(self, kind: int) -> object:
        if kind == 8:
            return self.text().decode()
        if kind == 9:
            item_kind, count = self.number("I"), self.number("Q")
            return [self.value(item_kind) for _ in range(count)]
        found: float = self.number(NUMBERS[kind])
        return found if math.isfinite(found) else str(found).replace("inf", "Infinity").replace("nan", "NaN")

    def payloads(self, sizes: dict[str, int]) -> dict[str, bytes]:
        """Payload digests; how long each tensor is comes from the writer, not from a table of ours."""
        found = {}
        for name, shape, kind, offset in self.entries:
            start = self.first + offset
            head = framed(b"kvfp1 payload") + framed(words()[kind].encode())
            head += framed(b"".join(u64(axis) for axis in shape))
            found[name] = blake3.blake3(head + framed(self.data[start : start + sizes[name]])).digest()
        return found

    def keys(self, part: str) -> list[str]:
        return [key for key in self.values if part_of(key) == part]

    def configuration(self) -> dict[str, object]:
        entries: dict[str, object] = {}
        for key in self.keys("configuration"):
            stored, item = self.values[key]
            large = {"blake3": blake3.blake3(stored).hexdigest(), "bytes": len(stored) - 4}
            entries[key] = large if len(stored) - 4 > 4096 else item
        return entries

    def tokenizer(self) -> str:
        named = {key: blake3.blake3(self.values[key][0]).digest() for key in self.keys("tokenizer")}
        _, name = self.values.get("general.name", (b"", None))
        lower = re.sub("[A-Z]", lambda letter: letter[0].lower(), name) if isinstance(name, str) else ""
        for word, spellings in (("phi-3", ("phi-3", "phi3")), ("modern-bert", ("modern-bert",))):
            if "general.name" not in named and any(spelling in lower for spelling in spellings):
                named["general.name"] = blake3.blake3(word.encode()).digest()
        return "kvfp1-tokenizer:" + digest("kvfp1-tokenizer", pairs(named)).hex()

    def template(self) -> str:
        texts = {
            key.removeprefix("tokenizer.chat_template").lstrip(".") or "default": self.values[key][1]
            for key in self.keys("template")
        }
        lines = {name: str(text).replace("\r\n", "\n").replace("\r", "\n").encode() for name, text in texts.items()}
        return "kvfp1-template:" + digest("kvfp1-template", pairs(lines)).hex()

    def generation(self) -> str:
        effective = {key: self.values[key][1] for key in self.keys("generation")}
        return "kvfp1-generation:" + digest("kvfp1-generation", [value(effective)]).hex()


def weights_digest(payloads: dict[str, bytes]) -> str:
    return "kvfp1-full:" + digest("kvfp1-full weights", pairs(payloads)).hex()


def kv_digest(payloads: dict[str, bytes], configuration: dict[str, object]) -> str:
    running = digest("kvfp1-full/all.1 configuration", [value(configuration)])
    running = digest("kvfp1-full/all.1 layer", [running, *pairs(payloads)])
    return "kvfp1-full/all.1:" + digest("kvfp1-full/all.1 kv", [running]).hex()
