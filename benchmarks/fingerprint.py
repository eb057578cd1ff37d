"""How fast fingerprints are, beside tools that hash the same bytes: `python -m benchmarks.fingerprint --help`.

Everything is in one run: contenders take turns, so that a slow minute of the machine is everybody's. Models are written
below --directory (2 GiB of random bytes, and two sparse ones of a few MB) and removed afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blake3
import msgspec

from benchmarks.shapes import deepseek_v3, llama, llama_config, write_model
from benchmarks.timing import Contender, Timing, interleaved, machine
from kvrelease import artifacts
from kvrelease.release.address import open_source
from kvrelease.release.algorithm import FAST_ALGORITHM
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.digests import weights_digest
from kvrelease.release.hashing import default_jobs
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import CHUNK_BYTES
from kvrelease.release.memo import SETTLED_NS, Memo
from kvrelease.release.mode import Mode
from kvrelease.release.sample_reader import sample_tensors

THREADS = 2
# Repeats within one turn of what takes milliseconds: the clock of foreign work ticks a hundred times a second.
SHORT_REPEATS = 30
# What model-signing's library is asked: its default, SHA-256 of each file. Imports are not counted, as ours are not.
MODEL_SIGNING = """
import sys, time
from model_signing import hashing
config = hashing.Config()
config.use_file_serialization(hashing_algorithm=sys.argv[2])
started = time.perf_counter()
config.hash(sys.argv[1])
print(time.perf_counter() - started)
"""
# Not ru_maxrss: a child inherits that of the process that started it.
PEAK = """
import pathlib, sys
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
load_release(sys.argv[1], mode=Mode(sys.argv[2]), jobs=int(sys.argv[3]))
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)
"""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A promise, and what was measured."""

    what: str
    promised: str
    measured: str
    is_met: bool


