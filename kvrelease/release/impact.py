"""Which layers' KV a tensor or a configuration key touches: the dependency rule of an architecture.

Layer *l*'s K and V at a position depend on the embeddings, on all of the layers before it, and on layer *l*'s input
norm, K and V projections, K norm and rotary parameters. So its query, output projection, MLP and post-attention norm
touch KV from *l* + 1 on, and those of the last layer, the final norm and an untied output layer touch none. Whatever
the rule does not know touches everything. Derivation, sources and the oracle that tests it: docs/kv-impact.md.
"""

from __future__ import annotations

import re

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.model_config import DEFAULTS, KeyEffect, ModelConfig, key_effect
from kvrelease.release.quantization import KV_SCALES, PARAMETERS, is_quantized

LLAMA_RULE = "llama.1"
ALL_RULE = "all.1"
# Of an adapter without its base: its digest names no KV.
ADAPTER_RULE = "adapter.1"

EMBEDDINGS = "model.embed_tokens.weight"
OUTPUT_LAYER = "lm_head.weight"
# The deepest published models of the family have 126; a hostile configuration must not make a million digests.
MAX_LAYERS = 10_000

_LAYER_TENSOR = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)\Z", re.DOTALL)
# Read by the layer's own K and V. A fused projection holds K.
_KV_NORMS = frozenset({"input_layernorm", "self_attn.k_norm"})
_KV_PROJECTIONS = frozenset({"self_attn.k_proj", "self_attn.v_proj", "self_attn.qkv_proj", "self_attn.kv_proj"})
_QUERY_NORMS = frozenset({"self_attn.q_norm"})
_QUERY_PROJECTIONS = frozenset({"self_attn.q_proj"})
# Read after the layer's attention has its K and V.
_LATER_NORMS = frozenset({"post_attention_layernorm"})
_LATER_PROJECTIONS = frozenset(
    {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate_up_proj"}
)
_KV_PARTS = _KV_NORMS | _KV_PROJECTIONS
_QUERY_PARTS = _QUERY_NORMS | _QUERY_PROJECTIONS
_LATER_PARTS = _LATER_NORMS | _LATER_PROJECTIONS
_PARTS = _KV_PARTS | _QUERY_PARTS | _LATER_PARTS
# Outside the layers; quantised in some checkpoints.
_EMBEDDINGS_PART = EMBEDDINGS.removesuffix(".weight")
_OUTPUT_PART = OUTPUT_LAYER.removesuffix(".weight")
# What a checkpoint that is not quantised stores of a part; norms have no more in quantised ones.
_PLAIN_PARAMETERS = frozenset({"weight", "bias"})
_NORMS = _KV_NORMS | _QUERY_NORMS | _LATER_NORMS


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The dependency rule of one release.

    Attributes:
        name: `llama.1` or `all.1`, part of the kv digest's algorithm name; `adapter.1` for an adapter without its base.
        layers: of the model; None under `all.1`, which knows no layers.
        ties_embeddings: the output layer is the embeddings.
        is_quantized: the checkpoint says how its weights are quantised.
        reason: why no architecture's rule applies; None when one does.
    """

    name: str
    layers: int | None
    ties_embeddings: bool
    is_quantized: bool
    reason: str | None


class TensorImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of one tensor does to KV.

    Attributes:
        first_layer: the first layer whose KV may change, and with it all later ones; None when none may.
        is_known: whether the rule knows the tensor; one it does not know touches everything.
    """

    first_layer: int | None
    is_known: bool = True


_UNKNOWN_TENSOR = TensorImpact(first_layer=0, is_known=False)


def rule_for(config: ModelConfig | None) -> Rule:
    """The rule that fits a configuration; `all.1`, with the reason, where none does."""
    entries: JsonObject = {} if config is None else config.entries
    layers = entries.get("num_hidden_layers")
    reason = _why_unknown(config)
    has_rule = reason is None and isinstance(layers, int)
    return Rule(
        name=LLAMA_RULE if has_rule else ALL_RULE,
        layers=layers if has_rule and isinstance(layers, int) else None,
        ties_embeddings=entries.get("tie_word_embeddings") is True,
        is_quantized=is_quantized(entries),
        reason=reason,
    )


def rule_without(reason: str) -> Rule:
    """`all.1`, because of a reason."""
    return Rule(name=ALL_RULE, layers=None, ties_embeddings=False, is_quantized=False, reason=reason)


def _why_unknown(config: ModelConfig | None) -> str | None:
    """Why no rule applies; None when the Llama family's does."""
    if config is None:
        return "there is no config.json, which says what the model is"
    if config.model_type is None:
        return "config.json does not say its model_type"
    if config.model_type not in DEFAULTS:
        known = ", ".join(sorted(DEFAULTS))
        return f"no dependency rule is known for model type {config.model_type!r} (known: {known})"
    return _why_unlike_its_type(config.entries, expected=DEFAULTS[config.model_type]["architectures"])


def _why_unlike_its_type(entries: JsonObject, *, expected: object) -> str | None:
    """Why a model is not what its type promises; None when it is."""
    if "auto_map" in entries:
        return "config.json brings code of its own (auto_map), which may compute anything"
    found = entries.get("architectures")
    if found != expected:
        return f"the architecture is {found!r}, and the rule for its model type was tested with {expected!r}"
    layers = entries.get("num_hidden_layers")
    if not isinstance(layers, int) or isinstance(layers, bool) or not 1 <= layers <= MAX_LAYERS:
        return f"num_hidden_layers is {layers!r}"
    return None


def tensor_impact(name: str, rule: Rule) -> TensorImpact:
    """What a change of the tensor does to KV under a rule."""
    if rule.layers is None:
        return _UNKNOWN_TENSOR
    match = _LAYER_TENSOR.match(name)
    if match is None:
        return _outside_layers(name, rule)
    layer = int(match[1])
    part = _part_of(match[2], rule) if layer < rule.layers else None
    # Engines fuse Q with K and V, and a quantised fused matrix may share one scale: then Q reaches its own layer's K.
    if part in _KV_PARTS or (part in _QUERY_PARTS and rule.is_quantized):
        return TensorImpact(first_layer=layer)
    if part in _QUERY_PARTS or part in _LATER_PARTS:
        return TensorImpact(first_layer=layer + 1 if layer + 1 < rule.layers else None)
    return _UNKNOWN_TENSOR


def _part_of(name: str, rule: Rule) -> str | None:
    """The part of a layer whose parameter a name (below the layer) is; None where the rule does not know it."""
    if name in KV_SCALES:
        return "self_attn.k_proj"  # cached K and V are divided by it, whatever the checkpoint hangs it on
    owner, _, rest = name.partition(".")
    if owner in _PARTS:
        return owner if _is_parameter(rest, of_norm=owner in _NORMS, rule=rule) else None
    module, _, parameter = rest.partition(".")
    part = f"{owner}.{module}"
    return part if part in _PARTS and _is_parameter(parameter, of_norm=part in _NORMS, rule=rule) else None


def _is_parameter(name: str, *, of_norm: bool, rule: Rule) -> bool:
    return name in _PLAIN_PARAMETERS or (rule.is_quantized and not of_norm and name in PARAMETERS)


def _outside_layers(name: str, rule: Rule) -> TensorImpact:
    if name == "model.norm.weight":
        return TensorImpact(first_layer=None)
    if name == EMBEDDINGS or _is_quantized_parameter(name, of=_EMBEDDINGS_PART, rule=rule):
        return TensorImpact(first_layer=0)
    if name == OUTPUT_LAYER or _is_quantized_parameter(name, of=_OUTPUT_PART, rule=rule):
        # Tied but stored apart, with other bytes: which of the two an engine keeps as embeddings is its own affair.
        return TensorImpact(first_layer=0 if rule.ties_embeddings else None)
    return _UNKNOWN_TENSOR


def _is_quantized_parameter(name: str, *, of: str, rule: Rule) -> bool:
    return rule.is_quantized and name.startswith(f"{of}.") and name.removeprefix(f"{of}.") in PARAMETERS


def config_affects_kv(key: str, rule: Rule) -> bool:
    """Whether a change of a canonical configuration key makes every layer's KV another one."""
    return rule.layers is None or key_effect(key) is not KeyEffect.HARMLESS
