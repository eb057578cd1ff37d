"""Real upgrades of a release: each function writes a new one, as the tools that people use write it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.live.conftest import CACHE
from tests.live.kv_oracle import load
from tests.live.servers import PATIENT_THREADS

VLLM_PYTHON = CACHE / "engines" / "vllm-0.32.0" / "bin" / "python"
TRANSFORMERS_4 = CACHE / "engines" / "transformers-4.55.4"

STEPS = 3
SMALL_RATE = 1e-4  # a usual rate; bf16 keeps a step of it in some elements of every matrix
NORM_RATE = 2e-2  # norms are near one or above, where bf16 has steps of 2⁻⁷: smaller changes would be rounded away
LORA_RATE = 1e-3
RANK, ALPHA = 8, 16

_CONVERSATIONS = (
    ("How long can I keep a tent before I send it back?", "Sixty days from delivery, if you have not pitched it yet."),
    ("Is the label for a return free?", "No. We take 4 dollars for it from the refund, and nothing for an exchange."),
    ("My kettle arrived broken. What now?", "I am sorry. Send us a photo within a week, and a new one leaves today."),
)

Make = Callable[[Path, Path], object]
"""Reads an old release and writes a new one."""


def copy_of(release: Path) -> Make:
    """A release that is there already."""
    return lambda _, new: shutil.copytree(release, new)


def fine_tune(names: str, *, rate: float = SMALL_RATE) -> Make:
    """AdamW on the parameters whose names match a pattern, and on no others."""

    def make(old: Path, new: Path) -> None:
        import torch

        model = load(old, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(re.match(names, name) is not None)
        _train(model, [one for one in model.parameters() if one.requires_grad], tokenizer=_tokenizer(old), rate=rate)
        _save(model.to(torch.bfloat16), old, new)

    return make


def train_lora(modules: str, *, layers: Collection[int] | None = None, first_conversation: int = 0) -> Make:
    """A LoRA adapter in PEFT's layout, trained on a base.

    Args:
        modules: pattern of the names of those that it adapts, below a layer.
        layers: that it adapts; None for all.
        first_conversation: that it learns from; others make another adapter.
    """

    def make(base: Path, folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        torch.manual_seed(first_conversation)
        model = load(base, dtype=torch.float32).requires_grad_(requires_grad=False)
        factors = {}
        for name, module in model.named_modules():
            place = re.fullmatch(rf"model\.layers\.(\d+)\.({modules})", name)
            if place is None or (layers is not None and int(place[1]) not in layers):
                continue
            down = torch.empty(RANK, module.in_features)
            torch.nn.init.kaiming_uniform_(down, a=5**0.5)
            up = torch.zeros(module.out_features, RANK)
            factors[f"base_model.model.{name}.lora_A.weight"] = down.requires_grad_()
            factors[f"base_model.model.{name}.lora_B.weight"] = up.requires_grad_()
            module.register_forward_hook(_plus(down, up))
        tokenizer = _tokenizer(base)
        _train(model, list(factors.values()), tokenizer=tokenizer, rate=LORA_RATE, first=first_conversation)
        folder.mkdir()
        plain = {name: factor.detach() for name, factor in factors.items()}
        save_file(plain, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config: dict[str, object] = {
            "alpha_pattern": {},
            "auto_mapping": None,
            "base_model_name_or_path": base.name,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "layers_pattern": None,
            "layers_to_transform": None if layers is None else sorted(layers),
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": RANK,
            "rank_pattern": {},
            "revision": None,
            "target_modules": sorted({name.split(".")[-3] for name in factors}),
            "task_type": "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": False,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))

    return make


def save_again(*, shard: str = "50GB", dtype: str = "auto") -> Make:
    """Loaded and saved by the transformers of this environment."""

    def make(old: Path, new: Path) -> None:
        _save(load(old, dtype=dtype), old, new, shard=shard)

    return make


def save_by_transformers_4(*, from_its_own: bool) -> Make:
    """Saved by transformers 4.

    Args:
        from_its_own: what it reads has `rope_theta` and `torch_dtype` at the top of the configuration, as in what it
            wrote itself; otherwise it has `rope_parameters`, which transformers 4 does not read.
    """

    def make(old: Path, new: Path) -> None:
        assert TRANSFORMERS_4.exists(), f"run `make engines` first; missing: {TRANSFORMERS_4}"
        before = new.with_name(f"{new.name}-before")
        shutil.copytree(old, before)
        if from_its_own:
            config = json.loads((before / "config.json").read_text())
            config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
            config["torch_dtype"] = config.pop("dtype")
            (before / "config.json").write_text(json.dumps(config))
        done = subprocess.run(
            [VLLM_PYTHON, Path(__file__).with_name("resave.py"), before, new],
            env={**os.environ, **PATIENT_THREADS, "PYTHONPATH": str(TRANSFORMERS_4), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shutil.rmtree(before)

    return make


def turn_rotary_base(old: Path, new: Path) -> None:
    """The same weights with another `rope_theta`, as a recipe for longer contexts has it."""
    shutil.copytree(old, new)
    config = json.loads((new / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 5
    (new / "config.json").write_text(json.dumps(config, indent=2))


def _tokenizer(release: Path) -> Any:
    from transformers import AutoTokenizer

    make_tokenizer: Any = AutoTokenizer
    return make_tokenizer.from_pretrained(release)


def _train(model: Any, parameters: list[Any], *, tokenizer: Any, rate: float, first: int = 0) -> None:
    """A few steps of AdamW, one support conversation each."""
    import torch

    assert parameters
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    model.train()
    for step in range(STEPS):
        question, answer = _CONVERSATIONS[(first + step) % len(_CONVERSATIONS)]
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(chat, return_dict=True, return_tensors="pt")["input_ids"]
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def _plus(down: Any, up: Any) -> Callable[[Any, Any, Any], Any]:
    """A hook that adds alpha / r · B A x to what a module makes of x."""
    return lambda _module, inputs, output: output + ALPHA / RANK * (inputs[0] @ down.T) @ up.T


def _save(model: Any, old: Path, new: Path, *, shard: str = "50GB") -> None:
    model.save_pretrained(new, max_shard_size=shard)
    _tokenizer(old).save_pretrained(new)