def main(arguments: list[str]) -> None:
    """Writes the models, measures, prints the tables, removes the models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fingerprint", description=__doc__)
    parser.add_argument("--directory", type=Path, default=None, help="where 2 GiB have room (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--b3sum", default=shutil.which("b3sum"), help="the b3sum binary")
    parser.add_argument("--model-signing", default=None, help="a Python that has model-signing and blake3")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="kvrelease-benchmark-") as place:
        _measure(Path(place), rounds=options.rounds, b3sum=options.b3sum, model_signing=options.model_signing)


def _measure(place: Path, *, rounds: int, b3sum: str | None, model_signing: str | None) -> None:
    dense = _write_dense(place / "dense")
    small = write_model(
        place / "8b",
        llama(layers=32, hidden=4096, inner=14336, kv=1024, vocabulary=128256, is_tied=False),
        shards=4,
        config=llama_config(layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, vocabulary=128256),
    )
    large = write_model(place / "v3", deepseek_v3(), shards=163, config='{"model_type": "deepseek_v3"}')
    saved = place / "v3.json"
    artifacts.write(saved, load_release(large, mode=Mode.FAST))
    memo = Memo(place / "memo")
    print(f"{machine()}\n", flush=True)
    time.sleep(SETTLED_NS / 1e9 + 1)  # a file written just now is not remembered
    timings = interleaved(
        {
            **_full(dense, memo=memo),
            **_peers(dense, b3sum=b3sum, model_signing=model_signing),
            "fast digest, 8B shape": _repeated(lambda: _fast_digest(small)),
            "fast, the whole fingerprint, 8B shape": _repeated(lambda: load_release(small, mode=Mode.FAST)),
            "fast digest, DeepSeek-V3 shape": lambda: _nothing(_fast_digest(large)),
            "fast, the whole fingerprint, DeepSeek-V3 shape": lambda: _nothing(load_release(large, mode=Mode.FAST)),
            "a saved fingerprint, DeepSeek-V3 shape": lambda: _nothing(load_release(saved)),
        },
        rounds=rounds,
    )
    total = sum(path.stat().st_size for path in dense.glob("*.safetensors"))
    _print_timings(timings, bytes_hashed=total)
    peaks = {
        "full, 2 threads": _peak_mib(dense, Mode.FULL, THREADS),
        "full, 1 thread": _peak_mib(dense, Mode.FULL, 1),
        "fast, DeepSeek-V3 shape": _peak_mib(large, Mode.FAST, THREADS),
    }
    print("\n| peak memory, interpreter included | MiB |\n|---|---|")
    for name, peak in peaks.items():
        print(f"| {name} | {peak:.0f} |")
    print("\n| target | promised | measured | met |\n|---|---|---|---|")
    for target in _targets(timings, peaks):
        print(f"| {target.what} | {target.promised} | {target.measured} | {'yes' if target.is_met else 'NO'} |")
    print(f"\n{machine()}", flush=True)


def _write_dense(directory: Path) -> Path:
    """2 GiB in 4 shards and 200 tensors: a Llama of 22 layers whose vocabulary makes the sum."""
    layers, hidden, inner, vocabulary = 22, 2048, 5632, 51155
    return write_model(
        directory,
        llama(layers=layers, hidden=hidden, inner=inner, kv=256, vocabulary=vocabulary, is_tied=True),
        shards=4,
        config=llama_config(layers=layers, hidden=hidden, inner=inner, heads=32, kv_heads=4, vocabulary=vocabulary),
        seed=1,
    )


def _full(model: Path, *, memo: Memo) -> dict[str, Contender]:
    command = [sys.executable, "-m", "kvrelease", "fingerprint", str(model), "--no-memo", "-o", "/dev/null"]
    files = sorted(model.glob("*.safetensors"))
    return {
        "full, 2 threads": lambda: _nothing(load_release(model, jobs=THREADS)),
        "full, 1 thread": lambda: _nothing(load_release(model, jobs=1)),
        "full, remembered": lambda: _nothing(load_release(model, jobs=THREADS, memo=memo)),
        "the command, 2 threads": lambda: _run([*command, "--jobs", str(THREADS)]),
        "read only, 2 threads": lambda: _read(files, threads=THREADS),
        "read only, 1 thread": lambda: _read(files, threads=1),
    }


def _peers(model: Path, *, b3sum: str | None, model_signing: str | None) -> dict[str, Contender]:
    files = [str(path) for path in sorted(model.glob("*.safetensors"))]
    found: dict[str, Contender] = {
        "blake3 in Python, update_mmap, 2 threads": lambda: _blake3(files, threads=THREADS),
        "blake3 in Python, update_mmap, 1 thread": lambda: _blake3(files, threads=1),
        "openssl dgst -sha256": lambda: _run(["openssl", "dgst", "-sha256", *files]),
    }
    if b3sum is not None:
        for threads in (THREADS, 1):
            name = f"b3sum, {threads} thread{'s' if threads > 1 else ''}"
            found[name] = lambda threads=threads: _run([b3sum, "--num-threads", str(threads), *files])  # type: ignore[misc]
    if model_signing is not None:
        for algorithm in ("sha256", "blake3"):
            name = f"model-signing library, {algorithm}"
            argv = [model_signing, "-c", MODEL_SIGNING, str(model), algorithm]
            found[name] = lambda argv=argv: float(_output(argv))  # type: ignore[misc]
    return found


def _fast_digest(model: Path) -> str:
    """Headers, samples and the digest of them: `fast` without configuration, tokenizer, kv digest and report."""
    files = read_checkpoint(open_source(model)).files
    samples = sample_tensors(files, jobs=default_jobs())
    names = (tensor.name for file in files for tensor in file.tensors)
    return weights_digest(dict(zip(names, samples, strict=True)), algorithm=FAST_ALGORITHM)


def _nothing(_result: object) -> None:
    return None


def _repeated(action: Callable[[], object]) -> Contender:
    """The median of many short runs."""

    def run() -> float:
        seconds = []
        for _ in range(SHORT_REPEATS):
            started = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - started)
        return sorted(seconds)[len(seconds) // 2]

    return run


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _read(files: Sequence[Path], *, threads: int) -> None:
    """What reading alone costs, in the way and in the pieces that hashing reads."""
    buffers = threading.local()

    def read(path: Path) -> None:
        if not hasattr(buffers, "buffer"):
            buffers.buffer = bytearray(CHUNK_BYTES)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffers.buffer):
                pass

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(read, files))


def _blake3(files: Sequence[str], *, threads: int) -> None:
    """What b3sum does, by the library that we use: each file mapped, and hashed by so many threads."""
    for path in files:
        blake3.blake3(max_threads=threads).update_mmap(path).hexdigest()


def _peak_mib(model: Path, mode: Mode, threads: int) -> float:
    return float(_output([sys.executable, "-c", PEAK, str(model), str(mode), str(threads)]))


def _print_timings(timings: dict[str, Timing], *, bytes_hashed: int) -> None:
    print("| what | median, s | least, s | GB/s | quiet runs |\n|---|---|---|---|---|")
    for name, timing in timings.items():
        is_whole = not name.startswith("fast") and "remembered" not in name
        rate = f"{bytes_hashed / timing.median_s / 1e9:.2f}" if is_whole else ""
        print(
            f"| {name} | {timing.median_s:.4f} | {timing.least_s:.4f} | {rate} | "
            f"{timing.quiet} of {timing.runs}{'' if timing.is_quiet else ' +'} |"
        )
    print("\n+ too few quiet runs: the median is of all of them.", flush=True)


def _targets(timings: dict[str, Timing], peaks: dict[str, float]) -> list[Target]:
    def ratio(what: str, to: str, *, most: float) -> Target:
        found = timings[what].median_s / timings[to].median_s
        return Target(what=f"{what} ∕ {to}", promised=f"≤ {most}", measured=f"{found:.3f}", is_met=found <= most)

    def faster(what: str, than: str, *, least: float) -> Target:
        found = timings[than].median_s / timings[what].median_s
        return Target(
            what=f"{what}: faster than {than}",
            promised=f"≥ {least} ×",
            measured=f"{found:.2f} ×",
            is_met=found >= least,
        )

    def within(what: str, *, most_s: float) -> Target:
        found = timings[what].median_s
        return Target(
            what=what, promised=f"≤ {most_s * 1e3:g} ms", measured=f"{found * 1e3:.1f} ms", is_met=found <= most_s
        )

    two, one = "full, 2 threads", "full, 1 thread"
    found = []
    if "b3sum, 2 threads" in timings:
        found += [ratio(two, "b3sum, 2 threads", most=1.10), ratio(one, "b3sum, 1 thread", most=1.10)]
    else:
        found += [
            ratio(two, "blake3 in Python, update_mmap, 2 threads", most=1.10),
            ratio(one, "blake3 in Python, update_mmap, 1 thread", most=1.10),
        ]
    if "model-signing library, sha256" in timings:
        found.append(faster(two, "model-signing library, sha256", least=3.3))
    found.append(faster(two, "openssl dgst -sha256", least=4.5))
    above = timings["the command, 2 threads"].median_s - timings[two].median_s
    found += [
        within("fast digest, 8B shape", most_s=0.005),
        within("fast, the whole fingerprint, 8B shape", most_s=0.005),
        within("fast digest, DeepSeek-V3 shape", most_s=1.5),
        within("fast, the whole fingerprint, DeepSeek-V3 shape", most_s=1.5),
        within("a saved fingerprint, DeepSeek-V3 shape", most_s=0.5),
        within("full, remembered", most_s=0.05),
        Target(
            what="the command above the hashing", promised="≤ 0.35 s", measured=f"{above:.3f} s", is_met=above <= 0.35
        ),
        *(
            Target(what=f"peak memory, {name}", promised="< 150 MiB", measured=f"{peak:.0f} MiB", is_met=peak < 150)
            for name, peak in peaks.items()
            if name.startswith("full")
        ),
    ]
    share = timings["read only, 2 threads"].median_s / timings[two].median_s
    found.append(
        Target(what="share of the raw read ceiling, 2 threads", promised="told", measured=f"{share:.0%}", is_met=True)
    )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
