"""What prewarming costs: `python -m benchmarks.prewarm fleet` on many scripted replicas, `… engine` on a real vLLM.

`fleet` warms 200 engines of one process of ours with 200 prompts each, and sends the same requests with a bare httpx
loop beside it, each in a process of its own: time, requests per second, and the most memory.

`engine` starts vLLM with SmolLM2-135M (`python scripts/engines.py install`), and warms it with 200 prompts over 12
shared prefixes, in a fresh key space each time, interleaved with the same prompts sent naively (in the order of the
file, as many at once): tokens computed over the lower bound, hit rate after, and time. Then the same with a cache of
half the size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec

from benchmarks.prewarm_server import MODEL
from kvrelease.artifacts import JsonObject, ReleaseRef
from kvrelease.binding.deployment import Deployment
from kvrelease.binding.runtime import declared_runtime
from kvrelease.binding.salts import probe_salt
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Request, Route
from kvrelease.engines.detect import open_engine
from kvrelease.ledger.store import Ledger
from kvrelease.prewarm.journal import Journal
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.prewarm.run import journal_key, prewarm
from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet

PREFIXES = 12
PROMPTS = 200
PREFIX_WORDS = 600
QUESTION_WORDS = 30
SEED = 17


def prompt_set(*, prompts: int = PROMPTS, words: int = PREFIX_WORDS, seed: int = SEED) -> PromptSet:
    """Questions under shared prefixes whose traffic falls off as 1/rank, in an order that tells nothing."""
    source = random.Random(seed)  # noqa: S311 - hides nothing
    vocabulary = [line.strip() for line in _WORDS.split()]
    systems = [" ".join(source.choices(vocabulary, k=words)) for _ in range(PREFIXES)]
    made = []
    for number in range(prompts):
        desk = number % PREFIXES
        question = " ".join(source.choices(vocabulary, k=QUESTION_WORDS))
        body: JsonObject = {
            "messages": [
                {"role": "system", "content": f"Desk {desk}. {systems[desk]}"},
                {"role": "user", "content": f"{number} {question}"},
            ]
        }
        weight = 1.0 / (1 + desk) / (1 + number // PREFIXES)
        made.append(Prompt(id=f"p{number:03}", weight=weight, kind=PromptKind.CHAT, body=body))
    source.shuffle(made)
    return PromptSet(name="bench", prompts=tuple(made), source="bench")


_WORDS = """the a
customer may return an item within thirty days when it is unopened and the receipt is at hand we answer
every question about delivery billing repairs refunds orders and accounts in plain words never promise what the rules
do not say ask for the order number first then look it up tell the customer what happens next and when"""


def deployment_of(prompts: PromptSet, *, salt: str | None = None) -> Deployment:
    """The benchmark's release."""
    return Deployment(
        release=ReleaseRef(name="bench", version=None, source="bench", kv_name="kv1-bench"),
        namespace="kv1-bench-undeclared-e0",
        runtime=declared_runtime({}),
        production=Production(),
        salt=salt,
        prompt_set=prompts,
    )


# --- many replicas ---------------------------------------------------------------------------------------------------


