"""`config.json` in canonical form.

Two files that every engine reads alike become equal entries: renamed keys, and what the family of the model type
(families/) says of notations and defaults. Source: transformers 5.24.0, configuration_utils.py (`torch_dtype`, dropped
keys).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.quantization import COMPRESSION_KEY, QUANTIZATION_KEY, canonical_quantization
from kvrelease.release.small_files import read_json_object
from kvrelease.release.source import SourceFile

CONFIG_NAME = "config.json"

# Say who wrote the file, or where it lay; no engine computes with them.
_DROPPED = frozenset({"_name_or_path", "_commit_hash", "_attn_implementation_autoset", "transformers_version"})


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration in canonical form.

    Attributes:
        model_type: None when the file does not say.
        entries: canonical key → value, sorted; a key that is absent has its engine's default, or none.
        stated: likewise, without what the table of the model type unifies and fills in: the form under `all.1`, so that
            a table for a further type changes no digest that has that name.
        transformers_version: of the library that wrote it; None when the file does not say. Part of no digest.
        warnings: contradictions inside the file.
    """

    model_type: str | None
    entries: JsonObject
    stated: JsonObject
    transformers_version: str | None
    warnings: tuple[str, ...]


def read_model_config(file: SourceFile, *, beside: Mapping[str, object] | None = None) -> ModelConfig:
    """The canonical configuration in a file.

    Args:
        file: `config.json`.
        beside: file name → what counts of the files beside it (side_files.py).

    Raises:
        NotFound: no such file.
        DamagedFile: not a JSON object, a key twice, too deep or too large.
        InputError: it cannot be read.
    """
    return canonical_config(read_json_object(file), beside=beside)


def canonical_config(raw: JsonObject, *, beside: Mapping[str, object] | None = None) -> ModelConfig:
    """The canonical form of a configuration. Model types without a table keep all that is not dropped.

    Args:
        raw: of `config.json`.
        beside: file name → what counts of the files beside it; each becomes an entry under its name.
    """
    version = raw.get("transformers_version")
    model_type = raw.get("model_type")
    warnings: list[str] = []
    entries = _plain(raw, CONFIG_NAME, warnings)
    _unify_quantization(entries)
    entries |= beside or {}
    stated = dict(sorted(entries.items()))
    family = FAMILY_OF_TYPE.get(model_type) if isinstance(model_type, str) else None
    if family is not None:
        defaults = family.types[str(model_type)]
        family.notation(entries, warnings)
        if entries.get("architectures") is None:
            entries.pop("architectures", None)  # engines then go by the model type
        entries = {**defaults, **entries}
        family.derive(entries)
        entries = {key: value for key, value in entries.items() if value is not None or key not in defaults}
    return ModelConfig(
        model_type=model_type if isinstance(model_type, str) else None,
        entries=dict(sorted(entries.items())),
        stated=stated,
        transformers_version=version if isinstance(version, str) else None,
        warnings=tuple(warnings),
    )


def _plain(raw: JsonObject, where: str, warnings: list[str]) -> JsonObject:
    """A configuration, and the configurations in it, without what only says who wrote them, and with one `dtype`."""
    entries = {
        key: _plain(value, f"{key} in {where}", warnings) if isinstance(value, dict) and _is_sub_config(key) else value
        for key, value in raw.items()
        if key not in _DROPPED
    }
    _rename_dtype(entries, where, warnings)
    return entries


def _is_sub_config(key: str) -> bool:
    return key.endswith("_config") and key not in (QUANTIZATION_KEY, COMPRESSION_KEY)


def _rename_dtype(entries: JsonObject, where: str, warnings: list[str]) -> None:
    old, new = _bare_dtype(entries.pop("torch_dtype", None)), _bare_dtype(entries.pop("dtype", None))
    if old is not None and new is not None and old != new:
        warnings.append(f"{where} says dtype {new!r} and torch_dtype {old!r}; engines differ")
        entries["torch_dtype"] = old  # both count
    dtype = new if new is not None else old
    if dtype is not None:
        entries["dtype"] = dtype


def _bare_dtype(dtype: object) -> object:
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype


def _unify_quantization(entries: JsonObject) -> None:
    """`compression_config`, as early compressed-tensors wrote it, is a `quantization_config`; vLLM reads them alike."""
    if entries.get(QUANTIZATION_KEY) is None and isinstance(entries.get(COMPRESSION_KEY), dict):
        entries[QUANTIZATION_KEY] = entries.pop(COMPRESSION_KEY)
    if isinstance(raw := entries.get(QUANTIZATION_KEY), dict):
        entries[QUANTIZATION_KEY] = canonical_quantization(raw)
