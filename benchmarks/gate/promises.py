"""What the gate's error rates are held to, cell by cell; and which cells nobody has counted yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy.stats import binomtest

from benchmarks.gate.cells import WANTED, Cell
from benchmarks.gate.counting import RUNS, STALE_SHARES
from benchmarks.gate.sizes import Sizes
from kvrelease.artifacts import Verdict

MAX_FALSE_FAILS = 4  # of 2,000 clean runs
PROMISED_OF = 2000
MIN_PASSES = 0.95  # of clean runs; a gate that never says yes keeps no release back for a reason
# A pass rate is below what is promised where the exact test says so at this level: of a hundred cells that keep the
# promise, one is accused in ten tables.
ALPHA = 0.001

PROMISES = (
    f"Of the clean runs of each row at most {MAX_FALSE_FAILS} in {PROMISED_OF:,} fail.",
    f"At least {MIN_PASSES:.0%} of them pass. Where staleness is not clearly larger than the pool's noise, runs in "
    "which `power` said so are left out.",
    "A stale run passes only where it met no stale probe, which is what the claim's size leaves open: where noise "
    "hides staleness, `power` says so, and the run ends inconclusive.",
)


def broken_promises(cells: Sequence[Cell], sizes: Mapping[tuple[str, str, str], Sizes]) -> list[str]:
    """What does not hold.

    Args:
        cells: that were counted.
        sizes: of the pools that they were drawn from, by engine, level and release.
    """
    found = []
    for cell in cells:
        where = f"{cell.engine}, {cell.level}, {cell.release}, {cell.stale_share:.0%} stale"
        if cell.stale_share == 0:
            is_visible = sizes[cell.pool].is_visible
            found += [f"{where}: {broken}" for broken in (*_false_fails(cell), *_refusals(cell, is_visible=is_visible))]
        elif cell.missed:
            found.append(
                f"{where}: {cell.missed} of {cell.runs} runs passed that met a stale probe ({cell.visible} of them one "
                "whose staleness, in process, exceeds the run's threshold), and `power` had said that it would show"
            )
    return found


def _false_fails(cell: Cell) -> list[str]:
    fails = cell.count(Verdict.FAIL)
    if fails * PROMISED_OF <= MAX_FALSE_FAILS * max(cell.runs, PROMISED_OF):
        return []
    return [f"{fails} of {cell.runs} clean runs failed ({_most(cell.failed)})"]


def _refusals(cell: Cell, *, is_visible: bool) -> list[str]:
    """Clean runs that did not pass, beyond those that noise excuses."""
    runs, passes = cell.runs - (0 if is_visible else cell.blind), cell.count(Verdict.PASS)
    if not runs or binomtest(passes, runs, MIN_PASSES, alternative="less").pvalue >= ALPHA:
        return []
    return [f"{passes} of {runs} clean runs passed in which staleness would show (open: {_most(cell.open)})"]


def uncounted(cells: Sequence[Cell]) -> list[str]:
    """Pools of which no stale share, or not every one, was counted in full."""
    whole = {(cell.pool, cell.stale_share) for cell in cells if cell.runs >= RUNS}
    return [
        ", ".join(wanted) for wanted in WANTED if any((wanted, share) not in whole for share in (0.0, *STALE_SHARES))
    ]


def _most(checks: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(checks.items(), key=lambda one: -one[1])) or "-"
