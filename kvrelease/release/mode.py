"""How much of a release's tensors is read."""

from __future__ import annotations

import enum


class Mode(enum.StrEnum):
    """Every byte, or samples of each tensor."""

    FULL = "full"
    FAST = "fast"
