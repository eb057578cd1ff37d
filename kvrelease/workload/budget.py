"""What a chosen set may cost."""

from __future__ import annotations

import msgspec


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a set; all that are given hold.

    Attributes:
        requests: prompts of the set; None for any number.
        length: of all its prompts, in the unit of the report, shared beginnings counted every time; None likewise.
        blocks: different blocks of its prompts, what they occupy when all are resident; None likewise.
    """

    requests: int | None = None
    length: int | None = None
    blocks: int | None = None

    def share(self, *, length: int, blocks: int) -> float:
        """The largest part of a limit that one more prompt uses.

        Args:
            length: of the prompt.
            blocks: that it adds.
        """
        parts = ((1, self.requests), (length, self.length), (blocks, self.blocks))
        return max((part / limit for part, limit in parts if limit is not None), default=1.0)


class Spent(msgspec.Struct, kw_only=True):
    """What was used of a budget so far; changes as prompts are chosen."""

    requests: int = 0
    length: int = 0
    blocks: int = 0

    def has_room(self, budget: Budget, *, length: int, blocks: int) -> bool:
        """Whether one more prompt of that length and so many new blocks fits."""
        after = (
            (self.requests + 1, budget.requests),
            (self.length + length, budget.length),
            (self.blocks + blocks, budget.blocks),
        )
        return all(limit is None or amount <= limit for amount, limit in after)
