"""What one thing to install must be able to do, and how it is brought up to date."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from provision.cache import Manifest, State, judge, read_manifest, write_manifest
from provision.places import Places
from provision.progress import Progress
from provision.result import Result


class Target(Protocol):
    """One thing that `install` makes: its name, its recipe, its place, and the making."""

    @property
    def name(self) -> str:
        """The word on the command line."""

    def recipe(self) -> str:
        """Digest of everything that decides the result."""

    def folder(self, places: Places) -> Path:
        """Where the result lies."""

    def make(self, places: Places, *, progress: Progress) -> Result:
        """Make it, going on from the stages that an earlier run finished.

        Raises:
            ProvisionError: the outside world failed.
        """


def bring_up_to_date(target: Target, places: Places, *, progress: Progress) -> State:
    """Install one target unless it is ready, saying why it is made again.

    Returns:
        What was found before: READY means that nothing had to be done.

    Raises:
        ProvisionError: the target could not be made.
    """
    recipe = target.recipe()
    manifest = read_manifest(places.manifests, target.name)
    state, reasons = judge(places.root, manifest, recipe=recipe, read_contents=True)
    if state is State.READY:
        progress.stage(f"{target.name}: ready in {target.folder(places)}")
        return state
    for reason in reasons:
        progress.stage(f"{target.name}: {state.value}: {reason}; making it again")
    (places.manifests / f"{target.name}.json").unlink(missing_ok=True)
    begun_s = time.monotonic()
    made = target.make(places, progress=progress)
    seconds = time.monotonic() - begun_s
    write_manifest(
        places.manifests,
        Manifest(name=target.name, recipe=recipe, seconds=seconds, files=made.files, facts=made.facts),
    )
    progress.stage(f"{target.name}: installed in {seconds:.0f} s in {target.folder(places)}")
    return state
