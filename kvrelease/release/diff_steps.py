"""A diff from two places to the answer, step by step: each step is a whole answer, and reading makes the next say more.

Whoever is interrupted, or loses a store, has the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kvrelease.progress import Progress, silent
from kvrelease.release.diff import diff_fingerprints, with_drift
from kvrelease.release.diff_record import Diff
from kvrelease.release.drift import measure_drift, weights_for_drift
from kvrelease.release.memo import Memo
from kvrelease.release.pair import Pair, load_pair
from kvrelease.release.readable import ReadableWeights
from kvrelease.release.relayout_proof import prove_found
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange

_NO_PROOF = "whether tensors in another layout are the same weights was not proven: the run was cut short"
_NO_DRIFT = "how far tensors moved was not measured: the run was cut short"


def run_diff(
    old: str,
    new: str,
    *,
    warn: Callable[[str], None],
    runtime: RuntimeChange = NOT_COMPARED,
    wants_weights: bool = True,
    measures_drift: bool = False,
    memo: Memo | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
) -> Iterator[Diff]:
    """The diff of two releases: of their fingerprints, then with what reading proves, then with how far tensors moved.

    Args:
        old: the release before, or its saved fingerprint.
        new: the one after.
        warn: called with what an operator should know about either side, before the first answer.
        runtime: what comparing the runtimes said.
        wants_weights: the answer has to say whether the weights changed, even if that costs a download.
        measures_drift: how far tensors moved is to be measured too, for which both are read again.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads; None for as many as are worthwhile here.
        progress: called while reading.

    Yields:
        each says under `left_out` what the following ones would add; the last one says nothing there.

    Raises:
        InputError: a side cannot be read, or changed meanwhile: then no earlier answer is about what is there.
        UsageError: drift is to be measured of a saved fingerprint, which has no tensors.
        MissingExtra: likewise without torch.
        ServiceError: a store did not answer properly; earlier answers stand.
    """
    weights = weights_for_drift(old, new) if measures_drift else None
    pair = load_pair(old, new, memo=memo, jobs=jobs, progress=progress, wants_weights=wants_weights or measures_drift)
    for warning in _warnings(pair, places=(old, new)):
        warn(warning)
    yield from _steps(pair, places=(old, new), runtime=runtime, weights=weights, jobs=jobs, progress=progress)


def _warnings(pair: Pair, *, places: tuple[str, str]) -> list[str]:
    """What the fingerprints warn of, once where both do."""
    sides = tuple(zip(places, (pair.old, pair.new), strict=True))
    told = []
    for warning in dict.fromkeys((*pair.old.warnings, *pair.new.warnings)):
        by = dict.fromkeys(place for place, found in sides if warning in found.warnings)
        told.append(f"{' and '.join(by)}: {warning}")
    return told


def _steps(
    pair: Pair,
    *,
    places: tuple[str, str],
    runtime: RuntimeChange,
    weights: tuple[ReadableWeights, ReadableWeights] | None,
    jobs: int | None,
    progress: Progress,
) -> Iterator[Diff]:
    """The answers, given both fingerprints.

    Args:
        pair: both releases.
        places: where they were read, or saved.
        runtime: what comparing the runtimes said.
        weights: of both, located before they were fingerprinted, where drift is to be measured.
        jobs: threads; None for as many as are worthwhile here.
        progress: called while reading.
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
