"""`adapter_config.json` in canonical form: what scales and places the weights of a LoRA adapter.

Two files that PEFT and the engines read alike become equal entries: absent keys and their defaults, and lists that PEFT
saves in the random order of a set. Sources: peft 0.21.2, tuners/lora/config.py (`LoraConfig`), utils/other.py
(`get_pattern_key`), tuners/tuners_utils.py (`check_target_module_exists`); vllm 0.32.0, lora/peft_helper.py.
"""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.canonical import same_value
from kvrelease.release.small_files import read_json_object
from kvrelease.release.source import SourceFile

ADAPTER_CONFIG_NAME = "adapter_config.json"
LORA = "LORA"

# Say who wrote the file, for which base, or what only training reads; no engine computes with them.
_UNCOUNTED = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "lora_dropout",
        "peft_version",
        "revision",
        "runtime_config",
        "task_type",
    }
)
# vLLM refuses an adapter without them, and other engines guess differently, so that absent stays a value of its own.
_REQUIRED = ("r", "lora_alpha", "target_modules")
# What PEFT assumes for any other key that is absent.
_DEFAULTS: JsonObject = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "qalora_group_size": 16,
    "rank_pattern": {},
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
# Engines ask of these only "is it one of them?". Where `target_modules` is a text it is a pattern, and stays one.
_SETS = ("exclude_modules", "layers_to_transform", "modules_to_save", "target_modules")
# The first key that matches a module wins, so the order of the keys counts.
_PATTERNS = ("alpha_pattern", "rank_pattern")
# Set the first values in training only. Others (PiSSA, OLoRA, CorDA, LoftQ) change the base's weights when PEFT loads
# the adapter. Source: vllm 0.32.0, lora/peft_helper.py (`_init_is_supported`).
_HARMLESS_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an adapter in canonical form.

    Attributes:
        entries: what counts, sorted; a key that is absent has PEFT's default. Patterns are lists of [key, value].
        uncounted: what the file says besides: for which base it was made, and by which PEFT. Part of no digest.
        warnings: where engines will differ in what they make of it.
    """

    entries: JsonObject
    uncounted: JsonObject
    warnings: tuple[str, ...]

    @property
    def is_lora(self) -> bool:
        """Whether it is a LoRA adapter; of other kinds all keys count, and nothing is checked."""
        return self.entries.get("peft_type") == LORA

    @property
    def rank(self) -> int | None:
        """`r`; None where the file does not say."""
        value = self.entries.get("r")
        return value if isinstance(value, int) else None

    def pattern(self, key: str) -> list[tuple[str, object]]:
        """The pairs of `rank_pattern` or `alpha_pattern`, in their order."""
        pairs = self.entries.get(key)
        return [(str(name), value) for name, value in pairs] if isinstance(pairs, list) else []

    def names(self, key: str) -> list[str] | None:
        """A list of module names such as `target_modules`; None where it is absent, or a pattern."""
        value = self.entries.get(key)
        return [str(name) for name in value] if isinstance(value, list) else None


def read_adapter_config(file: SourceFile) -> AdapterConfig:
    """The canonical configuration in a file.

    Raises:
        NotFound: no such file.
        DamagedFile: not a JSON object, or a rank, an alpha or a list of modules that is none.
        InputError: it cannot be read.
    """
    return canonical_adapter_config(read_json_object(file), where=file.where)


def canonical_adapter_config(raw: JsonObject, *, where: str) -> AdapterConfig:
    """The canonical form of a configuration; of adapters that are no LoRA, all keys that are not dropped.

    Args:
        raw: content of the file.
        where: how messages name it.

    Raises:
        DamagedFile: a rank, an alpha or a list of modules that is none.
    """
    uncounted = {key: value for key, value in sorted(raw.items()) if key in _UNCOUNTED}
    entries: JsonObject = {key: value for key, value in raw.items() if key not in _UNCOUNTED}
    if entries.get("peft_type") is None:
        entries["peft_type"] = LORA
    if entries["peft_type"] != LORA:
        warnings = [f"{ADAPTER_CONFIG_NAME} is of type {entries['peft_type']!r}: all its keys count, none is checked"]
    else:
        entries = {
            key: value
            for key, value in entries.items()
            if not (key in _REQUIRED and value is None)
            and not (key in _DEFAULTS and (value is None or same_value(value, _DEFAULTS[key])))
        }
        _check_numbers(entries, where)
        _canonical_lists(entries, where)
        warnings = _about_strength(entries) + _about_base(entries, uncounted)
        if _is_harmless_init(entries.get("init_lora_weights")):
            entries.pop("init_lora_weights")
    return AdapterConfig(entries=dict(sorted(entries.items())), uncounted=uncounted, warnings=tuple(warnings))


def _check_numbers(entries: JsonObject, where: str) -> None:
    """Refuses a rank or an alpha that scales nothing sensibly."""
    ranks = {"r": entries.get("r"), **_values(entries, "rank_pattern", where)}
    for key, value in ranks.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise DamagedFile(f"reading {where}: the rank {key!r} is {value!r}, no integer of 1 and more")
    alphas = {"lora_alpha": entries.get("lora_alpha"), **_values(entries, "alpha_pattern", where)}
    for key, value in alphas.items():
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise DamagedFile(f"reading {where}: the alpha {key!r} is {value!r}, no number")


def _values(entries: JsonObject, key: str, where: str) -> JsonObject:
    pattern = entries.get(key, {})
    if not isinstance(pattern, dict):
        raise DamagedFile(f"reading {where}: {key} is no object of module names")
    return {f"{key} {name}": value for name, value in pattern.items()}


def _canonical_lists(entries: JsonObject, where: str) -> None:
    for key in _SETS:
        value = entries.get(key)
        kind: type = int if key == "layers_to_transform" else str
        if key == "layers_to_transform" and isinstance(value, int):
            value = [value]
        if isinstance(value, list):
            if not all(isinstance(item, kind) for item in value):
                raise DamagedFile(f"reading {where}: {key} holds something else than {kind.__name__} values")
            entries[key] = sorted(set(value))
            if not value and key not in _REQUIRED:
                del entries[key]
        elif value is not None and not isinstance(value, str):
            raise DamagedFile(f"reading {where}: {key} is neither a list nor a pattern")
    if isinstance(pattern := entries.get("layers_pattern"), str):
        entries["layers_pattern"] = [pattern]
    for key in _PATTERNS:
        if isinstance(pairs := entries.get(key), dict):
            entries[key] = [[name, value] for name, value in pairs.items()]


def _is_harmless_init(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.lower() in _HARMLESS_INITS)


def _about_strength(entries: JsonObject) -> list[str]:
    """Warnings about a scale that engines guess, or that is zero."""
    warnings = []
    for key in _REQUIRED:
        if key not in entries and not (key == "target_modules" and entries.get("target_parameters")):
            guess = "goes by the model's type" if key == "target_modules" else "takes 8"
            warnings.append(
                f"{ADAPTER_CONFIG_NAME} has no {key}: PEFT {guess}, vLLM refuses the adapter, others guess; how strong "
                "it is depends on who loads it"
            )
    if entries.get("lora_alpha") == 0 and not entries.get("alpha_pattern"):
        warnings.append(f"{ADAPTER_CONFIG_NAME} has lora_alpha 0: the adapter is scaled to nothing")
    return warnings


def _about_base(entries: JsonObject, uncounted: JsonObject) -> list[str]:
    """Warnings about a base that the adapter changes, or that nobody can name."""
    warnings = []
    init = entries.get("init_lora_weights")
    if init is not None and not _is_harmless_init(init):
        warnings.append(
            f"init_lora_weights is {init!r}: PEFT changes the base's own weights when it loads such an adapter, so KV "
            "of the base alone and of other adapters in that process is another one; convert it to a plain LoRA"
        )
    base, revision = uncounted.get("base_model_name_or_path"), uncounted.get("revision")
    if base and revision in (None, "", "main"):
        warnings.append(
            f"the adapter was made for {base!r}, and records no commit of it: whether the base has moved since cannot "
            "be told from the files"
        )
    return warnings
