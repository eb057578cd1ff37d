"""Payload digests: BLAKE3-256 over dtype, shape and bytes of tensors, streamed with bounded memory.

The name is not in a payload digest, so that a renamed or tied tensor can be recognised; the digests built on top add
it. Source: docs/fingerprint.md, which fixes the encoding to the byte.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
from blake3 import blake3

from kvrelease.errors import InputError
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.release.canonical import frame
from kvrelease.release.safetensors import FileIdentity, SafetensorsFile, StoredTensor, identity_of, pread_into
from kvrelease.release.small_files import translate

PAYLOAD_PURPOSE = "kvfp0 payload"
# Per thread. Measured on a warm page cache, 512 MiB: 0.18 s at 1 MiB, 0.23 s at 64 KiB (system calls) and at 8 MiB (the
# buffer no longer stays in the CPU's cache between read and hash).
CHUNK_BYTES = 1024 * 1024
# A few threads saturate a local disk; more only help network file systems, and --jobs can ask for them.
_MAX_DEFAULT_JOBS = 8


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one tensor.

    Attributes:
        digest: hex, over dtype, shape and bytes.
        is_zero: every byte is zero.
    """

    digest: str
    is_zero: bool


class _Cancelled(Exception):
    """Another thread failed, so this one's work is of no use any more."""


def default_jobs() -> int:
    """Threads to hash with, where nobody asked for a number."""
    return min(_MAX_DEFAULT_JOBS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def payload_header(tensor: StoredTensor) -> bytes:
    """The canonical bytes in front of a tensor's own: purpose, dtype, shape, length."""
    shape = b"".join(axis.to_bytes(8, "little") for axis in tensor.shape)
    return frame(PAYLOAD_PURPOSE.encode(), tensor.dtype.encode(), shape) + tensor.size_bytes.to_bytes(8, "little")


def hash_tensors(
    files: Sequence[SafetensorsFile],
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
    """
    tensors = [(file, tensor) for file in files for tensor in file.tensors]
    total_bytes = sum(tensor.size_bytes for _, tensor in tensors)
    done_bytes = 0
    lock, stop = threading.Lock(), threading.Event()

    def advance(count: int) -> None:
        nonlocal done_bytes
        if stop.is_set():
            raise _Cancelled
        with lock:
            done_bytes += count
            progress(ProgressEvent(stage="hashing", done=done_bytes, total=total_bytes, unit="bytes"))

    with _opened(files) as descriptors, ThreadPoolExecutor(max_workers=jobs) as pool:
        # Largest first: a big embedding started last would leave the other threads idle at the end.
        order = sorted(range(len(tensors)), key=lambda index: -tensors[index][1].size_bytes)
        buffers = threading.local()
        futures = {
            index: pool.submit(_hash_one, descriptors[tensors[index][0].path], tensors[index][1], buffers, advance)
            for index in order
        }
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return tuple(futures[index].result() for index in range(len(tensors)))


@contextlib.contextmanager
def _opened(files: Sequence[SafetensorsFile]) -> Iterator[dict[Path, int]]:
    """Descriptors of the files; on leaving without an error, proof that none changed meanwhile."""
    descriptors: dict[Path, int] = {}
    try:
        for file in files:
            try:
                descriptors[file.path] = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise translate(error, file.path) from error
            _check_unchanged(file.path, file.identity, identity_of(os.fstat(descriptors[file.path])))
        yield descriptors
        for file in files:
            try:
                status = file.path.stat()
            except OSError as error:
                raise translate(error, file.path) from error
            _check_unchanged(file.path, file.identity, identity_of(status))
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _check_unchanged(path: Path, before: FileIdentity, after: FileIdentity) -> None:
    if before != after:
        raise InputError(
            f"reading {path}: the file changed while it was read, so its digest would belong to no version of it",
            hint="wait until the copy or download has finished, and run again",
        )


def _hash_one(
    descriptor: int, tensor: StoredTensor, buffers: threading.local, advance: Callable[[int], None]
) -> Payload:
    buffer: bytearray | None = getattr(buffers, "buffer", None)
    if buffer is None:
        buffer = buffers.buffer = bytearray(CHUNK_BYTES)
    hasher = blake3(payload_header(tensor))
    is_zero = True
    for done in range(0, tensor.size_bytes, CHUNK_BYTES):
        view = memoryview(buffer)[: min(CHUNK_BYTES, tensor.size_bytes - done)]
        pread_into(descriptor, view, tensor.offset + done, tensor=tensor)
        hasher.update(view)
        is_zero = is_zero and not bytes(view).lstrip(b"\0")
        advance(len(view))
    return Payload(digest=hasher.hexdigest(), is_zero=is_zero and tensor.size_bytes > 0)
