"""The pair that ships with the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.demo.pair import pair_in, shipped_pair
from kvrelease.errors import InputError


def test_a_damaged_installation_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        pair_in(tmp_path)
    assert str(raised.value.hint).startswith("install kvrelease again")


def test_paths_below_the_working_directory_are_short() -> None:
    package = Path(__file__).parents[2]
    assert shipped_pair(seen_from=package).old == Path("kvrelease/data/demo/v1")
    assert shipped_pair().old.is_absolute()
