"""What a prewarm has sent so far, on disk, so that a run that was killed goes on where it stopped.

One line before a request is sent (`begun`) and one when it is answered (`done`): JSON, appended, in one file per
namespace, key space and prompt set, with the engine process of each replica. What stands there of another process says
nothing about this one's cache. A run that is killed leaves requests that were begun and not done: their blocks may be
there or not, they are sent again, and their hits are this release's own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

import blake3
import msgspec

from kvrelease.artifacts import Fault
from kvrelease.errors import DamagedFile, ExitCode, InputError

FORMAT = "kvrelease/prewarm-journal.1"
# 200 replicas of 10,000 prompts with ids of 40 characters are about 300 MB; the longest line holds a URL and an id.
MAX_JOURNAL_BYTES = 1024**3
MAX_LINE_BYTES = 64 * 1024
_MODE = 0o600
# How every journal begins. What is cut off before that is nobody's we know.
_START = b'{"journal":"kvrelease/prewarm-journal'


class JournalKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal is about: nothing in it holds for anything else.

    Attributes:
        namespace: of the release.
        key_space: the name of production's, never a secret; None for unsalted.
        prompt_set: digest of the set.
    """

    namespace: str
    key_space: str | None
    prompt_set: str

    @property
    def file_name(self) -> str:
        """A name that no other key has."""
        digest = blake3.blake3(msgspec.json.encode(self)).hexdigest(length=12)
        return f"prewarm-{digest}.jsonl"


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    journal: str
    key: JournalKey


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line after the header: a replica that gets a number, or what became of a prompt there.

    Attributes:
        replica: its number in this file.
        url: how it is named, of the line that gives the number.
        process: of that line.
        begun: id of a prompt that is about to be sent.
        done: id of a prompt that was answered.
    """

    replica: int
    url: str | None = None
    process: str | None = None
    begun: str | None = None
    done: str | None = None


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run did on one replica before it was cut short.

    Attributes:
        done: ids of prompts that were answered.
        begun: ids of prompts that were sent and not answered.
        is_of_another_process: there was such a run, and the engine has been restarted since; both are empty then.
    """

    done: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    is_of_another_process: bool = False


class JournalHeld(InputError):
    """Another run is writing it."""


