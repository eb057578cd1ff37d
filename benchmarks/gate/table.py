"""What the counts say: cells, the promises they are held to, a table and a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from scipy.stats import binomtest

from benchmarks.gate.counting import STALE_SHARES, Chunk, Counts
from benchmarks.gate.drawing import LIMITS, PROBES
from benchmarks.gate.levels import LOCAL_LEVELS, VLLM_LEVELS
from benchmarks.gate.pool import load
from kvrelease.artifacts import Verdict

MAX_FALSE_FAILS = 4  # of 2,000 clean runs
PROMISED_OF = 2000
# A miss rate is above what the claim's size excuses where the exact test says so at this level: of a hundred cells that
# keep the promise, one is accused in ten tables.
ALPHA = 0.001


class Cell(Counts, frozen=True, kw_only=True):
    """All runs of one pool and one stale share.

    Attributes:
        engine: of the pool.
        level: of noise.
        release: by its name.
    """

    engine: str
    level: str
    release: str

    def count(self, verdict: Verdict) -> int:
        """Runs that ended so."""
        return self.verdicts.get(str(verdict), 0)

    @property
    def excused(self) -> float:
        """The share of runs that meet no stale probe by chance: no gate of so many probes can do better."""
        return (1 - self.stale_share) ** PROBES


def cells_of(chunks: Iterable[Chunk]) -> list[Cell]:
    """Chunks added up."""
    groups: dict[tuple[str, float], list[Chunk]] = {}
    for chunk in chunks:
        groups.setdefault((chunk.pool, chunk.stale_share), []).append(chunk)
    found = []
    for (pool, share), members in groups.items():
        engine, level, release, _ = pool.split(".")
        found.append(
            Cell(
                engine=engine,
                level=level,
                release=release,
                stale_share=share,
                runs=sum(chunk.runs for chunk in members),
                verdicts=_added(chunk.verdicts for chunk in members),
                failed=_added(chunk.failed for chunk in members),
                open=_added(chunk.open for chunk in members),
                unmet=sum(chunk.unmet for chunk in members),
                blind=sum(chunk.blind for chunk in members),
                requests=sum(chunk.requests for chunk in members),
                tokens=sum(chunk.tokens for chunk in members),
            )
        )
    return found


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def broken_promises(cells: Sequence[Cell]) -> list[str]:
    """What does not hold: false fails, and misses that neither `power` nor the claim's size excuses."""
    found = []
    for cell in cells:
        where = f"{cell.engine}, {cell.level}, {cell.release}, {cell.stale_share:.0%} stale"
        if cell.stale_share == 0:
            fails = cell.count(Verdict.FAIL)
            if fails * PROMISED_OF > MAX_FALSE_FAILS * max(cell.runs, PROMISED_OF):
                found.append(f"{where}: {fails} of {cell.runs} clean runs failed ({_most(cell.failed)})")
            continue
        misses, excused = cell.count(Verdict.PASS), cell.excused
        if misses and binomtest(misses, cell.runs, excused, alternative="greater").pvalue < ALPHA:
            found.append(
                f"{where}: {misses} of {cell.runs} runs passed, {cell.unmet} of them without a stale probe; the "
                f"claim's size excuses {excused:.1%}"
            )
    return found


def _most(checks: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(checks.items(), key=lambda one: -one[1])) or "-"


def share_text(count: int, runs: int) -> str:
    """A share in percent, with its exact 95 % interval."""
    interval = binomtest(count, runs).proportion_ci(confidence_level=0.95, method="exact")
    return f"{count / runs:.2%} ({interval.low:.2%} to {interval.high:.2%})"


def markdown(cells: Sequence[Cell], pools: Sequence[Path]) -> str:
    """The page of the tables."""
    clean = [cell for cell in cells if cell.stale_share == 0]
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
        "## Clean runs",
        "",
        f"Promised: at most {MAX_FALSE_FAILS} false fails in {PROMISED_OF:,} runs of each row.",
        "",
        _row(
            "engine",
            "noise",
            "release",
            "runs",
            "false fails",
            "inconclusive",
            "of these: noise hides staleness",
            "requests a run",
            "for each probe",
            "prompt tokens a run",
        ),
        "|" + "---|" * 10,
    ]
    for cell in _sorted(clean):
        undecided = cell.count(Verdict.INCONCLUSIVE)
        lines.append(
            _row(
                cell.engine,
                cell.level,
                cell.release,
                f"{cell.runs:,}",
                f"{cell.count(Verdict.FAIL)}: {share_text(cell.count(Verdict.FAIL), cell.runs)}",
                share_text(undecided, cell.runs),
                f"{cell.blind:,}",
                f"{cell.requests / cell.runs:.0f}",
                f"{cell.requests / cell.runs / PROBES:.2f}",
                f"{cell.tokens / cell.runs:,.0f}",
            )
        )
    lines += [
        "",
        "## Stale runs",
        "",
        "A *miss* is a stale run that passes. Of runs in which each probe is stale with the given chance, the claim's",
        f"size excuses those that meet none: {_excuses()}.",
        "",
        _row(
            "engine",
            "noise",
            "release",
            "stale",
            "missed",
            "of these: met no stale probe",
            "caught",
            "inconclusive",
            "of these: noise hides staleness",
            "requests for each probe",
        ),
        "|" + "---|" * 10,
    ]
    for cell in _sorted(cell for cell in cells if cell.stale_share > 0):
        misses = cell.count(Verdict.PASS)
        lines.append(
            _row(
                cell.engine,
                cell.level,
                cell.release,
                f"{cell.stale_share:.0%}",
                f"{misses}: {share_text(misses, cell.runs)}",
                f"{cell.unmet}",
                f"{cell.count(Verdict.FAIL) / cell.runs:.2%}",
                f"{cell.count(Verdict.INCONCLUSIVE) / cell.runs:.2%}",
                f"{cell.blind:,}",
                f"{cell.requests / cell.runs / PROBES:.2f}",
            )
        )
    broken = broken_promises(cells)
    lines += ["", "## Promises", "", *([f"- Broken: {line}" for line in broken] or ["All hold."]), "", "## Pools", ""]
    for path in pools:
        pool = load(path)
        about = "; ".join(f"{name} {value}" for name, value in pool.about.items())
        lines.append(f"- `{path.name}`: {len(pool.prompts)} prompts; {about}")
    return "\n".join(lines) + "\n"


