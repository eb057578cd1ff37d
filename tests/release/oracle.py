"""The oracle of the dependency rules: what really happens to K and V when a stored tensor or a key changes.

A tiny random model is written as its checkpoint would be, so that names are those of files, whatever a library makes
of them in memory. Then one stored tensor, or one key of `config.json`, becomes another; the model is loaded again, K
and V (and what else a layer caches) of some tokens are computed, and the first layer that differs is compared with the
first layer that the digests call changed.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import blake3
import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.digests import kv_digests, without_tied_copy
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.impact import rule_for
from kvrelease.release.model_config import canonical_config

TOKENS = 24
# Of a layer, or of an expert.
_NUMBER = re.compile(r"\.\d+(?=\.)")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One tiny model.

    Attributes:
        label: of the table.
        model_type: as in `config.json`.
        config: keys of the tiny model, over the type's defaults.
        alternatives: key → another value to try, for keys whose default tells none; more than one as a list of values.
        prefix: what the checkpoint's names lack in front, as some published ones do.
        buffers: name → shape of what a published checkpoint stores besides, though no parameter.
    """

    label: str
    model_type: str
    config: JsonObject
    alternatives: Mapping[str, tuple[object, ...]] = {}
    prefix: str = ""
    buffers: Mapping[str, tuple[int, ...]] = {}


class Outcome(enum.Enum):
    """How a prediction compares with what was measured."""

    EXACT = "exact"
    CAREFUL = "careful"  # an earlier layer, or invalid where every K and V stayed
    NEEDLESS = "needless"  # of the careful ones: invalid, and every K and V stayed
    FALSE_VALID = "false valid"
    UNFIT = "unfit"  # the stored tensors do not fit the changed configuration: there is no such release to measure


# What transformers raises where a configuration is none, or the tensors have other shapes.
_NO_SUCH_MODEL = (AssertionError, AttributeError, RuntimeError, TypeError, ValueError, ZeroDivisionError)

