"""What the middleware adds to a request: `python -m benchmarks.middleware`.

Two servers in one process answer on loopback, of the same application: one plain, one behind the middleware. A client
sends to both in turn, over connections that stay open, and who comes first changes with every round; a third arm, plain
like the first, tells what two identical arms differ by. Client and servers share one thread, which waits for nobody
between the first byte sent and the last received: its processor time is what a round trip takes on a machine that does
nothing else, and on one that does its wall time tells the other work as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import uvicorn

from benchmarks.timing import machine
from kvrelease.binding.middleware import Bound

NAMESPACE = "kv1-abcdefghijklmnopqrstuvwxyz234567-0a1b2c3d-e0"
ADAPTERS = {"KVRELEASE_NAMESPACES": json.dumps({"adapter": NAMESPACE.replace("-e0", "-e1")})}
SIZES = (1, 8, 64)  # KiB
LIMIT_US = 100.0
_SENTENCE = 'The customer\'s question, in "quotes": may I return item %d?\nIt was opened — à la carte. '
_READ_BYTES = 1 << 16


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, as an engine does, and answers with two bytes."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def chat(size_bytes: int, *, ascii_only: bool = False, **fields: object) -> bytes:
    """A chat of about that size, as OpenAI's Python client writes it, or in ASCII with escapes."""
    spelling: Any = {"ensure_ascii": ascii_only, "separators": (",", ":")}
    messages: list[dict[str, str]] = []
    turn = 0
    while True:
        turn += 1
        text = "".join(_SENTENCE % (turn * 10 + line) for line in range(max(1, min(10, size_bytes // 1000))))
        following = [*messages, {"role": "user" if turn % 2 else "assistant", "content": text}]
        body = json.dumps({"model": "m", "messages": following, "temperature": 0, **fields}, **spelling).encode()
        if len(body) >= size_bytes:
            return body
        messages = following


def token_ids(size_bytes: int) -> bytes:
    """A completion of token ids of about that size."""
    ids = [10_000 + number % 90_000 for number in range(size_bytes // 7)]
    return json.dumps({"model": "m", "prompt": ids}).encode()


class Arm:
    """One server, and one connection to it that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, body: bytes) -> tuple[float, float]:
        """Microseconds from the first byte sent to the last received: of the wall clock, and of the processor."""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        begun, worked = time.perf_counter(), time.thread_time()
        self._writer.write(head + body)
        answer = b""
        while not answer.endswith(b"\r\n\r\n{}"):
            answer += await self._reader.read(_READ_BYTES)
        taken = (time.perf_counter() - begun) * 1e6, (time.thread_time() - worked) * 1e6
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return taken


@contextlib.asynccontextmanager
async def arm(environment: Mapping[str, str] | None) -> AsyncIterator[Arm]:
    """A server in this process; None for the plain application."""
    app: Any = engine if environment is None else Bound(engine, {"KVRELEASE_NAMESPACE": NAMESPACE, **environment})
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield Arm(reader, writer)
        writer.close()
        server.should_exit = True


async def measure(arms: Sequence[Arm], body: bytes, *, rounds: int) -> list[list[tuple[float, float]]]:
    """[arms][rounds] as `Arm.ask` has it, the arms asked in turn and each round beginning with another one."""
    found: list[list[tuple[float, float]]] = [[] for _ in arms]
    for turn in range(rounds + rounds // 10):
        for step in range(len(arms)):
            index = (turn + step) % len(arms)
            taken = await arms[index].ask(body)
            if turn >= rounds // 10:  # connections and caches are warm from here on
                found[index].append(taken)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def added(
    plain: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], *, clock: int
) -> tuple[float, float]:
    """By how many microseconds p50 and p95 of another arm lie above the plain one's.

    Args:
        plain: [rounds], as `Arm.ask` has it.
        other: [rounds], likewise.
        clock: 0 for the wall's, 1 for the processor's.
    """
    both = [[taken[clock] for taken in arm] for arm in (plain, other)]
    first, second = ([percentile(arm, share) for share in (0.5, 0.95)] for arm in both)
    return second[0] - first[0], second[1] - first[1]


CASES: Mapping[str, Callable[[int], bytes]] = {
    "chat": chat,
    "chat of a tenant": lambda size: chat(size, cache_salt="tenant-7"),
    "chat in ASCII": lambda size: chat(size, ascii_only=True),
    "chat, adapters declared": chat,
    "token ids": token_ids,
}


async def run(rounds: int) -> bool:
    """Prints a table; whether the processor's median stays below the limit everywhere."""
    print(machine())
    print("| body | KiB | plain, wall p50 | added, processor p50 | p95 | wall p50 | p95 | twin, processor | wall |")
    print("|---|---|---|---|---|---|---|---|---|")
    is_within = True
    for case, make in CASES.items():
        environment = ADAPTERS if "adapters" in case else {}
        async with arm(None) as plain, arm(environment) as bound, arm(None) as twin:
            for size in SIZES:
                body = make(size << 10)
                without, through, again = await measure((plain, bound, twin), body, rounds=rounds)
                row = [
                    percentile([wall for wall, _ in without], 0.5),
                    *added(without, through, clock=1),
                    *added(without, through, clock=0),
                    *(added(without, again, clock=clock)[0] for clock in (1, 0)),
                ]
                print(f"| {case} | {len(body) / 1024:.1f} | " + " | ".join(f"{value:.0f}" for value in row) + " |")
                is_within &= row[1] <= LIMIT_US
    return is_within


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="requests of each arm, size and case")
    raise SystemExit(0 if asyncio.run(run(parser.parse_args().rounds)) else 1)
