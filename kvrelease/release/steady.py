"""Proof that nobody wrote to a release while it was read: its fingerprint would be that of no version of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kvrelease.errors import InputError
from kvrelease.release.source import FileIdentity, Origin, Source, SourceFile
from kvrelease.release.weights import WEIGHT_SUFFIXES


class SteadySource:
    """A `Source` that remembers what each small file was when it was first asked for.

    Weight files are left out: whoever reads their bytes proves the same, and a large release has hundreds of them.
    """

    def __init__(self, source: Source) -> None:
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
        """Looks at every file again.

        Raises:
            InputError: one is another file than it was, or cannot be read any more.
            ServiceError: the store did not answer properly.
        """
        for name, identity in self._seen.items():
            file = self._source.file(name)
            if file.identity() != identity:
                raise InputError(
                    f"reading {file.where}: the file changed while the release was read, so the digests would belong "
                    "to no version of it",
                    hint="wait until the copy or download has finished, and run again",
                )
