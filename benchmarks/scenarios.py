"""The gate's verdicts on real engines: `python -m benchmarks.scenarios [--rounds 5] [--engine vllm] [--only NAME]`.

Every scenario of tests/live/scenarios.py, so many times stale and as many times clean, a dozen probes each. Prints one
row for each with every exit code and the seconds of one performance; ends 1 if any verdict was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.live import scenarios
from tests.live.conftest import Pair, Run, installed_pair, write_dozen
from tests.live.scenarios import Stage

ROUNDS = 5
WRONG = 1


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer.

    Attributes:
        code: exit code.
        wall_s: of the whole performance, servers that it starts included.
    """

    code: int
    wall_s: float


Perform = Callable[[Stage], Run]


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scenarios", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each scenario and state")
    parser.add_argument("--engine", choices=("vllm", "llamacpp"), help="one alone")
    parser.add_argument("--only", help="scenarios whose name contains this")
    options = parser.parse_args(arguments)
    print("| engine | scenario | stale, exit codes | clean, exit codes | wrong | seconds |\n|---|---|---|---|---|---|")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kvrelease-scenarios-") as place:
        directory = Path(place)
        prompts = write_dozen(directory / "dozen.yaml")
        pair = installed_pair()
        for engine, name, perform in _scenarios(pair, directory, engine=options.engine, only=options.only):
            found = {
                stale: [
                    _performed(perform, pair, prompts, directory, stale=stale, name=f"{engine} {name} {turn}")
                    for turn in range(options.rounds)
                ]
                for stale in (True, False)
            }
            missed = sum(one.code != int(stale) for stale, ran in found.items() for one in ran)
            wrong += missed
            codes = [" ".join(str(one.code) for one in found[stale]) for stale in (True, False)]
            seconds = sum(one.wall_s for ran in found.values() for one in ran) / (2 * options.rounds)
            print(f"| {engine} | {name} | {codes[0]} | {codes[1]} | {missed} | {seconds:.0f} |", flush=True)
    print(f"\n{wrong} wrong verdicts")
    return WRONG if wrong else 0


def _scenarios(
    pair: Pair, directory: Path, *, engine: str | None, only: str | None
) -> Iterator[tuple[str, str, Perform]]:
    """Every wanted one, while the server that it plays on runs."""
    if engine != "vllm":
        for name, play in scenarios.LLAMACPP.items():
            if not only or only in name:
                yield "llama.cpp", name, play
    if engine == "llamacpp":
        return
    wanted = [(name, play) for name, play in scenarios.VLLM.items() if not only or only in name]
    if wanted:
        with scenarios.vllm(pair, directory=directory) as server:
            for name, on_server in wanted:
                yield "vLLM", name, lambda stage, play=on_server: play(stage, server)  # type: ignore[misc]


def _performed(perform: Perform, pair: Pair, prompts: Path, directory: Path, *, stale: bool, name: str) -> Performance:
    own = directory / f"{name} {'stale' if stale else 'clean'}".replace(" ", "-").replace(",", "")
    own.mkdir()
    began = time.perf_counter()
    ran = perform(Stage(pair=pair, prompts=prompts, directory=own, stale=stale))
    wall_s = time.perf_counter() - began
    if ran.code != int(stale):
        print(f"{name}, stale {stale}: ended {ran.code}\n{_reason(ran)}", file=sys.stderr, flush=True)
    return Performance(code=ran.code, wall_s=wall_s)


def _reason(ran: Run) -> str:
    return "\n".join([str(ran.json.get("reason")) if ran.stdout else "", ran.stderr[-2000:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
