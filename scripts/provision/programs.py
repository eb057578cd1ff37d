"""Run one outside program with a log file, heartbeats, and errors that say what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.errors import ProvisionError
from provision.progress import Progress

POLL_S = 0.2
TAIL_BYTES = 4096
STOP_GRACE_S = 10.0  # ninja and pip leave within a second of SIGTERM; the rest is killed
PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec a child must not load libraries

NO_NETWORK = "after connection broken by"  # pip, for every kind of failed connection
NO_SUCH_VERSION = "No matching distribution found"

# What programs print for faults that have a known remedy: (fragment, hint). The order counts: pip without a network
# also says that it found no matching distribution.
KNOWN_FAULTS = (
    ("No space left on device", "Free some disk space, or set KVRELEASE_CACHE to a larger disk, and run it again"),
    (
        "DO NOT MATCH THE HASHES",
        "The package index served another file than the one that was pinned: do not use it; "
        "check the index that pip is configured with, then run it again",
    ),
    (NO_NETWORK, "Check the network, and pip's index and proxy settings; the same command goes on from here"),
    (NO_SUCH_VERSION, "Check the network, and that pip's index offers this version (`pip config list`)"),
    ("ensurepip is not", "Install Python's venv module (`apt-get install python3-venv`) and run it again"),
    ("Illegal instruction", "This build needs a CPU with AVX2; use another machine"),
)


def die_with_parent() -> None:
    """Ask the kernel to end this child when the installer dies, so that no orphan writes into the cache."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def last_line(log: Path) -> str:
    """The last non-empty line of a log file, or an empty string."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    # pip warns about each index folder that lacks a package; that is no progress.
    return next((line.strip() for line in reversed(lines) if line.strip() and "WARNING: " not in line), "")


def fault_hint(output: str, *, otherwise: str) -> str:
    """The remedy for the first known fault named in a program's output."""
    return next((hint for fragment, hint in KNOWN_FAULTS if fragment in output), otherwise)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a child that leads its own process group, and everything it started."""
    for sign, grace_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, STOP_GRACE_S)):
        try:
            os.killpg(process.pid, sign)
            process.wait(grace_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run(
    argv: Sequence[str | Path],
    *,
    label: str,
    log: Path,
    progress: Progress,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a program to its end and return what it printed.

    Args:
        argv: [arguments], the program first.
        label: what this run is for, as progress lines show it.
        log: file that receives stdout and stderr together; overwritten.
        progress: receives a heartbeat with the last printed line.
        cwd: working directory; None keeps ours.
        environment: variables added to ours.
        timeout_s: seconds after which the program is ended; None waits for ever.

    Returns:
        stdout and stderr as one text.

    Raises:
        ProvisionError: the program is missing, failed, or ran too long.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    program = str(argv[0])
    if shutil.which(program) is None:
        raise ProvisionError(
            f"{label}: the program {program} was not found on this machine",
            hint=f"Install it (on Debian and Ubuntu: `apt-get install {Path(program).name}`) and run it again",
        )
    begun_s = beat_s = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(argument) for argument in argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the installer starts no threads while a program runs
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                now_s = time.monotonic()
                if timeout_s is not None and now_s - begun_s > timeout_s:
                    raise ProvisionError(
                        f"{label}: no end after {timeout_s:.0f} s; the last line was: {last_line(log)!r}",
                        hint="Run it again; when it stops at the same place, read the log",
                        log=log,
                    )
                if now_s - beat_s >= progress.heartbeat_s:
                    progress.heartbeat(label, last_line(log))
                    beat_s = now_s
        finally:
            if process.poll() is None:
                stop_group(process)
    output = log.read_text(errors="replace")
    if process.returncode != 0:
        if process.returncode == -signal.SIGILL:
            output += "Illegal instruction"
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise ProvisionError(
            f"{label}: `{Path(program).name} {' '.join(str(a) for a in argv[1:4])} …` ended with {how}; "
            f"its last line was: {last_line(log)!r}",
            hint=fault_hint(output, otherwise="Read the end of the log, mend the cause, and run it again"),
            log=log,
        )
    return output


def require_disk(root: Path, *, needed_bytes: int, label: str) -> None:
    """Fail early when the disk under `root` cannot hold what a step writes.

    Raises:
        ProvisionError: fewer than `needed_bytes` bytes are free.
    """
    root.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(root).free
    if free_bytes < needed_bytes:
        raise ProvisionError(
            f"{label} needs about {needed_bytes / 1e9:.1f} GB in {root}, and {free_bytes / 1e9:.1f} GB are free",
            hint="Free some disk space, or set KVRELEASE_CACHE to a larger disk, and run it again",
        )
