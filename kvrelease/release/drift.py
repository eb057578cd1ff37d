"""How far the tensors of one release moved to those of another, streamed through torch with bounded memory.

What is compared with what is planned first (drift_plan.py); the plan's tensors are read by several threads
(drift_torch.py, many small ones at once drift_rows.py), and the figures made from their sums (drift_figures.py).
"""

# ruff: noqa: PLC0415 - torch costs a second, and is there only with the `local` extra
from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import msgspec

from kvrelease.errors import InputError, MissingExtra, UsageError
from kvrelease.progress import Progress, silent
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.drift_figures import DriftReport, Sums, added_up, measured, roll_up
from kvrelease.release.drift_plan import Comparison, plan_drift
from kvrelease.release.drift_rows import batches_of, sums_of_batch
from kvrelease.release.drift_torch import PairReader, Piece, matrix_of
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.hashing import default_jobs
from kvrelease.release.open_files import OpenFiles
from kvrelease.release.parallel import Advance, run_in_threads
from kvrelease.release.readable import ReadableWeights, readable_weights
from kvrelease.release.weights import WeightFile

# Given to one thread at a time, so that one large tensor keeps several busy.
SEGMENT_ELEMENTS = 16 * 1024 * 1024

NEEDED_FOR = "--drift"
CPU_BUILD_FIRST = (
    "on a machine without a GPU first: pip install torch --index-url https://download.pytorch.org/whl/cpu, or pip "
    "fetches a CUDA build of several GB"
)


def require_torch() -> None:
    """Checks that torch is installed.

    Raises:
        MissingExtra: it is not.
    """
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtra(extra="local", needed_for=NEEDED_FOR, module="torch", first=CPU_BUILD_FIRST) from error


def weights_for_drift(old: str, new: str) -> tuple[ReadableWeights, ReadableWeights]:
    """The tensors of both sides of `diff --drift`, located before anything is hashed.

    Raises:
        MissingExtra: torch is not installed.
        UsageError: a side is a saved fingerprint, which has no tensors.
        InputError: a side cannot be read.
    """
    require_torch()

    def weights_of(what: str, option: str) -> ReadableWeights:
        found = readable_weights(what)
        if found is None:
            raise UsageError(
                f"--drift reads the tensors of both releases, and {option} ({what}) is a saved fingerprint, which has "
                "digests only",
                hint=f"give the model itself as {option}, or leave --drift out",
            )
        return found

    return weights_of(old, "OLD"), weights_of(new, "NEW")


def measure_drift(
    old: Fingerprint,
    new: Fingerprint,
    changes: TensorChanges,
    *,
    weights: tuple[ReadableWeights, ReadableWeights],
    jobs: int | None = None,
    progress: Progress = silent,
) -> DriftReport:
    """How far each tensor moved that both releases have; tensors whose digests are equal are not read.

    Args:
        old: of the release before.
        new: of the release after.
        changes: between the two.
        weights: of both, located before they were fingerprinted.
        jobs: threads; None for as many as are worthwhile here.
        progress: called from the threads, one at a time.

    Raises:
        MissingExtra: torch is not installed.
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read, or changed meanwhile.
        ServiceError: the store did not answer properly.
    """
    require_torch()
    for side, found in zip((old, new), weights, strict=True):
        _require_same_tensors(side, found)
    plan = plan_drift(old, new, changes, old_tensors=weights[0].tensors, new_tensors=weights[1].tensors)
    is_remote = any(side.is_remote for side in weights)
    sums = sums_of(
        plan.comparisons,
        old_files=weights[0].files,
        new_files=weights[1].files,
        jobs=jobs or default_jobs(is_remote=is_remote),
        progress=progress,
    )
    drifts = [measured(one.name, sums[one.name], how=one.how) for one in plan.comparisons]
    tensors = tuple(sorted((*plan.settled, *drifts), key=lambda drift: drift.tensor))
    return DriftReport(tensors=tensors, layers=roll_up(tensors, sums), notes=_notes(old, new, changes, len(tensors)))


