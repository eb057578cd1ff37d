"""What `prompts select` makes of a large log, and how fast: `python -m benchmarks.select --help`.

A synthetic log (system prompts of Zipf's frequencies, sessions of several turns, tenants with salts; seeded) is written
below --directory, 2.6 GB for a million lines, and removed afterwards. The command runs as a process of its own. What
its set hits of held-out traffic is measured apart from it, on whole prompts, beside random sets of as many requests;
their mean length is a limit of the chosen set too.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.timing import machine
from kvrelease.selection.cutting import TEXT_BLOCK_CHARACTERS, Cutter, Unit
from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.simulate import Simulation, simulate
from kvrelease.simulator.traffic import SimulatedRequest
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.reading import read_log
from kvrelease.workload.place import Place

SYSTEM_PROMPTS = 2000
TENANTS = 20
SALTED = 0.2  # part of the sessions that carry their tenant's salt
MORE_TURNS = 0.35  # chance that a session goes on
OPEN_SESSIONS = 400  # how far apart the turns of one session may be
HELD_OUT = 0.2
RANDOM_SETS = 5
COLD_START = 1000  # requests after an upgrade: what prewarming is for
CAPACITY_BLOCKS = 40_000  # 640,000 tokens or so, an 8B model in 80 GB
MOST_MIB = 1024
CUTTER = Cutter(unit=Unit.CHARACTERS, block=TEXT_BLOCK_CHARACTERS, is_trace=False)
# Not ru_maxrss: a child inherits that of the process that started it.
PEAK = """
import pathlib, sys, time
from kvrelease.cli.app import run
code = run(["prompts", "select", *sys.argv[1:]])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, time.process_time())
sys.exit(code)
"""


def main(arguments: list[str]) -> None:
    """Writes the log, selects, measures, prints the tables, removes the log."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.select", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the log has room (default: a temporary one)"
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=500, help="budget of the set")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="kvrelease-benchmark-") as place:
        _measure(Path(place), lines=options.lines, requests=options.requests, seed=options.seed)


def _measure(place: Path, *, lines: int, requests: int, seed: int) -> None:
    log = place / "traffic.jsonl"
    write_log(log, lines=lines, seed=seed)
    size = log.stat().st_size
    print(f"{machine()}; log of {lines:,} lines, {size / 1e9:.2f} GB\n")
    numbers: dict[bytes, int] = {}
    first_held_out = int(lines * (1 - HELD_OUT))
    rng = random.Random(seed + 1)  # noqa: S311 - repeatable
    sets = {}
    for number in range(RANDOM_SETS):
        picked = sorted(rng.sample(range(first_held_out), requests))
        sets[f"random {number + 1}"] = cuts(log, numbers, lines=picked)
    characters = sum(map(length_of, sets.values())) // RANDOM_SETS
    chosen = _select(log, place / "set.jsonl", lines=lines, requests=requests, characters=characters)
    sets = {"selected": cuts_of_set(chosen, numbers), **sets}
    _compare(sets, cuts(log, numbers, lines=range(first_held_out, lines)))


def _select(log: Path, chosen: Path, *, lines: int, requests: int, characters: int) -> Path:
    """Runs the command, prints what it took, and names the set."""
    report = chosen.with_name("report.json")
    limits = ["--requests", str(requests), "--characters", str(characters)]
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PEAK, log, *limits, "-o", chosen, "--report", report],
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(f"select ended {done.returncode}:\n{done.stderr}")
    found = json.loads(report.read_text())
    peak_mib, cpu_s = map(float, done.stdout.split()[-2:])
    print(f"| `prompts select {' '.join(limits)}` | |\n|---|---|")
    print(f"| wall time, three passes | {wall_s:.1f} s |")
    print(f"| CPU time | {cpu_s:.1f} s |")
    print(f"| lines per second of wall time, of CPU time | {lines / wall_s:,.0f}, {lines / cpu_s:,.0f} |")
    print(f"| peak memory | {peak_mib:,.0f} MiB (at most {MOST_MIB}: {'yes' if peak_mib <= MOST_MIB else 'NO'}) |")
    print(f"| traffic that may be missing from a count | {found['undercount']:g} requests |")
    print(f"| proved: at least so much of the best choice's value | {found['proved_share']:.1%} |")
    print(f"| hit rate it expects of held-out traffic, by the set alone | {found['held_out']['hit_rate']:.1%} |")
    print(f"| the same without a budget | {found['held_out']['ceiling']:.1%} |\n")
    return chosen


def _compare(sets: Mapping[str, Sequence[SimulatedRequest]], traffic: Sequence[SimulatedRequest]) -> None:
    """What each set hits of held-out traffic."""
    early = traffic[:COLD_START]
    print(f"| set | prompts | characters | held-out, set alone | simulated: first {COLD_START:,} requests | all |")
    print("|---|---|---|---|---|---|")
    for name, prompts in {"none": [], **sets}.items():
        first, whole = (rate(warmed(prompts, part)) for part in (early, traffic))
        alone = hit_rate(traffic, prompts)
        print(f"| {name} | {len(prompts)} | {length_of(prompts):,} | {alone:.1%} | {first:.1%} | {whole:.1%} |")
    print(f"\nSimulated cache: one replica of {CAPACITY_BLOCKS:,} blocks of {TEXT_BLOCK_CHARACTERS} characters.")