def _excuses() -> str:
    return ", ".join(f"{(1 - share) ** PROBES:.2%} at {share:.0%}" for share in STALE_SHARES)


def _row(*values: str) -> str:
    return f"| {' | '.join(values)} |"


def _sorted(cells: Iterable[Cell]) -> list[Cell]:
    order = {"local": 0, "vllm": 1}
    levels = [*LOCAL_LEVELS, *VLLM_LEVELS]
    return sorted(cells, key=lambda one: (order[one.engine], levels.index(one.level), one.release, one.stale_share))


# --- the plot --------------------------------------------------------------------------------------------------------

BAR, GAP, GROUP_GAP = 14, 3, 16
HEIGHT, TOP, LEFT, PANEL_GAP = 120, 30, 52, 66
# Dark to light, so that the three can be told apart without colour.
COLOURS = {Verdict.PASS: "#7a1f1f", Verdict.INCONCLUSIVE: "#d9b44a", Verdict.FAIL: "#cfe0ee"}
NAMES = {Verdict.PASS: "missed", Verdict.INCONCLUSIVE: "inconclusive", Verdict.FAIL: "caught"}


def svg(cells: Sequence[Cell]) -> str:
    """Stacked bars of the verdicts on stale runs: a panel for each engine and level, a group for each share."""
    stale = _sorted(cell for cell in cells if cell.stale_share > 0)
    panels = list(dict.fromkeys((cell.engine, cell.level) for cell in stale))
    releases = sorted({cell.release for cell in stale})
    group = len(releases) * (BAR + GAP) + GROUP_GAP
    width = max(LEFT + group * len(STALE_SHARES) + 20, LEFT + 110 * len(COLOURS))
    height = TOP + len(panels) * (HEIGHT + PANEL_GAP) + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10" role="img">',
        "<title>Verdicts of the release gate on stale runs</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, verdict in enumerate(COLOURS):
        x = LEFT + 110 * place
        out.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{COLOURS[verdict]}" stroke="#555"/>')
        out.append(f'<text x="{x + 14}" y="17">{NAMES[verdict]}</text>')
    for number, (engine, level) in enumerate(panels):
        top = TOP + number * (HEIGHT + PANEL_GAP) + 14
        out.append(f'<text x="{LEFT}" y="{top - 4}" font-weight="bold">{engine}, {level}</text>')
        for share in (0.0, 0.5, 1.0):
            y = top + HEIGHT * (1 - share)
            out.append(f'<line x1="{LEFT}" x2="{width - 12}" y1="{y}" y2="{y}" stroke="#bbb"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y + 3}" text-anchor="end">{share:.0%}</text>')
        for column, share in enumerate(STALE_SHARES):
            left = LEFT + 6 + column * group
            middle = left + (group - GROUP_GAP) / 2
            out.append(f'<text x="{middle}" y="{top + HEIGHT + 50}" text-anchor="middle">{share:.0%} stale</text>')
            for place, release in enumerate(releases):
                cell = next(
                    (
                        one
                        for one in stale
                        if (one.engine, one.level, one.release, one.stale_share) == (engine, level, release, share)
                    ),
                    None,
                )
                x = left + place * (BAR + GAP)
                out += _bar(cell, x=x, top=top) if cell is not None else []
                out.append(
                    f'<text transform="translate({x + BAR / 2 + 3} {top + HEIGHT + 38}) rotate(-90)" '
                    f'font-size="8">{release}</text>'
                )
    return "\n".join([*out, "</svg>"]) + "\n"


def _bar(cell: Cell, *, x: float, top: float) -> list[str]:
    out, bottom = [], top + HEIGHT
    for verdict, colour in COLOURS.items():
        tall = HEIGHT * cell.count(verdict) / cell.runs
        if tall:
            bottom -= tall
            out.append(
                f'<rect x="{x}" y="{bottom:.2f}" width="{BAR}" height="{tall:.2f}" fill="{colour}" stroke="#555" '
                f'stroke-width="0.4"/>'
            )
    return out
