"""A diff, step by step: each is a whole answer, and reading makes the next one say more.

Whoever is interrupted, or loses a store, has the last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvrelease.progress import Progress, silent
from kvrelease.release.diff import diff_fingerprints, with_drift
from kvrelease.release.diff_record import Diff
from kvrelease.release.drift import measure_drift
from kvrelease.release.pair import Pair
from kvrelease.release.readable import ReadableWeights
from kvrelease.release.relayout_proof import prove_found
from kvrelease.release.runtime_change import RuntimeChange

_NO_PROOF = "whether tensors in another layout are the same weights was not proven: the run was cut short"
_NO_DRIFT = "how far tensors moved was not measured: the run was cut short"


def diff_steps(
    pair: Pair,
    *,
    places: tuple[str, str],
    runtime: RuntimeChange,
    weights: tuple[ReadableWeights, ReadableWeights] | None,
    jobs: int | None = None,
    progress: Progress = silent,
) -> Iterator[Diff]:
    """The diff of the fingerprints, then with what reading proves of other layouts, then with how far tensors moved.

    Args:
        pair: both releases.
        places: where they were read, or saved.
        runtime: what comparing the runtimes said.
        weights: of both, located before they were fingerprinted, where drift is to be measured.
        jobs: threads; None for as many as are worthwhile here.
        progress: called while reading.

    Yields:
        each says under `left_out` what the following ones would add; the last one says nothing there.

    Raises:
        InputError: a side cannot be read any more, or changed meanwhile: then no earlier answer is about what is there.
        ServiceError: a store did not answer properly; earlier answers stand.
    """
    found = diff_fingerprints(pair.old, pair.new, texts=pair.texts, runtime=runtime, ungiven=pair.ungiven)
    no_drift = () if weights is None else (_NO_DRIFT,)
    yield msgspec.structs.replace(found, left_out=((_NO_PROOF,) if found.tensors.relaid else ()) + no_drift)
    proved = prove_found(pair.old, pair.new, found.tensors, places=places, jobs=jobs, progress=progress)
    if proved is not None:
        found = diff_fingerprints(
            pair.old, pair.new, texts=pair.texts, runtime=runtime, ungiven=pair.ungiven, relaid=proved
        )
    yield msgspec.structs.replace(found, left_out=no_drift)
    if weights is not None:
        moved = measure_drift(pair.old, pair.new, found.tensors, weights=weights, jobs=jobs, progress=progress)
        yield with_drift(found, moved)
