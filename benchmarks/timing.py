"""Medians of interleaved runs, with what else the machine did meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

# Of the machine's cores. A run beside more foreign work than this says more about that work.
QUIET_SHARE = 0.10
_FEWEST_QUIET = 3

Contender = Callable[[], float | None]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's runs.

    Attributes:
        median_s: of the quiet runs where there are three of them, else of all.
        least_s: of the same.
        quiet: how many runs were.
        runs: all of them.
    """

    median_s: float
    least_s: float
    quiet: int
    runs: int

    @property
    def is_quiet(self) -> bool:
        """Whether the figures are of quiet runs alone."""
        return self.quiet >= _FEWEST_QUIET


def interleaved(contenders: Mapping[str, Contender], *, rounds: int) -> dict[str, Timing]:
    """Runs every contender once a round, each round beginning with another one.

    A contender that returns seconds measured itself; the others are timed from outside.
    """
    names = list(contenders)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for name in names:
        contenders[name]()  # page cache and imports are warm afterwards
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            busy, own, started = _busy_s(), _own_s(), time.perf_counter()
            told = contenders[name]()
            wall = time.perf_counter() - started
            foreign = (_busy_s() - busy - (_own_s() - own)) / wall / (os.cpu_count() or 1)
            found[name].append((wall if told is None else told, foreign))
    return {name: _timing(runs) for name, runs in found.items()}


def _timing(runs: list[tuple[float, float]]) -> Timing:
    quiet = [seconds for seconds, foreign in runs if foreign <= QUIET_SHARE]
    counted = quiet if len(quiet) >= _FEWEST_QUIET else [seconds for seconds, _ in runs]
    return Timing(median_s=statistics.median(counted), least_s=min(counted), quiet=len(quiet), runs=len(runs))


def _busy_s() -> float:
    """Seconds that all cores together were not idle, stolen ones among them; Linux only, else nothing is foreign."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except FileNotFoundError:
        return _own_s()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def machine() -> str:
    """The machine in one line."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
        vectors = next(line for line in lines if line.startswith("flags")).split()
        widest = next((word for word in ("avx512f", "avx2", "sse4_1") if word in vectors), "no vectors")
    except (FileNotFoundError, StopIteration):
        widest = "vectors unknown"
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, {widest}, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, load {load:.1f}"
    )
