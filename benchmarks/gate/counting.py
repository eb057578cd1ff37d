"""Thousands of drawn runs, counted: in two processes, in chunks that are kept, so that a stopped count goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import blake3
import msgspec

from benchmarks.gate.drawing import PROBES, Drawing, Outcome
from benchmarks.gate.pool import load
from kvrelease import verify
from kvrelease.artifacts import Verdict

RUNS = 2000
CHUNK = 250
PROCESSES = 2
STALE_SHARES = (0.05, 0.2, 1.0)
DRAWN_BY = ("drawing.py", "pool.py", "prompts.py", "recorded.py")


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of so many runs.

    Attributes:
        stale_share: of probes that met the old release's entries; 0 for clean runs.
        runs: how many.
        verdicts: of them.
        failed: by check, runs that it failed.
        open: by check, runs in which it was inconclusive.
        unmet: passes of runs that met no stale probe.
        visible: passes of runs that met a stale probe whose staleness alone, in process, exceeds the run's threshold.
        blind: inconclusive runs in which `power` said that staleness would hide.
        requests: of all runs.
        tokens: of all runs.
    """

    stale_share: float
    runs: int
    verdicts: dict[str, int]
    failed: dict[str, int]
    open: dict[str, int]
    unmet: int
    visible: int
    blind: int
    requests: int
    tokens: int


class Chunk(Counts, frozen=True, kw_only=True):
    """So many runs of one cell.

    Attributes:
        pool: name of the pool's file.
        pool_digest: of its content.
        judge_digest: of the source that draws and judges; other counts are not mixed with these.
        first_seed: of the first run; the others follow.
    """

    pool: str
    pool_digest: str
    judge_digest: str
    first_seed: int

    @property
    def key(self) -> tuple[str, str, str, float, int, int]:
        """What was counted."""
        return (self.pool, self.pool_digest, self.judge_digest, self.stale_share, self.first_seed, self.runs)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk to be counted."""

    path: str
    pool_digest: str
    judge_digest: str
    stale_share: float
    first_seed: int
    runs: int

    @property
    def key(self) -> tuple[str, str, str, float, int, int]:
        """As `Chunk.key`."""
        name = Path(self.path).name
        return (name, self.pool_digest, self.judge_digest, self.stale_share, self.first_seed, self.runs)


def jobs(pools: Iterable[Path], *, runs: int = RUNS, chunk: int = CHUNK) -> list[Job]:
    """Every chunk of every cell: pools times clean and stale shares."""
    judge = judge_digest()
    return [
        Job(
            path=str(path),
            pool_digest=blake3.blake3(path.read_bytes()).hexdigest()[:16],
            judge_digest=judge,
            stale_share=share,
            first_seed=first,
            runs=min(chunk, runs - first),
        )
        for path in pools
        for share in (0.0, *STALE_SHARES)
        for first in range(0, runs, chunk)
    ]


def judge_digest() -> str:
    """Of everything that decides what becomes of a run: what judges it, and what draws it."""
    hasher = blake3.blake3()
    for path in judging_sources():
        hasher.update(path.name.encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()[:16]


def judging_sources() -> tuple[Path, ...]:
    """Everything in `kvrelease/verify`, and the modules of this benchmark that draw runs."""
    return (*sorted(Path(verify.__path__[0]).glob("*.py")), *(Path(__file__).parent / name for name in DRAWN_BY))


def count_all(
    wanted: Sequence[Job],
    results: Path,
    *,
    processes: int = PROCESSES,
    say: Callable[[str], None],
    pause: Callable[[], None],
) -> list[Chunk]:
    """Counts what is not counted yet, and keeps each chunk at once; all chunks that were wanted."""
    known = {chunk.key: chunk for chunk in read_chunks(results)}
    missing = [job for job in wanted if job.key not in known]
    say(f"{len(wanted) - len(missing)} of {len(wanted)} chunks are counted already")
    results.parent.mkdir(parents=True, exist_ok=True)
    # A test of a suspect is a product of small matrices: several threads wait for each other longer than it takes.
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    context = multiprocessing.get_context("spawn")
    with (
        results.open("ab") as sink,
        concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as executor,
    ):
        waiting: set[concurrent.futures.Future[Chunk]] = set()
        queue = iter(missing)
        done = 0
        while True:
            pause()
            # A few ahead at most, so that a pause is one, and jobs of one pool go to a process that has it loaded.
            waiting |= {executor.submit(count, job) for job in itertools.islice(queue, 2 * processes - len(waiting))}
            if not waiting:
                break
            finished, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            for future in finished:
                chunk = future.result()
                sink.write(msgspec.json.encode(chunk) + b"\n")
                sink.flush()
                known[chunk.key] = chunk
                done += 1
                if done % 20 == 0 or done == len(missing):
                    say(f"{done} of {len(missing)} chunks, last {chunk.pool} at {chunk.stale_share:.0%}")
    return [known[job.key] for job in wanted]


def counted(wanted: Sequence[Job], results: Path) -> list[Chunk]:
    """The chunks that were wanted, where all are counted.

    Raises:
        SystemExit: some are not; the message says what counts them.
    """
    known = {chunk.key: chunk for chunk in read_chunks(results)}
    missing = [job for job in wanted if job.key not in known]
    if missing or not wanted:
        raise SystemExit(
            f"{len(missing)} of {len(wanted)} chunks are not counted under this judge: python -m benchmarks.gate run"
        )
    return [known[job.key] for job in wanted]


def read_chunks(results: Path) -> list[Chunk]:
    """What was counted; a last line that was cut short is left out."""
    if not results.exists():
        return []
    found = []
    for line in results.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Chunk))
        except msgspec.DecodeError:
            continue
    return found


def count(job: Job) -> Chunk:
    """Draws and judges the runs of one chunk."""
    return chunk_of(job, asyncio.run(_outcomes(job)))


async def _outcomes(job: Job) -> list[Outcome]:
    drawn = _drawing(job.path, job.pool_digest)
    seeds = range(job.first_seed, job.first_seed + job.runs)
    return [await drawn.run(seed, stale_share=job.stale_share) for seed in seeds]


def chunk_of(job: Job, outcomes: Sequence[Outcome]) -> Chunk:
    """The counts of a chunk's outcomes."""
    undecided = [one for one in outcomes if one.verdict is Verdict.INCONCLUSIVE]
    return Chunk(
        pool=Path(job.path).name,
        pool_digest=job.pool_digest,
        judge_digest=job.judge_digest,
        stale_share=job.stale_share,
        first_seed=job.first_seed,
        runs=len(outcomes),
        verdicts=dict(Counter(str(one.verdict) for one in outcomes)),
        failed=dict(Counter(check for one in outcomes for check in one.failed)),
        open=dict(Counter(check for one in outcomes for check in one.open)),
        unmet=sum(one.verdict is Verdict.PASS and one.stale == 0 for one in outcomes),
        visible=sum(one.verdict is Verdict.PASS and one.visible > 0 for one in outcomes),
        blind=sum("power" in one.open for one in undecided),
        requests=sum(one.requests for one in outcomes),
        tokens=sum(one.tokens for one in outcomes),
    )


@functools.lru_cache(maxsize=1)
def _drawing(path: str, _digest: str) -> Drawing:
    return Drawing(load(Path(path)), probes=PROBES)
