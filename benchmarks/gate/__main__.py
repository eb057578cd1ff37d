"""`python -m benchmarks.gate record|run|report`: how often the release gate errs, from recorded observations.

    record [--engine local|vllm]   train the fine-tunes and record pools; goes on where it stopped
    run                            draw 2,000 clean and 2,000 stale runs per cell and judge each; goes on likewise
    report                         write docs/gate-error-rates.md and .svg; ends 1 where a promise is broken, 3 where
                                   none is and not every pool was counted
    ship                           trim the pools of the releases that are named into the repository

docs/benchmarks.md says how long each takes. Pools lie under `$KVRELEASE_CACHE/gate` (`~/.cache/kvrelease/gate`); where
none were recorded, `run` takes the small ones of the repository.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gate.cells import WANTED, cells_of
from benchmarks.gate.counting import PROCESSES, RUNS, count_all, counted, jobs
from benchmarks.gate.levels import LOCAL_LEVELS, SHIPPED_LEVEL, SHIPPED_READS
from benchmarks.gate.places import COMMITTED, REPOSITORY, engines_cache, home, pause, pool_paths, say
from benchmarks.gate.plot import svg
from benchmarks.gate.pool import load, pool_name, save, trimmed
from benchmarks.gate.promises import broken_promises, uncounted
from benchmarks.gate.releases import OLD, RELEASES, ensure_releases
from benchmarks.gate.sizes import sizes_of
from benchmarks.gate.table import markdown
from kvrelease.errors import KvreleaseError

_GOES_ON = "pools that are whole are kept: the same command goes on with the next"


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where a promise is broken, 3 where not every pool was counted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("record", "run", "report", "ship"))
    parser.add_argument("--engine", choices=("local", "vllm"), default="local", help="whose answers to record")
    parser.add_argument("--release", action="append", choices=[one.name for one in RELEASES], help="only these")
    parser.add_argument("--level", action="append", choices=list(LOCAL_LEVELS), help="in process: only these")
    parser.add_argument("--prompts", type=int, help="record about so many prompts, the first of each desk")
    parser.add_argument("--threads", type=int, default=2, help="of torch, while recording")
    parser.add_argument("--pools", type=Path, help="where pools lie")
    parser.add_argument("--runs", type=int, default=RUNS, help="clean ones, and stale ones, of each cell")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--into", type=Path, default=REPOSITORY / "docs", help="folder that report writes to")
    options = parser.parse_args(arguments)
    if options.step == "record":
        try:
            asyncio.run(_record(options))
        except KeyboardInterrupt:
            say(_GOES_ON)
            return 130
        except KvreleaseError as error:
            raise SystemExit(f"{error.message}\n{error.hint or ''}\n{_GOES_ON}") from error
        return 0
    if options.step == "ship":
        _ship(options)
        return 0
    paths = pool_paths(options.pools)
    wanted = jobs(paths, runs=options.runs)
    results = home() / "counts.jsonl"
    if options.step == "run":
        chunks = count_all(wanted, results, processes=options.processes, say=say, pause=pause)
    else:
        chunks = counted(wanted, results)
    cells = cells_of(chunks)
    pools = {(pool.engine, pool.level, pool.release): pool for pool in map(load, paths)}
    sizes = {place: sizes_of(pool) for place, pool in pools.items()}
    text = markdown(cells, pools, sizes)
    if options.step == "report":
        (options.into / "gate-error-rates.md").write_text(text)
        (options.into / "gate-error-rates.svg").write_text(svg(cells))
    else:
        print(text)
    broken, missing = broken_promises(cells, sizes), uncounted(cells)
    for line in broken:
        print(f"BROKEN: {line}", file=sys.stderr)
    if missing:
        print(f"NOT KNOWN of {len(missing)} of {len(WANTED)} pools, the first: {missing[0]}", file=sys.stderr)
    return 1 if broken else 3 if missing else 0


def _ship(options: argparse.Namespace) -> None:
    """Small copies of one level's pools of the releases that are named."""
    folder = options.pools or home() / "pools"
    for name in options.release or []:
        recorded = load(folder / pool_name(options.engine, SHIPPED_LEVEL[options.engine], name))
        path = save(trimmed(recorded, reads=SHIPPED_READS), COMMITTED)
        say(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


async def _record(options: argparse.Namespace) -> None:
    # torch and servers: only here.
    from benchmarks.gate import record_local, record_vllm  # noqa: PLC0415
    from benchmarks.gate.prompts import prompt_set  # noqa: PLC0415

    old, pools = engines_cache() / "models" / OLD, options.pools or home() / "pools"
    names = options.release or [one.name for one in RELEASES]
    ensure_releases(old, home() / "releases", only=names, say=say, pause=pause)
    prompts = prompt_set(limit=options.prompts)
    releases = {name: home() / "releases" / name for name in names}
    if options.engine == "vllm":
        await record_vllm.record(old, releases, prompts, pools, say=say, pause=pause)
        return
    recording = await record_local.open_recording(old, prompts, threads=options.threads)
    levels = options.level or list(LOCAL_LEVELS)
    missing = {name: recording.missing(name, directory, pools, levels=levels) for name, directory in releases.items()}
    wanted = len(releases) * len(levels)
    there = wanted - sum(map(len, missing.values()))
    say(f"local: {there} of {wanted} pools are there already")
    for name, directory in releases.items():
        if missing[name]:
            await recording.record(name, directory, pools, levels=missing[name], say=say, pause=pause)
            there += len(missing[name])
            say(f"local: {there} of {wanted} pools are there")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
