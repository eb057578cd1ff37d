"""Where pools, releases and results lie, and when the machine may be used."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
COMMITTED = Path(__file__).parent / "pools"
POLL_S = 5.0


def engines_cache() -> Path:
    """Where engines and models are installed: `$KVRELEASE_CACHE`, or `~/.cache/kvrelease`."""
    return Path(os.environ.get("KVRELEASE_CACHE") or Path.home() / ".cache" / "kvrelease")


def home() -> Path:
    """Where this benchmark keeps what it trained, recorded and counted."""
    return engines_cache() / "gate"


def pool_paths(folder: Path | None = None) -> list[Path]:
    """The pools that were recorded, in `folder` or at home; where none were, those that the repository ships."""
    recorded = sorted((folder or home() / "pools").glob("*.pool"))
    return recorded or sorted(COMMITTED.glob("*.pool"))


def pause() -> None:
    """Waits while the file that `KVRELEASE_QUIET_FILE` names exists: something else on this machine is being timed."""
    named = os.environ.get("KVRELEASE_QUIET_FILE")
    while named and Path(named).exists():
        time.sleep(POLL_S)


def say(line: str) -> None:
    """One line of progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
