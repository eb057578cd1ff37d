"""A target of two files and two stages, to try the machinery without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.cache import Stamps, recipe_digest, record_files
from provision.errors import ProvisionError
from provision.places import Places
from provision.progress import Progress
from provision.result import Result


@dataclass
class Toy:
    """Makes `toy/first` and `toy/second`; fails in the second stage while `is_broken`."""

    pins: Mapping[str, str] = field(default_factory=lambda: {"pin": "1"})
    is_broken: bool = False
    made: list[str] = field(default_factory=list)
    name: str = "toy"

    def recipe(self) -> str:
        return recipe_digest(self.pins)

    def folder(self, places: Places) -> Path:
        return places.root / "toy"

    def make(self, places: Places, *, progress: Progress) -> Result:
        folder = self.folder(places)
        stamps = Stamps(folder=places.work / "toy", recipe=self.recipe())
        for stage in ("first", "second"):
            if stamps.is_done(stage):
                continue
            progress.stage(f"toy: {stage}")
            if stage == "second" and self.is_broken:
                raise ProvisionError("Tried to make second: the disk was full", hint="Free some space")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / stage).write_text(f"{stage} of {self.pins}")
            self.made.append(stage)
            stamps.mark(stage)
        for stage in ("first", "second"):
            (stamps.folder / f"{stage}.done").unlink()
        files = record_files(places.root, sorted(folder.iterdir()), hashed=True)
        return Result(files=files, facts={"seed": "1"})
