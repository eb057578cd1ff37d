"""How fast `diff --drift` is beside reading and subtracting the same bytes: `python -m benchmarks.drift --help`.

Contenders take turns, so that a slow minute of the machine is everybody's. Two releases of 2 GiB are written below
--directory (normal bfloat16 weights, and the same moved by about a hundredth) and removed afterwards.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.shapes import MIB, llama, llama_config, write_model
from benchmarks.timing import Contender, interleaved, machine
from kvrelease.release.comparison import compare_tensors
from kvrelease.release.drift import measure_drift
from kvrelease.release.drift_figures import DriftReport
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.readable import readable_weights

THREADS = 2
# The baseline's pieces. The best of them on the machine at hand is what drift is compared with.
PIECES_BYTES = (MIB // 2, MIB, 2 * MIB)
SHARDS = 4
POOL_ELEMENTS = 16 * MIB
LEAST_RATIO = 0.35
MOST_MIB = 500
# Not ru_maxrss: a child inherits that of the process that started it.
PEAK = """
import pathlib, sys
from kvrelease.cli.app import run
run(["diff", *sys.argv[1:], "-o", "/dev/null"])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)
"""


def main(arguments: list[str]) -> None:
    """Writes the releases, measures, prints the tables, removes the releases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--directory", type=Path, default=None, help="where 4 GiB have room (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="kvrelease-benchmark-") as place:
        _measure(Path(place), rounds=options.rounds)


def _measure(place: Path, *, rounds: int) -> None:
    old, new = _write(place / "old", moved=0.0), _write(place / "new", moved=2e-4)
    shards = [(path, new / path.name) for path in sorted(old.glob("*.safetensors"))]
    before, after = load_release(old, jobs=THREADS), load_release(new, jobs=THREADS)
    bytes_read = before.bytes + after.bytes
    print(f"{machine()}, torch {torch.__version__}\n", flush=True)
    command = [sys.executable, "-m", "kvrelease", "diff", str(old), str(new), "--no-memo", "-o", "/dev/null"]
    ours = {f"drift, {jobs} thread{'s' * (jobs > 1)}": _drift(old, new, before, after, jobs) for jobs in (THREADS, 1)}
    baselines: dict[str, Contender] = {
        f"read and subtract, {jobs} thread{'s' * (jobs > 1)}, {piece // 1024} KiB": functools.partial(
            _subtract, shards, piece_bytes=piece, threads=jobs
        )
        for jobs in (THREADS, 1)
        for piece in PIECES_BYTES
    }
    cpu: dict[str, list[float]] = {}
    timings = interleaved(
        {
            **{
                name: _counted(contender, cpu.setdefault(name, [])) for name, contender in {**ours, **baselines}.items()
            },
            "the command without --drift": lambda: _run(command),
            "the command with --drift": lambda: _run([*command, "--drift"]),
        },
        rounds=rounds,
    )
    print("| what | median, s | least, s | GB/s | CPU, s | quiet runs |\n|---|---|---|---|---|---|")
    for name, timing in timings.items():
        print(
            f"| {name} | {timing.median_s:.3f} | {timing.least_s:.3f} | {bytes_read / timing.median_s / 1e9:.2f} | "
            f"{f'{statistics.median(cpu[name]):.3f}' if name in cpu else ''} | "
            f"{timing.quiet} of {timing.runs}{'' if timing.is_quiet else ' +'} |"
        )
    print("\n+ too few quiet runs: the median is of all of them.\n")
    print("| target | promised | measured | met |\n|---|---|---|---|")
    for jobs, name in zip((THREADS, 1), ours, strict=True):
        others = [other for other in timings if other.startswith(f"read and subtract, {jobs} ")]
        ratio = min(timings[other].median_s for other in others) / timings[name].median_s
        print(f"| {name}: share of the fastest | ≥ {LEAST_RATIO} | {ratio:.2f} | {_met(ratio >= LEAST_RATIO)} |")
        ratio = min(statistics.median(cpu[other]) for other in others) / statistics.median(cpu[name])
        print(f"| the same in seconds of CPU, which other programs disturb less | told | {ratio:.2f} | |")
    peak = _peak_mib([str(old), str(new), "--drift", "--no-memo"])
    print(f"| peak memory, the whole command | < {MOST_MIB} MiB | {peak:.0f} MiB | {_met(peak < MOST_MIB)} |")
    print(f"| of which torch, imported alone | told | {_peak_mib_of_torch():.0f} MiB | |")
    print(f"\n{machine()}", flush=True)