@contextmanager
def scripted_fleet(count: int) -> Iterator[list[str]]:
    """The URLs of so many engines in a process of their own."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.prewarm_server", str(count)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield [f"http://127.0.0.1:{port}" for port in json.loads(process.stdout.readline())]
        finally:
            process.kill()


async def _ours(urls: Sequence[str], *, prompts: int, concurrency: int, directory: Path) -> JsonObject:
    deployment = deployment_of(prompt_set(prompts=prompts))
    async with AsyncExitStack() as stack:
        ledger = stack.enter_context(Ledger(f"sqlite:///{directory / 'ledger.db'}"))
        journal = stack.enter_context(Journal(directory / "journal.jsonl", key=journal_key(deployment)))
        began = time.perf_counter()
        engines = await asyncio.gather(*(open_engine(url, kind=EngineKind.VLLM) for url in urls))
        for engine in engines:
            stack.push_async_callback(engine.aclose)
        report = await prewarm(engines, deployment=deployment, ledger=ledger, journal=journal, concurrency=concurrency)
        wall_s = time.perf_counter() - began
    first = report.replicas[0]
    return {
        "wall_s": wall_s,
        "requests": sum(one.sent + one.touched + 2 + 12 for one in report.replicas),
        "verdict": str(report.verdict),
        "over": first.over_lower_bound,
        "reason": report.reason,
    }


async def _bare(urls: Sequence[str], *, prompts: int, concurrency: int) -> JsonObject:
    """The same requests: every prompt twice, 14 more for control and proof, so many at once on each replica."""
    extra: JsonObject = {"model": MODEL, "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}
    bodies = [msgspec.json.encode(prompt.body | extra) for prompt in prompt_set(prompts=prompts).prompts]
    # Not more than a replica gets twice, control and proof.
    wanted = [*bodies, *bodies, *(bodies * 14)[:14]]
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    # One client for each replica, because a pool looks through all of its connections at every request; and one
    # context for TLS, which takes longer to make than a hundred requests.
    context = ssl.create_default_context()

    async def worker(client: httpx.AsyncClient, left: Iterator[bytes]) -> None:
        for body in left:
            async with client.stream("POST", Route.CHAT, content=body, headers=headers) as response:
                async for _ in response.aiter_lines():
                    pass

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for url in urls:
            client = httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False, verify=context)
            await stack.enter_async_context(client)
            left = iter(wanted)
            for _ in range(concurrency):
                group.create_task(worker(client, left))
    return {"wall_s": time.perf_counter() - began, "requests": len(wanted) * len(urls)}


def _fleet_child(options: argparse.Namespace) -> None:
    """One run in this process; prints what it took."""
    urls: list[str] = json.loads(sys.stdin.readline())
    # Before: what any run with httpx and our own modules takes.
    if options.role == "ours":
        with tempfile.TemporaryDirectory(prefix="kvrelease-prewarm-") as place:
            ran = _ours(urls, prompts=options.prompts, concurrency=options.concurrency, directory=Path(place))
            found = asyncio.run(ran)
    else:
        found = asyncio.run(_bare(urls, prompts=options.prompts, concurrency=options.concurrency))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found |= {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_mib": usage.ru_maxrss / 1024}
    print(json.dumps(found))


def fleet(options: argparse.Namespace) -> None:
    """Prints one row for the bare loop and one for ours."""
    runs: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
    for turn in range(options.rounds):
        for role in ("bare", "ours") if turn % 2 == 0 else ("ours", "bare"):
            with scripted_fleet(options.replicas) as urls:
                command = [sys.executable, "-m", "benchmarks.prewarm", "fleet", "--role", role]
                command += ["--prompts", str(options.prompts), "--concurrency", str(options.concurrency)]
                done = subprocess.run(
                    command, input=json.dumps(urls) + "\n", capture_output=True, text=True, check=False
                )
            if done.returncode:
                raise SystemExit(done.stderr)
            runs[role].append(json.loads(done.stdout))
            print(f"{role}: {done.stdout.strip()}", file=sys.stderr)
    print(
        f"{options.replicas} replicas x {options.prompts} prompts, {options.concurrency} at once on each, medians of "
        f"{options.rounds} interleaved runs, {os.cpu_count()} cores\n"
    )
    print(
        "| | requests | seconds | requests per second | processor seconds | most memory, MiB |\n"
        "|---|---|---|---|---|---|"
    )
    middle = {
        role: {name: _median(found, name) for name in found[0] if _is_number(found[0][name])}
        for role, found in runs.items()
    }
    for role, name in (("bare", "bare httpx loop"), ("ours", "kvrelease prewarm")):
        one = middle[role]
        print(
            f"| {name} | {one['requests']:,.0f} | {one['wall_s']:.1f} | {one['requests'] / one['wall_s']:,.0f} | "
            f"{one['cpu_s']:.1f} | {one['peak_mib']:.0f} |"
        )
    each = {role: one["wall_s"] / one["requests"] for role, one in middle.items()}
    print(f"\nfor each request: {each['ours'] / each['bare']:.2f} times the bare loop's time")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _median(runs: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


# --- a real engine ---------------------------------------------------------------------------------------------------


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way of sending the set into an empty key space.

    Attributes:
        computed: prompt tokens computed for it, touch and proof passes apart.
        wall_s: seconds that sending took.
        after: cached by cacheable tokens when every prompt is asked once more, in the order of the file.
        traffic: cached by prompt tokens of weighted traffic, drawn the same for every arm.
    """

    computed: int
    wall_s: float
    after: float
    traffic: float
    plan: Plan | None = None


def engine(options: argparse.Namespace) -> None:
    """Prints a table for a cache that holds the set, and one for half of it."""
    from tests.live.servers import installed, vllm_server  # noqa: PLC0415

    prompts = prompt_set(prompts=options.prompts)
    model = installed(options.model)
    blocks = options.blocks
    for share in (1.0, 0.5):
        wanted = int(blocks * share)
        with (
            tempfile.TemporaryDirectory(prefix="kvrelease-prewarm-") as place,
            vllm_server(
                model,
                served_model_name=MODEL,
                log_path=Path(place) / "vllm.log",
                extra_args=("--num-gpu-blocks-override", str(wanted)),
            ) as server,
        ):
            asyncio.run(_compare(server.url, prompts, blocks=wanted, options=options))


