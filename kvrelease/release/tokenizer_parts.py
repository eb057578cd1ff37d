"""A tokenizer taken apart: vocabulary, merges, added tokens, each step from text to tokens, and settings. Pure.

Each part gets canonical bytes of its own, in which two notations of the same thing (merges as `"a b"` or `["a", "b"]`,
an indented file or not) are one. Sources: tokenizers 0.23.3, tokenizer.json as `Tokenizer.save` writes it; transformers
5.24.0, convert_slow_tokenizer.py (vocab.json and merges.txt); llama.cpp b11434, src/llama-arch.cpp (tokenizer.ggml.*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import encode_json
from kvrelease.release.details import MERGES, VOCABULARY, TextContent
from kvrelease.release.small_files import MAX_JSON_DEPTH

ALGORITHM = "kvparts1"
FAST_TOKENIZER = "tokenizer.json"
ADDED = "added tokens"

_SLOW_VOCABULARY, _SLOW_MERGES = "vocab.json", "merges.txt"
# The largest published vocabularies have 0.9 million tokens, and merges 0.6 million; items are bounded by commas.
_MAX_COMMAS = 2_500_000
# The steps from text to tokens: a few KB in every published tokenizer.
_MAX_STEP_BYTES = 1024 * 1024
# Keys of tokenizer.json that are no part: what the model holds is taken apart further.
_NO_PART = frozenset({"version", "model"})
_STEPS = {"pre_tokenizer": "pre-tokenizer", "post_processor": "post-processor", "added_tokens": ADDED}
_MODEL_SETTINGS = "model settings"
_GGUF_PARTS = {
    "tokenizer.ggml.tokens": VOCABULARY,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": "token types",
    "tokenizer.ggml.scores": "scores",
    "tokenizer.ggml.pre": "pre-tokenizer",
    "tokenizer.ggml.model": "model settings",
}


class Anatomy(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer taken apart, with what its parts hold.

    Attributes:
        digests: part → BLAKE3 (hex).
        vocabulary: token → id; None where it is not read.
        merges: pairs in their order; None where they are not read.
        values: part → its JSON, of the parts that are small.
        counts: items of vocabulary, merges and added tokens.
        not_read: a sentence for each file of which only the digest is compared.
        damage: which file should say the parts, and is not what its name promises; None where none is.
    """

    digests: dict[str, str]
    vocabulary: dict[str, int] | None
    merges: tuple[tuple[str, str], ...] | None
    values: dict[str, object]
    counts: dict[str, int]
    not_read: tuple[str, ...]
    damage: str | None = None


class _Taken:
    """Parts as they come off."""

    def __init__(self, *, keeps_contents: bool) -> None:
        self._keeps_contents = keeps_contents
        self.digests: dict[str, str] = {}
        self.vocabulary: dict[str, int] | None = None
        self.merges: tuple[tuple[str, str], ...] | None = None
        self.values: dict[str, object] = {}
        self.counts: dict[str, int] = {}

    def put(self, part: str, value: object) -> None:
        """A small part."""
        self.digests[part] = blake3(encode_json(value)).hexdigest()
        self.values[part] = value
        if part == ADDED and isinstance(value, list):
            self.counts[ADDED] = len(value)

    def put_vocabulary(self, vocabulary: dict[str, int]) -> None:
        self.digests[VOCABULARY] = blake3(msgspec.json.encode(vocabulary, order="sorted")).hexdigest()
        self.counts[VOCABULARY] = len(vocabulary)
        self.vocabulary = vocabulary if self._keeps_contents else None

    def put_merges(self, merges: Iterable[tuple[str, str]]) -> None:
        """Merges one by one: as objects all of them would take six times the bytes of their file."""
        hasher, kept, count = blake3(), [], 0
        for pair in merges:
            hasher.update(msgspec.json.encode(pair))
            count += 1
            if self._keeps_contents:
                kept.append(pair)
        self.digests[MERGES] = hasher.hexdigest()
        self.counts[MERGES] = count
        self.merges = tuple(kept) if self._keeps_contents else None


class _NotReadable(Exception):
    """Why a file is not taken apart."""


def anatomy_of(content: TextContent, *, keeps_contents: bool = True) -> Anatomy:
    """A tokenizer taken apart, whether it lies in files or in the metadata of a GGUF file.

    Args:
        content: what the tokenizer was read from.
        keeps_contents: tokens and merges stay at hand; without them a large one takes half the memory.
    """
    if content.keys:
        return take_gguf_apart(content.keys)
    return take_apart(content.raw, content.whole, content.settings, keeps_contents=keeps_contents)


def take_apart(
    raw: Mapping[str, bytes],
    whole: Mapping[str, bytes],
    settings: Mapping[str, JsonObject],
    *,
    keeps_contents: bool = True,
) -> Anatomy:
    """The parts of a tokenizer in files.

    Args:
        raw: file name → bytes, of those that can be taken apart.
        whole: file name → BLAKE3 of all other vocabulary files, of code, and of these.
        settings: file name → JSON of the small ones, such as `tokenizer_config.json`.
        keeps_contents: tokens and merges stay at hand.
    """
    taken, not_read = _Taken(keeps_contents=keeps_contents), []
    apart: set[str] = set()
    damage = None
    try:
        if FAST_TOKENIZER in raw:
            _take_fast(raw[FAST_TOKENIZER], taken)
            apart.add(FAST_TOKENIZER)
        elif FAST_TOKENIZER not in whole:
            apart |= _take_slow(raw, taken)
    except (_NotReadable, msgspec.MsgspecError, UnicodeDecodeError, UnicodeEncodeError, RecursionError) as error:
        name = FAST_TOKENIZER if FAST_TOKENIZER in raw else _SLOW_VOCABULARY
        damage = f"{name} could not be taken apart ({error})"
        not_read.append(f"{name} is compared as a whole: it could not be taken apart ({error})")
        taken = _Taken(keeps_contents=keeps_contents)
    if FAST_TOKENIZER in whole and FAST_TOKENIZER not in raw:
        not_read.append(f"{FAST_TOKENIZER} is compared as a whole: it is larger than is taken apart")
    others = sorted(whole.keys() - apart)
    for name in others:
        taken.digests[name] = whole[name].hex()
    # Beside a tokenizer.json these are sources of it that engines may use instead.
    opaque = [name for name in others if name != FAST_TOKENIZER and not (apart and name.endswith((".json", ".txt")))]
    not_read += [
        f"{name} is compared as a whole: {'what code does' if name.endswith('.py') else 'its format'} is not read"
        for name in opaque
    ]
    for name, value in sorted(settings.items()):
        taken.put(name, value)
    return _anatomy(taken, not_read, damage)


