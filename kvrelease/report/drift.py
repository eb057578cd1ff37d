"""The part of a diff's page about how far tensors moved."""

from collections import Counter
from collections.abc import Sequence

from kvrelease.printable import first_of
from kvrelease.release.diff_record import Diff
from kvrelease.release.drift_figures import Drift, DriftStatus, LayerDrift
from kvrelease.report.document import Block, Facts, Notes, Table, first_lines, number

# The tensors that moved most explain a release.
SHOWN = 12
# Of the reasons that tensors have no figures.
REASONS_SHOWN = 5


def drift_blocks(found: Diff) -> tuple[Block, ...]:
    """How far layers and tensors moved; nothing where it was not measured."""
    if not found.drift and not found.drift_notes:
        return ()
    counts = Counter(drift.status for drift in found.drift)
    words = (f"{counts[status]} {status}" for status in DriftStatus if counts[status])
    blocks: list[Block] = [Facts(pairs=(("tensors in both", f"{len(found.drift)}: {', '.join(words) or 'none'}"),))]
    if found.drift_layers:
        blocks.append(
            Table(
                title="Drift by layer (norms over the tensors that moved)",
                columns=("layer", "moved", "relative L2", "cosine", "largest change", "elements changed"),
                rows=tuple(_layer_row(layer) for layer in found.drift_layers),
            )
        )
    most = sorted(
        (drift for drift in found.drift if drift.status is DriftStatus.MEASURED),
        key=lambda drift: (float("-inf") if drift.relative is None else -drift.relative, drift.tensor),
    )
    if most:
        table = Table(
            title="Tensors that moved most",
            columns=("tensor", "relative L2", "cosine", "largest change", "elements changed"),
            rows=tuple(_tensor_row(drift) for drift in most[:SHOWN]),
            left_out=max(0, len(most) - SHOWN),  # of ninety thousand not all are worded first
        )
        blocks.append(table)
    if lines := (*_without_figures(found.drift), *found.drift_notes):
        blocks.append(Notes(title="Not measured", lines=lines))
    return tuple(blocks)


def _layer_row(layer: LayerDrift) -> tuple[str, ...]:
    moved = f"{layer.moved} of {layer.tensors}"
    without = f", {layer.without_figures} without figures" if layer.without_figures else ""
    return (layer.name or "outside of layers", moved + without, *_figures(layer))


def _tensor_row(drift: Drift) -> tuple[str, ...]:
    return (drift.tensor if drift.was is None else f"{drift.was} → {drift.tensor}", *_figures(drift))


def _figures(moved: Drift | LayerDrift) -> tuple[str, ...]:
    return (
        _figure(moved.relative),
        number(moved.cosine, digits=8),
        _figure(moved.largest),
        _changed(moved.changed),
    )


def _changed(elements: float | None) -> str:
    """A share in percent; not known is a question mark, and none is zero alone."""
    if elements is None:
        return "?"
    return "under 0.01%" if 0 < elements < 0.0001 else f"{elements:.2%}"


def _figure(value: float | None) -> str:
    """Three digits of a number that may be tiny; not known is a question mark, never zero."""
    return "?" if value is None else "0" if value == 0 else f"{value:.3g}"


def _without_figures(drifts: Sequence[Drift]) -> tuple[str, ...]:
    """One line for each reason, with the tensors that it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for drift in drifts:
        if drift.status in (DriftStatus.INCOMPARABLE, DriftStatus.NON_FINITE):
            reasons.setdefault((drift.status, drift.reason or ""), []).append(drift.tensor)
    lines = [f"{status}: {first_of(names)}: {reason}" for (status, reason), names in reasons.items()]
    return first_lines(lines, REASONS_SHOWN)
