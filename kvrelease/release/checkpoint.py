"""Which files and tensors an engine would load from a directory, checked before anything is hashed.

The rule is that of vLLM's `hf` loader: the files that the index names, or without an index every `*.safetensors` of the
directory itself; all tensors of a chosen file are loaded, those that the index forgot too. Where other engines choose
otherwise, a warning says so; where Mistral's own layout lies beside the usual one, engines load one or the other, and
both count. Source: vllm 0.32.0, vllm/model_executor/model_loader/default_loader.py (`_prepare_weights`) and
weight_utils.py (`filter_duplicate_safetensors_files`); transformers 5.24.0, modeling_utils.py
(`_get_resolved_checkpoint_files`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.printable import listed
from kvrelease.release.model_config import CONFIG_NAME
from kvrelease.release.release_file import FileRole, ReleaseFile, release_file
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.shard_index import CONSOLIDATED_INDEX_NAME, INDEX_NAME, read_weight_map
from kvrelease.release.source import HUB_PREFIX, Source, SourceFile
from kvrelease.release.weights import SAFETENSORS_SUFFIX, WeightFile

SINGLE_NAME = "model.safetensors"
# Mistral's own layout, which vLLM's load format `auto` prefers to the usual one.
CONSOLIDATED = "consolidated"

# Which one file some loader takes in place of an index's shards, and the loader. Source: mistralai/mistral-inference at
# 16bb637, src/mistral_inference/transformer.py (`from_folder`).
_SINGLE_OF_INDEX = {
    INDEX_NAME: (SINGLE_NAME, "transformers"),
    CONSOLIDATED_INDEX_NAME: (f"{CONSOLIDATED}{SAFETENSORS_SUFFIX}", "mistral-inference"),
}

# Weights in forms that are not loaded beside safetensors, a part's own too (mm_projector.bin); training state
# (optimizer.pt, …) and vocabularies are no weights.
_OTHER_WEIGHTS = (
    "*.bin",
    "*.ckpt",
    "*.gguf",
    "*.pt",
    "*.pth",
    "*.h5",
    "*.msgpack",
)
_TRAINING_STATE = ("*training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
_VOCABULARIES = ("tokenizer*.bin", "vocab*.bin")
_OTHER_WEIGHT, _NO_WEIGHT = (
    re.compile("|".join(map(fnmatch.translate, patterns)))
    for patterns in (_OTHER_WEIGHTS, (*_TRAINING_STATE, *_VOCABULARIES))
)
_SHARD_NUMBER = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors\Z")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What would be loaded.

    Attributes:
        files: chosen weight files, headers sound; a tensor name may occur in two of them.
        other_files: the index, and weight files that are not loaded.
        warnings: where engines disagree, or where something is left over.
        unread: weights that an engine may load in place of these; a sentence each, with the next step.
    """

    files: tuple[WeightFile, ...]
    other_files: tuple[ReleaseFile, ...]
    warnings: tuple[str, ...]
    unread: tuple[str, ...] = ()


def read_checkpoint(source: Source) -> Checkpoint:
    """What an engine would load from a model directory, or from one `.safetensors` file.

    Raises:
        NotFound: no such file, no weights, or shards that are absent.
        DamagedFile: a file that is not what it claims, or an index that contradicts the shards.
        UnsupportedRelease: only pickles, an adapter without its base, or one shard of several.
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    if source.single_file is None:
        return _read_directory(source)
    file = source.file(source.single_file)
    file.identity()
    numbered = _SHARD_NUMBER.match(file.name)
    if numbered and int(numbered[3]) > 1:
        raise UnsupportedRelease(
            f"reading {file.where}: it is one shard of {int(numbered[3])}, not a release",
            hint=f"give {source.where} instead",
        )
    for index_name in (INDEX_NAME, CONSOLIDATED_INDEX_NAME):
        if index_name in source.names():
            shards = set(read_weight_map(source.file(index_name)).values())
            if file.name in shards and len(shards) > 1:
                raise UnsupportedRelease(
                    f"reading {file.where}: it is one of the {len(shards)} shards that {index_name} names, not a "
                    "release",
                    hint=f"give {source.where} instead",
                )
    names = [name for name in source.names() if "/" not in name]
    extra, warnings = unread_weights(source, names, [file.name])
    unread = []
    if INDEX_NAME in names and file.name not in read_weight_map(source.file(INDEX_NAME)).values():
        unread.append(
            f"beside {file.name!r} lies {INDEX_NAME}, which names other files: engines that are given the directory "
            "load those, which were not read; remove one of the two"
        )
    return Checkpoint(
        files=(read_safetensors(file),), other_files=extra, warnings=tuple(warnings), unread=tuple(unread)
    )


def _read_directory(source: Source) -> Checkpoint:
    """The weights of a directory, and with them those of Mistral's own layout where both are there."""
    names = [name for name in source.names() if "/" not in name]
    consolidated = [name for name in names if name.startswith(CONSOLIDATED) and name.endswith(SAFETENSORS_SUFFIX)]
    usual = _read_usual(source, [name for name in names if name not in consolidated])
    if consolidated:
        own = _read_consolidated(source, names, consolidated)
        usual = own if usual is None else _both_layouts(usual, own)
    if usual is None:
        raise _nothing_to_load(source, names)
    extra, notes = unread_weights(source, names, [weights.file.name for weights in usual.files])
    return msgspec.structs.replace(usual, other_files=(*usual.other_files, *extra), warnings=(*usual.warnings, *notes))


