"""The page of a selection."""

from kvrelease.printable import number_of
from kvrelease.report.document import Block, Document, Facts, Notes, Table, first_rows, number, share
from kvrelease.report.log import passed_over_text
from kvrelease.selection.result import Selection
from kvrelease.selection.split import SplitBy

LISTED_PROMPTS = 20

_SPLITS = {
    SplitBy.TIME: "the last part by time",
    SplitBy.HASH: "drawn with a seed, as the log tells no times",
    SplitBy.NONE: "nothing",
}


def selection_document(found: Selection) -> Document:
    """Which prompts were chosen, and what they hit."""
    unit = str(found.unit)
    last = found.curve[-1] if found.curve else None
    facts = [
        ("log", found.source),
        ("requests", f"{number(found.requests)}" + (f", {found.damaged} damaged left out" if found.damaged else "")),
        *([("passed over", passed_over_text(found.passed_over))] if found.passed_over else []),
        ("held out", _held_out(found)),
        (
            "chosen",
            f"{number_of(len(found.prompts), 'prompt')}, {number(last.length if last else 0)} {unit}, "
            f"{number(last.blocks if last else 0)} blocks of {found.block} {unit}",
        ),
        ("expected hit rate", _expected(found)),
        ("against the best", _against_the_best(found)),
        ("key spaces", number(found.key_spaces)),
    ]
    if found.uncacheable_weight:
        facts.append(
            ("cannot be cached", f"{share(found.uncacheable_weight / found.chosen_from.weight)}: shorter than a block")
        )
    blocks: list[Block] = [
        Facts(pairs=tuple(facts)),
        Table(
            title="Budget and hit rate",
            columns=("prompts", unit, "blocks", "chosen from", "held out"),
            rows=tuple(
                (
                    number(point.prompts),
                    number(point.length),
                    number(point.blocks),
                    share(point.hit_rate),
                    share(point.held_out_hit_rate),
                )
                for point in found.curve
            ),
        ),
        first_rows(
            Table(
                title="Prompts",
                columns=("id", "traffic", unit, "new blocks"),
                rows=tuple(
                    (one.id, number(one.weight), number(one.length), number(one.new_blocks)) for one in found.prompts
                ),
            ),
            LISTED_PROMPTS,
        ),
    ]
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=found.warnings))
    return Document(title=f"Selection from {found.source}", blocks=tuple(blocks))


def _held_out(found: Selection) -> str:
    if found.held_out is None:
        return _SPLITS[found.split]
    return f"{number_of(found.held_out.requests, 'request')}: {_SPLITS[found.split]}"


def _against_the_best(found: Selection) -> str:
    if found.proved_share == 1:
        return "nothing within the budget would save more of the traffic it was chosen from"
    return f"saves at least {share(found.proved_share)} of what the best choice within the budget would"


def _expected(found: Selection) -> str:
    """Of the held-out traffic where there is some: on what it was chosen from, any set looks better than it is."""
    if found.held_out is None:
        return f"{share(found.chosen_from.hit_rate)} of the traffic it was chosen from; nothing was held out"
    if not found.held_out.requests:
        return (
            f"{share(found.chosen_from.hit_rate)} of the traffic it was chosen from; so few requests that none was "
            "drawn to be held out (another --seed, a larger --holdout, or a longer log)"
        )
    return (
        f"{share(found.held_out.hit_rate)} of held-out {found.unit}, by this set alone; "
        f"without a budget {share(found.held_out.ceiling)}"
    )
