"""Can the development environment be made here? Run by `make` before it downloads anything.

Written for any Python 3, because an old one is the first thing it has to tell.
"""

# ruff: noqa: UP032 - see above
import argparse
import shutil
import sys
import tempfile
from pathlib import Path

NEEDED_PYTHON = (3, 11)
# The environment takes 1.4 GB, and pip unpacks torch (0.7 GB) beside it first.
VENV_BYTES = 1500000000
TEMPORARY_BYTES = 800000000


def faults(venv: Path) -> "list[str]":
    """Sentences that say what is missing and what to do; empty when the environment can be made."""
    found = []
    if sys.version_info[:2] < NEEDED_PYTHON:
        found.append(
            "kvrelease needs Python {}.{} or newer; {} is Python {}. Try: make PYTHON=python3.11 ...".format(
                *NEEDED_PYTHON, sys.executable, sys.version.split()[0]
            )
        )
    try:
        import ensurepip  # noqa: F401, PLC0415 - whether it is there is the question
    except ImportError:
        found.append(
            "this Python cannot make virtual environments (no module ensurepip). Try: apt-get install python3-venv"
        )
    if venv.is_dir() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").is_file():
        found.append("{} is no virtual environment, and making one would empty it. Name another".format(venv))
    needed: dict[int, tuple[Path, list[int], list[str]]] = {}  # by file system, which both may share
    for place, size, what in (
        (venv, VENV_BYTES, "the environment"),
        (Path(tempfile.gettempdir()), TEMPORARY_BYTES, "TMPDIR"),
    ):
        there = existing(place)
        _, sizes, whats = needed.setdefault(there.stat().st_dev, (there, [], []))
        sizes.append(size)
        whats.append(what)
    for there, sizes, whats in needed.values():
        free = shutil.disk_usage(str(there)).free
        if free < sum(sizes):
            found.append(
                "{} has {:.1f} GB free; {:.1f} GB are needed for {}. Make room, or name another place "
                "(make VENV=/big/venv, TMPDIR=/big/tmp make)".format(
                    there, free / 1e9, sum(sizes) / 1e9, " and ".join(whats)
                )
            )
    return found


def existing(place: Path) -> Path:
    """The place, or the nearest directory above it that is there."""
    found = place.absolute()
    while not found.is_dir():
        found = found.parent
    return found


def main(argv: "list[str]") -> int:
    """0 when all is well, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    found = faults(parser.parse_args(argv).venv)
    for fault in found:
        print("error: " + fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
