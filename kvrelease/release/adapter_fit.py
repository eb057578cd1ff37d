"""Whether a LoRA adapter fits its own configuration, and the base it is to be used with. Pure.

Engines load what they find and drop what they do not understand, mostly without a word; so every misfit is a warning.
Patterns of the configuration come from outside and are never run as regular expressions: where one is more than a
suffix of a module's name, nothing that depends on it is claimed. Sources: peft 0.21.2, utils/other.py
(`get_pattern_key`), tuners/tuners_utils.py (`check_target_module_exists`), utils/save_and_load.py; vllm 0.32.0,
lora/utils.py (`parse_fine_tuned_lora_name`), lora/lora_model.py, lora/peft_helper.py (`get_rank_and_scaling`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from kvrelease.printable import listed
from kvrelease.release.adapter_config import ADAPTER_CONFIG_NAME, AdapterConfig
from kvrelease.release.weights import StoredTensor

_PREFIX = "base_model.model."
# What PEFT appends to a module's name, and which half of the product it is.
_HALVES = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "A",
    ".lora_embedding_B": "B",
}
_OTHER_SUFFIXES = (
    ".lora_B.bias",
    ".lora_magnitude_vector",
    ".lora_magnitude_vector.weight",
    ".token_adapter.trainable_tokens_delta",
)
_LAYER_NUMBER = re.compile(r"\.[^.]*\.([0-9]{1,6})\.")
_PLAIN_KEY = re.compile(r"\^?[A-Za-z0-9_.-]+\Z")
# Real names have up to a dozen parts; a hostile one must not make a million ends.
_MAX_PARTS = 32


class Halves(msgspec.Struct, frozen=True, kw_only=True):
    """The two factors of one adapted module; None where the file lacks one.

    Attributes:
        down: A, [rank, in].
        up: B, [out, rank].
    """

    down: StoredTensor | None = None
    up: StoredTensor | None = None

    @property
    def rank(self) -> int | None:
        """What the shapes say; None where they say nothing, or contradict each other."""
        ranks = {self.down.shape[0]} if self.down is not None and len(self.down.shape) == 2 else set()
        ranks |= {self.up.shape[1]} if self.up is not None and len(self.up.shape) == 2 else set()
        return ranks.pop() if len(ranks) == 1 else None


def adapted_modules(tensors: Iterable[StoredTensor]) -> dict[str, Halves]:
    """Module name, as the base has it → the factors that the file holds for it."""
    found: dict[str, Halves] = {}
    for tensor in tensors:
        module, half = split_name(tensor.name)
        if half is not None:
            side = "down" if half == "A" else "up"
            found[module] = msgspec.structs.replace(found.get(module, Halves()), **{side: tensor})
    return found


def split_name(name: str) -> tuple[str, str | None]:
    """The base's module that a tensor of an adapter belongs to, and which half of the product it is (None: neither)."""
    bare = name.removeprefix(_PREFIX)
    for suffix, half in _HALVES.items():
        if bare.endswith(suffix):
            return bare.removesuffix(suffix), half
    for suffix in _OTHER_SUFFIXES:
        if bare.endswith(suffix):
            return bare.removesuffix(suffix), None
    return bare.rpartition(".")[0].removesuffix(".base_layer"), None


def misfits_inside(config: AdapterConfig, tensors: Iterable[StoredTensor]) -> list[str]:
    """Warnings where the weights are not what the adapter's own configuration says."""
    if not config.is_lora:
        return []
    modules = adapted_modules(tensors)
    warnings = []
    torn = [name for name, halves in modules.items() if halves.down is None or halves.up is None]
    if torn:
        warnings.append(
            f"{len(torn)} modules have only one of lora_A and lora_B: {listed(torn)}; an engine may take zeros for the "
            "other"
        )
    whole = {name: halves for name, halves in modules.items() if halves.down is not None and halves.up is not None}
    return [
        *warnings,
        *_about_ranks(config, whole),
        *_about_targets(config, modules),
        *_about_patterns(config, modules),
    ]


def _about_ranks(config: AdapterConfig, modules: Mapping[str, Halves]) -> list[str]:
    if _has_own_shapes(config):
        return []
    unequal, other = [], []
    pattern = _Pattern(config.pattern("rank_pattern"))
    for name, halves in modules.items():
        promised = pattern.value(name, default=config.rank)
        if halves.rank is None:
            unequal.append(name)
        elif isinstance(promised, int) and halves.rank != promised:
            other.append((name, halves.rank, promised))
    warnings = []
    if unequal:
        warnings.append(f"lora_A and lora_B do not multiply in {len(unequal)} modules: {listed(unequal)}")
    if other:
        names = listed([name for name, _, _ in other])
        warnings.append(
            f"{len(other)} modules have another rank than {ADAPTER_CONFIG_NAME} says: {names}; the first has "
            f"{other[0][1]}, promised {other[0][2]}: PEFT refuses it, and engines that load it scale it wrongly"
        )
    return warnings


