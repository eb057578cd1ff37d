"""Run `kvrelease demo` and draw what a terminal shows of it: `python scripts/record_demo.py docs/demo.svg`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from kvrelease.artifacts import from_json
from kvrelease.demo.figures import DemoReport
from kvrelease.report.demo import demo_document
from kvrelease.report.terminal import print_document

COLUMNS = 110
# Rich's picture loads its font from a content network; a reader's own monospaced font does as well.
REMOTE_FONT = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)


def main(target: Path) -> None:
    """Writes the picture; the run is real, and so are its figures."""
    done = subprocess.run(
        [sys.executable, "-m", "kvrelease", "demo", "--format", "json"], stdout=subprocess.PIPE, check=True
    )
    report = from_json(done.stdout, DemoReport, source="kvrelease demo")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print("$ kvrelease demo", style="bold")
    print_document(demo_document(report), console)
    svg = console.export_svg(title="kvrelease demo")
    target.write_text(REMOTE_FONT.sub("", svg), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