def _both_layouts(usual: Checkpoint, own: Checkpoint) -> Checkpoint:
    """Both of two layouts: which of them is served is decided by the engine and its flags, so both decide KV."""
    first = usual.files[0].file.name
    known = {weights.file.name for weights in usual.files}
    files = [weights for weights in own.files if weights.file.name not in known]
    size_bytes = sum(weights.identity.size_bytes for weights in files)
    note = (
        "two layouts of the weights lie here: vLLM's load format `auto` loads "
        f"{listed([weights.file.name for weights in own.files])}, other engines {first!r}; both are read and decide "
        f"the kv name, which takes {size_bytes} bytes more: remove the one that is not served"
    )
    return Checkpoint(
        files=(*usual.files, *files),
        other_files=(*usual.other_files, *own.other_files),
        warnings=(*usual.warnings, *own.warnings, note),
        unread=(*usual.unread, *own.unread),
    )


def _read_usual(source: Source, names: Sequence[str]) -> Checkpoint | None:
    """What the index names, or every safetensors file that is no adapter; None where there is neither."""
    if INDEX_NAME in names:
        return _read_indexed(source, names)
    adapters = [name for name in names if name.startswith("adapter_model")]
    chosen = [name for name in names if name.endswith(SAFETENSORS_SUFFIX) and name not in adapters]
    if not chosen:
        return None
    _check_shard_numbers(source.where, chosen)
    warnings = []
    if len(chosen) > 1:
        warnings.append(
            f"there is no {INDEX_NAME}, so all {len(chosen)} safetensors files are read, as vLLM does: {listed(chosen)}"
            f"; transformers would load only {SINGLE_NAME}, if it is there"
        )
    files = tuple(read_safetensors(source.file(name)) for name in chosen)
    return Checkpoint(files=files, other_files=(), warnings=tuple(warnings))


def _read_consolidated(source: Source, names: Sequence[str], consolidated: Sequence[str]) -> Checkpoint:
    """Mistral's own layout: what its index names, or every file that is called so."""
    if CONSOLIDATED_INDEX_NAME in names:
        return _read_indexed(source, names, CONSOLIDATED_INDEX_NAME)
    _check_shard_numbers(source.where, consolidated)
    files = tuple(read_safetensors(source.file(name)) for name in consolidated)
    return Checkpoint(files=files, other_files=(), warnings=())


def _nothing_to_load(source: Source, names: Sequence[str]) -> NotFound | UnsupportedRelease:
    where = source.where
    if "adapter_config.json" in names or any(name.startswith("adapter_model") for name in names):
        return UnsupportedRelease(
            f"reading {where}: it holds a LoRA adapter without its base model",
            hint="give the base model's directory",
        )
    others = _other_weights(names)
    if others:
        return UnsupportedRelease(
            f"reading {where}: it holds no safetensors, only pickles ({listed(others)}); nothing is ever unpickled",
            hint="convert it: load it with transformers where you trust it, and save_pretrained() the model",
        )
    if not names and (below := source.names_below()):
        folders = sorted({name.rpartition("/")[0] for name in below})
        models = [folder for folder in folders if f"{folder}/{CONFIG_NAME}" in below] or folders
        # A sub-folder of a model on the Hub has no address of its own.
        address = shlex.quote(f"{where.rstrip('/')}/{models[0]}")
        example = "" if where.startswith(HUB_PREFIX) else f", as in {address}"
        return NotFound(
            f"reading {where}: it holds no files, only directories: {listed(models)}",
            hint=f"give the one that holds config.json and the weights{example}",
        )
    if not names:
        return NotFound(f"reading {where}: the directory is empty", hint="give the directory that holds config.json")
    return NotFound(
        f"reading {where}: no *.safetensors among its {len(names)} files",
        hint="give the directory that holds the weights and config.json",
    )