async def _compare(url: str, prompts: PromptSet, *, blocks: int, options: argparse.Namespace) -> None:
    arms: dict[str, list[Arm]] = {"kvrelease prewarm": [], "naive order": []}
    for turn in range(options.rounds):
        for name in list(arms) if turn % 2 == 0 else list(arms)[::-1]:
            salt = probe_salt("bench")
            ran = _planned_arm if name == "kvrelease prewarm" else _naive_arm
            arms[name].append(await ran(url, prompts, salt=salt, options=options))
            print(f"{name}: {arms[name][-1].computed} tokens, {arms[name][-1].wall_s:.1f} s", file=sys.stderr)
    plan = next(arm.plan for arm in arms["kvrelease prewarm"] if arm.plan is not None)
    tokens = await _tokens(url, prompts)
    whole = _lower_bound(tokens, block_tokens=options.block_tokens)
    print(
        f"\n{len(prompts)} prompts over {PREFIXES} prefixes, {blocks} blocks, {options.concurrency} at once, medians "
        f"of {options.rounds} interleaved runs; needs {whole['blocks']} blocks; {len(plan.order)} prompts kept, "
        f"{len(plan.dropped)} left out; head room {plan.head_room_blocks} blocks\n"
    )
    print(
        "| | tokens computed | lower bound | over it | seconds | hit rate after | hit rate on traffic |\n"
        "|---|---|---|---|---|---|---|"
    )
    bounds = {"kvrelease prewarm": plan.lower_bound_tokens or 0, "naive order": whole["tokens"]}
    for name, found in arms.items():
        computed = statistics.median(arm.computed for arm in found)
        after = statistics.median(arm.after for arm in found)
        print(
            f"| {name} | {computed:,.0f} | {bounds[name]:,} | {computed / bounds[name]:.3f} | "
            f"{statistics.median(arm.wall_s for arm in found):.1f} | {after:.1%} | "
            f"{statistics.median(arm.traffic for arm in found):.1%} |"
        )
    touched = (*plan.order, *reversed(plan.order))
    for name, order in (("planned", touched), ("naive", tuple(prompt.id for prompt in prompts.prompts))):
        told = _simulated(
            tokens, order, prompts, blocks=blocks, block_tokens=options.block_tokens, traffic=options.traffic
        )
        print(f"| simulator, {name} | | | | | | {told:.1%} |")
    best = _optimum(tokens, prompts, blocks=blocks, block_tokens=options.block_tokens, traffic=options.traffic)
    print(f"| simulator, best resident set | | | | | | {best:.1%} |")


async def _planned_arm(url: str, prompts: PromptSet, *, salt: str, options: argparse.Namespace) -> Arm:
    client = await open_engine(url, kind=EngineKind.VLLM)
    try:
        with Ledger("sqlite://") as ledger:
            report: PrewarmReport = await prewarm(
                [client],
                deployment=deployment_of(prompts, salt=salt),
                ledger=ledger,
                concurrency=options.concurrency,
            )
    finally:
        await client.aclose()
    (found,) = report.replicas
    assert found.computed_tokens is not None, report.reason
    assert found.plan_s is not None, report.reason
    after, traffic = await _ask(url, prompts, salt=salt, options=options, kept=frozenset(report.plan.order))
    return Arm(computed=found.computed_tokens, wall_s=found.plan_s, after=after, traffic=traffic, plan=report.plan)


async def _naive_arm(url: str, prompts: PromptSet, *, salt: str, options: argparse.Namespace) -> Arm:
    """Every prompt once, in the order of the file, as many at once."""
    client = await open_engine(url, kind=EngineKind.VLLM)
    computed = 0
    left = iter(prompts.prompts)
    began = time.perf_counter()
    try:

        async def worker() -> None:
            nonlocal computed
            for prompt in left:
                found = await client.complete(_request(prompt, salt=salt))
                computed += (found.prompt_tokens or 0) - (found.cached_tokens or 0)

        async with asyncio.TaskGroup() as group:
            for _ in range(options.concurrency):
                group.create_task(worker())
        wall_s = time.perf_counter() - began
    finally:
        await client.aclose()
    after, traffic = await _ask(url, prompts, salt=salt, options=options, kept=frozenset(one.id for one in prompts))
    return Arm(computed=computed, wall_s=wall_s, after=after, traffic=traffic)


async def _ask(
    url: str, prompts: PromptSet, *, salt: str, options: argparse.Namespace, kept: frozenset[str]
) -> tuple[float, float]:
    """Hit rate of weighted traffic first, then of every kept prompt once more; each request changes the cache."""
    client = await open_engine(url, kind=EngineKind.VLLM)
    try:
        cached = asked = 0
        for prompt in _traffic(prompts, count=options.traffic):
            found = await client.complete(_request(prompt, salt=salt))
            cached, asked = cached + (found.cached_tokens or 0), asked + (found.prompt_tokens or 0)
        traffic = cached / asked
        cached = cacheable = 0
        for prompt in prompts.prompts:
            if prompt.id in kept:
                found = await client.complete(_request(prompt, salt=salt))
                cached += found.cached_tokens or 0
                cacheable += ((found.prompt_tokens or 1) - 1) // options.block_tokens * options.block_tokens
        return cached / cacheable, traffic
    finally:
        await client.aclose()


