"""Which layers' KV a tensor or a configuration key touches, by the rule of the release's family.

Layer *l*'s K and V at a position depend on the embeddings, on all of the layers before it, and on layer *l*'s input
norm, K and V projections, K norm and rotary parameters. So its query, output projection, MLP and post-attention norm
touch KV from *l* + 1 on, and those of the last layer, the final norm and an untied output layer touch none. Whatever
a rule does not know touches everything.

A head that drafts tokens makes KV of the model's last hidden state. So where a release stores one, what the last layer
and the final norm do touches KV too: that of one layer more, and the rule's name says `+head`.

Derivation, sources and the oracle that tests it: docs/kv-validity.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.draft_heads import draft_head_of
from kvrelease.release.families import FAMILY_OF_TYPE, HEAD_SUFFIX, family_of_rule
from kvrelease.release.families.family import Family, KeyEffect, Reach
from kvrelease.release.families.layer_types import MAX_LAYERS
from kvrelease.release.kinds import why_beyond_rules
from kvrelease.release.model_config import ModelConfig
from kvrelease.release.quantization import is_quantized

ALL_RULE = "all.1"
# Of an adapter without its base: its digest names no KV.
ADAPTER_RULE = "adapter.1"

# Where no family's rule says otherwise.
EMBEDDINGS = "model.embed_tokens.weight"
OUTPUT_LAYER = "lm_head.weight"

# The names of tensors repeat from layer to layer, and the experts' by the thousand.
_NAMES_REMEMBERED = 65536
_LONGEST_NAME_REMEMBERED = 200


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The dependency rule of one release.

    Attributes:
        name: a family's, such as `llama.1`, with `+head` behind it where a draft head is stored, or `all.1`; part of
            the kv digest's algorithm name. `adapter.1` for an adapter without its base.
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

    @property
    def family(self) -> str:
        """The name without what stored tensors add to it: in what form the configuration is."""
        return self.name.removesuffix(HEAD_SUFFIX)

    @property
    def cached_layers(self) -> int | None:
        """Layers that have KV: the model's, and one more for all that a head makes of its last hidden state."""
        return None if self.layers is None else self.layers + (self.name != self.family)


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
    family = None if config is None or config.model_type is None else FAMILY_OF_TYPE.get(config.model_type)
    layers = None if family is None else entries.get(family.layers_key)
    reason = _why_unknown(config, family)
    has_rule = family is not None and reason is None and isinstance(layers, int)
    # Where a type without a table does not say, its default may be either, and a copy of the embeddings says nothing.
    says_untied = family is not None or "tie_word_embeddings" in entries
    return Rule(
        name=family.rule if has_rule and family is not None else ALL_RULE,
        layers=layers if has_rule and isinstance(layers, int) else None,
        ties_embeddings=entries.get("tie_word_embeddings") is True if says_untied else config is not None,
        is_quantized=is_quantized(entries),
        reason=reason,
    )


def with_heads(rule: Rule, names: Iterable[str], entries: JsonObject) -> Rule:
    """The rule, given what is stored: a draft head makes KV of what the model's last layer gives.

    Args:
        rule: as the configuration says.
        names: of all stored tensors.
        entries: canonical ones of the configuration.
    """
    if rule.layers is None or not any(
        draft_head_of(name, entries) is not None and _is_beyond(name, rule) for name in names
    ):
        return rule
    return msgspec.structs.replace(rule, name=f"{rule.family}{HEAD_SUFFIX}")


def _is_beyond(name: str, rule: Rule) -> bool:
    """Whether a tensor lies in no layer of the model, and the rule does not know it."""
    family = family_of_rule(rule.name)
    if family is None or rule.layers is None:
        return False
    numbers = _layers_of(family.stems, rule.layers, is_followed=False).numbers
    in_layer = any(
        name.startswith(f"{stem}.") and name.removeprefix(f"{stem}.").partition(".")[0] in numbers
        for stem in family.stems
    )
    known = family.reach_outside(name, is_quantized=rule.is_quantized, ties_embeddings=rule.ties_embeddings)
    return not in_layer and known is None


def rule_without(reason: str) -> Rule:
    """`all.1`, because of a reason."""
    return Rule(name=ALL_RULE, layers=None, ties_embeddings=False, is_quantized=False, reason=reason)


def _why_unknown(config: ModelConfig | None, family: Family | None) -> str | None:
    """Why no rule applies; None when the family's does."""
    if config is None:
        return "there is no config.json, which says what the model is"
    if config.model_type is None:
        return "config.json does not say its model_type"
    if family is None:
        what = why_beyond_rules(config.stated)
        listed_in = "docs/kv-validity.md lists those with one"
        return f"no dependency rule is known for model type {config.model_type!r}{what} ({listed_in})"
    return _why_unlike_its_type(config.entries, family, expected=family.types[config.model_type]["architectures"])


