"""An earlier verdict where this run is to write its own: put aside, so that nobody takes it for this run's.

A run may end without a result: no engine answers, a file is damaged, somebody kills it. What reads its `--output` next
must not find the pass of the run before. So that is renamed to `NAME.earlier` when the run begins, and removed when its
result is written. Only what is ours is touched: an artifact of the kind that is to be written, or a page that begins
with a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from kvrelease.errors import InputError

_SUFFIX = ".earlier"
# `"kind"` is an artifact's first key (`artifacts.Artifact`).
_KIND = re.compile(r'\s*\{\s*"kind":\s*"([^"]*)"')
# The title, an empty line, the verdict's word: how `report.markdown` and `report.terminal` begin such a page.
_PAGE = re.compile(r"[^\n]+\n\n(?:\*\*)?(?:PASS|FAIL|INCONCLUSIVE|VALID|INVALID|UNKNOWN)\b")
_HEAD_CHARS = 4096


def put_aside(output: Path | None, *, kinds: Collection[str]) -> None:
    """Renames an earlier verdict at `output`; leaves everything else as it is.

    Args:
        output: that this run will write; None for none.
        kinds: of artifact that it may become, such as `kvrelease/verify`.

    Raises:
        InputError: it cannot be renamed.
    """
    if output is None or not _is_verdict(output, kinds=kinds):
        return
    target = output.resolve()
    aside = _aside(target)
    if aside.exists() and not _is_verdict(aside, kinds=kinds):
        raise InputError(
            f"putting the earlier report {output} aside: {aside} is there, and no report",
            hint="move one of the two, or name another --output",
        )
    try:
        target.replace(aside)
    except OSError as error:
        raise InputError(
            f"putting the earlier report {output} aside, as {aside.name}: {error.strerror or error}",
            hint="name another --output",
        ) from error


def drop(output: Path, *, kind: str) -> None:
    """Removes what was put aside, now that a result is written; where that cannot be, it stays."""
    aside = _aside(output.resolve())
    if _is_verdict(aside, kinds=(kind,)):
        try:
            aside.unlink()
        except OSError:  # it bears its own name, and nobody takes it for this run's
            return


def _aside(target: Path) -> Path:
    return target.with_name(target.name + _SUFFIX)


def _is_verdict(path: Path, *, kinds: Collection[str]) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_CHARS)
    except OSError:
        return False
    found = _KIND.match(head)
    return found[1] in kinds if found else _PAGE.match(head) is not None
