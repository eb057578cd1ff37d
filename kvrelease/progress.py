"""Progress of long work, as events to a callback; who draws them is not this layer's business."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """How far one stage of a command is.

    Attributes:
        stage: what is being done, in the words of the report.
        done: finished so far, in `unit`.
        total: all of it; None when not known.
        unit: `bytes`, `requests`, …
        detail: what the stage is at just now, for people; empty for nothing.
    """

    stage: str
    done: int
    total: int | None
    unit: str
    detail: str = ""

    @property
    def description(self) -> str:
        """The stage, and what it is at."""
        return f"{self.stage}: {self.detail}" if self.detail else self.stage


Progress = Callable[[ProgressEvent], None]


def silent(_event: ProgressEvent) -> None:
    """The default: nobody watches."""
