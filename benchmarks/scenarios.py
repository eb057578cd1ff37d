"""The gate's verdicts on real engines: `python -m benchmarks.scenarios [--rounds 5] [--engine vllm] [--only NAME]`.

Every scenario of tests/live/scenarios.py, so many times stale and as many times clean, a dozen probes each. Prints one
row for each with every exit code and the seconds of one performance; ends 1 if any verdict was wrong: another exit
code, or a failure by other checks than the one that owes it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.live import scenarios
from tests.live.conftest import Pair, installed_pair, write_dozen
from tests.live.scenarios import Scenario, Stage
from tests.live.servers import Server

ROUNDS = 5
WRONG = 1


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer.

    Attributes:
        code: exit code.
        wrong: what it should not have done; empty where it was right.
        wall_s: of the whole performance, servers that it starts included.
    """

    code: int
    wrong: str
    wall_s: float


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
        for engine, scenario, servers in _scenarios(pair, directory, engine=options.engine, only=options.only):
            found: dict[bool, list[Performance]] = {True: [], False: []}
            for turn in range(options.rounds):
                for stale, performances in found.items():
                    own = directory / f"{engine}-{scenario.name}-{turn}-{stale}".replace(" ", "-").replace(",", "")
                    own.mkdir()
                    stage = Stage(pair=pair, prompts=prompts, directory=own, stale=stale)
                    performances.append(_performed(scenario, stage, servers))
            missed = sum(bool(one.wrong) for ran in found.values() for one in ran)
            wrong += missed
            codes = [" ".join(str(one.code) for one in ran) for ran in found.values()]
            seconds = sum(one.wall_s for ran in found.values() for one in ran) / (2 * options.rounds)
            print(f"| {engine} | {scenario.name} | {codes[0]} | {codes[1]} | {missed} | {seconds:.0f} |", flush=True)
    print(f"\n{wrong} wrong verdicts")
    return WRONG if wrong else 0


def _scenarios(
    pair: Pair, directory: Path, *, engine: str | None, only: str | None
) -> Iterator[tuple[str, Scenario, tuple[Server, ...]]]:
    """Every wanted one, with the server that it plays on while that runs."""
    if engine != "vllm":
        yield from (("llama.cpp", one, ()) for one in scenarios.LLAMACPP if not only or only in one.name)
    if engine == "llamacpp":
        return
    for number, group in enumerate(scenarios.VLLM):
        wanted = [one for one in group.scenarios if not only or only in one.name]
        if wanted:
            place = directory / f"vllm-{number}"
            place.mkdir()
            with group.start(pair, directory=place) as server:
                yield from (("vLLM", one, (server,)) for one in wanted)


def _performed(scenario: Scenario, stage: Stage, servers: tuple[Server, ...]) -> Performance:
    began = time.perf_counter()
    ran = scenario.play(stage, *servers)
    wall_s = time.perf_counter() - began
    wrong = scenario.wrong(ran, stale=stage.stale)
    if wrong:
        print(f"{scenario.name}, stale {stage.stale}: {wrong}", file=sys.stderr, flush=True)
    return Performance(code=ran.code, wrong=wrong, wall_s=wall_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
