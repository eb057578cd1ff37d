"""Weight files, open while they are read, with proof that nobody changed them meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence

from kvrelease.errors import InputError
from kvrelease.release.source import FileIdentity, Reader
from kvrelease.release.weights import WeightFile

# Open although nobody reads them now; a large release has hundreds of files, and a process may have few open.
MOST_IDLE = 16


class OpenFiles:
    """The files of one release, for several threads at once; on leaving without an error, proof that none changed.

    Each is opened when one of its tensors is read, and a bounded number stays open.
    """

    def __init__(self, files: Sequence[WeightFile], *, most_idle: int = MOST_IDLE) -> None:
        self._most_idle = most_idle
        self._files = {file.file.where: file for file in files}
        self._lock = threading.Lock()
        self._open: dict[str, tuple[contextlib.ExitStack, Reader]] = {}  # least recently used first
        self._users: dict[str, int] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        with self._lock:
            while self._open:
                _, (stack, _) = self._open.popitem()
                stack.close()
        if kind is None:
            for where in sorted(self._seen):
                require_unchanged(self._files[where], self._files[where].file.identity())

    @contextlib.contextmanager
    def readers(self, places: Collection[str]) -> Iterator[dict[str, Reader]]:
        """The files of these names (`StoredTensor.where`), open until the end of the block.

        Raises:
            InputError: one cannot be read, or changed since its header was read.
            ServiceError: the store did not answer properly.
        """
        with contextlib.ExitStack() as stack:
            yield {where: stack.enter_context(self.reader(where)) for where in sorted(places)}

    @contextlib.contextmanager
    def reader(self, where: str) -> Iterator[Reader]:
        """The file of that name (`StoredTensor.where`), open until the end of the block.

        Raises:
            InputError: it cannot be read, or changed since its header was read.
            ServiceError: the store did not answer properly.
        """
        with self._lock:
            if where in self._open:
                self._open[where] = self._open.pop(where)
            else:
                self._open[where] = self._opened(where)
            self._users[where] = self._users.get(where, 0) + 1
            reader = self._open[where][1]
        try:
            yield reader
        finally:
            with self._lock:
                self._users[where] -= 1
                self._close_idle()

    def _opened(self, where: str) -> tuple[contextlib.ExitStack, Reader]:
        file = self._files[where]
        with contextlib.ExitStack() as stack:
            reader = stack.enter_context(file.file.open())
            require_unchanged(file, reader.identity)
            self._seen.add(where)
            return stack.pop_all(), reader

    def _close_idle(self) -> None:
        idle = [where for where in self._open if not self._users[where]]
        for where in idle[: max(len(idle) - self._most_idle, 0)]:
            stack, _ = self._open.pop(where)
            stack.close()


@contextlib.contextmanager
def opened(file: WeightFile) -> Iterator[Reader]:
    """A file, open; on leaving without an error, proof that it did not change meanwhile.

    Raises:
        InputError: it cannot be read, or changed since its header was read.
        ServiceError: the store did not answer properly.
    """
    with file.file.open() as reader:
        require_unchanged(file, reader.identity)
        yield reader
        require_unchanged(file, file.file.identity())


def require_unchanged(file: WeightFile, now: FileIdentity) -> None:
    """Checks a file against what it was when its header was read.

    Raises:
        InputError: it is another one.
    """
    if now != file.identity:
        raise InputError(
            f"reading {file.file.where}: the file changed while it was read, so its digest would belong to no version "
            "of it",
            hint="wait until the copy or download has finished, and run again",
        )
