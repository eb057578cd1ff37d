"""Documents as Markdown (GitHub's flavour)."""

from __future__ import annotations

import re
from typing import assert_never

from kvrelease.printable import printable
from kvrelease.report.document import Block, Cell, Commands, Document, Facts, Notes, Table, Text, Verdict, more_in_json

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~&$"})

# GitHub looks for these in the finished page, where a backslash is gone: a comment in between breaks them up.
_EMOJI_OR_MENTION = re.compile(r"@(?=\w)|:(?=[a-z][a-z0-9_\\+-]*:)")


def render_markdown(document: Document) -> str:
    """The document as Markdown, with a final newline."""
    parts = [f"## {_escape(document.title)}", *(_block(block) for block in document.blocks)]
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return _EMOJI_OR_MENTION.sub(lambda found: f"{found[0]}<!-- -->", printable(text).translate(_SPECIAL))


def _cell(cell: Cell) -> str:
    return _escape(cell) if isinstance(cell, str) else f"**{_escape(cell.text)}**"


def _block(block: Block) -> str:
    match block:
        case Verdict():
            return f"**{_escape(block.word.text)}**: {_escape(block.reason)}"
        case Text():
            return _escape(block.text)
        case Facts():
            return "\n".join(f"- {_escape(name)}: {_cell(value)}" for name, value in block.pairs)
        case Table():
            lines = [
                f"### {_escape(block.title)}",
                "",
                f"| {' | '.join(_escape(column) for column in block.columns)} |",
                f"|{'---|' * len(block.columns)}",
                *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in block.rows),
                *(["", f"… and {more_in_json(block.left_out)}"] if block.left_out else []),
            ]
            return "\n".join(lines)
        case Notes():
            return f"### {_escape(block.title)}\n\n" + "\n".join(f"- {_escape(line)}" for line in block.lines)
        case Commands():
            body = "\n".join(printable(line) for line in block.lines)
            runs = (len(run) for run in re.findall("`+", body))
            fence = "`" * max(3, 1 + max(runs, default=0))
            return f"### {_escape(block.title)}\n\n{fence}\n{body}\n{fence}"
        case _:
            assert_never(block)
