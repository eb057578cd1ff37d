"""The script that measures the noise of real kernels, small and on the CPU: so that it is ready where a GPU is lent."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.live.conftest import REPOSITORY
from tests.live.servers import PATIENT_THREADS

SMALL = "--device cpu --dtype float32 --random --hidden 64 --layers 2 --prompts 4 --batch 2"


def test_the_table_has_clean_pairs_near_zero_and_stale_ones_above() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_noise", *SMALL.split()],
        cwd=REPOSITORY,
        env={**os.environ, **PATIENT_THREADS},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:3] for line in done.stdout.splitlines() if "/clean" in line]
    medians = {name.strip(): float(figures.split(",")[0]) for name, figures in rows}
    clean = [nats for name, nats in medians.items() if name.startswith("clean")]
    stale = [nats for name, nats in medians.items() if name.startswith("stale")]
    assert (len(clean), len(stale)) == (8, 2)
    assert max(clean) < 0.001 < min(stale)
