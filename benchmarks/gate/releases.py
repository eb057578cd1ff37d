"""The releases that the gate is measured on: fine-tunes of SmolLM2-135M-Instruct (v1.2) of several sizes.

The recipe is that of v1.3 (`scripts/provision/model_recipe.py`): the same six questions and answers, AdamW, the same
seed. What varies is how many steps, and whether all layers are tuned or only the last three. One training of each kind
passes through all its sizes, and saves each.
"""

# ruff: noqa: PLC0415 - torch costs seconds, and `run` and `report` need none

from __future__ import annotations

import functools
import importlib
import re
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import blake3
import msgspec

REPOSITORY = Path(__file__).parents[2]
STEPS = (1, 3, 12, 36)
LAST_LAYERS = 3
THREADS = 2  # the order of float additions depends on it, so it is fixed, not taken from the machine
OLD = "smollm2-v1.2"
WEIGHTS = "model.safetensors"


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """One fine-tune.

    Attributes:
        layers: `all`, or `last3`.
        steps: of training.
    """

    layers: str
    steps: int

    @property
    def name(self) -> str:
        """As files and tables name it."""
        return f"{self.layers}-{self.steps:02}"


RELEASES = tuple(Tuned(layers=layers, steps=steps) for layers in ("all", "last3") for steps in STEPS)


def release_of(name: str) -> Tuned:
    """The release of a name."""
    return next(one for one in RELEASES if one.name == name)


@functools.cache
def weights_digest(directory: Path) -> str:
    """Tells one training of a release from another: of its weights' file."""
    return blake3.blake3().update_mmap(directory / WEIGHTS).hexdigest()[:16]


def ensure_releases(
    old: Path, folder: Path, *, only: Collection[str], say: Callable[[str], None], pause: Callable[[], None]
) -> None:
    """Trains what is not there yet; a release is there when its folder is, which is renamed into place when whole.

    Args:
        old: directory of v1.2.
        folder: one directory for each release, by its name.
        only: names of those that are wanted.
        say: told how far it is.
        pause: called between steps; returns when the machine may be used.
    """
    for layers in ("all", "last3"):
        wanted = [one for one in RELEASES if one.layers == layers and one.name in only]
        if not all((folder / one.name).exists() for one in wanted):
            _train(old, folder, layers=layers, wanted=wanted, say=say, pause=pause)


def _train(
    old: Path,
    folder: Path,
    *,
    layers: str,
    wanted: list[Tuned],
    say: Callable[[str], None],
    pause: Callable[[], None],
) -> None:
    import torch

    transformers, recipe = importlib.import_module("transformers"), _recipe()
    torch.set_num_threads(THREADS)
    torch.manual_seed(recipe.SEED)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(old, dtype=torch.float32)
    batch = recipe.training_batch(transformers.AutoTokenizer.from_pretrained(old), torch)
    tuned = _tuned_parameters(model, layers)
    optimizer = torch.optim.AdamW(tuned, lr=recipe.LEARNING_RATE, weight_decay=0.0)
    model.train()
    last = max(one.steps for one in wanted)
    for step in range(1, last + 1):
        pause()
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned, recipe.MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        say(f"training, {layers} layers: step {step} of {last}, loss {loss.item():.4f} nats")
        for one in wanted:
            if one.steps == step and not (folder / one.name).exists():
                _save(model, old, folder / one.name)


def _tuned_parameters(model: Any, layers: str) -> list[Any]:
    """Those that are trained; embeddings never are, as in v1.3's recipe, whose comment says why."""
    first = model.config.num_hidden_layers - LAST_LAYERS
    for name, parameter in model.named_parameters():
        place = re.search(r"layers\.(\d+)\.", name)
        is_last = place is not None and int(place[1]) >= first
        is_embedding = "embed_tokens" in name or "lm_head" in name
        parameter.requires_grad_(is_last if layers == "last3" else not is_embedding)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _save(model: Any, old: Path, place: Path) -> None:
    """bfloat16 weights; every file but the weights is v1.2's."""
    import torch
    from safetensors.torch import save_file

    draft = place.with_name(f".{place.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    names = {name for name, _ in model.named_parameters()}
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(
        {name: tensor for name, tensor in tensors.items() if name in names},
        draft / WEIGHTS,
        metadata={"format": "pt"},
    )
    for path in old.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, draft / path.name)
    draft.rename(place)


def _recipe() -> Any:
    """v1.3's recipe; `scripts/` is no package, so its folder goes on the path, as when its programs run."""
    scripts = str(REPOSITORY / "scripts")
    if scripts not in sys.path:
        sys.path.append(scripts)
    return importlib.import_module("provision.model_recipe")