def _notes(old: Fingerprint, new: Fingerprint, changes: TensorChanges, count: int) -> tuple[str, ...]:
    """What is no record, because it has no counterpart."""
    if old.format is not new.format:
        return (
            f"the old release is {old.format}, the new one {new.format}: a conversion renames tensors and may reorder "
            f"or quantise them, so only the {count} that have one name in both are compared",
        )
    relaid = sum(len(one.old) for one in changes.relaid)
    notes = [f"re-laid-out tensors are not measured: {relaid} of the old release"] if relaid else []
    if not changes.added and not changes.removed:
        return tuple(notes)
    added, removed = (f"{len(names)} tensor{'s' * (len(names) != 1)}" for names in (changes.added, changes.removed))
    alone = f"only in the new release: {added}; only in the old one: {removed}; nothing is there to compare them with"
    return (*notes, alone)


def _require_same_tensors(found: Fingerprint, weights: ReadableWeights) -> None:
    lost = found.tensor_digests.keys() - {tensor.name for tensor in weights.tensors}
    if lost:
        raise InputError(
            f"reading the tensors of {found.release.source}: {min(lost)!r} is in its fingerprint, and in no file of it",
            hint="wait until the copy or download has finished, and run again",
        )


def sums_of(
    comparisons: Sequence[Comparison],
    *,
    old_files: Sequence[WeightFile],
    new_files: Sequence[WeightFile],
    jobs: int,
    progress: Progress = silent,
) -> dict[str, Sums]:
    """Name of a tensor → the sums of its comparison, the same ones however many threads add them up.

    Raises:
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read, or changed meanwhile.
        ServiceError: the store did not answer properly.
    """
    import torch

    tasks = _tasks(comparisons)
    threads_before = torch.get_num_threads()
    try:
        with OpenFiles(old_files) as old_open, OpenFiles(new_files) as new_open:

            def worker(advance: Advance) -> Callable[[_Task], list[Sums]]:
                torch.set_num_threads(1)  # the threads are ours: one of torch's own pools each would be too many
                reader = PairReader((old_open, new_open), advance=advance)

                def do(task: _Task) -> list[Sums]:
                    if task.piece is not None:
                        return [reader.sums(comparisons[task.numbers[0]], task.piece)]
                    batch = [comparisons[number] for number in task.numbers]
                    return sums_of_batch(batch, (old_open, new_open), advance=advance)

                return do

            found = run_in_threads(
                tasks,
                worker,
                size_of=lambda task: task.elements,
                jobs=jobs,
                stage="measuring drift",
                total_bytes=sum(side.tensor.size_bytes for one in comparisons for side in (one.old, one.new)),
                progress=progress,
            )
    finally:
        torch.set_num_threads(threads_before)
    parts: list[list[Sums]] = [[] for _ in comparisons]
    for task, sums in zip(tasks, found, strict=True):
        for number, one in zip(task.numbers, sums, strict=True):
            parts[number].append(one)
    return {one.name: added_up(parts[number]) for number, one in enumerate(comparisons)}


class _Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a thread does at a time: a piece of one comparison, or the whole of many small ones.

    Attributes:
        numbers: of the comparisons.
        piece: of the one; None for a batch.
        elements: of each side.
    """

    numbers: tuple[int, ...]
    piece: Piece | None
    elements: int


def _tasks(comparisons: Sequence[Comparison]) -> list[_Task]:
    """What is to be done, in an order that does not depend on the number of threads."""
    batches = batches_of(comparisons)
    batched = {number for batch in batches for number in batch}
    tasks = [
        _Task(numbers=(number,), piece=piece, elements=piece.elements)
        for number, one in enumerate(comparisons)
        if number not in batched
        for piece in matrix_of(one).cut(SEGMENT_ELEMENTS)
    ]
    elements_of = [sum(matrix_of(comparisons[number]).elements for number in batch) for batch in batches]
    return tasks + [
        _Task(numbers=batch, piece=None, elements=elements)
        for batch, elements in zip(batches, elements_of, strict=True)
    ]
