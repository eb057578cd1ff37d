"""The model that one GGUF file begins, or that a directory of GGUF files holds: all its parts, and its projector.

Source: llama.cpp b11434, src/llama-model-loader.cpp (constructor: the parts of a split model, whose metadata is the
first part's) and src/llama.cpp (`llama_split_path`: their names).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, NotFound, UnsupportedRelease
from kvrelease.printable import listed
from kvrelease.release.checkpoint import Checkpoint, unread_weights
from kvrelease.release.gguf import GgufFile, read_gguf
from kvrelease.release.gguf_metadata import ARCHITECTURE, TYPE, Metadata
from kvrelease.release.source import Source
from kvrelease.release.weights import GGUF_SUFFIX, SAFETENSORS_SUFFIX

# The projector's settings lie beside those of the model, under this key; no GGUF key is without a dot.
PROJECTOR = "mmproj"

_PART = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})\.gguf\Z", re.DOTALL)
# By their names, as llama.cpp's own tools write them; what they are is checked where they are read.
_BESIDES = ("mmproj", "imatrix")
# Files of a safetensors release; a GGUF file brings its own.
_OWN_SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class GgufModel(msgspec.Struct, frozen=True, kw_only=True):
    """What would be loaded.

    Attributes:
        name: of the model, from its file name.
        checkpoint: the files: the parts in their order, then the projector.
        metadata: of the first part.
        configuration: the model's, and the projector's under `mmproj`.
    """

    name: str
    checkpoint: Checkpoint
    metadata: Metadata
    configuration: JsonObject


def holds_gguf(source: Source) -> bool:
    """Whether a source is a GGUF file, or a directory whose only weights are."""
    if source.single_file is not None:
        return source.single_file.endswith(GGUF_SUFFIX)
    names = _top_level(source)
    return any(name.endswith(GGUF_SUFFIX) for name in names) and not any(
        name.endswith(SAFETENSORS_SUFFIX) for name in names
    )


def read_gguf_model(source: Source) -> GgufModel:
    """The model of a GGUF file, wherever its other parts lie beside it, or of a directory that holds one model.

    Raises:
        NotFound: no such file, or parts that are absent.
        DamagedFile: a file that is not what it claims, or parts that do not belong together.
        UnsupportedRelease: several models in a directory, or a file that is no model.
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    names = _top_level(source)
    projectors = [
        name
        for name in names
        if name.endswith(GGUF_SUFFIX) and PROJECTOR in name.lower() and name != source.single_file
    ]
    if source.single_file is None:
        chosen = _only_model(source.where, [name for name in names if name.endswith(GGUF_SUFFIX)])
        if len(projectors) > 1:
            raise UnsupportedRelease(
                f"reading {source.where}: it holds several multimodal projectors: {listed(projectors)}",
                hint="leave the one that is served, or give the model's file, if only text is",
            )
    else:
        chosen = source.single_file
    parts = _read_parts(source, chosen)
    first = parts[0].metadata
    _require_model(first, parts[0].weights.file.where)
    warnings = _about(first, parts, beside=[name for name in _OWN_SETTINGS if name in names])
    configuration = dict(first.configuration)
    if projectors and source.single_file is None:
        projector = _read_projector(source, projectors[0])
        if PROJECTOR in configuration:
            raise DamagedFile(f"reading {parts[0].weights.file.where}: it has a key {PROJECTOR!r}, which no model has")
        parts = [*parts, projector]
        configuration[PROJECTOR] = projector.metadata.configuration
    elif projectors:
        warnings.append(
            f"multimodal projectors lie beside it: {listed(projectors)}; only the named model is read, and KV of "
            "images depends on the projector too (give the directory to count it)"
        )
    _refuse_duplicates(parts)
    files = tuple(part.weights for part in parts)
    is_directory = source.single_file is None
    extra, notes = unread_weights(source, names if is_directory else (), [weights.file.name for weights in files])
    return GgufModel(
        name=_stem(chosen),
        checkpoint=Checkpoint(files=files, other_files=extra, warnings=(*warnings, *notes)),
        metadata=first,
        configuration=configuration,
    )


def _top_level(source: Source) -> list[str]:
    return [name for name in source.names() if "/" not in name]


def _stem(name: str) -> str:
    """The model's name: `qwen-Q4_K` of `qwen-Q4_K-00002-of-00003.gguf`."""
    part = _PART.match(name)
    return name.removesuffix(GGUF_SUFFIX) if part is None else part[1]


def _only_model(where: str, names: Sequence[str]) -> str:
    """The file that begins the one model of a directory.

    Raises:
        UnsupportedRelease: there are several, or none.
    """
    models = [name for name in names if not any(word in name.lower() for word in _BESIDES)]
    first: dict[tuple[str, str], str] = {}
    for name in sorted(models):
        part = _PART.match(name)
        first.setdefault((_stem(name), "" if part is None else part[3]), name)
    if not models:
        raise UnsupportedRelease(
            f"reading {where}: it holds no model, only {listed(names)}", hint="give the directory that holds the model"
        )
    if len(first) > 1:
        raise UnsupportedRelease(
            f"reading {where}: it holds {len(first)} GGUF models: {listed(sorted(first.values()))}",
            hint="give the file of one of them (of a split model, any part)",
        )
    return next(iter(first.values()))


