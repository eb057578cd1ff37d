"""What a demo leaves behind: all of it, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.demo.keeping import keep, require_room
from kvrelease.demo.pair import shipped_pair
from kvrelease.engines.block_cache import BlockCache
from kvrelease.errors import InputError, UsageError


def test_a_directory_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for place in (tmp_path, tmp_path / "mine"):
        with pytest.raises(UsageError, match="not an empty directory"):
            require_room(place)
    with pytest.raises(UsageError, match="nothing can be written"):
        require_room(tmp_path / "mine" / "below")


def test_what_cannot_be_kept_whole_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    with pytest.raises(InputError, match="keeping the demo in"):
        keep(shipped_pair(), [BlockCache()], tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine"]
