"""What a release really computes for one prompt, by transformers: K and V of every layer, the next token's logits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from tests.live.conftest import REPOSITORY
from tests.release.oracle import same_bits

PROMPT_TOKENS = 384
"""Of one support prompt: three of vLLM's CPU blocks."""
STORED_TOKENS = 96
"""Of the same, where bfloat16 is computed with: a CPU without its instructions takes 20 ms a token."""


@dataclasses.dataclass(frozen=True)
class Kv:
    """What one release computed for a prompt.

    Attributes:
        layers: one tensor a layer, [K and V, KV heads, tokens, head dimension], in the dtype of the computation.
        logits: of the token after the prompt, [vocabulary].
    """

    layers: tuple[Any, ...]
    logits: Any


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two releases' K and V differ.

    Attributes:
        layers: those whose K or V are not equal bit for bit, ascending.
        largest: the largest change of one element of any of them.
    """

    layers: tuple[int, ...]
    largest: float

    @property
    def first(self) -> int | None:
        """The first layer that differs; None where none does."""
        return self.layers[0] if self.layers else None


def prompt_ids(release: Path) -> Any:
    """[1, tokens], the beginning of a prompt of the shipped support set in this release's tokens and template."""
    from transformers import AutoTokenizer

    document = yaml.safe_load((REPOSITORY / "prompts" / "support.yaml").read_text())
    prompt = document["prompts"][0]
    system = {"role": "system", "content": document["systems"][prompt["system"]]}
    make_tokenizer: Any = AutoTokenizer
    ids = make_tokenizer.from_pretrained(release).apply_chat_template(
        [system, {"role": "user", "content": prompt["user"]}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )["input_ids"]
    assert ids.shape[1] > PROMPT_TOKENS
    return ids[:, :PROMPT_TOKENS]


def load(release: Path, *, dtype: Any = "auto") -> Any:
    """The model of a directory, in the dtype that its configuration states or in another one."""
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    make_model: Any = transformers.AutoModelForCausalLM
    return make_model.from_pretrained(release, dtype=dtype).eval()


def as_stored(release: Path, ids: Any) -> Kv:
    """What a release computes in the dtype of its weights, as engines do by default, for the beginning of a prompt."""
    return computed(load(release), ids[:, :STORED_TOKENS])


def in_float32(release: Path, ids: Any) -> Kv:
    """What a release's weights make in float32: the sharper comparison, as no change is rounded away."""
    import torch

    return computed(load(release, dtype=torch.float32), ids)


def computed(model: Any, ids: Any) -> Kv:
    """What a model computes for a prompt."""
    import torch
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    with torch.no_grad():
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
    layers = tuple(torch.cat((layer.keys, layer.values)) for layer in cache.layers)
    assert all(layer.shape[2] == ids.shape[1] and bool(torch.isfinite(layer).all()) for layer in layers)
    return Kv(layers=layers, logits=logits)


def adapted(release: Path, adapter: Path) -> Any:
    """A release with W + alpha / r · B A in place of each W that a LoRA adapter adapts: in float32, it is no bf16."""
    import torch
    from safetensors.torch import load_file

    model = load(release, dtype=torch.float32)
    factors = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    downs = [name for name in factors if name.endswith(".lora_A.weight")]
    assert 2 * len(downs) == len(factors)
    with torch.no_grad():
        for name in downs:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            product = factors[name.replace("lora_A", "lora_B")] @ factors[name]
            model.get_submodule(module).weight.add_(config["lora_alpha"] / config["r"] * product)
    return model


def difference(old: Kv, new: Kv) -> Difference:
    """Where two releases' K and V are not equal bit for bit."""
    pairs = list(zip(old.layers, new.layers, strict=True))
    layers = tuple(number for number, (before, after) in enumerate(pairs) if not same_bits(before, after))
    changes = (pairs[number][0].float() - pairs[number][1].float() for number in layers)
    largest = max((float(change.abs().max()) for change in changes), default=0.0)
    return Difference(layers=layers, largest=largest)