def length_of(prompts: Sequence[SimulatedRequest]) -> int:
    """Characters of all prompts."""
    return sum(prompt.prompt_tokens or 0 for prompt in prompts)


def rate(found: Simulation) -> float:
    """Its hit rate; there are requests."""
    assert found.hit_rate is not None, "traffic was sent"
    return found.hit_rate


def warmed(prompts: Sequence[SimulatedRequest], traffic: Sequence[SimulatedRequest]) -> Simulation:
    """Traffic after a set, most valuable prompts last, as a touch pass leaves them."""
    cache = SimulatedBlocks(CAPACITY_BLOCKS)
    simulate(reversed(prompts), [cache], block_tokens=TEXT_BLOCK_CHARACTERS)
    return simulate(traffic, [cache], block_tokens=TEXT_BLOCK_CHARACTERS)


def hit_rate(traffic: Sequence[SimulatedRequest], prompts: Sequence[SimulatedRequest]) -> float:
    """Hits over all characters when the cache holds the prompts and nothing else."""
    resident = {block for prompt in prompts for block in prompt.blocks}
    hits = sum(next((n for n, b in enumerate(one.blocks) if b not in resident), len(one.blocks)) for one in traffic)
    return hits * TEXT_BLOCK_CHARACTERS / sum(one.prompt_tokens or 0 for one in traffic)


def cuts_of_set(path: Path, numbers: dict[bytes, int]) -> list[SimulatedRequest]:
    """Prompts of a written set as numbered blocks."""
    return [
        _numbered(
            LoggedRequest(
                place=Place(source=path.name),
                at_s=None,
                kind=prompt.kind,
                body=prompt.body,
                model=str(prompt.body["model"]),
                salt=prompt.salt,
            ),
            numbers,
        )
        for prompt in load_prompt_set(path.name, directory=path.parent)
    ]


def cuts(path: Path, numbers: dict[bytes, int], *, lines: Sequence[int]) -> list[SimulatedRequest]:
    """Some requests of a log as numbered blocks; `lines` from 0, ascending."""
    with tempfile.NamedTemporaryFile("wb", suffix=".jsonl", dir=path.parent) as part:
        part.writelines(_lines(path, lines))
        part.flush()
        return [_numbered(request, numbers) for request in read_log(Path(part.name), source=path.name)]


def _lines(path: Path, wanted: Sequence[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        position = 0
        for number in wanted:
            yield next(islice(file, number - position, None))
            position = number + 1


def _numbered(request: LoggedRequest, numbers: dict[bytes, int]) -> SimulatedRequest:
    cut = CUTTER.cut(request)
    blocks = tuple(numbers.setdefault(name, len(numbers)) for name in cut.names)
    return SimulatedRequest(blocks=blocks, prompt_tokens=cut.length)


def write_log(path: Path, *, lines: int, seed: int) -> None:
    """A log of chat bodies, a tenth of a second apart.

    Requests of a system prompt are as frequent as Zipf's law has it; the text of every question and answer is a piece
    of its own.
    """
    rng = random.Random(seed)  # noqa: S311 - repeatable
    text = _text_maker(rng)
    systems = [text(rng.randint(400, 3200)) for _ in range(SYSTEM_PROMPTS)]
    shares = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    order = rng.choices(range(SYSTEM_PROMPTS), shares, k=lines)
    encode = msgspec.json.Encoder().encode
    sessions: list[tuple[list[dict[str, str]], str | None]] = []
    with path.open("wb") as file:
        for number in range(lines):
            goes_on = sessions and rng.random() < MORE_TURNS
            if goes_on:
                messages, salt = sessions.pop(rng.randrange(len(sessions)))
                messages.append({"role": "assistant", "content": text(rng.randint(100, 500))})
            else:
                messages = [{"role": "system", "content": systems[order[number]]}]
                salt = f"tenant-{rng.randrange(TENANTS)}" if rng.random() < SALTED else None
            messages.append({"role": "user", "content": text(rng.randint(40, 300))})
            body = {"model": "m", "messages": messages, "timestamp": 1_750_000_000 + number / 10}
            file.write(encode(body if salt is None else {**body, "cache_salt": salt}) + b"\n")
            sessions.append((messages, salt))
            if len(sessions) > OPEN_SESSIONS:
                sessions.pop(0)


def _text_maker(rng: random.Random) -> Callable[[int], str]:
    pool = "".join(rng.choice("eeetaoinshrdlu     ") for _ in range(1_000_000))

    def text(characters: int) -> str:
        start = rng.randrange(len(pool) - characters)
        return pool[start : start + characters]

    return text


if __name__ == "__main__":
    main(sys.argv[1:])
