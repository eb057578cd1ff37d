"""The tools environment: a small virtual environment with pip, cmake and ninja, so that the machine needs neither."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from provision.cache import Stamps, recipe_digest
from provision.errors import ProvisionError
from provision.places import Places
from provision.programs import run
from provision.progress import Progress
from provision.wheels import discard, fetch, install_offline, lock_text, parse_lock

LOCK = "tools-requirements.txt"
NEEDED_PYTHON = (3, 11)  # the locks hold wheels of this CPython only


def base_python() -> Path:
    """A CPython 3.11 to make environments with: the running one, or `python3.11` on the path.

    Raises:
        ProvisionError: neither is one.
    """
    if sys.version_info[:2] == NEEDED_PYTHON:
        return Path(sys.executable)
    found = shutil.which("python3.11")
    if found is None:
        raise ProvisionError(
            f"The locked wheels are for CPython 3.11; this is Python {sys.version.split()[0]}, "
            "and there is no python3.11 on the path",
            hint="Install Python 3.11 (for example `apt-get install python3.11 python3.11-venv`) and run it again",
        )
    return Path(found)


def create_environment(folder: Path, *, places: Places, progress: Progress, label: str) -> Path:
    """Make a fresh virtual environment at its final place and return its interpreter.

    A half-made environment cannot be trusted (pip is not atomic), so an older folder is removed first.

    Raises:
        ProvisionError: the `venv` module failed.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    run(
        [base_python(), "-m", "venv", folder],
        label=f"{label}: create the environment",
        log=places.logs / f"{label}-venv.log",
        progress=progress,
    )
    return folder / "bin" / "python"


def ensure_tools(places: Places, *, progress: Progress) -> Path:
    """The interpreter of the tools environment, made first when it is missing or made by another recipe.

    Raises:
        ProvisionError: it could not be made.
    """
    text = lock_text(LOCK)
    stamps = Stamps(folder=places.tools, recipe=recipe_digest({"lock": text, "python": str(base_python())}))
    python = places.tools / "bin" / "python"
    if stamps.is_done("tools") and python.exists():
        return python
    progress.stage("tools: making a small environment with pip, cmake and ninja")
    python = create_environment(places.tools, places=places, progress=progress, label="tools")
    pins = parse_lock(text)
    fetch(pins, python=python, places=places, progress=progress, label="tools")
    install_offline(
        Path(__file__).parent / LOCK,
        python=python,
        places=places,
        progress=progress,
        label="tools: install",
        log=places.logs / "tools-install.log",
    )
    discard(pins, places=places)
    stamps.mark("tools")
    return python