def _about_targets(config: AdapterConfig, modules: Mapping[str, Halves]) -> list[str]:
    targets = config.names("target_modules")
    if targets is None or "target_parameters" in config.entries:
        return []
    wanted_ends = frozenset(targets)
    ends = {name: [end for end in _ends(name) if end in wanted_ends] for name in modules}
    unused = sorted(wanted_ends.difference(*ends.values()))
    layers = config.entries.get("layers_to_transform")
    wanted = [name for name, found in ends.items() if found]
    if isinstance(layers, list) and config.names("layers_pattern") is None:
        wanted = [name for name in wanted if _layer_of(name) in layers]
    unwanted = sorted(modules.keys() - set(wanted))
    warnings = []
    if unused:
        warnings.append(f"target_modules names {listed(unused)}, for which the adapter has no weights")
    if unwanted and config.names("layers_pattern") is None:
        warnings.append(
            f"{len(unwanted)} modules have weights that {ADAPTER_CONFIG_NAME} does not target: {listed(unwanted)}; "
            "PEFT drops them, vLLM applies them"
        )
    return warnings


def _about_patterns(config: AdapterConfig, modules: Mapping[str, Halves]) -> list[str]:
    warnings = []
    for key in ("rank_pattern", "alpha_pattern"):
        idle = _Pattern(config.pattern(key)).idle(modules)
        if idle:
            warnings.append(
                f"{key} names {listed(idle)}, which matches no module of the adapter, so the default applies: keys are "
                "matched against the end of a module's name, without base_model.model. in front"
            )
    return warnings


def misfits_with_base(
    config: AdapterConfig,
    tensors: Iterable[StoredTensor],
    *,
    base_names: Collection[str],
    base_shapes: Mapping[str, tuple[int, ...]],
    is_tied: bool,
) -> list[str]:
    """Warnings where the adapter touches nothing of the base, or has other sizes.

    Args:
        config: of the adapter.
        tensors: of the adapter.
        base_names: tensor names of the base.
        base_shapes: weight name → [out, in] or [size] that the base's configuration promises; may be empty.
        is_tied: the base's output layer is its embeddings, and need not be stored.
    """
    tensors = list(tensors)
    touched = {split_name(tensor.name)[0] for tensor in tensors}
    strange = sorted(touched.difference(*(_beginnings(name) for name in base_names), ["lm_head"] if is_tied else []))
    warnings = []
    if "layer_replication" in config.entries:
        strange = []  # it makes layers that the base does not have
    if strange and len(strange) == len(touched):
        warnings.append(
            f"no module of the adapter is one of the base: {listed(strange)}; it was made for another model, or for "
            "another class of it, and engines may serve the base instead without a word"
        )
    elif strange:
        warnings.append(f"{len(strange)} modules of the adapter are not in the base: {listed(strange)}")
    misshapen = [
        name
        for name, halves in ({} if _has_own_shapes(config) else adapted_modules(tensors)).items()
        if (shape := base_shapes.get(f"{name}.weight")) is not None and not _multiplies(halves, shape)
    ]
    if misshapen:
        warnings.append(
            f"{len(misshapen)} modules of the adapter have other sizes than those of the base: {listed(misshapen)}; it "
            "was made for another model"
        )
    return warnings


def _multiplies(halves: Halves, shape: tuple[int, ...]) -> bool:
    """Whether B·A has the shape of the base's weight; of embeddings, the transposed one."""
    if halves.down is None or halves.up is None or len(halves.down.shape) != 2 or len(halves.up.shape) != 2:
        return True  # told elsewhere
    product = (halves.up.shape[0], halves.down.shape[1])
    return shape == (product[::-1] if halves.down.name.endswith(".lora_embedding_A") else product)


def _has_own_shapes(config: AdapterConfig) -> bool:
    """Whether a variant of LoRA packs its factors otherwise: several experts in one, or groups of the input."""
    return bool({"target_parameters", "use_bdlora", "use_qalora"} & config.entries.keys())


def _beginnings(name: str) -> Iterable[str]:
    """The modules that a tensor of the base lies in, outermost first."""
    dot = name.find(".")
    for _ in range(_MAX_PARTS):
        if dot < 0:
            return
        yield name[:dot]
        dot = name.find(".", dot + 1)


def _ends(name: str) -> Iterable[str]:
    """A module's name, and what follows each of its last dots: what a plain key can be to match it."""
    dot = name.rfind(".")
    for _ in range(_MAX_PARTS):
        if dot < 0:
            break
        yield name[dot + 1 :]
        dot = name.rfind(".", 0, dot)
    yield name


def _layer_of(name: str) -> int | None:
    found = _LAYER_NUMBER.search(name)
    return int(found[1]) if found else None


class _Pattern:
    """A `rank_pattern` or `alpha_pattern`: the first key that matches the end of a module's name wins.

    An anchor in front of a key needs the whole name. Keys that are more than a name are not run: from the first of them
    on, nothing is known.
    """

    def __init__(self, pairs: Iterable[tuple[str, object]]) -> None:
        self._known: dict[str, tuple[int, object]] = {}
        self._unknown_from: int | None = None
        for place, (key, value) in enumerate(pairs):
            if _PLAIN_KEY.match(key):
                self._known.setdefault(key, (place, value))
            elif self._unknown_from is None:
                self._unknown_from = place

    def value(self, module: str, *, default: object) -> object:
        """What the pattern says about a module; None where that is not known."""
        found = min((self._known[key] for key in self._keys(module)), default=None, key=lambda pair: pair[0])
        if self._unknown_from is not None and (found is None or found[0] > self._unknown_from):
            return None
        return default if found is None else found[1]

    def idle(self, modules: Iterable[str]) -> list[str]:
        """Plain keys that match none of the modules."""
        used = {key for module in modules for key in self._keys(module)}
        return [key for key in self._known if key not in used]

    def _keys(self, module: str) -> list[str]:
        return [key for key in (f"^{module}", *_ends(module)) if key in self._known]
