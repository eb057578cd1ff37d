"""What a diff says: the artifact, and the records in it. Pure."""

from __future__ import annotations

import enum

import msgspec

from kvrelease.artifacts import Artifact, ReleaseRef
from kvrelease.release.comparison import AdapterChanges, TensorChanges
from kvrelease.release.drift_figures import Drift, LayerDrift
from kvrelease.release.file_changes import FileChange
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange
from kvrelease.release.text_changes import TemplateChange, ValueChange
from kvrelease.release.tokenizer_change import TokenizerChange


class KvStatus(enum.StrEnum):
    """Whether KV of the old release may be read under the new one."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """One canonical key of the configuration itself.

    Attributes:
        key: of it.
        old: its value; None where a side does not have it.
        new: likewise.
        affects_kv: whether its change makes old KV invalid, as that of a key which the rule does not know does; None
            where a side follows no rule, so that it is not known.
    """

    key: str
    old: object
    new: object
    affects_kv: bool | None


class KvImpact(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the old KV.

    Attributes:
        status: valid for every layer, invalid, or not known. This decides; the layers explain it.
        layers: of the new model; None where its rule knows no layers.
        valid_layers: how many layers, from the first on, keep valid KV; None where not known. Where `adapters` were
            replaced, of KV made with them: of the base all do where `base` is valid.
        first_invalid_layer: None where none is invalid, or it is not known; likewise.
        reasons: sentences, the deciding ones first.
        notes: sentences about what changed or is there and leaves the verdict alone.
        adapters: names under which another adapter is served, where old KV is invalid for those alone; empty otherwise.
        base: then, the verdict on KV that no adapter had a part in; None otherwise.
    """

    status: KvStatus
    layers: int | None
    valid_layers: int | None
    first_invalid_layer: int | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    base: KvStatus | None = None


class Diff(Artifact, frozen=True, kw_only=True, tag="kvrelease/diff"):
    """What changed between two releases.

    Attributes:
        old: the release before.
        release: the new one.
        changed: names of the digests that differ; `code` and `preprocessor` for files that the digest of the
            configuration covers, and that have none of their own; `extra` for weight files that the model does not
            load, which no digest covers.
        unknown: names of those of which it is not known: made in different ways, or not read.
        tensors: which tensors differ.
        kv: what it means for the old KV.
        config: which canonical configuration keys differ; not the files beside it, which are entries too.
        drift: how far each tensor moved that both releases have; empty where it was not measured.
        summary: one sentence for humans.
        adapters: which adapters differ in what they make with their base.
        tokenizer: in what it changed; None where it did not.
        templates: the chat templates that differ.
        generation: the sampling defaults that differ.
        code: files of code that a configuration brings (`auto_map`) and that differ.
        files: files beside `config.json` that KV depends on and that differ.
        extra: weight files that the model does not load and that differ by name or size; their bytes are not compared.
        runtime: what comparing the runtimes said.
        advice: what to do about the old KV.
        drift_layers: the same as `drift`, by layer.
        drift_notes: what `drift` leaves out.
        left_out: what was asked for and not done, because the run was cut short; a sentence each.
    """

    old: ReleaseRef
    release: ReleaseRef
    changed: tuple[str, ...]
    tensors: TensorChanges
    kv: KvImpact
    config: tuple[ConfigChange, ...]
    drift: tuple[Drift, ...]
    summary: str
    unknown: tuple[str, ...] = ()
    adapters: AdapterChanges = AdapterChanges()
    tokenizer: TokenizerChange | None = None
    templates: tuple[TemplateChange, ...] = ()
    generation: tuple[ValueChange, ...] = ()
    code: tuple[FileChange, ...] = ()
    files: tuple[FileChange, ...] = ()
    extra: tuple[FileChange, ...] = ()
    runtime: RuntimeChange = NOT_COMPARED
    advice: tuple[str, ...] = ()
    drift_layers: tuple[LayerDrift, ...] = ()
    drift_notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
