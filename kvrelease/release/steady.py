"""Proof that nobody wrote to a release while it was read: its fingerprint would be that of no version of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from kvrelease.errors import InputError
from kvrelease.printable import listed
from kvrelease.release.read_files import is_read
from kvrelease.release.source import FileIdentity, Origin, Source, SourceFile
from kvrelease.release.weights import WEIGHT_SUFFIXES

_HINT = "wait until the copy or download has finished, and run again"


class SteadySource:
    """A `Source` that remembers which files there were, and what each small one was when it was first asked for.

    Of weight files only the names: whoever reads their bytes proves the rest, and a large release has hundreds of them.

    Attributes:
        seen_ns: our clock before any file was looked at, ns since the epoch: whatever is written later may get a later
            time (memo.py). Only a `SteadySource` that was made before its source was used has it right.
    """

    def __init__(self, source: Source) -> None:
        self.seen_ns = time.time_ns()
        self._source = source
        self._seen: dict[str, FileIdentity] = {}

    @property
    def where(self) -> str:
        """As the source says."""
        return self._source.where

    @property
    def origin(self) -> Origin:
        """As the source says."""
        return self._source.origin

    @property
    def single_file(self) -> str | None:
        """As the source says."""
        return self._source.single_file

    def names(self) -> Sequence[str]:
        """As the source says."""
        return self._source.names()

    def names_now(self) -> Sequence[str]:
        """As the source says."""
        return self._source.names_now()

    def names_below(self) -> Sequence[str]:
        """As the source says."""
        return self._source.names_below()

    def has(self, name: str) -> bool:
        """As the source says."""
        return self._source.has(name)

    def file(self, name: str) -> SourceFile:
        """The file of that name, looked at."""
        file = self._source.file(name)
        if name not in self._seen and not name.endswith(WEIGHT_SUFFIXES):
            with contextlib.suppress(InputError):  # told to whoever opens it
                self._seen[name] = file.identity()
        return file

    def require_unchanged(self) -> None:
        """Lists the files and looks at each of them again.

        Raises:
            InputError: one appeared or vanished, is another file than it was, or cannot be read any more.
            ServiceError: the store did not answer properly.
        """
        before, now = ({name for name in names if self._counts(name)} for names in (self.names(), self.names_now()))
        appeared, vanished = sorted(now - before), sorted(before - now)
        if appeared or vanished:
            found = [
                f"{listed(names)} {word}" for names, word in ((appeared, "appeared"), (vanished, "vanished")) if names
            ]
            raise InputError(
                f"reading {self.where}: the release changed while it was read: {' and '.join(found)}, so the digests "
                "would belong to no version of it",
                hint=_HINT,
            )
        for name, identity in self._seen.items():
            file = self._source.file(name)
            if file.identity() != identity:
                raise InputError(
                    f"reading {file.where}: the file changed while the release was read, so the digests would belong "
                    "to no version of it",
                    hint=_HINT,
                )

    def _counts(self, name: str) -> bool:
        """Whether the release is another one with the file than without it; other weights are none of a single file."""
        return is_read(name) and (self.single_file is None or not name.endswith(WEIGHT_SUFFIXES))
