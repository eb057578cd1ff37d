"""Standard streams whose reader may be gone (`| head`): that changes nothing about the outcome of a run."""

from __future__ import annotations

import os
from typing import TextIO


def abandon(stream: TextIO) -> None:
    """Sends whatever is still to be written nowhere; Python flushes once more at exit, and must find somebody there."""
    try:
        target = stream.fileno()
    except (OSError, ValueError):  # no file behind it, or closed
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)


def put(stream: TextIO, text: str) -> None:
    """Writes at once; where nobody reads, nothing happens.

    Raises:
        OSError: the stream cannot take it for another reason (a full disk).
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        abandon(stream)