def _request(prompt: Prompt, *, salt: str) -> Request:
    return Request(route=Route.CHAT, body=prompt.body | {"model": MODEL, "temperature": 0}, salt=salt, streams=True)


def _traffic(prompts: PromptSet, *, count: int) -> list[Prompt]:
    source = random.Random(SEED + 1)  # noqa: S311 - hides nothing
    return source.choices(prompts.prompts, weights=[prompt.weight for prompt in prompts.prompts], k=count)


async def _tokens(url: str, prompts: PromptSet) -> dict[str, tuple[int, ...]]:
    client = await open_engine(url, kind=EngineKind.VLLM)
    try:
        found = {prompt.id: await client.tokenize(_request(prompt, salt="x")) for prompt in prompts.prompts}
    finally:
        await client.aclose()
    return {name: ids for name, ids in found.items() if ids is not None}


def _lower_bound(tokens: Mapping[str, tuple[int, ...]], *, block_tokens: int) -> dict[str, int]:
    from kvrelease.workload.prefix_tree import build_prefix_tree  # noqa: PLC0415

    tree = build_prefix_tree(tokens, block_tokens=block_tokens)
    return {"tokens": tree.lower_bound_tokens(tuple(tokens)), "blocks": tree.unique_blocks}


def _keys(ids: tuple[int, ...], block_tokens: int) -> list[tuple[int, ...]]:
    return [ids[:end] for end in range(block_tokens, len(ids) + 1, block_tokens)]


def _sent(cache: SimulatedBlocks, ids: tuple[int, ...], block_tokens: int) -> int:
    """Cached tokens of one request."""
    blocks = cache.request(
        _keys(ids, block_tokens), hit_limit=(len(ids) - 1) // block_tokens, tail_blocks=int(len(ids) % block_tokens > 0)
    )
    assert blocks is not None, "every prompt fits the cache"
    return blocks * block_tokens


def _simulated(
    tokens: Mapping[str, tuple[int, ...]],
    order: Sequence[str],
    prompts: PromptSet,
    *,
    blocks: int,
    block_tokens: int,
    traffic: int,
) -> float:
    """Hit rate on the same traffic of a simulated cache that was sent these prompts, one after another."""
    cache = SimulatedBlocks(blocks - 1)
    for name in order:
        _sent(cache, tokens[name], block_tokens)
    asked = [tokens[prompt.id] for prompt in _traffic(prompts, count=traffic)]
    return sum(_sent(cache, ids, block_tokens) for ids in asked) / sum(map(len, asked))


def _optimum(
    tokens: Mapping[str, tuple[int, ...]], prompts: PromptSet, *, blocks: int, block_tokens: int, traffic: int
) -> float:
    """Hit rate on the same traffic if the blocks most asked for in it were resident, and stayed; no cache beats it."""
    asked = [tokens[prompt.id] for prompt in _traffic(prompts, count=traffic)]
    uses: dict[tuple[int, ...], int] = {}
    for ids in asked:
        for key in _keys(ids, block_tokens)[: (len(ids) - 1) // block_tokens]:
            uses[key] = uses.get(key, 0) + 1
    # A block is never asked for more often than the one before it, so the most asked for are whole prefixes.
    kept = sorted(uses.values(), reverse=True)[: blocks - 1]
    return sum(kept) * block_tokens / sum(map(len, asked))


def main(arguments: list[str]) -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prewarm", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    many = parts.add_parser("fleet")
    many.add_argument("--replicas", type=int, default=200)
    many.add_argument("--prompts", type=int, default=PROMPTS)
    many.add_argument("--concurrency", type=int, default=4)
    many.add_argument("--rounds", type=int, default=3)
    many.add_argument("--role", choices=("bare", "ours"), help=argparse.SUPPRESS)
    real = parts.add_parser("engine")
    real.add_argument("--prompts", type=int, default=PROMPTS)
    real.add_argument("--concurrency", type=int, default=8)
    real.add_argument("--rounds", type=int, default=3)
    real.add_argument("--model", default="smollm2-v1.2")
    real.add_argument("--blocks", type=int, default=700, help="of 32 tokens; the set needs about 440")
    real.add_argument("--block-tokens", type=int, default=32)
    real.add_argument("--traffic", type=int, default=400)
    options = parser.parse_args(arguments)
    if options.part == "engine":
        engine(options)
    elif options.role is not None:
        _fleet_child(options)
    else:
        fleet(options)


if __name__ == "__main__":
    main(sys.argv[1:])
