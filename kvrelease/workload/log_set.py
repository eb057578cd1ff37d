"""Prompt sets made of traffic logs as they are: every request with its text is a prompt.

For logs of the size of a set; a representative part of a large one is `kvrelease prompts select`.
"""

from __future__ import annotations

from pathlib import Path

from kvrelease.errors import PromptSetError
from kvrelease.workload.entry import DistinctIds, Entry
from kvrelease.workload.logs.reading import read_log

# A representative set is thousands of prompts at most, and every one is sent.
MAX_PROMPTS = 100_000


def read_log_set(path: Path, *, source: str, limit_bytes: int) -> list[Entry]:
    """The entries of a log, in the file's order; requests with the same id are told apart by their number.

    Args:
        path: of the log.
        source: how messages name it.
        limit_bytes: the most that its text may hold, after decompression.

    Raises:
        PromptSetError: it holds no text, or too much of it.
        InputError: what `read_log` raises.
    """
    entries: list[Entry] = []
    ids = DistinctIds()
    without_text = 0
    for request in read_log(path, source=source, limit_bytes=limit_bytes):
        if request.body is None:
            without_text += 1
            continue
        if len(entries) == MAX_PROMPTS:
            raise PromptSetError(
                f"reading the prompt set {source}: it holds more than {MAX_PROMPTS} requests",
                hint=f"choose a representative part: kvrelease prompts select {source} -o set.jsonl",
            )
        entries.append(
            Entry(
                place=request.place,
                id=None if request.place.id is None else ids.of(request.place.id),
                weight=request.weight,
                body=request.body,
                prefix=None,
                salt=request.salt,
            )
        )
    if not entries:
        raise PromptSetError(
            f"reading the prompt set {source}: it has {without_text} requests and the text of none: nothing can be "
            "sent",
            hint="traces without text serve planning and simulation: `kvrelease prompts select` tells figures of them",
        )
    return entries
