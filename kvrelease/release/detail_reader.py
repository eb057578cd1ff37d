"""Reads what a fingerprint keeps beside its digests: the tokenizer taken apart, code, and preprocessors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.canonical import encode_json
from kvrelease.release.details import ROPE_KEYS, Details, TemplatePart, TokenizerParts, code_places
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import CONFIG_NAME
from kvrelease.release.small_files import read_bytes, read_json_object
from kvrelease.release.source import Source, SourceFile
from kvrelease.release.tokenizer import TOKENIZER_CONFIG_NAME, TextSide
from kvrelease.release.tokenizer_parts import ALGORITHM, FAST_TOKENIZER, anatomy_of
from kvrelease.release.tokenizer_probe import PROBE_NAME, ProbeFailed, probe_tokenizer

# What turns images, video and sound into a model's inputs. Source: transformers 5.24.0, utils/__init__.py
# (`IMAGE_PROCESSOR_NAME`, `VIDEO_PROCESSOR_NAME`, `PROCESSOR_NAME`).
PREPROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
# Say who wrote the file, or where it lay.
_DROPPED = frozenset({"_commit_hash", "_name_or_path", "name_or_path", "transformers_version"})


def read_details(
    source: Source, text_side: TextSide, *, config: JsonObject | None, is_in_files: bool, mode: Mode, memo: Memo | None
) -> Details:
    """What a release's parts are made of.

    Args:
        source: of its files.
        text_side: as it was read from there.
        config: entries of `config.json` as it states them; None where there is none.
        is_in_files: files beside the weights count; False where the weight file says it all.
        mode: in mode `fast` a tokenizer is not taken apart, unless that was done before.
        memo: of earlier runs; None to take every tokenizer apart.

    Raises:
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    content = text_side.content
    names = [name for name in source.names() if "/" not in name]
    processors = _processors(source) if is_in_files else {}
    configurations = {
        CONFIG_NAME: config if is_in_files and config is not None else {},
        TOKENIZER_CONFIG_NAME: content.settings.get(TOKENIZER_CONFIG_NAME, {}),
        **{name: value for name, (value, _) in processors.items()},
    }
    code_of = tuple(name for name, value in configurations.items() if value.get("auto_map"))
    return Details(
        tokenizer=_tokenizer(text_side, mode=mode, memo=memo),
        templates=_templates(content.templates),
        shadowed=_templates(content.shadowed),
        generation=content.generation,
        code={name: _hash(source.file(name)) for name in names if name.endswith(".py")} if code_of else {},
        code_of=code_of,
        code_elsewhere=tuple(sorted({place for name in code_of for place in code_places(configurations[name])})),
        preprocessor={name: digest for name, (_, digest) in processors.items()},
        rope_keys=tuple(key for key in ROPE_KEYS if key in configurations[CONFIG_NAME]),
    )


def _tokenizer(text_side: TextSide, *, mode: Mode, memo: Memo | None) -> TokenizerParts | None:
    if text_side.tokenizer is None:
        return None
    key = f"{ALGORITHM} {PROBE_NAME} {text_side.tokenizer}"
    known = None if memo is None else memo.recall_derived(key)
    if known is not None:
        try:
            return msgspec.msgpack.decode(known, type=TokenizerParts)
        except msgspec.MsgspecError:
            pass  # another version wrote it: taken apart again
    if mode is Mode.FAST:
        return None
    content = text_side.content
    anatomy = anatomy_of(content, keeps_contents=False)
    not_read = list(anatomy.not_read)
    probe = None
    if FAST_TOKENIZER in content.raw:
        try:
            probe = probe_tokenizer(content.raw[FAST_TOKENIZER])
        except ProbeFailed as error:
            not_read.append(f"what a fixed text becomes was not tried: {error}")
    else:
        not_read.append(f"what a fixed text becomes was not tried: only a {FAST_TOKENIZER} can be run")
    found = TokenizerParts(
        algorithm=ALGORITHM, parts=anatomy.digests, counts=anatomy.counts, not_read=tuple(not_read), probe=probe
    )
    if memo is not None and (probe is not None or FAST_TOKENIZER not in content.raw):
        memo.remember_derived(key, msgspec.msgpack.encode(found))
    return found


def _templates(templates: Mapping[str, str]) -> dict[str, TemplatePart]:
    return {
        name: TemplatePart(digest=blake3(text.encode()).hexdigest(), lines=len(text.splitlines()))
        for name, text in sorted(templates.items())
    }


def _processors(source: Source) -> dict[str, tuple[JsonObject, str]]:
    """File name → its JSON without what does not count, and the digest of that; of what is no JSON, of the bytes."""
    found: dict[str, tuple[JsonObject, str]] = {}
    present = source.names()
    for name in PREPROCESSOR_FILES:
        if name in present:
            file = source.file(name)
            try:
                kept = {key: value for key, value in read_json_object(file).items() if key not in _DROPPED}
                found[name] = (kept, blake3(encode_json(kept)).hexdigest())
            except DamagedFile:
                found[name] = ({}, _hash(file))
    return found


def _hash(file: SourceFile) -> str:
    return blake3(read_bytes(file)).hexdigest()
