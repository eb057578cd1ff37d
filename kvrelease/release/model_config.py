"""`config.json` in canonical form, and which of its keys KV depends on.

Two files that every engine reads alike become equal entries: renamed keys, the two notations of rotary parameters, and
values that only say the default. Sources: transformers 5.24.0, models/{llama,mistral,qwen2,qwen3}/configuration_*.py
(defaults, `__post_init__`), configuration_utils.py (`torch_dtype`, dropped keys) and modeling_rope_utils.py
(`convert_rope_params_to_dict`, `standardize_rope_params`); tests hold the tables against the installed version.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import encode_json
from kvrelease.release.quantization import QUANTIZATION_KEY, SIDE_FILES, canonical_quantization
from kvrelease.release.small_files import read_json_object
from kvrelease.release.source import SourceFile

CONFIG_NAME = "config.json"

# Say who wrote the file, or where it lay; no engine computes with them.
_DROPPED = frozenset({"_name_or_path", "_commit_hash", "_attn_implementation_autoset", "transformers_version"})

_COMMON_DEFAULTS: JsonObject = {
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "chunk_size_feed_forward": 0,
    "dtype": None,
    "eos_token_id": None,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "is_encoder_decoder": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "output_attentions": False,
    "output_hidden_states": False,
    "pad_token_id": None,
    "problem_type": None,
    "quantization_config": None,
    "return_dict": True,
    "rms_norm_eps": 1e-06,
    "rope_parameters": None,
    "tie_word_embeddings": False,
    "use_cache": True,
}
_QWEN_DEFAULTS: JsonObject = {
    **_COMMON_DEFAULTS,
    "intermediate_size": 22016,
    "layer_types": None,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

# What an engine assumes for a key that is absent.
DEFAULTS: Mapping[str, JsonObject] = {
    "llama": {
        **_COMMON_DEFAULTS,
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": None,
        "intermediate_size": 11008,
        "layer_types": None,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "pretraining_tp": 1,
        "vocab_size": 32000,
    },
    "mistral": {
        **_COMMON_DEFAULTS,
        "architectures": ["MistralForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": None,
        "intermediate_size": 14336,
        "layer_types": None,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    "qwen2": {**_QWEN_DEFAULTS, "architectures": ["Qwen2ForCausalLM"], "head_dim": None},
    "qwen3": {**_QWEN_DEFAULTS, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128},
}

# Of the Llama family: read in training, in sampling, by other tools, or for the output layer only.
_HARMLESS = frozenset(
    {
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tie_word_embeddings",  # decides which tensors count (impact.py); KV reads the input embeddings either way
        "torchscript",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
# Known beyond the defaults' keys: they choose what is computed, or how the weights are stored.
_AFFECTING = frozenset(
    {"auto_map", "is_llama_config", "model_type", "rope_interleaved", "rope_theta", "use_mrope", *SIDE_FILES}
)

_LENGTH_SCALED_ROPE = ("llama3", "yarn", "longrope")
_DEFAULT_ROPE_THETA = 10000.0


class KeyEffect(enum.Enum):
    """What a configuration key of the Llama family does to KV."""

    AFFECTS = "affects"
    HARMLESS = "harmless"
    UNKNOWN = "unknown"  # counts as affecting, and the reason says so


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


def key_effect(key: str) -> KeyEffect:
    """What a canonical key does to KV under the Llama family's rule."""
    if key in _HARMLESS:
        return KeyEffect.HARMLESS
    if key in _AFFECTING or any(key in defaults for defaults in DEFAULTS.values()):
        return KeyEffect.AFFECTS
    return KeyEffect.UNKNOWN


def same_value(left: object, right: object) -> bool:
    """Whether two JSON values are one canonical value (`1` and `1.0` are, `1` and `true` are not)."""
    return encode_json(left) == encode_json(right)


def read_model_config(file: SourceFile, *, beside: Sequence[SourceFile] = ()) -> ModelConfig:
    """The canonical configuration in a file.

    Args:
        file: `config.json`.
        beside: those of `quantization.SIDE_FILES` that lie beside it.

    Raises:
        NotFound: no such file.
        DamagedFile: not a JSON object, a key twice, too deep or too large.
        InputError: it cannot be read.
    """
    return canonical_config(read_json_object(file), beside={side.name: read_json_object(side) for side in beside})


