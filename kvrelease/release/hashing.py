"""Payload digests: BLAKE3-256 over dtype, shape and bytes of tensors, streamed with bounded memory.

The name is not in a payload digest, so that a renamed or tied tensor can be recognised; the digests built on top add
it. Source: docs/fingerprint.md, which fixes the encoding to the byte.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec
from blake3 import blake3

from kvrelease.errors import DamagedFile, InputError
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.release.algorithm import PAYLOAD_PURPOSE
from kvrelease.release.canonical import frame
from kvrelease.release.sampling import BLOCK_BYTES, sampler_of
from kvrelease.release.source import FileIdentity, Reader
from kvrelease.release.weights import StoredTensor, WeightFile
from kvrelease.release.workers import require_wanted, run_workers

_GLANCE_BYTES = 64  # enough to tell nearly every chunk from one of zeros without a copy
# A few threads saturate a local disk; more only help network file systems, and --jobs can ask for them.
_MAX_DEFAULT_JOBS = 8
# Threads that wait for a store's answers, whatever the number of cores: 8 chunks in flight, about 100 MiB of memory.
_REMOTE_JOBS = 8


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one tensor.

    Attributes:
        digest: hex, over dtype, shape and bytes.
        sample: hex, over dtype, shape and the bytes that the fast digest reads.
        is_zero: every byte is zero.
    """

    digest: str
    sample: str
    is_zero: bool


def default_jobs(*, is_remote: bool = False) -> int:
    """Threads to hash with, where nobody asked for a number."""
    if is_remote:
        return _REMOTE_JOBS
    # Of this process where the system can restrict one to some cores; macOS and Windows count the machine's.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MAX_DEFAULT_JOBS, cores or 1)


def payload_header(tensor: StoredTensor) -> bytes:
    """The canonical bytes in front of a tensor's own: purpose, dtype, shape, length."""
    shape = b"".join(axis.to_bytes(8, "little") for axis in tensor.shape)
    return frame(PAYLOAD_PURPOSE.encode(), tensor.dtype.encode(), shape) + tensor.size_bytes.to_bytes(8, "little")


def hash_tensors(
    files: Sequence[WeightFile],
    *,
    jobs: int,
    progress: Progress = silent,
) -> tuple[Payload, ...]:
    """The content of every tensor of `files`, in their order.

    Args:
        files: whose headers are sound; each is opened once.
        jobs: threads, >= 1.
        progress: called from the hashing threads, one at a time.

    Raises:
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read, or changed since its header was read.
        ServiceError: the store did not answer properly.
    """
    tensors = [(number, tensor) for number, file in enumerate(files) for tensor in file.tensors]
    total_bytes = sum(tensor.size_bytes for _, tensor in tensors)
    done_bytes = 0
    lock = threading.Lock()

    def advance(count: int) -> None:
        nonlocal done_bytes
        require_wanted()
        with lock:
            done_bytes += count
            progress(ProgressEvent(stage="hashing", done=done_bytes, total=total_bytes, unit="bytes"))

    order = deque(_order([file.tensors for file in files]))
    found: dict[int, Payload] = {}

    def hash_some() -> None:
        buffer = bytearray()
        while True:
            try:
                index = order.popleft()
            except IndexError:  # all are taken
                return
            number, tensor = tensors[index]
            with open_files.reader(number) as reader:
                chunk_bytes = reader.chunk_bytes // BLOCK_BYTES * BLOCK_BYTES  # so that no sample lies in two
                if len(buffer) != chunk_bytes:
                    buffer = bytearray(chunk_bytes)
                found[index] = _hash_one(reader, tensor, buffer, advance)

    with contextlib.closing(_OpenFiles(files)) as open_files:
        run_workers(hash_some, count=min(jobs, len(tensors)))
    for file in files:
        require_unchanged(file, file.file.identity())
    return tuple(found[index] for index in range(len(tensors)))


def _order(files: Sequence[Sequence[StoredTensor]]) -> list[int]:
    """Indices of all tensors, in the order in which they are hashed.

    File by file, so that few are open at a time. Largest first: a big embedding started last would leave the other
    threads idle at the end.
    """
    begins = list(itertools.accumulate((len(tensors) for tensors in files), initial=0))
    by_file = [sorted(enumerate(tensors, begin), key=_size) for begin, tensors in zip(begins, files, strict=False)]
    return [index for tensors in sorted(filter(None, by_file), key=lambda one: _size(one[0])) for index, _ in tensors]


def _size(numbered: tuple[int, StoredTensor]) -> int:
    return -numbered[1].size_bytes


class _OpenFiles:
    """Files, each open from the first use of one of its tensors to the last."""

    def __init__(self, files: Sequence[WeightFile]) -> None:
        self._files = files
        self._left = [len(file.tensors) for file in files]
        self._locks = [threading.Lock() for _ in files]
        self._open: dict[int, tuple[contextlib.ExitStack, Reader]] = {}

    @contextlib.contextmanager
    def reader(self, number: int) -> Iterator[Reader]:
        """A file, for one of its tensors.

        Raises:
            InputError: it cannot be read, or changed since its header was read.
            ServiceError: the store did not answer properly.
        """
        with self._locks[number]:
            if number not in self._open:
                with contextlib.ExitStack() as stack:
                    reader = stack.enter_context(self._files[number].file.open())
                    require_unchanged(self._files[number], reader.identity)
                    self._open[number] = stack.pop_all(), reader
            _, reader = self._open[number]
        yield reader
        with self._locks[number]:
            self._left[number] -= 1
            if self._left[number] == 0:
                self._open.pop(number)[0].close()

    def close(self) -> None:
        """Closes what an error left open."""
        while self._open:
            _, (stack, _) = self._open.popitem()
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


def _hash_one(reader: Reader, tensor: StoredTensor, buffer: bytearray, advance: Callable[[int], None]) -> Payload:
    hasher = blake3(payload_header(tensor))
    sampler = sampler_of(tensor.dtype, tensor.shape, tensor.size_bytes)
    offsets = sampler.offsets(tensor.name)
    samples: list[bytes] = []
    is_zero = tensor.size_bytes > 0
    for done in range(0, tensor.size_bytes, len(buffer)):
        view = memoryview(buffer)[: min(len(buffer), tensor.size_bytes - done)]
        fill(reader, view, tensor.offset + done, tensor=tensor)
        hasher.update(view)
        here = [offset - done for offset in offsets if done <= offset < done + len(buffer)]
        samples += [bytes(view[offset : offset + BLOCK_BYTES]) for offset in here]
        is_zero = is_zero and not any(view[:_GLANCE_BYTES]) and not bytes(view).lstrip(b"\0")
        advance(len(view))
    return Payload(digest=hasher.hexdigest(), sample=sampler.digest(b"".join(samples)), is_zero=is_zero)


def fill(reader: Reader, view: memoryview, offset: int, *, tensor: StoredTensor) -> None:
    """Fills `view` with the tensor's bytes at an offset in its file.

    Raises:
        DamagedFile: the file ends before.
        InputError: the device failed, or the file changed.
        ServiceError: the store did not answer properly.
    """
    filled = 0
    while filled < len(view):
        count = reader.read_into(view[filled:], offset + filled)
        if count == 0:
            raise DamagedFile(
                f"reading tensor {tensor.name!r} from {tensor.where}: the file became shorter meanwhile",
                hint="wait until the copy or download has finished, and run again",
            )
        filled += count
