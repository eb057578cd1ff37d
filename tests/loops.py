"""An event loop for one piece of work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives.

    It is kept out of the task's result: `asyncio.run` puts Ctrl-C's handler back by way of a text that spells the task
    out, and the text of what a run observed takes longer than to judge it.
    """
    found: list[T] = []

    async def main() -> None:
        found.append(await work)

    asyncio.run(main())
    return found[0]