UNFIT: Literal["unfit"] = "unfit"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One change, the first layer said to be invalid and the first that was; None where none was.

    Attributes:
        what: the tensor, or the key and its other value.
        predicted: by the digests.
        measured: `"unfit"` where it could not be.
    """

    what: str
    predicted: int | None
    measured: int | Literal["unfit"] | None

    @property
    def outcome(self) -> Outcome:
        if self.measured == UNFIT:  # still to be called another model
            return Outcome.FALSE_VALID if self.predicted is None else Outcome.UNFIT
        if self.predicted == self.measured:
            return Outcome.EXACT
        if self.predicted is None or (self.measured is not None and self.measured < self.predicted):
            return Outcome.FALSE_VALID
        return Outcome.NEEDLESS if self.measured is None else Outcome.CAREFUL


class TinyModel:
    """A tiny random model on disk, and what its layers cache."""

    def __init__(self, case: Case, directory: Path) -> None:
        import torch
        from safetensors.torch import load_file
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

        make_config: Any = AutoConfig.for_model
        classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING
        torch.manual_seed(0)
        torch.set_num_threads(1)  # the models are far too small for more
        self.directory = directory
        with _quietly():
            config = make_config(**{"model_type": case.model_type, **case.config})
            self.model_class = classes[type(config)]
            self.model_class(config).save_pretrained(directory)
        self.raw: JsonObject = json.loads((directory / "config.json").read_text())
        stored: dict[str, Any] = {name: torch.ones(shape) for name, shape in case.buffers.items()}
        for file in directory.glob("*.safetensors"):
            stored |= {name.removeprefix(case.prefix): tensor for name, tensor in load_file(file).items()}
            file.unlink()
        # Norms start at one and biases at zero, which hides dependencies.
        self.tensors = {
            name: torch.randn_like(tensor) * 0.5 if tensor.is_floating_point() else tensor
            for name, tensor in sorted(stored.items())
        }

    def loaded(self, tensors: Mapping[str, Any], raw: JsonObject) -> Any:
        """The model that transformers reads; None where the tensors do not fit the configuration."""
        from huggingface_hub.errors import StrictDataclassError
        from safetensors.torch import save_file

        (self.directory / "config.json").write_text(json.dumps(raw))
        save_file(dict(tensors), self.directory / "model.safetensors", metadata={"format": "pt"})
        with _quietly():
            try:
                model, found = self.model_class.from_pretrained(
                    self.directory, attn_implementation="eager", output_loading_info=True
                )
            except (*_NO_SUCH_MODEL, StrictDataclassError):
                return None  # other shapes, or no such model
        if any(name.startswith(model.base_model_prefix) for name in found["missing_keys"]):
            return None  # transformers invents what is missing
        return model.eval()

    def after(self, model: Any, name: str, other: Any) -> list[list[Any]]:
        """What the layers cache when one stored tensor is another; the model is afterwards what it was.

        Where the model holds the very tensor under the name of the file, it is changed in place, which is ten times as
        fast as to load the model again.
        """
        import torch

        parameters = dict(model.named_parameters())
        found = parameters.get(name, parameters.get(f"{model.base_model_prefix}.{name}"))
        if found is None or not torch.equal(found, self.tensors[name]):  # converted, tied, or not read at all
            model = self.loaded({**self.tensors, name: other}, self.raw)
            assert model is not None, "a tensor of the same shape does not load"
            return cached(model)
        with torch.no_grad():
            found.copy_(other)
            result = cached(model)
            found.copy_(self.tensors[name])
        return result

    def of_other_configuration(self, raw: JsonObject) -> list[list[Any]] | None:
        """What the layers cache under it; None where that computes nothing with the tensors that are there."""
        try:
            model = self.loaded(self.tensors, raw)
            return None if model is None else cached(model)
        except _NO_SUCH_MODEL:
            return None

    def answers(self, case: Case, *, only: frozenset[str] | None = None) -> Iterator[Answer]:
        """One for each stored tensor, and one for each key and other value of it.

        Args:
            case: of the model.
            only: names of tensors, and `key=value`s, to ask about; None for all.
        """
        import torch

        model = self.loaded(self.tensors, self.raw)
        assert model is not None, "the tiny model does not load"
        before = cached(model)
        for name, tensor in self.tensors.items():
            if only is not None and name not in only:
                continue
            other = tensor * 1.25 + torch.randn_like(tensor) * 0.1 if tensor.is_floating_point() else tensor + 1
            yield Answer(
                what=name,
                predicted=self._predicted(self.raw, changed=name),
                measured=first_change(before, self.after(model, name, other)),
            )
        assert first_change(before, cached(model)) is None, "the tiny model did not become what it was"
        for key, value in other_values(case, self.raw):
            raw, what = {**self.raw, key: value}, f"{key}={json.dumps(value)}"
            if only is not None and what not in only:
                continue
            yield Answer(
                what=what,
                predicted=self._predicted(raw, changed=None),
                measured=first_change(before, self.of_other_configuration(raw)),
            )

    def doubtful(self, case: Case) -> dict[str, str]:
        """What could be called valid wrongly, by its kind: a tensor of each part, and each key, that spares layer 0.

        A part is its first tensor: what is said to touch layer 0 there is beyond doubt.
        """
        found: dict[str, str] = {}
        for name in sorted(self.tensors):  # fewer than ten layers, and experts
            found.setdefault(_NUMBER.sub(".*", name), name)
        found = {part: name for part, name in found.items() if self._predicted(self.raw, changed=name) != 0}
        for key, value in other_values(case, self.raw):
            if self._predicted({**self.raw, key: value}, changed=None) != 0:
                found[f"{key}={json.dumps(value)}"] = f"{key}={json.dumps(value)}"
        return found

    def _predicted(self, raw: JsonObject, *, changed: str | None) -> int | None:
        """The first layer whose digest differs; None where the kv digests are equal."""
        before, after = self._before, self._digests(raw, changed=changed)
        if before[0] == after[0]:
            return None
        if len(before[1]) != len(after[1]):
            return 0
        pairs = enumerate(zip(before[1], after[1], strict=True))
        return next((layer for layer, (old, new) in pairs if old.digest != new.digest), 0)

    @functools.cached_property
    def _before(self) -> tuple[str, tuple[Any, ...]]:
        return self._digests(self.raw, changed=None)

    def _digests(self, raw: JsonObject, *, changed: str | None) -> tuple[str, tuple[Any, ...]]:
        config = canonical_config(raw)
        rule = rule_for(config)
        payloads = {name: blake3.blake3(f"{name} {name == changed}".encode()).hexdigest() for name in self.tensors}
        entries = config.entries if rule.layers is not None else config.stated
        return kv_digests(without_tied_copy(payloads, rule), entries, {}, rule)


def cached(model: Any) -> list[list[Any]]:
    """[layers][states] tensors that the layers of a loaded model cache of some tokens.

    Raises:
        RuntimeError: its parts loaded by their shapes, and do not fit together.
    """
    import torch
    from transformers import DynamicCache

    make_cache: Any = DynamicCache
    kinds = getattr(model.config, "layer_types", None) or []
    hybrid = any(kind in ("linear_attention", "conv") for kind in kinds)
    cache = make_cache(config=model.config) if hybrid else make_cache()
    with _quietly(), torch.no_grad():
        model.base_model(input_ids=(torch.arange(TOKENS) % 32).unsqueeze(0), past_key_values=cache, use_cache=True)
    return [_states(layer) for layer in cache.layers]


def other_values(case: Case, raw: JsonObject) -> Iterator[tuple[str, object]]:
    """Each key that the model type knows, with another value; further ones from the case."""
    for key, default in FAMILY_OF_TYPE[case.model_type].types[case.model_type].items():
        if key in case.alternatives or key == "is_encoder_decoder":  # every one of them is a decoder
            continue
        match raw.get(key, default):
            case bool(value):
                yield key, not value
            case int(value):
                yield key, value * 2
            case float(value):
                yield key, value * 1.5 + 0.25
            case _:
                pass
    for key, values in case.alternatives.items():
        yield from ((key, value) for value in values)


def first_change(before: list[list[Any]], after: list[list[Any]] | None) -> int | Literal["unfit"] | None:
    """The first layer whose states differ in shape or in any bit; None where none does."""
    if after is None:
        return UNFIT
    if len(before) != len(after):
        return 0
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        if len(old) != len(new) or not all(map(same_bits, old, new)):
            return layer
    return None


def same_bits(one: Any, other: Any) -> bool:
    """Whether two tensors are stored alike: 0.0 and -0.0 are not, and a NaN is itself."""
    import torch

    def stored(tensor: Any) -> Any:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(stored(one), stored(other))


def answers_of(case: Case) -> tuple[str, list[Answer]]:
    """The name of the rule, and all answers of one case."""
    with tempfile.TemporaryDirectory() as directory:
        model = TinyModel(case, Path(directory))
        return rule_for(canonical_config(model.raw)).name, list(model.answers(case))


def _states(layer: Any) -> list[Any]:
    import torch

    found: list[Any] = []

    def gather(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            for item in value:
                gather(item)
        elif isinstance(value, dict):
            for item in value.values():
                gather(item)

    gather(dict(sorted(vars(layer).items())))
    assert found, f"{type(layer).__name__} caches nothing that is known"
    return found


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    import transformers

    logging: Any = transformers.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
