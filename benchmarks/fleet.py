"""What 200 replicas cost before the first prompt is sent: `python -m benchmarks.fleet [REPLICAS]` prints a table.

The replicas are loopback addresses of one scripted server in a process of its own; a prompt set of 200 prompts under 12
shared beginnings of about 600 words is prepared on all of them: opened, identified, tokenised. Beside it, what TLS
contexts and pools cost by themselves, once for each replica and once for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.deployment import Deployment, prepare_all
from kvrelease.binding.runtime import declared_runtime
from kvrelease.binding.unready import ready_ones
from kvrelease.config import Production
from kvrelease.engines.address import parse_address
from kvrelease.engines.connections import Connections
from kvrelease.fleet.access import Access, access_of
from kvrelease.fleet.opening import open_fleet
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet

REPLICAS = 200
PROMPTS = 200
PREFIXES = 12
PREFIX_WORDS = 600

_SERVER = """
import sys
from tests.engines.scripted import ScriptedEngine
with ScriptedEngine(host="0.0.0.0") as engine:
    print(engine.port, flush=True)
    sys.stdin.read()
    print(sum(seen.path == "/tokenize" for seen in engine.requests), len(engine.requests), flush=True)
"""


def main(arguments: list[str]) -> None:
    """Prints one row for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("replicas", type=int, nargs="?", default=REPLICAS)
    count = parser.parse_args(arguments).replicas
    print("| what | seconds | CPU, s | memory, MiB |\n|---|---|---|---|")
    _row(f"{count} TLS contexts, httpx's own clients", lambda: asyncio.run(_own_clients(count)))
    _row(f"{count} pools that share a context", lambda: asyncio.run(_shared_context(count)))
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None, "it is a pipe"
    port = int(server.stdout.readline())
    _row(f"{count} replicas opened and prepared with {PROMPTS} prompts", lambda: asyncio.run(_prepared(count, port)))
    told, _ = server.communicate()
    tokenised, requests = map(int, told.split())
    print(
        f"\nThe server answered {requests} requests, {tokenised} of them tokenised a prompt ({count * PROMPTS} would)."
    )


def _row(what: str, do: Callable[[], None]) -> None:
    """Runs `do` in a process of its own, whose peak memory is then what it cost, and prints a row."""
    import multiprocessing  # noqa: PLC0415 - only here

    receiver, sender = multiprocessing.Pipe(duplex=False)

    def measured() -> None:
        before = _peak_mib()
        start, cpu = time.perf_counter(), time.process_time()
        do()
        sender.send((time.perf_counter() - start, time.process_time() - cpu, _peak_mib() - before))

    process = multiprocessing.get_context("fork").Process(target=measured)
    process.start()
    seconds, cpu_s, grown = receiver.recv()
    process.join()
    print(f"| {what} | {seconds:.2f} | {cpu_s:.2f} | {grown:.0f} |", flush=True)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _own_clients(count: int) -> None:
    clients = [httpx.AsyncClient() for _ in range(count)]
    for client in clients:
        await client.aclose()


async def _shared_context(count: int) -> None:
    pools = [Connections(parse_address(f"https://replica-{number}:8000"), most=12).borrow() for number in range(count)]
    for pool in pools:
        await pool.aclose()


async def _prepared(count: int, port: int) -> None:
    with Ledger(IN_MEMORY) as ledger:
        async with open_fleet(_access(count, port), release=None, warn=print) as fleet:
            found = await prepare_all(fleet.engines, deployment=_deployment(), memory=ledger, max_tokens=1)
            ready, unready = ready_ones(found)
            if unready:
                print(json.dumps([one.fault.message for one in unready[:3]]), file=sys.stderr)
            assert len(ready) == count, f"only {len(ready)} replicas became ready"


def _access(count: int, port: int) -> Access:
    return access_of(
        production=Production(),
        urls=[f"http://127.1.{number // 250}.{1 + number % 250}:{port}" for number in range(count)],
        kind=None,
        model=None,
        timeout_s=120.0,
        key_variable=None,
        headers={},
        concurrency=8,
        warn=print,
    )


def _deployment() -> Deployment:
    prompts = tuple(
        Prompt(id=f"p{number}", weight=1.0, kind=PromptKind.CHAT, body={"messages": _messages(number)})
        for number in range(PROMPTS)
    )
    return Deployment(
        release=ReleaseRef(name="bench", version=None, source="/models/bench", kv_name="kv1-bench"),
        namespace="kv1-bench-undeclared-e0",
        runtime=declared_runtime({}),
        production=Production(),
        salt=None,
        prompt_set=PromptSet(name="bench", prompts=prompts, source="bench.yaml"),
    )


def _messages(number: int) -> list[object]:
    prefix = number % PREFIXES
    system = " ".join(f"rule-{prefix}-{word}" for word in range(PREFIX_WORDS))
    return [{"role": "system", "content": system}, {"role": "user", "content": f"question {number}"}]


if __name__ == "__main__":
    main(sys.argv[1:])
