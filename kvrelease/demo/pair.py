"""The pair of releases that ships with the program, and the prompts they were trained for."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

import kvrelease
from kvrelease.errors import InputError, UsageError
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.prompt_set import PromptSet

PROMPTS = "prompts/demo.yaml"
STORE = "store"

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


def shipped_pair(*, seen_from: Path) -> DemoPair:
    """The pair in the package; made by `scripts/train_demo_pair.py`.

    Args:
        seen_from: the working directory; the pair's paths are relative where they are below it, short enough to type.

    Raises:
        InputError: it is not there: the installation is damaged.
    """
    is_below = _SHIPPED.is_relative_to(seen_from)
    return pair_in(_SHIPPED.relative_to(seen_from) if is_below else _SHIPPED)


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


def keep_pair(pair: DemoPair, directory: Path) -> DemoPair:
    """A copy of the pair in a directory of the user's.

    Args:
        pair: what to copy.
        directory: new, or empty.

    Raises:
        UsageError: something is in it already.
        InputError: it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"keeping the demo in {directory}: it is not empty", hint="name a new directory")
        for release in (pair.old, pair.new):
            shutil.copytree(release, directory / release.name)
    except OSError as error:
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise InputError(
            f"keeping the demo in {directory}: {reason}", hint="make room (8 MB), or name another directory"
        ) from error
    return msgspec.structs.replace(pair, old=directory / pair.old.name, new=directory / pair.new.name)
