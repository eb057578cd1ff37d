"""The plot: what became of stale runs, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gate.cells import Cell
from benchmarks.gate.counting import STALE_SHARES
from kvrelease.artifacts import Verdict

BAR, GAP, GROUP_GAP = 14, 3, 16
HEIGHT, TOP, LEFT, PANEL_GAP = 120, 30, 52, 66
# Dark to light, so that the three can be told apart without colour.
COLOURS = {Verdict.PASS: "#7a1f1f", Verdict.INCONCLUSIVE: "#d9b44a", Verdict.FAIL: "#cfe0ee"}
NAMES = {Verdict.PASS: "passed", Verdict.INCONCLUSIVE: "inconclusive", Verdict.FAIL: "caught"}


def svg(cells: Sequence[Cell]) -> str:
    """Stacked bars of the verdicts on stale runs: a panel for each engine and level, a group for each share."""
    stale = sorted((cell for cell in cells if cell.stale_share > 0), key=lambda cell: cell.place)
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
