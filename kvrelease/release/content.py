"""What a release consists of, read and canonical but for the bytes of its tensors; one function per format."""

from __future__ import annotations

import enum

import msgspec
from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.errors import NotFound, UnsupportedRelease
from kvrelease.release.adapter_config import ADAPTER_CONFIG_NAME
from kvrelease.release.auto_map import names_code, unread_code
from kvrelease.release.checkpoint import Checkpoint, read_checkpoint
from kvrelease.release.elsewhere import files_unread, weights_elsewhere
from kvrelease.release.gguf_model import holds_gguf, read_gguf_model
from kvrelease.release.impact import ALL_RULE, Rule, rule_for, rule_without, with_heads
from kvrelease.release.model_config import CONFIG_NAME, ModelConfig, read_model_config
from kvrelease.release.read_files import is_code
from kvrelease.release.release_file import FileRole, ReleaseFile, release_file, row_of
from kvrelease.release.side_files import SideFiles, read_side_files
from kvrelease.release.small_files import read_bytes
from kvrelease.release.source import Source
from kvrelease.release.tensor_metadata import with_metadata
from kvrelease.release.tokenizer import TextSide, embedded_text_side, read_text_side
from kvrelease.release.weights import StoredTensor


class Format(enum.StrEnum):
    """How the weights are stored, and with it how tensors and configuration keys are called."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One release.

    Attributes:
        format: of the weights.
        name: that the files give; None to use that of the place.
        checkpoint: the weight files.
        config: the canonical configuration, in the form of the rule; None when there is none.
        code: file name → BLAKE3 (hex) of code that the configuration brings.
        rule: the dependency rule.
        text_side: tokenizer, templates and generation defaults.
        files: all of them, as rows.
        labels: what the files say about where they come from; in no digest.
        unread: what KV depends on and no digest covers; a sentence each, with the next step.
    """

    format: Format
    name: str | None
    checkpoint: Checkpoint
    config: ModelConfig | None
    code: dict[str, str]
    rule: Rule
    text_side: TextSide
    files: tuple[ReleaseFile, ...]
    labels: JsonObject
    unread: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[StoredTensor]:
        """Of all chosen files, in their order; a name may occur twice."""
        return [tensor for file in self.checkpoint.files for tensor in file.tensors]


def read_content(source: Source) -> Content:
    """The content of a release in whichever format.

    Raises:
        NotFound: no weights, absent shards, or no config.json in a directory.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    return _read_gguf(source) if holds_gguf(source) else _read_safetensors(source)


def _read_safetensors(source: Source) -> Content:
    checkpoint = read_checkpoint(source)
    _refuse_adapter_inside(source)
    beside = read_side_files(source) if CONFIG_NAME in source.names() else None
    config = _read_config(source, beside)
    if config is not None:
        config = with_metadata(config, checkpoint.files)
    names = (tensor.name for file in checkpoint.files for tensor in file.tensors)
    rule = with_heads(rule_for(config), names, {} if config is None else config.entries)
    if config is not None and rule.name == ALL_RULE:
        config = msgspec.structs.replace(config, entries=config.stated)
    code = _read_code(source, config)
    text_side = read_text_side(source, model_config=None if config is None else config.stated)
    configurations = () if beside is None else (CONFIG_NAME, *beside.entries)
    named = [(name, FileRole.CONFIG) for name in configurations]
    named += [(name, FileRole.CODE) for name in code]
    small_files = [release_file(source.file(name), role) for name, role in named]
    return Content(
        format=Format.SAFETENSORS,
        name=None,
        checkpoint=checkpoint,
        config=config,
        code=code,
        rule=rule,
        text_side=text_side,
        files=tuple(
            # Code that both a configuration and the tokenizer name is one file.
            dict.fromkeys((*_weight_files(checkpoint), *small_files, *checkpoint.other_files, *text_side.files))
        ),
        labels={},
        unread=_unread(source, checkpoint, config, code, rule),
    )


def _unread(
    source: Source, checkpoint: Checkpoint, config: ModelConfig | None, code: dict[str, str], rule: Rule
) -> tuple[str, ...]:
    """What an engine may load and no digest covers. An architecture's own rule knows what is loaded for it."""
    if config is None:
        return checkpoint.unread
    own = (*checkpoint.unread, *unread_code(config.stated, code))
    has_code = names_code(config.stated)
    if rule.name != ALL_RULE and not has_code:
        return own
    names = [name for name in source.names() if "/" not in name] if source.single_file is None else []
    chosen = [weights.file.name for weights in checkpoint.files]
    files = files_unread(names, source.names_below(), chosen=chosen, has_code=has_code)
    return (*own, *weights_elsewhere(config.stated), *files)


def _refuse_adapter_inside(source: Source) -> None:
    """Refuses a model whose directory holds an adapter, which some engines add to it without being asked.

    Source: transformers 5.24.0, integrations/peft.py (`maybe_load_adapters`: "a complete model with an embedded
    adapter").
    """
    if source.single_file is None and ADAPTER_CONFIG_NAME in source.names():
        raise UnsupportedRelease(
            f"reading {source.where}: a model and an adapter ({ADAPTER_CONFIG_NAME}) lie in one directory: "
            "transformers loads both together, other engines the model alone, so there is no one KV to name",
            hint=f"move {ADAPTER_CONFIG_NAME} and adapter_model* to a directory of their own, and add --adapter "
            "NAME=THAT_DIRECTORY if the adapter is served",
        )


def _read_gguf(source: Source) -> Content:
    model = read_gguf_model(source)
    metadata = model.metadata
    entries: JsonObject = dict(sorted(model.configuration.items()))
    return Content(
        format=Format.GGUF,
        name=None if source.single_file is None else model.name,
        checkpoint=model.checkpoint,
        config=ModelConfig(model_type=None, entries=entries, stated=entries, transformers_version=None, warnings=()),
        code={},
        rule=rule_without("no dependency rule is known for the tensors of GGUF files"),
        text_side=embedded_text_side(
            tokenizer=metadata.tokenizer, templates=metadata.templates, generation=metadata.sampling
        ),
        files=(*_weight_files(model.checkpoint), *model.checkpoint.other_files),
        labels=metadata.labels,
    )


def _weight_files(checkpoint: Checkpoint) -> list[ReleaseFile]:
    return [
        row_of(weights.file, FileRole.WEIGHTS, size_bytes=weights.identity.size_bytes) for weights in checkpoint.files
    ]


def _read_config(source: Source, beside: SideFiles | None) -> ModelConfig | None:
    """The configuration; None only for a single file that has none beside it."""
    if beside is not None:
        config = read_model_config(source.file(CONFIG_NAME), beside=beside.entries)
        return msgspec.structs.replace(config, warnings=(*config.warnings, *beside.warnings))
    if source.single_file is not None:
        return None
    raise NotFound(
        f"reading {source.where}: it holds weights, but no {CONFIG_NAME}, without which no engine can load them",
        hint=f"copy the {CONFIG_NAME} that belongs to the weights beside them",
    )


def _read_code(source: Source, config: ModelConfig | None) -> dict[str, str]:
    """File name → BLAKE3 (hex) of the Python files beside a configuration that names code of its own."""
    if config is None or not names_code(config.entries):
        return {}
    return {name: blake3(read_bytes(source.file(name))).hexdigest() for name in source.names() if is_code(name)}
