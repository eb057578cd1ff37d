"""The metadata of a GGUF file, sorted by what it is for: only some of it changes what an engine computes.

Source: llama.cpp b11434, src/llama-arch.cpp (`LLM_KV_NAMES`), src/llama-model-loader.cpp (`general.file_type` is only
displayed; `split.*`), src/llama-vocab.cpp, and convert/gguf-py/gguf/constants.py (`Keys`) for the labels.
"""

from __future__ import annotations

import enum
import struct

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.release.gguf_cursor import HeaderCursor
from kvrelease.release.gguf_values import MAX_INLINE_BYTES, StoredValue, ValueType, read_value
from kvrelease.release.small_files import with_plain_line_ends

# The largest real models have some 100 keys, and 20 KB of names and settings beside tokenizer and templates.
MAX_KEYS = 65_536
# Bounds memory to 45 MB: an array of one-byte numbers takes 37 times its bytes when it is decoded.
MAX_KEPT_BYTES = 1024 * 1024
# Chat templates that define tools have some 20 KB.
MAX_TEMPLATE_BYTES = 1024 * 1024
_MAX_KEY_BYTES = 65_535  # docs/gguf.md of ggml
_LEAST_PAIR_BYTES = 8 + 1 + 4 + 1
_LENGTH_BYTES = 8

ALIGNMENT = "general.alignment"
ARCHITECTURE = "general.architecture"
TYPE = "general.type"
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
_LAYOUT = frozenset({ALIGNMENT, SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS})

_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAMES = "tokenizer.chat_templates"  # repeats the names of the templates that have one

_LABELS = frozenset(
    {
        _TEMPLATE_NAMES,
        "general.author",
        "general.basename",
        "general.description",
        "general.doi",
        "general.file_type",
        "general.finetune",
        "general.languages",
        "general.license",
        "general.name",
        "general.organization",
        "general.quantized_by",
        "general.repo_url",
        "general.size_label",
        "general.tags",
        "general.url",
        "general.uuid",
        "general.version",
    }
)
_LABEL_FAMILIES = (
    "general.base_model.",
    "general.dataset.",
    "general.license.",
    "general.source.",
    "quantize.imatrix.",
)


NAME = "general.name"
# llama.cpp strips blanks after special tokens of models whose name has one of these words: a label that decides token
# ids. Source: llama.cpp, src/llama-vocab.cpp (`llama_vocab::impl::load`, "set attributes by model/tokenizer name").
_TOKENIZING_NAMES = (("phi-3", ("phi-3", "phi3")), ("modern-bert", ("modern-bert",)))