def take_gguf_apart(keys: Mapping[str, bytes]) -> Anatomy:
    """The parts of a tokenizer in the metadata of a GGUF file.

    Args:
        keys: metadata key → BLAKE3 of the stored value.
    """
    digests = {_GGUF_PARTS.get(key, key): digest.hex() for key, digest in sorted(keys.items())}
    not_read = ("a GGUF file's tokenizer is compared key by key: which tokens changed is not read",) if keys else ()
    return Anatomy(digests=digests, vocabulary=None, merges=None, values={}, counts={}, not_read=not_read)


def _anatomy(taken: _Taken, not_read: list[str], damage: str | None) -> Anatomy:
    return Anatomy(
        digests=dict(sorted(taken.digests.items())),
        vocabulary=taken.vocabulary,
        merges=taken.merges,
        values=taken.values,
        counts=taken.counts,
        not_read=tuple(not_read),
        damage=damage,
    )


def _take_fast(data: bytes, taken: _Taken) -> None:
    """The parts of tokenizer.json.

    Raises:
        _NotReadable: it has more than any tokenizer.
        MsgspecError: it is not JSON of that form.
    """
    top = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw])
    for key, raw in sorted(top.items()):
        if key not in _NO_PART:
            taken.put(_STEPS.get(key, key), _small(raw, key))
    model = msgspec.json.decode(top["model"], type=dict[str, msgspec.Raw]) if "model" in top else {}
    rest = {key: _small(raw, key) for key, raw in sorted(model.items()) if key not in ("vocab", "merges")}
    if rest:
        taken.put(_MODEL_SETTINGS, rest)
    if "vocab" in model:
        _take_vocabulary(model["vocab"], taken)
    if "merges" in model:
        _require_bounded(model["merges"], MERGES)
        merge = msgspec.json.Decoder(str | tuple[str, str])
        taken.put_merges(
            _pair(merge.decode(raw)) for raw in msgspec.json.decode(model["merges"], type=list[msgspec.Raw])
        )


def _take_vocabulary(raw: msgspec.Raw, taken: _Taken) -> None:
    _require_bounded(raw, VOCABULARY)
    vocabulary = msgspec.json.decode(raw, type=dict[str, int] | list[tuple[str, float]])
    if isinstance(vocabulary, dict):
        taken.put_vocabulary(vocabulary)
        return
    # Unigram: a token's id is its place.
    taken.digests["scores"] = blake3(msgspec.json.encode([score for _, score in vocabulary])).hexdigest()
    taken.put_vocabulary({token: number for number, (token, _) in enumerate(vocabulary)})


def _take_slow(raw: Mapping[str, bytes], taken: _Taken) -> set[str]:
    """The parts of vocab.json and merges.txt; the files that were taken apart."""
    apart = set()
    if _SLOW_VOCABULARY in raw:
        data = raw[_SLOW_VOCABULARY].removeprefix(b"\xef\xbb\xbf")
        _require_bounded(data, VOCABULARY)
        taken.put_vocabulary(msgspec.json.decode(data, type=dict[str, int]))
        apart.add(_SLOW_VOCABULARY)
    if _SLOW_MERGES in raw:
        lines = raw[_SLOW_MERGES].decode().splitlines()
        if len(lines) > _MAX_COMMAS:
            raise _NotReadable(f"its {MERGES} have {len(lines)} lines; the limit is {_MAX_COMMAS}")
        taken.put_merges(_pair(line) for line in lines if line.strip() and not line.startswith("#version"))
        apart.add(_SLOW_MERGES)
    return apart


def _small(raw: msgspec.Raw, what: str) -> object:
    """The JSON of a step, bounded in size and depth."""
    data = bytes(raw)
    if len(data) > _MAX_STEP_BYTES:
        raise _NotReadable(f"its {what} has {len(data)} bytes; the limit is {_MAX_STEP_BYTES}")
    value: object = msgspec.json.decode(data)
    if data.count(b"[") + data.count(b"{") > MAX_JSON_DEPTH and _is_deep(value):
        raise _NotReadable(f"its {what} is nested deeper than {MAX_JSON_DEPTH} levels")
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)


def _require_bounded(raw: bytes | msgspec.Raw, what: str) -> None:
    commas = bytes(raw).count(b",")
    if commas > _MAX_COMMAS:
        raise _NotReadable(f"its {what} has more than {_MAX_COMMAS} items, the limit")


def _pair(merge: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(merge, tuple):
        return merge
    left, separator, right = merge.partition(" ")
    if not separator or " " in right:
        raise _NotReadable("one of its merges is no pair")
    return left, right
