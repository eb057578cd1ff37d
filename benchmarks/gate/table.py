"""What the counts say, as a page: tables, and whether the promises hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scipy.stats import binomtest

from benchmarks.gate.cells import WANTED, Cell
from benchmarks.gate.counting import STALE_SHARES
from benchmarks.gate.drawing import LIMITS, PROBES
from benchmarks.gate.pool import Pool
from benchmarks.gate.promises import PROMISES, broken_promises, uncounted
from benchmarks.gate.sizes import Sizes
from kvrelease.artifacts import Verdict

_CLEAN = (
    "engine",
    "noise",
    "release",
    "staleness, nats",
    "threshold of the pool, nats",
    "runs",
    "false fails",
    "passed",
    "inconclusive: noise hides staleness",
    "inconclusive otherwise",
    "requests for each probe",
    "prompt tokens a run",
)
_STALE = (
    "engine",
    "noise",
    "release",
    "stale",
    "passed and met a stale probe",
    "passed and met none",
    "caught",
    "inconclusive: noise hides staleness",
    "inconclusive otherwise",
    "requests for each probe",
)


def share_text(count: int, runs: int) -> str:
    """A share in percent, with its exact 95 % interval."""
    interval = binomtest(count, runs).proportion_ci(confidence_level=0.95, method="exact")
    return f"{count / runs:.2%} ({interval.low:.2%} to {interval.high:.2%})"


def markdown(
    cells: Sequence[Cell], pools: Mapping[tuple[str, str, str], Pool], sizes: Mapping[tuple[str, str, str], Sizes]
) -> str:
    """The page.

    Args:
        cells: that were counted.
        pools: that they were drawn from, by engine, level and release.
        sizes: of these.
    """
    ordered = sorted(cells, key=lambda cell: cell.place)
    lines = [
        "# Error rates of the release gate, by resampling",
        "",
        "Written by `python -m benchmarks.gate report`; [statistics.md](statistics.md) says what is measured and how, "
        "[benchmarks.md](benchmarks.md) how to repeat it.",
        "",
        f"{PROBES} probes a run, `--stale-below {LIMITS.stale_below:g}`, both releases at hand in process.",
        "Shares with their exact 95 % intervals.",
        "",
        "![Verdicts on stale runs](gate-error-rates.svg)",
        "",
        "## Promises",
        "",
        *(f"{number}. {promise}" for number, promise in enumerate(PROMISES, start=1)),
        "",
        *_verdict(broken_promises(ordered, sizes), uncounted(ordered)),
        "",
        "## Clean runs",
        "",
        "*Staleness* is the median distance that the old release's keys and values make of an answer, in process; the",
        "*threshold* three times the largest distance of clean answers in the pool. A run measures its own.",
        "",
        *_table(_CLEAN, (_clean_row(cell, sizes[cell.pool]) for cell in ordered if cell.stale_share == 0)),
        "",
        "## Stale runs",
        "",
        f"Each probe is stale with the given chance; the share of runs that meet none is {_excuses()}.",
        "",
        *_table(_STALE, (_stale_row(cell) for cell in ordered if cell.stale_share > 0)),
        "",
        "## Pools",
        "",
    ]
    for pool in pools.values():
        about = "; ".join(f"{name} {value}" for name, value in sorted(pool.about.items()))
        lines.append(f"- `{pool.name}`: {len(pool.prompts)} prompts; {about}")
    return "\n".join(lines) + "\n"


def _verdict(broken: Sequence[str], missing: Sequence[str]) -> list[str]:
    """Whether they hold, and of how much that was asked."""
    lines = [f"- Broken: {line}" for line in broken]
    if missing:
        counted = len(WANTED) - len(missing)
        lines += ["" for _ in broken[:1]]
        lines += [
            f"{'No other promise' if broken else 'None'} is broken in the {counted} of {len(WANTED)} pools that were "
            "counted. Nothing is known of:",
            "",
            *(f"- {line}" for line in missing),
        ]
    return lines or [f"All hold, in all {len(WANTED)} pools."]


def _clean_row(cell: Cell, sizes: Sizes) -> Iterable[str]:
    fails = cell.count(Verdict.FAIL)
    return (
        *cell.pool,
        f"{sizes.staleness:.3f}",
        f"{sizes.threshold:.3f}",
        f"{cell.runs:,}",
        f"{fails}: {share_text(fails, cell.runs)}",
        f"{cell.count(Verdict.PASS) / cell.runs:.2%}",
        *_undecided_and_cost(cell),
        f"{cell.tokens / cell.runs:,.0f}",
    )


def _stale_row(cell: Cell) -> Iterable[str]:
    return (
        *cell.pool,
        f"{cell.stale_share:.0%}",
        f"{cell.missed}: {share_text(cell.missed, cell.runs)}",
        f"{cell.unmet / cell.runs:.2%}",
        f"{cell.count(Verdict.FAIL) / cell.runs:.2%}",
        *_undecided_and_cost(cell),
    )


def _undecided_and_cost(cell: Cell) -> Iterable[str]:
    """What every row has: runs that were inconclusive, because of `power` alone or not, and requests for each probe."""
    return (
        f"{cell.blind / cell.runs:.2%}",
        f"{(cell.count(Verdict.INCONCLUSIVE) - cell.blind) / cell.runs:.2%}",
        f"{cell.requests / cell.runs / PROBES:.2f}",
    )


def _excuses() -> str:
    return ", ".join(f"{(1 - share) ** PROBES:.2%} at {share:.0%}" for share in STALE_SHARES)


def _table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterable[str]:
    yield _row(heads)
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield _row(row)


def _row(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"
