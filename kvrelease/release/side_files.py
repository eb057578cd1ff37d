"""Which JSON files beside `config.json` KV depends on, and what counts of each.

Whatever an engine may load changes KV, and code that a release brings may load anything. So every `*.json` at the top
of a release counts, unless it is one of those that are known to do nothing to KV. Sources: vllm 0.32.0,
model_executor/model_loader/weight_utils.py (`get_quant_config` matches the ends of names,
`get_sparse_attention_config`), transformers_utils/{config,processor,model_arch_config_convertor}.py; transformers
5.24.0, utils/__init__.py, processing_utils.py and configuration_utils.py (`get_configuration_file`).
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Mapping, Sequence

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, InputError
from kvrelease.printable import is_utf8, listed
from kvrelease.release.quantization import canonical_quantization, is_quantization_file
from kvrelease.release.small_files import read_json_object
from kvrelease.release.source import Source, SourceFile, read_chunks
from kvrelease.release.stand_in import refuse_pointer

# Engines load them, and KV depends on what they say: of images and sound that become inputs, of attention, and (params)
# of the configuration that vLLM prefers for Mistral's own layout.
COUNTED = frozenset(
    {
        "audio_tokenizer_config.json",
        "joint_head_config.json",
        "params.json",
        "preprocessor_config.json",
        "processor_config.json",
        "sparse_attention_config.json",
        "torchao_config.json",
        "video_preprocessor_config.json",
    }
)
# Of these, what turns images, video and sound into inputs. Source: transformers 5.24.0, utils/__init__.py
# (`IMAGE_PROCESSOR_NAME`, `VIDEO_PROCESSOR_NAME`, `PROCESSOR_NAME`), processing_utils.py (`audio_tokenizer`).
PREPROCESSORS = frozenset(
    {
        "audio_tokenizer_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
    }
)
# What does nothing to KV.
HARMLESS = (
    "config.json",  # is the configuration itself
    "*.index.json",  # says which tensor lies where
    # Have digests of their own: KV belongs to token ids.
    "added_tokens.json",
    "chat_template.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    # Refused beside a model (content.py), and not loaded beside a single file.
    "adapter_config.json",
    # What a pooler makes of the last layer's output, and how long texts may be.
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_*_config.json",
    # Of training and of evaluation.
    "*_results.json",
    "trainer_state.json",
    # Of places and tools: a model card, ModelScope's task, our own.
    "configuration.json",
    "kvrelease.json",
    "modelcard.json",
)
# A file that is larger counts by its hash: a fingerprint is no archive. Real ones have a few KB.
MAX_INLINE_BYTES = 1024 * 1024
# Say who wrote the file, or where it lay.
_DROPPED = frozenset({"_commit_hash", "_name_or_path", "transformers_version"})
_OUR_KINDS = "kvrelease/"


def counts_for_kv(name: str) -> bool:
    """Whether a file of that name, at the top of a release, counts for KV."""
    if "/" in name or name.startswith(".") or not name.endswith(".json"):  # engines list no hidden files
        return False
    return is_known_file(name) or not any(fnmatch.fnmatchcase(name, pattern) for pattern in HARMLESS)


def is_known_file(name: str) -> bool:
    """Whether it is known which engine loads a file of that name; others count because nobody knows."""
    return name in COUNTED or is_quantization_file(name)


def split_entries(entries: JsonObject) -> tuple[JsonObject, JsonObject]:
    """The entries of `config.json` itself, and those of the files beside it by their names."""
    beside = {key: value for key, value in entries.items() if counts_for_kv(key)}
    return {key: value for key, value in entries.items() if key not in beside}, beside


class SideFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside a configuration and counts.

    Attributes:
        entries: file name → what counts of it, an object, or `blake3:` and the hash of what is none; each is an entry
            of the canonical configuration.
        warnings: what an operator should know.
    """

    entries: Mapping[str, object]
    warnings: tuple[str, ...]


def read_side_files(source: Source) -> SideFiles:
    """The files beside `config.json` on which KV depends.

    Raises:
        DamagedFile: one that says how the checkpoint is quantised is no JSON object, or one is a Git LFS pointer.
        InputError: one cannot be read, or its name is no text.
        ServiceError: the store did not answer properly.
    """
    found = {name: _read(source.file(name)) for name in source.names() if counts_for_kv(name)}
    entries = {name: value for name, value in found.items() if value is not None}
    unknown = [name for name in entries if not is_known_file(name)]
    return SideFiles(entries=entries, warnings=tuple(_about_unknown(unknown)))


def _about_unknown(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        "files that no list of ours knows count for the kv digest, because code or an engine may load them: "
        f"{listed(names)}; move those that belong to no release elsewhere"
    ]


def _read(file: SourceFile) -> JsonObject | str | None:
    """What counts of a file; None of one that we wrote ourselves."""
    if not is_utf8(file.name):
        raise InputError(
            f"reading {file.where}: its name is not UTF-8, so no digest can have it", hint="rename or remove it"
        )
    if is_quantization_file(file.name):
        return canonical_quantization(read_json_object(file))
    if file.identity().size_bytes <= MAX_INLINE_BYTES:
        with contextlib.suppress(DamagedFile):  # no JSON object: it counts by its bytes
            content = read_json_object(file)
            kind = content.get("kind")
            if isinstance(kind, str) and kind.startswith(_OUR_KINDS) and not is_known_file(file.name):
                return None
            return {key: value for key, value in content.items() if key not in _DROPPED}
    return _hashed(file)


def _hashed(file: SourceFile) -> str:
    """The hash of a file as a text, which no object equals."""
    hasher = blake3()
    with file.open() as reader:
        for index, chunk in enumerate(read_chunks(reader)):
            if index == 0:
                refuse_pointer(chunk, where=file.where)
            hasher.update(chunk)
    return f"blake3:{hasher.hexdigest()}"
