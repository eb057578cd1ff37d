"""Where it is stale, and what to do next: the part of the gate's page that a failure has."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.report.document import Block, Cell, Notes, Table, Text, first_rows, number
from kvrelease.verify.closeness import Closeness
from kvrelease.verify.diagnosis import Diagnosis, StalePrefix
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.next_step import NextStep
from kvrelease.verify.tier import tier_in_words

# A failed run has hundreds of prefixes where everything is stale.
MAX_ROWS = 20
MAX_NAMES = 5


def next_line(found: VerifyReport) -> list[Block]:
    """The line under the verdict: the first thing to do; nothing where there is nothing."""
    # Reports that are older than their own steps have those of a diagnosis.
    steps = found.next_steps or tuple(step for one in found.diagnosis for step in one.next_steps)
    return [Text(text=f"Next: {_step(steps[0])}")] if steps else []


def diagnosis_blocks(found: tuple[Diagnosis, ...]) -> list[Block]:
    """Where, from which token on, out of which tier; and every step."""
    if not found:
        return []
    several = len({one.replica for one in found}) > 1
    rows = [(one.replica, prefix) for one in found for prefix in one.prefixes]
    columns = (
        "prefix",
        "stale/suspect",
        "stale from token",
        "foreign from",
        "tier",
        "closer to",
        *(("replica",) if several else ()),
    )
    table = Table(
        title="Where",
        columns=columns,
        rows=tuple((*_row(prefix), *((replica,) if several else ())) for replica, prefix in rows),
    )
    steps = dict.fromkeys(line for one in found for line in _in_order(one.next_steps))
    reasons = _reasons([prefix for _, prefix in rows])
    causes = tuple(
        f"{f'{one.replica}: ' if several else ''}{one.cause.cause or 'cache or model'}: {one.cause.why}"
        for one in found
    )
    blocks: list[Block] = [
        *([first_rows(table, MAX_ROWS)] if rows else []),
        Notes(title="Cause", lines=causes),
        Notes(title="Next", lines=tuple(steps)),
    ]
    return [*blocks, Notes(title="From which token on, not found out", lines=reasons)] if reasons else blocks


def steps_block(steps: Sequence[NextStep]) -> list[Block]:
    """Every step in its order, where no diagnosis has them; nothing where the line under the verdict says it all."""
    if not steps or (len(steps) == 1 and not steps[0].detail):
        return []
    return [Notes(title="Next", lines=_in_order(steps))]


def _in_order(steps: Sequence[NextStep]) -> tuple[str, ...]:
    return tuple(
        f"{'first' if place == 0 else 'then'} {_step(step)}{f': {step.detail}' if step.detail else ''}"
        for place, step in enumerate(steps)
    )


def _reasons(prefixes: list[StalePrefix]) -> tuple[str, ...]:
    """Why it is not told from which token on, each reason once."""
    grouped: dict[str, list[str]] = {}
    for prefix in prefixes:
        if prefix.why_not_from is not None:
            grouped.setdefault(prefix.why_not_from, []).append(prefix.prefix)
    return tuple(f"{_first_names(names)}: {why}" for why, names in grouped.items())


def _first_names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _step(step: NextStep) -> str:
    return step.text if step.call is None else f"{step.text} ({step.call})"


def _row(prefix: StalePrefix) -> tuple[Cell, ...]:
    foreign = "?" if prefix.foreign_from is None else f"{prefix.foreign_from:,}"
    return (
        prefix.prefix,
        f"{prefix.stale}/{prefix.suspect}",
        _stale_from(prefix),
        foreign,
        ", ".join(f"{tier_in_words(tier)} {tokens:,}" for tier, tokens in prefix.tiers.items()) or "?",
        _closer_to(prefix.closeness),
    )


def _closer_to(found: Closeness | None) -> str:
    """The nearest release with all distances, so that a reader sees how clear it is."""
    if found is None:
        return "?"
    known = (("old", found.to_old), ("hybrid", found.to_hybrid), ("new", found.to_new))
    nats = ", ".join(f"{name} {number(value, digits=3)}" for name, value in known if value is not None)
    return f"{found.closer_to or '?'} ({nats})" if nats else "?"


def _stale_from(prefix: StalePrefix) -> str:
    if prefix.stale_from is None or not prefix.block_tokens:
        return "?"
    return f"{prefix.stale_from:,} (block {prefix.stale_from // prefix.block_tokens})"
