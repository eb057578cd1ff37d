"""What a finished recipe hands to its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.cache import RecordedFile


@dataclass(frozen=True, kw_only=True)
class Result:
    """Files to check at later runs, and facts to show.

    Attributes:
        files: sizes and checksums.
        facts: versions, seeds and measurements.
    """

    files: tuple[RecordedFile, ...]
    facts: Mapping[str, str]
