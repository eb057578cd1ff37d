"""Which process serves a loopback port, so that a restart at the same URL is noticed.

Source: proc(5): /proc/net/tcp (state 0A is LISTEN, address and port in hexadecimal), /proc/PID/fd, and field 22 of
/proc/PID/stat (start time in clock ticks after boot).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvrelease.engines.address import Address

_LISTEN = "0A"


def listening_process(port: int, *, proc: Path = Path("/proc")) -> str | None:
    """`pid:PID@START` of the process that listens on a port of this machine.

    Args:
        port: TCP port.
        proc: where procfs is mounted.

    Returns:
        None when it cannot be told: no procfs, another user's process, a listener in another network namespace, or
        several processes with the port. A port forwarded into a container names the forwarder.
    """
    inodes = _listening_inodes(port, proc=proc)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = [pid for pid in _pids(proc) if _holds(proc / str(pid) / "fd", wanted)]
    # A server and the workers it forked share the socket; the oldest is the one whose restart empties the cache.
    started = sorted((start, pid) for pid in found if (start := _start_ticks(proc, pid)) is not None)
    if not started:
        return None
    start, pid = started[0]
    return f"pid:{pid}@{start}"


def of_rank(process: str | None, rank: int | None) -> str | None:
    """The identity of one data-parallel rank: each has a cache of its own, and all of them one API server."""
    return process if process is None or rank is None else f"{process}#rank{rank}"


def is_another_process(first: str | None, other: str | None) -> bool:
    """Whether two identities are known to be of two processes.

    Unknown where one is missing, or where they were told by different witnesses (`started:…` of the metrics, `pid:…` of
    the operating system), as when one of two clients found the metrics too slow.
    """
    if first is None or other is None or first.partition(":")[0] != other.partition(":")[0]:
        return False
    return first != other


def _listening_inodes(port: int, *, proc: Path) -> set[str]:
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _pids(proc: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _holds(folder: Path, wanted: set[str]) -> bool:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if str(entry.readlink()) in wanted:
                return True
        except OSError:  # closed since we listed it
            continue
    return False


def _start_ticks(proc: Path, pid: int) -> int | None:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The command's name may hold spaces and brackets; the fields behind its last bracket begin with the third.
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


async def process_behind(address: Address) -> str | None:
    """The process behind an address on this machine; None for any other machine, whose processes cannot be seen."""
    if not address.is_loopback:
        return None
    return await asyncio.to_thread(listening_process, address.port)
