"""docs/cases.md keeps its word: each report has a test that exists and names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "cases.md"


def rows() -> list[tuple[list[str], str]]:
    """(links, tests) of each row."""
    cells = [
        line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "](https" in line
    ]
    return [(re.findall(r"\((https://[^)]+)\)", row[0]), row[-1]) for row in cells if len(row) == 4]


def files_and_tests(cell: str) -> list[tuple[Path, str]]:
    """`checkpoint: a, b; test_x.py: c` → the files and the tests in them."""
    found = []
    for part in cell.split("; "):
        file, _, names = part.partition(": ")
        path = TESTS / file if file.endswith(".py") else TESTS / "release" / f"test_{file}.py"
        found += [(path, name) for name in names.split(", ")]
    return found


def test_the_page_has_rows() -> None:
    assert len(rows()) >= 30


@pytest.mark.parametrize(("links", "cell"), rows(), ids=[links[0] for links, _ in rows()])
def test_a_report_has_its_test(links: list[str], cell: str) -> None:
    tests = files_and_tests(cell)
    for path, name in tests:
        assert f"def test_{name}(" in path.read_text(encoding="utf-8"), f"{path.name} has no test_{name}"
    text = "".join(path.read_text(encoding="utf-8") for path, _ in tests)
    assert [link for link in links if link not in text] == []