def _why_unlike_its_type(entries: JsonObject, family: Family, *, expected: object) -> str | None:
    """Why a model is not what its type promises; None when it is."""
    if "auto_map" in entries:
        return "config.json brings code of its own (auto_map), which may compute anything"
    found = entries.get("architectures")
    if found != expected:
        return f"the architecture is {found!r}, and the rule for its model type was tested with {expected!r}"
    layers = entries.get(family.layers_key)
    if not isinstance(layers, int) or isinstance(layers, bool) or not 1 <= layers <= MAX_LAYERS:
        return f"{family.layers_key} is {layers!r}"
    return family.refuse(entries)


def tensor_impact(name: str, rule: Rule) -> TensorImpact:
    """What a change of the tensor does to KV under a rule."""
    return impacts_under(rule)(name)


def impacts_under(rule: Rule) -> Callable[[str], TensorImpact]:
    """What a change of a tensor does to KV under a rule, by its name; for whoever asks of thousands."""
    family = family_of_rule(rule.name)  # None of a rule that only a newer version knows
    if rule.layers is None or family is None:
        return lambda _: _UNKNOWN_TENSOR
    has_head = rule.cached_layers != rule.layers
    layers = _layers_of(family.stems, rule.layers, is_followed=has_head)
    numbers, impacts = layers.numbers, layers.impacts
    prefixes = [(prefix, len(prefix)) for prefix in layers.prefixes]
    rule_name, is_quantized, behind = rule.name, rule.is_quantized, rule.layers

    def impact(name: str) -> TensorImpact:
        for prefix, length in prefixes:
            if name.startswith(prefix):
                number, _, below = name[length:].partition(".")
                layer = numbers.get(number)
                if layer is not None:
                    remembers = len(below) <= _LONGEST_NAME_REMEMBERED
                    reach = (_remembered_reach if remembers else _reach_inside)(rule_name, below, is_quantized)
                    return _impact(reach, layer, impacts)
        outside = family.reach_outside(name, is_quantized=is_quantized, ties_embeddings=rule.ties_embeddings)
        if has_head and outside is Reach.NOTHING and family.reaches_last_hidden_state(name):
            return impacts[behind]
        return _impact(outside, 0, impacts)

    return impact


class _Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one model, ready to be looked up ninety thousand times.

    Attributes:
        prefixes: what stands in front of a layer's number, with the dot.
        numbers: as names say them, in decimal and without leading zeros → the layer.
        impacts: by first layer, a head's behind the model's own; the last one is that of a tensor that touches none.
    """

    prefixes: tuple[str, ...]
    numbers: Mapping[str, int]
    impacts: tuple[TensorImpact, ...]


@functools.lru_cache(maxsize=64)
def _layers_of(stems: tuple[str, ...], layers: int, *, is_followed: bool) -> _Layers:
    return _Layers(
        prefixes=tuple(f"{stem}." for stem in stems),
        numbers={str(layer): layer for layer in range(layers)},
        impacts=(
            *(TensorImpact(first_layer=layer) for layer in range(layers + is_followed)),
            TensorImpact(first_layer=None),
        ),
    )


def _impact(reach: Reach | None, layer: int, impacts: tuple[TensorImpact, ...]) -> TensorImpact:
    # By identity: a match compares values, which takes four times as long, ninety thousand times.
    if reach is Reach.NEXT:
        return impacts[layer + 1]
    if reach is Reach.OWN:
        return impacts[layer]
    if reach is None:
        return _UNKNOWN_TENSOR
    return impacts[0] if reach is Reach.EVERYTHING else impacts[-1]


def _reach_inside(rule_name: str, below: str, is_quantized: bool) -> Reach | None:
    family = family_of_rule(rule_name)
    assert family is not None, f"{rule_name} is no family's rule"
    return family.reach_inside(below, is_quantized=is_quantized)


_remembered_reach = functools.lru_cache(maxsize=_NAMES_REMEMBERED)(_reach_inside)


def tied_names(names: Iterable[str], rule: Rule) -> tuple[str, str] | None:
    """The stored output layer and embeddings of a release that ties them; None where it does not, or lacks one."""
    if not rule.ties_embeddings:
        return None
    family = family_of_rule(rule.name)
    present = set(names)
    outputs = [OUTPUT_LAYER] if family is None else [f"{module}.weight" for module in sorted(family.outputs)]
    embeddings = [EMBEDDINGS] if family is None else [f"{module}.weight" for module in sorted(family.embeddings)]
    output = next((name for name in outputs if name in present), None)
    embedding = next((name for name in embeddings if name in present), None)
    return None if output is None or embedding is None else (output, embedding)


def knows_keys(rule: Rule) -> bool:
    """Whether the rule is one of ours that says what configuration keys do to KV."""
    return rule.layers is not None and family_of_rule(rule.name) is not None


def key_effect(key: str, rule: Rule) -> KeyEffect:
    """What a canonical configuration key does to KV under a rule; unknown where the rule knows no keys."""
    family = family_of_rule(rule.name)
    return KeyEffect.UNKNOWN if family is None or rule.layers is None else family.key_effect(key)


def config_affects_kv(key: str, rule: Rule) -> bool:
    """Whether a change of a canonical configuration key makes every layer's KV another one."""
    return key_effect(key, rule) is not KeyEffect.HARMLESS
