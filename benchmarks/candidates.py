"""What fewer candidates than twenty show: `python -m benchmarks.candidates [POOL]` prints docs/statistics.md's table.

Drawn from what the gate's benchmark recorded (`python -m benchmarks.gate record`): each answer is cut to what a server
tells that gives so many candidates, and compared again. No engine is run.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path

from benchmarks.gate.places import pool_paths
from benchmarks.gate.pool import load
from kvrelease.verify.distance import Distance, cut_to, distance

CANDIDATES = (1, 2, 3, 4, 5, 8, 20)
POOL = "local.reading.all-36.pool"
RECORD = "python -m benchmarks.gate record --release all-36 --level reading"


def main(arguments: list[str]) -> None:
    """Prints one row for each number of candidates."""
    paths = [Path(arguments[0])] if arguments else [path for path in pool_paths() if path.name == POOL]
    if not paths:
        raise SystemExit(f"{POOL} was not recorded: {RECORD}")
    pool = load(paths[0])
    observations = pool.observations()
    heads = ("candidates", "stale: median", "a tenth is below", "of twenty's", "share none", "clean: largest")
    print(f"{pool.name}, {len(pool.prompts)} prompts; nats\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    rows = []
    for candidates in CANDIDATES:
        cut = [cut_to(one, candidates) for one in observations]
        stale = [distance(cut[old[0]], cut[own[0]]) for one in pool.prompts for old in one.stale for own in one.company]
        clean = [
            distance(cut[left], cut[right])
            for one in pool.prompts
            for left, right in itertools.combinations([read for entry in one.company for read in entry], 2)
        ]
        rows.append((candidates, _nats(stale), sum(one.shared == 0 for one in stale) / len(stale), max(_nats(clean))))
    (_, of_twenty, _, _) = rows[-1]
    for candidates, nats, unshared, largest in rows:
        median = statistics.median(nats)
        row = (
            f"{candidates}",
            f"{median:.2f}",
            f"{statistics.quantiles(nats, n=10)[0]:.2f}",
            f"{median / statistics.median(of_twenty):.2f}",
            f"{unshared:.0%}",
            f"{largest:.3f}",
        )
        print(f"| {' | '.join(row)} |")


def _nats(found: list[Distance]) -> list[float]:
    return [one.nats for one in found if one.nats is not None]


if __name__ == "__main__":
    main(sys.argv[1:])
