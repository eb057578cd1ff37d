"""The contents of a release's tensors: hashed in full, remembered from an earlier run, or sampled."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.progress import Progress
from kvrelease.release.hashing import Payload, hash_tensors
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.open_files import require_unchanged
from kvrelease.release.sample_reader import sample_tensors
from kvrelease.release.weights import WeightFile


class TensorContents(msgspec.Struct, frozen=True, kw_only=True):
    """What the tensors of some files hold, each tuple in the order of the files' tensors.

    Attributes:
        digests: hex, of what the mode reads.
        samples: hex, of samples only.
        zeros: whether every byte is zero; None where that is not known.
        remembered_bytes: of tensors whose content came from the memo.
    """

    digests: tuple[str, ...]
    samples: tuple[str, ...]
    zeros: tuple[bool | None, ...]
    remembered_bytes: int = 0


def read_tensors(
    files: Sequence[WeightFile], *, mode: Mode, jobs: int, memo: Memo | None, seen_ns: int, progress: Progress
) -> TensorContents:
    """The contents of every tensor; in mode `full` hashed where the memo does not know them.

    Args:
        files: whose headers are sound.
        mode: how much is read.
        jobs: threads, >= 1.
        memo: None to hash everything, and to remember nothing.
        seen_ns: our clock before the first of the files was looked at, ns since the epoch.
        progress: called while reading.

    Raises:
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read, or changed since its header was read.
        ServiceError: the store did not answer properly.
    """
    if mode is Mode.FAST:
        samples = sample_tensors(files, jobs=jobs, progress=progress)
        return TensorContents(digests=samples, samples=samples, zeros=(None,) * len(samples))
    remembered_bytes = 0
    if memo is None:
        payloads = hash_tensors(files, jobs=jobs, progress=progress)
    else:
        payloads, remembered_bytes = _with_memo(files, jobs=jobs, memo=memo, seen_ns=seen_ns, progress=progress)
    return TensorContents(
        digests=tuple(payload.digest for payload in payloads),
        samples=tuple(payload.sample for payload in payloads),
        zeros=tuple(payload.is_zero for payload in payloads),
        remembered_bytes=remembered_bytes,
    )


def _with_memo(
    files: Sequence[WeightFile], *, jobs: int, memo: Memo, seen_ns: int, progress: Progress
) -> tuple[tuple[Payload, ...], int]:
    known = {number: found for number, file in enumerate(files) if (found := memo.recall(file)) is not None}
    remembered_bytes = sum(tensor.size_bytes for number in known for tensor in files[number].tensors)
    unknown = [number for number in range(len(files)) if number not in known]
    fresh = iter(hash_tensors([files[number] for number in unknown], jobs=jobs, progress=progress))
    for number in unknown:
        known[number] = tuple(next(fresh) for _ in files[number].tensors)
        memo.remember(files[number], known[number], seen_ns=seen_ns)
    if unknown:
        memo.prune()
    for file in files:
        require_unchanged(file, file.file.identity())
    return tuple(payload for number in range(len(files)) for payload in known[number]), remembered_bytes
