"""The pair of releases that ships with the program, and the prompts they were trained for."""

from __future__ import annotations

from pathlib import Path

import msgspec

import kvrelease
from kvrelease.errors import InputError
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.prompt_set import PromptSet

PROMPTS = "prompts/demo.yaml"

_SHIPPED = Path(kvrelease.__file__).parent / "data" / "demo"


class DemoPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two releases of one small Llama: the shop's policy before and after the upgrade.

    Attributes:
        old: directory of the release before.
        new: directory of the release after.
        prompts: what their users ask.
    """

    old: Path
    new: Path
    prompts: PromptSet


def shipped_pair(*, seen_from: Path | None = None) -> DemoPair:
    """The pair in the package; made by `scripts/train_demo_pair.py`.

    Args:
        seen_from: the working directory: below it the pair's paths are relative, short enough to type. None for
            absolute ones.

    Raises:
        InputError: it is not there: the installation is damaged.
    """
    if seen_from is not None and _SHIPPED.is_relative_to(seen_from):
        return pair_in(_SHIPPED.relative_to(seen_from))
    return pair_in(_SHIPPED)


def pair_in(directory: Path) -> DemoPair:
    """The pair in a directory that holds `v1` and `v2`.

    Raises:
        InputError: one is not there, or the prompts are not.
    """
    old, new = directory / "v1", directory / "v2"
    for release in (old, new):
        if not (release / "model.safetensors").is_file():
            raise InputError(
                f"looking for the demo's releases: {release} has no model.safetensors",
                hint="install kvrelease again, from a wheel or a whole checkout",
            )
    return DemoPair(old=old, new=new, prompts=load_prompt_set(PROMPTS, directory=directory))