def _read_parts(source: Source, chosen: str) -> list[GgufFile]:
    """All parts of the model that a file belongs to, in their order."""
    file = read_gguf(source.file(chosen))
    where, count = file.weights.file.where, file.metadata.split_count
    part = _PART.match(chosen)
    if count == 1 and (part is None or int(part[3]) == 1):
        return [file]
    number = 0 if file.metadata.split_number is None else file.metadata.split_number
    if part is None or (int(part[2]) - 1, int(part[3])) != (number, count):
        raise DamagedFile(
            f"reading {where}: its metadata say part {number + 1} of {count}, its name does not: engines find the "
            "other parts by name",
            hint=f"name it {_stem(chosen)}-{number + 1:05d}-of-{count:05d}{GGUF_SUFFIX}, and the others likewise",
        )
    names = [f"{part[1]}-{number + 1:05d}-of-{count:05d}{GGUF_SUFFIX}" for number in range(count)]
    # A listing answers for thousands of names at once; a file in a sub-folder is in none.
    present = set(source.names())
    absent = [name for name in names if not (name in present if chosen in present else source.has(name))]
    if absent:
        raise NotFound(
            f"reading {source.where}: {len(absent)} of the {count} parts of the model are absent: {listed(absent)}",
            hint="the download is incomplete: run it again",
        )
    parts = [file if name == chosen else read_gguf(source.file(name)) for name in names]
    for expected, found in enumerate(parts):
        metadata = found.metadata
        if (metadata.split_number, metadata.split_count) != (expected, count):
            raise DamagedFile(
                f"reading {found.weights.file.where}: its name says part {expected + 1} of {count}, its metadata say "
                f"part {(metadata.split_number or 0) + 1} of {metadata.split_count}",
                hint="the parts come from two versions: download all of them again",
            )
    promised, tensors = parts[0].metadata.split_tensors, sum(len(found.weights.tensors) for found in parts)
    if promised is not None and promised != tensors:
        raise DamagedFile(
            f"reading {parts[0].weights.file.where}: it promises {promised} tensors in {count} parts, which have "
            f"{tensors}",
            hint="the parts come from two versions: download all of them again",
        )
    return parts


def _require_model(metadata: Metadata, where: str) -> None:
    """Refuses GGUF files that hold something else than a model."""
    kind = metadata.configuration.get(TYPE)
    if kind == "adapter":
        raise UnsupportedRelease(
            f"reading {where}: it is a LoRA adapter without its base model", hint="give the base model's file"
        )
    if kind == "mmproj" or metadata.configuration.get(ARCHITECTURE) == "clip":
        raise UnsupportedRelease(
            f"reading {where}: it is a multimodal projector without its model",
            hint="give the model's file, or the directory that holds both",
        )
    if kind not in (None, "model"):
        raise UnsupportedRelease(f"reading {where}: its general.type is {kind!r}, so it is no model")


def _read_projector(source: Source, name: str) -> GgufFile:
    projector = read_gguf(source.file(name))
    metadata = projector.metadata
    if metadata.configuration.get(TYPE) != "mmproj" and metadata.configuration.get(ARCHITECTURE) != "clip":
        raise UnsupportedRelease(
            f"reading {projector.weights.file.where}: its name says multimodal projector, its metadata do not",
            hint="give the model's file",
        )
    return projector


def _about(first: Metadata, parts: Sequence[GgufFile], *, beside: Sequence[str]) -> list[str]:
    warnings = []
    if ARCHITECTURE not in first.configuration:
        warnings.append(f"the metadata lack {ARCHITECTURE}, without which llama.cpp loads no model")
    ignored = [part.weights.file.name for part in parts[1:] if _has_content(part.metadata)]
    if ignored:
        warnings.append(f"later parts have metadata of their own, which engines do not read: {listed(ignored)}")
    if beside:
        warnings.append(
            f"a GGUF file brings its own configuration and tokenizer, so these are not read: {listed(beside)}; an "
            "engine that is pointed at them may do otherwise"
        )
    return warnings


def _has_content(metadata: Metadata) -> bool:
    return bool(metadata.configuration or metadata.tokenizer or metadata.templates)


def _refuse_duplicates(parts: Sequence[GgufFile]) -> None:
    """A tensor may be in one part only: llama.cpp refuses others."""
    seen: dict[str, str] = {}
    for part in parts:
        for tensor in part.weights.tensors:
            first = seen.setdefault(tensor.name, tensor.where)
            if first != tensor.where:
                raise DamagedFile(f"reading tensor {tensor.name!r}: it is in {first} and again in {tensor.where}")
    if not seen:
        raise UnsupportedRelease(
            f"reading {parts[0].weights.file.where}: it has no tensors; a vocabulary alone is no release"
        )
