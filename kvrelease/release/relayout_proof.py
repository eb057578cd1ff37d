"""Proof that tensors which were laid out anew hold the same content: by the digests of what lies in a fused one.

A tensor's digest covers its dtype, shape and bytes (docs/fingerprint.md), so that the bytes of a part, cut out of the
fused tensor, have the digest that the other release's fingerprint has of that part. Only one side is read: the fused
one where it can be, which tells the parts that changed, else the parts, which tells whether all are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.progress import Progress, silent
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.hashing import default_jobs
from kvrelease.release.mode import Mode
from kvrelease.release.open_files import OpenFiles
from kvrelease.release.parallel import Advance, run_in_threads
from kvrelease.release.readable import ReadableWeights, readable_weights
from kvrelease.release.relayout import Relaid, RelaidStatus
from kvrelease.release.relayout_bytes import Layout, RelayoutReader, fused_shape
from kvrelease.release.weights import StoredTensor

# Of all threads together, for slabs of a tensor that is transposed.
MEMORY_BYTES = 128 * 1024 * 1024
_SAVED = "both sides are saved fingerprints, which have digests and no tensors"
_LOST = "some of its tensors are in the fingerprint, and in no file of the release any more"
_NO_PART_FOUND = (
    "no part of it was found in it, side by side or transposed: it holds other content, or has another layout"
)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One proof to be made.

    Attributes:
        relaid: what it is about.
        side: which release is read, 0 for the old one.
        whole: the fused tensor as it is stored, or would be in the first layout; its dtype counts in any case.
        parts: what it holds, in order, as they are stored; None where the whole is read.
        shapes: layout → shapes of the tensors side by side in it.
    """

    relaid: Relaid
    side: int
    whole: StoredTensor | None
    parts: tuple[StoredTensor, ...] | None
    shapes: dict[Layout, tuple[tuple[int, ...], ...]]

    @property
    def read(self) -> tuple[StoredTensor, ...]:
        """The tensors that are read."""
        whole = () if self.whole is None else (self.whole,)
        return whole if self.parts is None else self.parts

    @property
    def size_bytes(self) -> int:
        """That one pass over them reads."""
        return sum(tensor.size_bytes for tensor in self.read)

    @property
    def places(self) -> set[str]:
        """The files that they lie in."""
        return {tensor.where for tensor in self.read}


def prove_found(
    old: Fingerprint,
    new: Fingerprint,
    changes: TensorChanges,
    *,
    places: tuple[str, str],
    jobs: int | None = None,
    progress: Progress = silent,
) -> tuple[Relaid, ...] | None:
    """What reading them tells of the tensors that a diff found laid out anew; None where there are none.

    Args:
        old: of the release before.
        new: of the release after.
        changes: between the two.
        places: where both were read, or saved.
        jobs: threads to read with; None for as many as are worthwhile here.
        progress: called while reading.

    Raises:
        InputError: a side cannot be read, or is no longer what its fingerprint says.
        ServiceError: a store did not answer properly.
    """
    if not any(one.status is RelaidStatus.UNPROVEN for one in changes.relaid):
        return None
    weights = (readable_weights(places[0]), readable_weights(places[1]))
    return prove_relayouts(old, new, changes.relaid, weights=weights, jobs=jobs, progress=progress)


def prove_relayouts(
    old: Fingerprint,
    new: Fingerprint,
    relaid: Sequence[Relaid],
    *,
    weights: tuple[ReadableWeights | None, ReadableWeights | None],
    jobs: int | None = None,
    progress: Progress = silent,
) -> tuple[Relaid, ...]:
    """The same, with what reading proves.

    Args:
        old: the release before.
        new: the release after.
        relaid: proposals between the two.
        weights: of both; None for one that was saved.
        jobs: threads; None for as many as are worthwhile here.
        progress: called from the threads, one at a time.

    Raises:
        InputError: a file cannot be read, or is no longer what the fingerprint was made of.
        ServiceError: the store did not answer properly.
    """
    stored: tuple[Mapping[str, StoredTensor] | None, ...] = tuple(
        None if side is None else {tensor.name: tensor for tensor in side.tensors} for side in weights
    )
    is_remote = [side is not None and side.is_remote for side in weights]
    planned = [
        _plan(one, old, new, stored, is_remote) if one.status is RelaidStatus.UNPROVEN else one for one in relaid
    ]
    tasks = [one for one in planned if isinstance(one, Task)]
    if not tasks:
        return tuple(one for one in planned if isinstance(one, Relaid))
    threads = jobs or default_jobs(is_remote=any(is_remote[task.side] for task in tasks))
    old_files, new_files = (() if side is None else side.files for side in weights)
    with OpenFiles(old_files) as old_open, OpenFiles(new_files) as new_open:

        def worker(advance: Advance) -> Callable[[Task], Relaid]:
            def do(task: Task) -> Relaid:
                with (old_open, new_open)[task.side].readers(task.places) as readers:
                    reader = RelayoutReader(
                        readers, advance=advance, slab_bytes=MEMORY_BYTES // threads, is_remote=is_remote[task.side]
                    )
                    digests = (old.tensor_digests, new.tensor_digests)
                    return _prove(task, reader, digests=digests, where=(old, new)[task.side].release.source)

            return do

        proved = iter(
            run_in_threads(
                tasks,
                worker,
                size_of=lambda task: task.size_bytes,
                jobs=threads,
                stage="comparing re-laid-out tensors",
                total_bytes=sum(task.size_bytes for task in tasks),
                progress=progress,
            )
        )
    return tuple(next(proved) if isinstance(one, Task) else one for one in planned)


