"""The samples of every tensor of some files: few bytes, read in the order in which they lie."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.release.hashing import fill
from kvrelease.release.open_files import opened
from kvrelease.release.parallel import share_out
from kvrelease.release.sampling import BLOCK_BYTES, WHOLE_BYTES, sampler_of
from kvrelease.release.source import Reader
from kvrelease.release.weights import StoredTensor, WeightFile

# Small tensors that lie side by side (norms, scales) are read in one go, up to so many bytes.
_RUN_BYTES = 256 * 1024
# Per tensor. From the page cache it takes a tenth of this, from a fast disk four times as long.
SLOW_S = 100e-6


def sample_tensors(
    files: Sequence[WeightFile], *, jobs: int, progress: Progress = silent, slow_s: float = SLOW_S
) -> tuple[str, ...]:
    """The sample digest (hex) of every tensor of `files`, in their order.

    Threads are started only where the place is slow: reading from the page cache is work for the interpreter, which
    runs one thread at a time.

    Args:
        files: whose headers are sound; each is opened once.
        jobs: threads, >= 1.
        progress: called from the threads, one at a time, once for each file.
        slow_s: time per tensor of a file above which the other files get threads.

    Raises:
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read, or changed since its header was read.
        ServiceError: the store did not answer properly.
    """
    done, lock = 0, threading.Lock()

    def read(file: WeightFile) -> list[str]:
        nonlocal done
        with opened(file) as reader:
            digests = sample_file(file, reader)
        with lock:
            done += 1
            progress(ProgressEvent(stage="sampling", done=done, total=len(files), unit="files"))
        return digests

    digests: list[str] = []
    for index, file in enumerate(files):
        started = time.perf_counter()
        digests += read(file)
        is_slow = time.perf_counter() - started > slow_s * len(file.tensors)
        if is_slow and jobs > 1 and index + 1 < len(files):
            others = share_out(files[index + 1 :], lambda: read, jobs=jobs)
            return (*digests, *itertools.chain.from_iterable(others))
    return tuple(digests)


def sample_file(file: WeightFile, reader: Reader) -> list[str]:
    """The sample digests (hex) of an open file's tensors.

    Raises:
        DamagedFile: it is shorter than its header said.
        InputError: it cannot be read.
        ServiceError: the store did not answer properly.
    """
    digests: list[str] = []
    run, run_begin, run_end = memoryview(b""), 0, 0
    for index, tensor in enumerate(file.tensors):
        offset, size = tensor.offset, tensor.size_bytes
        sampler = sampler_of(tensor.dtype, tensor.shape, size)
        if size <= WHOLE_BYTES:
            if offset + size > run_end:
                run_begin, run_end = offset, _end_of_run(file.tensors, index)
                run = memoryview(bytearray(run_end - run_begin))
                fill(reader, run, run_begin, tensor=tensor)
            digests.append(sampler.digest(run[offset - run_begin : offset - run_begin + size]))
            continue
        offsets = sampler.offsets(tensor.name, base=offset)
        one, two, three, four = reader.read_blocks(offsets, BLOCK_BYTES)
        if len(one) + len(two) + len(three) + len(four) == WHOLE_BYTES and offsets[-1] <= offset + size - BLOCK_BYTES:
            digests.append(sampler.digest(one, two, three, four))
        else:
            digests.append(sampler.digest(*(_read_block(reader, tensor, begin) for begin in offsets)))
    return digests


def _read_block(reader: Reader, tensor: StoredTensor, begin: int) -> bytearray:
    """A whole block, or what the tensor has left of it."""
    block = bytearray(min(BLOCK_BYTES, tensor.offset + tensor.size_bytes - begin))
    fill(reader, memoryview(block), begin, tensor=tensor)
    return block


def _end_of_run(tensors: Sequence[StoredTensor], index: int) -> int:
    """Where the small tensors that begin with this one, side by side, end; at most `_RUN_BYTES` further."""
    begin = end = tensors[index].offset
    for tensor in itertools.islice(tensors, index, None):
        last = tensor.offset + tensor.size_bytes
        if tensor.size_bytes > WHOLE_BYTES or tensor.offset != end or last - begin > _RUN_BYTES:
            break
        end = last
    return end