def _check_shard_numbers(where: str, names: Sequence[str]) -> None:
    """Without an index only the numbers in the names tell that a shard is absent."""
    matches = [match for match in map(_SHARD_NUMBER.match, names) if match]
    for stem, total in sorted({(match[1], match[3]) for match in matches}):
        present = {int(match[2]) for match in matches if (match[1], match[3]) == (stem, total)}
        absent = [number for number in range(1, min(int(total), 100_000) + 1) if number not in present]
        if absent:
            missing = [f"{stem}-{number:0{len(total)}d}-of-{total}.safetensors" for number in absent]
            raise NotFound(
                f"reading {where}: {len(missing)} of {int(total)} shards are absent: {listed(missing)}",
                hint="the download is incomplete: run it again",
            )


def _read_indexed(source: Source, names: Sequence[str], index_name: str = INDEX_NAME) -> Checkpoint:
    index = source.file(index_name)
    weight_map = read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not source.has(shard)]
    if absent:
        tensor = next(name for name, shard in sorted(weight_map.items()) if shard in absent)
        raise NotFound(
            f"reading {source.where}: {len(absent)} of the {len(shards)} shards that {index_name} names are absent: "
            f"{listed(absent)}; tensor {tensor!r} is in one of them",
            hint="the download is incomplete: run it again",
        )
    files = tuple(read_safetensors(source.file(shard)) for shard in shards)
    warnings = _compare_with_index(index, weight_map, files)
    unread = []
    single, its_reader = _SINGLE_OF_INDEX[index_name]
    if single in names and single not in shards:
        unread.append(
            f"{single} lies beside {index_name}, which does not name it: vLLM loads the index's shards, {its_reader} "
            f"{single}, which was not read; remove one of the two"
        )
    return Checkpoint(
        files=files,
        other_files=(release_file(index, FileRole.INDEX),),
        warnings=tuple(warnings),
        unread=tuple(unread),
    )


def _compare_with_index(index: SourceFile, weight_map: Mapping[str, str], files: Sequence[WeightFile]) -> list[str]:
    """Warnings for tensors that lie elsewhere than the index says, or that it forgot.

    Raises:
        DamagedFile: a tensor of the index is in none of its shards.
    """
    held = {file.file.name: {tensor.name for tensor in file.tensors} for file in files}
    present: set[str] = set().union(*held.values())
    lost = sorted(weight_map.keys() - present)
    if lost:
        raise DamagedFile(
            f"reading {index.where}: {len(lost)} tensors are not in the shard it names, nor in another: {listed(lost)}"
            f"; the first should be in {weight_map[lost[0]]!r}",
            hint="index and shards come from two versions: download both again",
        )
    warnings = []
    moved = sorted(name for name, shard in weight_map.items() if name not in held[shard])
    if moved:
        warnings.append(f"{len(moved)} tensors are in another shard than {index.name} says: {listed(moved)}")
    forgotten = sorted(present - weight_map.keys())
    if forgotten:
        warnings.append(
            f"{len(forgotten)} tensors are in the shards but not in {index.name}: {listed(forgotten)}; engines load "
            "whole shards, so they count"
        )
    return warnings


def _other_weights(names: Sequence[str]) -> list[str]:
    return [name for name in names if _OTHER_WEIGHT.match(name) and not _NO_WEIGHT.match(name)]


def unread_weights(
    source: Source, names: Sequence[str], chosen: Sequence[str]
) -> tuple[tuple[ReleaseFile, ...], list[str]]:
    """Weight files that are not loaded, and the warnings about them."""
    unused = [name for name in names if name.endswith(SAFETENSORS_SUFFIX) and name not in chosen]
    others = [name for name in _other_weights(names) if name not in chosen]
    warnings = []
    if unused or others:
        warnings.append(f"weight files that are not part of the release: {listed([*unused, *others])}")
    rows = []
    for name in [*unused, *others]:
        # A link that leads nowhere is named in the warning; its size is not known, so it has no row.
        with contextlib.suppress(InputError):
            rows.append(release_file(source.file(name), FileRole.EXTRA))
    return tuple(rows), warnings
