from __future__ import annotations

import pytest
from provision.cache import State
from provision.errors import ProvisionError
from provision.places import Places
from provision.progress import Progress
from provision.target import bring_up_to_date

from tests.scripts.toy import Toy


def test_an_unchanged_second_run_makes_nothing(places: Places, progress: Progress) -> None:
    toy = Toy()
    assert bring_up_to_date(toy, places, progress=progress) is State.MISSING
    assert bring_up_to_date(toy, places, progress=progress) is State.READY
    assert toy.made == ["first", "second"]


def test_a_changed_pin_makes_it_again(places: Places, progress: Progress, lines: list[str]) -> None:
    bring_up_to_date(Toy(), places, progress=progress)
    newer = Toy(pins={"pin": "2"})
    assert bring_up_to_date(newer, places, progress=progress) is State.OUTDATED
    assert newer.made == ["first", "second"]
    assert any("toy: outdated: made by recipe" in line for line in lines)


def test_a_damaged_file_is_made_again_and_named(places: Places, progress: Progress, lines: list[str]) -> None:
    toy = Toy()
    bring_up_to_date(toy, places, progress=progress)
    original = (places.root / "toy" / "second").read_text()
    (places.root / "toy" / "second").write_text(original[:-1] + "?")
    assert bring_up_to_date(toy, places, progress=progress) is State.DAMAGED
    assert any("toy: damaged: toy/second has SHA-256" in line for line in lines)
    assert (places.root / "toy" / "second").read_text() == original


def test_a_run_after_a_failure_goes_on_from_the_last_finished_stage(places: Places, progress: Progress) -> None:
    with pytest.raises(ProvisionError, match="the disk was full"):
        bring_up_to_date(Toy(is_broken=True), places, progress=progress)
    mended = Toy()
    assert bring_up_to_date(mended, places, progress=progress) is State.MISSING
    assert mended.made == ["second"]


def test_a_failed_repair_does_not_leave_the_old_manifest_in_force(places: Places, progress: Progress) -> None:
    bring_up_to_date(Toy(), places, progress=progress)
    (places.root / "toy" / "first").unlink()
    with pytest.raises(ProvisionError):
        bring_up_to_date(Toy(is_broken=True), places, progress=progress)
    assert not (places.manifests / "toy.json").exists()
