"""What a user may have meant by a path at which nothing is."""

from __future__ import annotations

import difflib
import re
from itertools import islice
from pathlib import Path

# `org/name`, as the Hub calls a model.
_MODEL_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_MOST_NEIGHBOURS = 10_000  # a larger directory is no place to guess in


def next_step(path: Path) -> str:
    """The next step of the error about it: a sentence."""
    there = next(parent for parent in path.absolute().parents if _exists(parent))
    missing = path.absolute().relative_to(there).parts[0]
    if _is_link(there / missing):
        return f"{there / missing} is a link to what is not there: mount or restore what it leads to"
    if not there.is_dir():
        return f"{there} is a file: give the directory that it lies in, or the file alone"
    try:
        names = [entry.name for entry in islice(there.iterdir(), _MOST_NEIGHBOURS)]
    except OSError:  # it may be searched, and not listed
        names = []
    close = difflib.get_close_matches(missing, names, n=1)
    if close:
        return f"did you mean {there / close[0]}?"
    if _MODEL_ID.fullmatch(str(path)):
        return f"{there} has no {missing}; a model on the Hub is written hf:{path}@REVISION"
    return f"{there} is there, and has no {missing}: check the path, or whether its disk is mounted"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # it may not be searched, or no file system could hold the name
        return False


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False
