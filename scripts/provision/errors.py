"""What an install can meet in the outside world: one error class, told in one paragraph."""

from __future__ import annotations

from pathlib import Path


class ProvisionError(Exception):
    """An install step failed for a reason outside this program.

    Attributes:
        what: what was attempted, on what, and what was found.
        hint: what the reader does next.
        log: the log file that holds the step's full output; None when the step wrote none.
    """

    def __init__(self, what: str, *, hint: str, log: Path | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.log = log

    def paragraph(self) -> str:
        """The message as one paragraph: what was tried and found, the log's path, the next step."""
        parts = [self.what.rstrip(".") + "."]
        if self.log is not None:
            parts.append(f"The full output is in {self.log}.")
        parts.append(self.hint.rstrip(".") + ".")
        return " ".join(parts)
