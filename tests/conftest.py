"""Options of the test run itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers beside each other have a core each: threads of torch that wait for one another take longer than the sums
    # of tiny models. Read when torch is imported, here and in processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write golden files anew; review the diff.")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, and no `--dist`, tests of one module stay together: what they share is made in one worker only."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_collection_finish() -> None:
    """Spares the collector of garbage what is there for good: the tests, and all that their modules imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a golden file by name, or writes the file anew with `--update-golden`."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: run pytest --update-golden, and review it"
        assert text == path.read_text(encoding="utf-8")

    return compare