def canonical_config(raw: JsonObject, *, beside: Mapping[str, JsonObject] | None = None) -> ModelConfig:
    """The canonical form of a configuration. Model types without a table keep all that is not dropped.

    Args:
        raw: of `config.json`.
        beside: file name → content of `quantization.SIDE_FILES`; each becomes an entry under its name.
    """
    version = raw.get("transformers_version")
    model_type = raw.get("model_type")
    entries: JsonObject = {key: value for key, value in raw.items() if key not in _DROPPED}
    warnings: list[str] = []
    _rename_dtype(entries, warnings)
    _unify_quantization(entries)
    entries |= {name: canonical_quantization(content) for name, content in (beside or {}).items()}
    stated = dict(sorted(entries.items()))
    defaults = DEFAULTS.get(model_type) if isinstance(model_type, str) else None
    if defaults is not None:
        _unify_rope(entries, warnings)
        if entries.get("architectures") is None:
            entries.pop("architectures", None)  # engines then go by the model type
        entries = {**defaults, **entries}
        _derive(entries)
        entries = {key: value for key, value in entries.items() if value is not None or key not in defaults}
    return ModelConfig(
        model_type=model_type if isinstance(model_type, str) else None,
        entries=dict(sorted(entries.items())),
        stated=stated,
        transformers_version=version if isinstance(version, str) else None,
        warnings=tuple(warnings),
    )


def _rename_dtype(entries: JsonObject, warnings: list[str]) -> None:
    old = entries.pop("torch_dtype", None)
    new = entries.get("dtype")
    if old is not None and new is not None and old != new:
        warnings.append(f"{CONFIG_NAME} says dtype {new!r} and torch_dtype {old!r}; dtype counts, older engines differ")
    dtype = new if new is not None else old
    if dtype is not None:
        entries["dtype"] = dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype
    else:
        entries.pop("dtype", None)


def _unify_quantization(entries: JsonObject) -> None:
    """`compression_config`, as early compressed-tensors wrote it, is a `quantization_config`; vLLM reads them alike."""
    if entries.get(QUANTIZATION_KEY) is None and isinstance(entries.get("compression_config"), dict):
        entries[QUANTIZATION_KEY] = entries.pop("compression_config")
    if isinstance(raw := entries.get(QUANTIZATION_KEY), dict):
        entries[QUANTIZATION_KEY] = canonical_quantization(raw)


def _unify_rope(entries: JsonObject, warnings: list[str]) -> None:
    """One `rope_parameters` out of `rope_theta`, `rope_scaling`, `partial_rotary_factor` and itself."""
    scaling, parameters = entries.get("rope_scaling"), entries.get("rope_parameters")
    chosen = scaling or parameters or {}
    if not isinstance(chosen, dict) or any(isinstance(value, dict) for value in chosen.values()):
        return  # no known notation: every key stays as it is, and counts
    rope = dict(chosen)
    legacy_type = rope.pop("type", None)
    rope.setdefault("rope_type", legacy_type if legacy_type is not None else "default")
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        value = entries.get(key)
        if value is None:
            entries.pop(key, None)
        elif key not in rope or same_value(rope[key], value):
            rope[key] = entries.pop(key)
        else:
            warnings.append(
                f"{CONFIG_NAME} says {key} {value!r} at its top, {rope[key]!r} in its rotary parameters; engines differ"
            )
    rope.setdefault("rope_theta", _DEFAULT_ROPE_THETA)
    if rope["rope_type"] in _LENGTH_SCALED_ROPE and "max_position_embeddings" in entries:
        rope.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
    if scaling and parameters and not same_value(scaling, parameters):
        warnings.append(f"{CONFIG_NAME} has a rope_scaling and another rope_parameters; engines differ")
        return
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = rope


def _derive(entries: JsonObject) -> None:
    """Fills what engines compute from other keys."""
    heads, hidden = entries.get("num_attention_heads"), entries.get("hidden_size")
    if entries.get("num_key_value_heads") is None:
        entries["num_key_value_heads"] = heads
    if entries.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        entries["head_dim"] = hidden // heads
    if "use_sliding_window" not in entries:
        return
    if not entries["use_sliding_window"]:
        entries["sliding_window"] = None
    layers, first = entries.get("num_hidden_layers"), entries.get("max_window_layers")
    if entries.get("layer_types") is None and isinstance(layers, int) and isinstance(first, int) and layers < 10_000:
        windowed = entries["sliding_window"] is not None
        entries["layer_types"] = [
            "sliding_attention" if windowed and layer >= first else "full_attention" for layer in range(layers)
        ]
