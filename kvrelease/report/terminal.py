"""Documents as text: Rich on a terminal, the same words without colour in a pipe."""

from __future__ import annotations

import io
from typing import assert_never

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from kvrelease.printable import printable
from kvrelease.report.document import (
    Block,
    Cell,
    Commands,
    Document,
    Facts,
    Notes,
    Table,
    Text,
    Tone,
    Verdict,
    Word,
    more_in_json,
)

# Columns as narrow as a number or a verdict never wrap; on a narrow terminal the long ones give way.
NARROW_CHARS = 16
READABLE_CHARS = 24
INDENT = 2
GAP = 2

_STYLES = {Tone.GOOD: "bold green", Tone.BAD: "bold red", Tone.UNSURE: "bold yellow", Tone.PLAIN: ""}


def print_document(document: Document, console: Console) -> None:
    """Draws the document; the console decides on colour and width."""
    console.print(RichText(printable(document.title), style="bold"))
    for block in document.blocks:
        console.print()
        for part in _block(block, width=console.width):
            console.print(part, soft_wrap=isinstance(block, Commands))


def render_for_terminal(document: Document) -> str:
    """The document as stdout's terminal shows it: its width, and colour unless `NO_COLOR` is set."""
    console = Console(highlight=False)
    with console.capture() as captured:
        print_document(document, console)
    return captured.get()


def render_text(document: Document, *, width: int = 120) -> str:
    """The document as plain text, for files and pipes; `FORCE_COLOR` in a CI job changes nothing about a file."""
    target = io.StringIO()
    console = Console(file=target, width=width, force_terminal=False, color_system=None, highlight=False)
    print_document(document, console)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def _text(cell: Cell) -> RichText:
    if isinstance(cell, Word):
        return RichText(printable(cell.text), style=_STYLES[cell.tone])
    return RichText(printable(cell))


def _block(block: Block, *, width: int) -> tuple[RenderableType, ...]:
    match block:
        case Verdict():
            line = _text(block.word)
            line.append(f"  {printable(block.reason)}", style="not bold default")
            return (line,)
        case Text():
            return (RichText(printable(block.text)),)
        case Facts():
            grid = RichTable.grid(padding=(0, 2))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            for name, value in block.pairs:
                grid.add_row(RichText(printable(name), style="dim"), _text(value))
            return (Padding(grid, (0, 0, 0, 2)),)
        case Table():
            title = RichText(printable(block.title), style="bold")
            body = _table(block) if _fits(block, width=width) else _rows_apart(block)
            parts = (body, RichText(f"… and {more_in_json(block.left_out)}")) if block.left_out else (body,)
            return (title, *(Padding(part, (0, 0, 0, INDENT)) for part in parts))
        case Notes():
            notes = RichTable.grid(padding=(0, 1))
            notes.add_column(no_wrap=True)
            notes.add_column(overflow="fold")
            for note in block.lines:
                notes.add_row(RichText("-"), RichText(printable(note)))
            return (RichText(printable(block.title), style="bold"), Padding(notes, (0, 0, 0, 2)))
        case Commands():
            commands = [RichText(f"  {printable(line)}", style="cyan") for line in block.lines]
            return (RichText(printable(block.title), style="bold"), *commands)
        case _:
            assert_never(block)


def _widths(block: Table) -> list[int]:
    """[columns] the widest cell of each."""
    rows = (block.columns, *block.rows)
    return [max(len(_text(row[index])) for row in rows) for index in range(len(block.columns))]


def _fits(block: Table, *, width: int) -> bool:
    """Whether the long columns keep a readable width beside the narrow ones."""
    widths = _widths(block)
    long = [one for one in widths if one > NARROW_CHARS]
    room = width - INDENT - GAP * len(widths) - sum(one for one in widths if one <= NARROW_CHARS)
    return room >= sum(min(one, READABLE_CHARS) for one in long)


def _table(block: Table) -> RenderableType:
    table = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for name, widest in zip(block.columns, _widths(block), strict=True):
        table.add_column(RichText(printable(name)), overflow="fold", no_wrap=widest <= NARROW_CHARS)
    for row in block.rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _rows_apart(block: Table) -> RenderableType:
    """A table too wide for the terminal: each row as a list below its first cell."""
    parts: list[RenderableType] = []
    for first, *rest in block.rows:
        pairs = RichTable.grid(padding=(0, GAP))
        pairs.add_column(no_wrap=True)
        pairs.add_column(overflow="fold")
        for name, cell in zip(block.columns[1:], rest, strict=True):
            pairs.add_row(RichText(printable(name), style="dim"), _text(cell))
        parts += [_text(first), Padding(pairs, (0, 0, 0, INDENT))]
    return Group(*parts)