def _counted(contender: Contender, seconds: list[float]) -> Contender:
    """The same, with the CPU time of this process noted for each run."""

    def run() -> float | None:
        started = time.process_time()
        told = contender()
        seconds.append(time.process_time() - started)
        return told

    return run


def _met(is_met: bool) -> str:
    return "yes" if is_met else "NO"


def _write(directory: Path, *, moved: float) -> Path:
    """2 GiB in 4 shards and 200 tensors: a Llama of 22 layers whose vocabulary makes the sum."""
    layers, hidden, inner, vocabulary = 22, 2048, 5632, 51155
    write_model(
        directory,
        llama(layers=layers, hidden=hidden, inner=inner, kv=256, vocabulary=vocabulary, is_tied=True),
        shards=SHARDS,
        config=llama_config(layers=layers, hidden=hidden, inner=inner, heads=32, kv_heads=4, vocabulary=vocabulary),
    )
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(POOL_ELEMENTS, generator=generator) * 0.02
    weights += torch.randn(POOL_ELEMENTS, generator=generator) * moved
    pool = weights.bfloat16().view(torch.uint8).numpy().tobytes()
    for path in directory.glob("*.safetensors"):
        end = path.stat().st_size
        with path.open("r+b") as file:
            place = 8 + int.from_bytes(file.read(8), "little")
            file.seek(place)
            while place < end:
                place += file.write(pool[: end - place])
    return directory


def _drift(old: Path, new: Path, before: Fingerprint, after: Fingerprint, jobs: int) -> Contender:
    """All figures of all tensors, headers read anew."""

    def run() -> None:
        weights = [readable_weights(side) for side in (old, new)]
        assert weights[0] is not None
        assert weights[1] is not None
        report: DriftReport = measure_drift(
            before,
            after,
            compare_tensors(before, after),
            weights=(weights[0], weights[1]),
            jobs=jobs,
        )
        assert all(drift.relative for drift in report.tensors)

    return run


def _subtract(shards: Sequence[tuple[Path, Path]], *, piece_bytes: int, threads: int) -> None:
    """The least that any comparison does: both files in pieces into buffers that are reused, one subtraction each."""
    torch.set_num_threads(1)

    def subtract(pair: tuple[Path, Path]) -> None:
        torch.set_num_threads(1)
        buffers = [bytearray(piece_bytes) for _ in pair]
        sides = [torch.frombuffer(buffer, dtype=torch.bfloat16) for buffer in buffers]
        out = torch.empty_like(sides[0])
        descriptors = [os.open(path, os.O_RDONLY) for path in pair]
        try:
            for offset in range(0, os.fstat(descriptors[0]).st_size, piece_bytes):
                for descriptor, buffer in zip(descriptors, buffers, strict=True):
                    os.preadv(descriptor, [buffer], offset)
                torch.sub(sides[1], sides[0], out=out)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(subtract, shards))


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _peak_mib(argv: Sequence[str]) -> float:
    return float(_output([sys.executable, "-c", PEAK, *argv]))


def _peak_mib_of_torch() -> float:
    lines = PEAK.splitlines()[-2:]
    return float(_output([sys.executable, "-c", "\n".join(["import pathlib, torch", *lines])]))


if __name__ == "__main__":
    main(sys.argv[1:])
