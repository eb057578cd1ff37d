"""Numbered cases of hostile input: one loop for all readers, and what every case has to hold.

Cases come from seeds, so a failure names the one to run again. `KVRELEASE_FUZZ_SECONDS=600` goes on for ten minutes
behind the few hundred that run every time.
"""

from __future__ import annotations

import logging
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease

logger = logging.getLogger(__name__)

FUZZ_SECONDS = float(os.environ.get("KVRELEASE_FUZZ_SECONDS", "0"))
MAX_CASE_S = 2.0

_WORDS = {DamagedFile: "damaged", UnsupportedRelease: "unsupported", NotFound: "absent", InputError: "refused"}


def run_cases(
    run_case: Callable[[int], str], *, kept: Sequence[int], unit_cases: int, max_peak_bytes: int
) -> dict[str, int]:
    """How often each outcome came, over all seeds.

    Args:
        run_case: reads the input of a seed, and says in a word what came of it; an error of ours is an outcome.
        kept: seeds that failed once.
        unit_cases: seeds of every run, from 0.
        max_peak_bytes: that one case may allocate.
    """
    outcomes: dict[str, int] = {}
    tracemalloc.start()
    try:
        for seed in _seeds(kept, unit_cases):
            try:
                outcome = _within_bounds(run_case, seed, max_peak_bytes=max_peak_bytes)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    finally:
        tracemalloc.stop()
    logger.info("%d cases: %s", sum(outcomes.values()), outcomes)
    return outcomes


def _seeds(kept: Sequence[int], unit_cases: int) -> Iterator[int]:
    yield from kept
    yield from range(unit_cases)
    deadline = time.monotonic() + FUZZ_SECONDS
    seed = unit_cases
    while time.monotonic() < deadline:
        yield seed
        seed += 1


def _within_bounds(run_case: Callable[[int], str], seed: int, *, max_peak_bytes: int) -> str:
    tracemalloc.reset_peak()
    before_bytes, _ = tracemalloc.get_traced_memory()  # what earlier cases left in caches of bounded size
    started = time.process_time()
    try:
        outcome = run_case(seed)
    except InputError as error:
        shown = f"{error.message}{error.hint or ''}"
        assert shown.isprintable(), shown
        outcome = _WORDS[type(error)]
    assert time.process_time() - started < MAX_CASE_S
    _, peak_bytes = tracemalloc.get_traced_memory()
    assert peak_bytes - before_bytes < max_peak_bytes, peak_bytes - before_bytes
    return outcome