class KeyRole(enum.Enum):
    """What a key is for."""

    CONFIGURATION = "configuration"  # engines may compute with it; every key that is not known
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    SAMPLING = "sampling"
    LABEL = "label"  # says where the model comes from
    LAYOUT = "layout"  # says how the file is laid out


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata say.

    Attributes:
        configuration: key → value; a large value is `{"blake3": …, "bytes": …}`.
        tokenizer: key → BLAKE3 of the stored value.
        templates: chat template by name; the one without a name is `default`.
        sampling: recommended sampling parameters, keys whole.
        labels: key → value, in no digest.
        alignment: of the tensors, bytes; None when not said.
        split_number: of this part, from 0; None when not said.
        split_count: parts of the model; 1 when not said.
        split_tensors: in all parts; None when not said.
    """

    configuration: JsonObject
    tokenizer: dict[str, bytes]
    templates: dict[str, str]
    sampling: JsonObject
    labels: JsonObject
    alignment: int | None
    split_number: int | None
    split_count: int
    split_tensors: int | None


def key_role(key: str) -> KeyRole:
    """What a metadata key is for."""
    if key in _LAYOUT:
        return KeyRole.LAYOUT
    if key in _LABELS or key.startswith(_LABEL_FAMILIES):
        return KeyRole.LABEL
    if key.startswith("general.sampling."):
        return KeyRole.SAMPLING
    if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
        return KeyRole.TEMPLATE
    # The number of token types is a size of the model (BERT), whatever its prefix says.
    if key.startswith("tokenizer.") and key != "tokenizer.ggml.token_type_count":
        return KeyRole.TOKENIZER
    return KeyRole.CONFIGURATION


def read_metadata(cursor: HeaderCursor, count: int) -> Metadata:
    """The metadata that begin at the cursor.

    Args:
        cursor: at the first key.
        count: of the keys, as the file claims.

    Raises:
        DamagedFile: a key twice, a text that is not UTF-8, a value that the file is too short for.
        UnsupportedRelease: more than any model has.
    """
    cursor.require(count, _LEAST_PAIR_BYTES, what="keys")
    if count > MAX_KEYS:
        raise cursor.unsupported(f"announces {count} keys; the limit is {MAX_KEYS}")
    found: dict[KeyRole, dict[str, StoredValue]] = {role: {} for role in KeyRole}
    seen: set[str] = set()
    kept_bytes = 0
    for number in range(count):
        cursor.item = f"key {number + 1} of {count}"
        key = _read_key(cursor)
        cursor.item = f"key {key!r}"
        if key in seen:
            raise cursor.damaged("occurs twice")
        seen.add(key)
        role = key_role(key)
        value = read_value(cursor, max_kept_bytes=_kept_bytes(role))
        found[role][key] = value
        kept_bytes += len(key) + (len(value.raw) if role is not KeyRole.TEMPLATE else 0)
        if kept_bytes > MAX_KEPT_BYTES:
            raise cursor.unsupported(f"brings keys and settings to more than {MAX_KEPT_BYTES} bytes, the limit")
    templates = _templates(cursor, found[KeyRole.TEMPLATE])
    return Metadata(
        configuration=_as_json(found[KeyRole.CONFIGURATION]),
        tokenizer={
            **{key: value.digest for key, value in sorted(found[KeyRole.TOKENIZER].items())},
            **_tokenizing_name(found[KeyRole.LABEL].get(NAME)),
        },
        templates=templates,
        sampling=_as_json(found[KeyRole.SAMPLING]),
        labels=_as_json(found[KeyRole.LABEL]),
        alignment=_layout_number(cursor, found, ALIGNMENT, ValueType.UINT32),
        split_number=_layout_number(cursor, found, SPLIT_NUMBER, ValueType.UINT16),
        split_count=_layout_number(cursor, found, SPLIT_COUNT, ValueType.UINT16) or 1,
        split_tensors=_layout_number(cursor, found, SPLIT_TENSORS, ValueType.INT32),
    )


def _read_key(cursor: HeaderCursor) -> str:
    raw = cursor.string(max_bytes=_MAX_KEY_BYTES)
    try:
        key = raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.damaged(f"is not UTF-8 (byte {error.start})") from error
    if not key:
        raise cursor.damaged("has no name")
    return key


def _kept_bytes(role: KeyRole) -> int:
    match role:
        case KeyRole.TOKENIZER:
            return 0
        case KeyRole.TEMPLATE:
            return MAX_TEMPLATE_BYTES
        case _:
            return MAX_INLINE_BYTES


def _as_json(values: dict[str, StoredValue]) -> JsonObject:
    return {key: value.as_json() for key, value in sorted(values.items())}


def _templates(cursor: HeaderCursor, values: dict[str, StoredValue]) -> dict[str, str]:
    """Chat templates by name, line ends as in the files of a safetensors release."""
    templates = {}
    for key, value in sorted(values.items()):
        cursor.item = f"key {key!r}"
        if value.value_type is not ValueType.STRING:
            raise cursor.damaged("is no text")
        if not value.is_whole:
            raise cursor.unsupported(
                f"has {value.size_bytes} bytes, more than the {MAX_TEMPLATE_BYTES} of any template"
            )
        try:
            text = value.raw[_LENGTH_BYTES:].decode()
        except UnicodeDecodeError as error:
            raise cursor.damaged(f"is not UTF-8 (byte {error.start})") from error
        name = key.removeprefix(_TEMPLATE).removeprefix(".") or "default"
        if name in templates:
            raise cursor.damaged(f"is a second template with the name {name!r}")
        templates[name] = with_plain_line_ends(text)
    return templates


def _tokenizing_name(name: StoredValue | None) -> dict[str, bytes]:
    """What the model's name says about its tokenizer: the first word in it by which llama.cpp goes, if any."""
    text = b"" if name is None or name.value_type is not ValueType.STRING else name.raw[_LENGTH_BYTES:].lower()
    for word, spellings in _TOKENIZING_NAMES:
        if any(spelling.encode() in text for spelling in spellings):
            return {NAME: blake3(word.encode()).digest()}
    return {}


def _layout_number(
    cursor: HeaderCursor, found: dict[KeyRole, dict[str, StoredValue]], key: str, value_type: ValueType
) -> int | None:
    """A number that says how the file is laid out, of the one type that engines accept."""
    value = found[KeyRole.LAYOUT].get(key)
    if value is None:
        return None
    cursor.item = f"key {key!r}"
    if value.value_type is not value_type:
        raise cursor.damaged(f"is {value.value_type.name}, and has to be {value_type.name}")
    (number,) = struct.unpack({4: "<i" if value_type is ValueType.INT32 else "<I", 2: "<H"}[len(value.raw)], value.raw)
    return int(number)