def _plan(
    one: Relaid,
    old: Fingerprint,
    new: Fingerprint,
    stored: tuple[Mapping[str, StoredTensor] | None, ...],
    is_remote: Sequence[bool],
) -> Task | Relaid:
    """How a proposal can be proved, or why it cannot be."""
    if Mode.FAST in (old.mode, new.mode):
        return _unproven(one, "a fast fingerprint has digests of samples only")
    fused_side = 1 if len(one.new) == 1 else 0
    names = one.old if fused_side == 1 else one.new
    whole_of, parts_of = stored[fused_side], stored[1 - fused_side]
    whole = None if whole_of is None else whole_of.get((one.old, one.new)[fused_side][0])
    is_whole_set = parts_of is not None and all(name in parts_of for name in names)
    parts = tuple(parts_of[name] for name in names) if parts_of is not None and is_whole_set else None
    if whole is None and parts is None:
        return _unproven(one, _SAVED if whole_of is None and parts_of is None else _LOST)
    count = len(names) // (one.experts or 1)
    config = (new if fused_side == 0 else old).config or {}
    if parts is not None:
        per_expert = {tuple(part.shape for part in parts[at : at + count]) for at in range(0, len(parts), count)}
        dtypes = {part.dtype for part in parts} | ({whole.dtype} if whole is not None else set())
        if len(dtypes) > 1:
            return _unproven(one, f"its tensors are stored as {' and '.join(sorted(dtypes))}, which is other content")
        if len(per_expert) > 1:
            return _unproven(one, "the experts' tensors have several shapes")
        guesses = dict.fromkeys(Layout, per_expert.pop())
    else:
        assert whole is not None
        guesses = {layout: _shapes_in(whole.shape, layout, count, one.experts, config) for layout in Layout}
    fitting = {
        layout: shapes
        for layout, shapes in guesses.items()
        if (shape := fused_shape(shapes, layout, experts=one.experts)) is not None
        and (whole is None or shape == whole.shape)
    }
    if not fitting:
        that = "" if whole is None else f" ({list(whole.shape)})"
        return _unproven(one, f"the shapes of the tensors do not add up to that of the fused one{that}")
    # Reading the parts alone tells less, and a download costs more.
    is_whole_read = whole is not None and (parts is None or not is_remote[fused_side] or is_remote[1 - fused_side])
    return Task(
        relaid=one,
        side=fused_side if is_whole_read else 1 - fused_side,
        whole=whole,
        parts=None if is_whole_read else parts,
        shapes=fitting,
    )


def _shapes_in(
    shape: tuple[int, ...], layout: Layout, count: int, experts: int | None, config: JsonObject
) -> tuple[tuple[int, ...], ...]:
    """Shapes of the tensors that a fused one of this shape would hold, where nothing but it is at hand."""
    inner = shape[1:] if experts is not None else shape
    if not inner or (layout is Layout.TRANSPOSED and len(inner) != 2):
        return ()
    rows, rest = (inner[0], inner[1:]) if layout is Layout.CONCATENATED else (inner[1], inner[:1])
    shares = {1: (1,), 2: (1, 1), 3: _heads(config)}[count]
    unit, remainder = divmod(rows, sum(shares)) if sum(shares) else (0, 1)
    return () if remainder else tuple((share * unit, *rest) for share in shares)


def _heads(config: JsonObject) -> tuple[int, ...]:
    """How many heads Q, K and V have; nothing where the configuration does not tell."""
    heads = config.get("num_attention_heads")
    groups = config.get("num_key_value_heads", heads)
    if isinstance(heads, int) and isinstance(groups, int) and heads > 0 and groups > 0:
        return heads, groups, groups
    return ()


def _unproven(one: Relaid, reason: str) -> Relaid:
    return msgspec.structs.replace(one, status=RelaidStatus.UNPROVEN, reason=reason)


def _prove(
    task: Task, reader: RelayoutReader, *, digests: tuple[Mapping[str, str], Mapping[str, str]], where: str
) -> Relaid:
    """What reading one candidate tells."""
    one = task.relaid
    is_fused_new = len(one.new) == 1
    names, (whole_name,) = (one.old, one.new) if is_fused_new else (one.new, one.old)
    part_digests = [digests[0 if is_fused_new else 1][name] for name in names]
    whole_digest = digests[1 if is_fused_new else 0][whole_name]
    best: tuple[Layout, tuple[str, ...]] | None = None
    for layout, shapes in task.shapes.items():
        if layout is Layout.TRANSPOSED and not reader.can_transpose(task.whole, task.parts, shapes):
            return _unproven(one, "it lies on a store, and is too large to be transposed in memory")
        if task.parts is None:
            assert task.whole is not None
            total, found = reader.digests_of_parts(task.whole, shapes, layout, experts=one.experts)
            is_same_file = total == whole_digest
            changed = tuple(name for name, known, now in zip(names, part_digests, found, strict=True) if known != now)
        else:
            seen, fused = reader.digest_of_whole(task.parts, shapes, layout, experts=one.experts)
            is_same_file = seen == part_digests
            changed = () if fused == whole_digest else names
        if not is_same_file:
            raise InputError(
                f"reading the tensors of {where}: {whole_name!r} or what it was made of is no longer what its "
                "fingerprint says",
                hint="wait until the copy or download has finished, and run again",
            )
        if best is None or len(changed) < len(best[1]):
            best = (layout, changed)
        if not changed:
            break
    assert best is not None
    layout, changed = best
    if len(changed) == len(names):
        return _unproven(one, _NO_PART_FOUND)
    status = RelaidStatus.CHANGED if changed else RelaidStatus.EQUAL
    return msgspec.structs.replace(one, status=status, layout=str(layout), changed=changed, reason=None)