class Journal:
    """An open journal. Use as a context manager; whoever opens closes.

    Attributes:
        path: where it lies.
        fault: why it is not written any more (a full disk); None while it is.
    """

    def __init__(self, path: Path, *, key: JournalKey) -> None:
        """Opens, and creates where missing.

        Raises:
            InputError: it is about another prompt set, namespace or key space, or nothing can be written there.
            JournalHeld: another run holds it.
            DamagedFile: it is no journal; it is left as it was.
        """
        self.path = path
        self.fault: Fault | None = None
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._processes: dict[str, str] = {}
        self._past: dict[str, dict[str, bool]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _require_regular(path, path.stat())
            # A pipe that took its place meanwhile must not be waited for.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(path, flags, _MODE)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            _require_regular(path, os.fstat(self._file))
            self._lock()
            self._read(key)
        except BaseException:
            os.close(self._file)
            raise
        self._next = max(self._names, default=-1) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def past(self, replica: str, *, process: str | None) -> Past:
        """What is known of a replica.

        Args:
            replica: how it is named, with its rank.
            process: the engine process that answers there now; None when that is not known, which proves nothing.
        """
        found = self._past.get(replica)
        if not found:
            return Past()
        if process is None or self._processes[replica] != process:
            return Past(is_of_another_process=True)
        return Past(
            done=frozenset(prompt_id for prompt_id, is_done in found.items() if is_done),
            begun=frozenset(prompt_id for prompt_id, is_done in found.items() if not is_done),
        )

    def follow(self, replica: str, *, process: str, anew: bool = False) -> None:
        """Begins to write about a replica; what stands there of another process, or `anew`, is void from now on."""
        if replica in self._numbers and self._processes[replica] == process and not anew:
            return
        self._numbers[replica], self._processes[replica] = self._next, process
        self._next += 1
        self._append(_Line(replica=self._numbers[replica], url=replica, process=process))

    def begin(self, replica: str, prompt_id: str) -> None:
        """Writes that a prompt is about to be sent; nothing of a replica that is not followed."""
        if replica in self._numbers:
            self._append(_Line(replica=self._numbers[replica], begun=prompt_id))

    def finish(self, replica: str, prompt_id: str) -> None:
        """Writes that a prompt was answered."""
        if replica in self._numbers:
            self._append(_Line(replica=self._numbers[replica], done=prompt_id))

    def remove(self) -> None:
        """Deletes the file, unless another one took its place: the run is complete, or its cache is not ours."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self._file)):
                self.path.unlink()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalHeld(
                f"opening the journal {self.path}: another kvrelease prewarm of this prompt set is running, and each "
                "would take the other's entries for foreign ones",
                hint="wait for it; where this one is for other replicas, give it a --journal of its own",
            ) from error

    def _read(self, key: JournalKey) -> None:
        size = os.fstat(self._file).st_size
        if size > MAX_JOURNAL_BYTES:
            raise DamagedFile(f"reading the journal {self.path}: {size} bytes, which no journal has", hint=_LEFT_ALONE)
        whole = 0
        # A second descriptor of the same open file, closed with the reader; the lock stays with the first.
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if number == 1 and not line.startswith(_START):
                    raise self._damaged(number, "it is no journal of a prewarm")
                if len(line) > MAX_LINE_BYTES:
                    raise self._damaged(number, "it is longer than any line of a journal")
                if not line.endswith(b"\n"):
                    break  # cut off while it was written; whether its request was sent is not known, and it is not done
                self._take(line, number=number, key=key)
                whole += len(line)
        try:
            if whole < size:
                os.ftruncate(self._file, whole)
            if not whole:
                _write(self._file, msgspec.json.encode(_Header(journal=FORMAT, key=key)) + b"\n")
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, whole)  # no half of a header, by which nobody would know it again
            raise _unusable(self.path, error) from error

    def _take(self, line: bytes, *, number: int, key: JournalKey) -> None:
        try:
            if number == 1:
                header = msgspec.json.decode(line, type=_Header)
                if header.journal != FORMAT:
                    raise self._damaged(number, f"its format is not {FORMAT}")
                if header.key != key:
                    raise InputError(
                        f"the journal {self.path} is about another prompt set, namespace or key space",
                        hint="name another file with --journal, or delete this one",
                    )
                return
            entry = msgspec.json.decode(line, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(number, "not a line of a journal") from error
        if entry.url is not None and entry.process is not None:
            self._numbers[entry.url], self._processes[entry.url] = entry.replica, entry.process
            self._names[entry.replica] = entry.url
            self._past[entry.url] = {}
        elif (name := self._names.get(entry.replica)) is None:
            raise self._damaged(number, f"there is no replica {entry.replica}")
        elif entry.done is not None:
            self._past[name][entry.done] = True
        elif entry.begun is not None:
            self._past[name].setdefault(entry.begun, False)

    def _damaged(self, number: int, why: str) -> DamagedFile:
        hint = _LEFT_ALONE if number == 1 else "delete it: the run starts anew"
        return DamagedFile(f"reading the journal {self.path}, line {number}: {why}", hint=hint)

    def _append(self, line: _Line) -> None:
        if self.fault is not None:
            return
        data = msgspec.json.encode(line) + b"\n"
        try:
            _write(self._file, data)
        except OSError as error:
            self.fault = Fault(
                where="the journal",
                exit_code=int(ExitCode.INPUT),
                message=f"writing the journal {self.path}: {error.strerror or error}; this run cannot be resumed",
                hint="make room, or name another file with --journal",
            )


_LEFT_ALONE = "it was left alone: name another file with --journal"


def _require_regular(path: Path, found: os.stat_result) -> None:
    """Raises where no file is that could be read again: a pipe, a device, a directory."""
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            f"opening the journal {path}: it is no regular file",
            hint="name a file that can be written with --journal, or pass --no-journal",
        )


def _write(file: int, data: bytes) -> None:
    """One write of a whole line, unbuffered: it outlives this process, if not the machine."""
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unusable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"opening the journal {path}: {error.strerror or error}",
        hint="name a file that can be written with --journal, or pass --no-journal",
    )
