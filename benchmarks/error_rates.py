"""How often the release gate errs: `python -m benchmarks.error_rates [RUNS]` prints docs/statistics.md's table.

Whole runs of evidence are drawn under models of noise (tests/verify/simulation.py) and judged as real ones are, with
power unknown. Seeded: the same figures every time.
"""

from __future__ import annotations

import sys

from kvrelease.artifacts import Verdict
from tests.verify.simulation import Noise, batches, bursty, gaussian, quiet, rates, rounded

RUNS = 300
PROBES = 12
STALE_NATS = (0.06, 0.11, 0.27)  # fine-tunes of 1, 12 and 36 steps; docs/statistics.md
# What an observation gets when it is read, and what an entry got when it was written.
MODELS: tuple[tuple[str, Noise, Noise], ...] = (
    ("none", quiet, quiet),
    ("Gaussian, 0.005 nats", gaussian(0.005), quiet),
    ("Gaussian, 0.02 nats", gaussian(0.02), quiet),
    ("two batch kernels, 0.02 nats", batches(0.02), quiet),
    ("rare bf16 steps of 0.125 nats", rounded(), quiet),
    ("bursty, 0.01 nats", bursty(0.01), quiet),
    ("written: Gaussian, 0.02 nats", quiet, gaussian(0.02)),
    ("written: two batch kernels, 0.02 nats", quiet, batches(0.02)),
    ("written: one entry of 25, 0.05 nats", quiet, batches(0.05, share=0.04)),
    ("both: Gaussian, 0.01 nats", gaussian(0.01), gaussian(0.01)),
)


def main(arguments: list[str]) -> None:
    """Prints one row per noise model."""
    runs = int(arguments[0]) if arguments else RUNS
    print(f"{runs} runs of {PROBES} probes each, power unknown\n")
    heads = ("noise", "clean: fail", "clean: inconclusive", *(f"stale {nats}: pass" for nats in STALE_NATS))
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, noise, written in MODELS:
        clean, *stale = [
            rates(runs, noise=noise, written=written, stale_nats=nats, probes=PROBES) for nats in (0.0, *STALE_NATS)
        ]
        missed = [one[Verdict.PASS] for one in stale]
        row = (name, *(f"{share:.1%}" for share in (clean[Verdict.FAIL], clean[Verdict.INCONCLUSIVE], *missed)))
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
