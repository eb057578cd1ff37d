"""What one family of architectures is to KV: its dependency rule, and the table of its configuration's keys. Pure.

A family is data: which parts a layer has, which layer's KV each of them touches, what an absent key of `config.json`
means, and which keys KV does not depend on. All of it is frozen under the family's rule name, because it decides
digests (docs/fingerprint.md); docs/rules/ publishes it, docs/kv-validity.md explains it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.rope import unify_rope
from kvrelease.release.quantization import KV_SCALES, PARAMETERS

# Real names have up to nine parts below the layer; a hostile one must not make a million ends.
_MAX_PARTS = 16
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,5})\Z")
# What a checkpoint that is not quantised stores of a module.
_PLAIN_PARAMETERS = frozenset({"weight", "bias"})


class Reach(enum.Enum):
    """The first layer whose KV a part touches, with all later ones."""

    EVERYTHING = "every layer"
    OWN = "its own layer"
    NEXT = "the next layer"
    NOTHING = "none"


class KeyEffect(enum.Enum):
    """What a configuration key does to KV."""

    AFFECTS = "affects"
    HARMLESS = "harmless"
    UNKNOWN = "unknown"  # counts as affecting, and the reason says so


def _nothing_to_derive(entries: JsonObject) -> None:
    """Of a family whose keys say everything themselves."""


def _nothing_to_refuse(_: JsonObject) -> str | None:
    """Of a family whose every configuration was tested."""
    return None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a family.

    Names of parts are those below a layer, with `*` for a number of its own (an expert's).

    Attributes:
        rule: its name, in every digest that it decides.
        types: model type → what an absent key of `config.json` means; `architectures` names the only ones it holds for.
        layers_key: the canonical key that counts the layers.
        stems: what stands in front of a layer's number.
        norms: parts that hold `weight` and `bias`, and never anything quantised → reach.
        projections: parts that hold `weight` and `bias`, and what is stored of quantised ones → reach.
        parameters: tensors that are no `weight` or `bias` of a part → reach.
        fused: parts whose product engines fuse with that of K or V, so that a scale may be shared: in a quantised
            checkpoint they touch their own layer's KV.
        embeddings: names of the input embeddings, without `.weight`.
        outputs: names of the output layer, without `.weight`.
        outside: whole names of other tensors outside the layers → reach; the last norm, unless told.
        harmless: canonical keys that KV does not depend on.
        affecting: canonical keys beyond the defaults' that are known to count.
        notation: makes one notation of several, in place, before absent keys are filled in; the list takes warnings.
        derive: fills in what engines compute from other keys, in place, after that.
        refuse: why a configuration is not one that the rule was tested with; None when it is.
    """

    rule: str
    types: Mapping[str, JsonObject]
    layers_key: str = "num_hidden_layers"
    stems: tuple[str, ...] = ("model.layers",)
    norms: Mapping[str, Reach]
    projections: Mapping[str, Reach]
    parameters: Mapping[str, Reach] = msgspec.field(default_factory=dict)
    fused: frozenset[str] = frozenset()
    embeddings: frozenset[str] = frozenset({"model.embed_tokens"})
    outputs: frozenset[str] = frozenset({"lm_head"})
    outside: Mapping[str, Reach] = msgspec.field(default_factory=lambda: {"model.norm.weight": Reach.NOTHING})
    harmless: frozenset[str]
    affecting: frozenset[str] = frozenset()
    notation: Callable[[JsonObject, list[str]], None] = unify_rope
    derive: Callable[[JsonObject], None] = _nothing_to_derive
    refuse: Callable[[JsonObject], str | None] = _nothing_to_refuse

    def reach_outside(self, name: str, *, is_quantized: bool, ties_embeddings: bool) -> Reach | None:
        """What a tensor outside the layers touches; None where the family does not know it."""
        if (found := self.outside.get(name)) is not None:
            return found
        if _is_of(self.embeddings, name, is_quantized=is_quantized):
            return Reach.EVERYTHING
        if _is_of(self.outputs, name, is_quantized=is_quantized):
            # Tied but stored apart, with other bytes: which of the two an engine keeps as embeddings is its affair.
            return Reach.EVERYTHING if ties_embeddings else Reach.NOTHING
        return None

    def reaches_last_hidden_state(self, name: str) -> bool:
        """Whether a tensor that touches no KV stands behind the layers, and before the output layer: the last norm."""
        return name in self.outside and name.rpartition(".")[0] not in self.outputs

    def reach_inside(self, name: str, *, is_quantized: bool) -> Reach | None:
        """What a tensor of a layer touches, by its name below the layer; None where the family does not know it."""
        if name in KV_SCALES:
            return Reach.OWN  # cached K and V are divided by it, whatever the checkpoint hangs it on
        parts = ["*" if _NUMBER.match(part) else part for part in name.split(".", _MAX_PARTS)]
        if (found := self.parameters.get(".".join(parts))) is not None:
            return found
        for cut in range(len(parts) - 1, 0, -1):
            owner, parameter = ".".join(parts[:cut]), ".".join(parts[cut:])
            reach = self.norms.get(owner) or self.projections.get(owner)
            if reach is None:
                continue
            can_be_quantized = is_quantized and owner in self.projections
            if parameter not in _PLAIN_PARAMETERS and not (can_be_quantized and parameter in PARAMETERS):
                return None
            return Reach.OWN if is_quantized and owner in self.fused else reach
        return None

    def key_effect(self, key: str) -> KeyEffect:
        """What a canonical key does to KV."""
        if key in self.harmless:
            return KeyEffect.HARMLESS
        if key in self.affecting or any(key in defaults for defaults in self.types.values()):
            return KeyEffect.AFFECTS
        return KeyEffect.UNKNOWN


def _is_of(modules: frozenset[str], name: str, *, is_quantized: bool) -> bool:
    for module in modules:
        if name.startswith(f"{module}."):
            parameter = name.removeprefix(f"{module}.")
            return parameter == "weight" or (is_quantized and parameter in PARAMETERS)
    return False
