"""Payload digests: BLAKE3-256 over dtype, shape and bytes of tensors, streamed with bounded memory.

The name is not in a payload digest, so that a renamed or tied tensor can be recognised; the digests built on top add
it. Source: docs/fingerprint.md, which fixes the encoding to the byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec
from blake3 import blake3

from kvrelease.errors import DamagedFile
from kvrelease.progress import Progress, silent
from kvrelease.release.algorithm import PAYLOAD_PURPOSE
from kvrelease.release.canonical import frame
from kvrelease.release.open_files import OpenFiles, require_unchanged
from kvrelease.release.parallel import Advance, run_in_threads
from kvrelease.release.sampling import BLOCK_BYTES, sampler_of
from kvrelease.release.source import Reader
from kvrelease.release.weights import StoredTensor, WeightFile

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
    largest = [max((tensor.size_bytes for tensor in file.tensors), default=0) for file in files]
    # One file after the other: what nobody reads now is the last one, or done.
    with OpenFiles(files, most_idle=1) as open_files:

        def worker(advance: Advance) -> Callable[[tuple[int, StoredTensor]], Payload]:
            buffer = bytearray()

            def hash_one(numbered: tuple[int, StoredTensor]) -> Payload:
                nonlocal buffer
                number, tensor = numbered
                with open_files.reader(files[number].file.where) as reader:
                    chunk_bytes = reader.chunk_bytes // BLOCK_BYTES * BLOCK_BYTES  # so that no sample lies in two
                    if len(buffer) != chunk_bytes:
                        buffer = bytearray(chunk_bytes)
                    return _hash_one(reader, tensor, buffer, advance)

            return hash_one

        payloads = run_in_threads(
            tensors,
            worker,
            size_of=lambda numbered: (largest[numbered[0]], -numbered[0], numbered[1].size_bytes),
            jobs=jobs,
            stage="hashing",
            total_bytes=sum(tensor.size_bytes for _, tensor in tensors),
            progress=progress,
        )
    for file in files:
        if not file.tensors:  # never opened
            require_unchanged(file, file.file.identity())
    return tuple(payloads)


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
