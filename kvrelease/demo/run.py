"""The whole demo: traffic over two strategies, then what the other commands say about the same pair."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from kvrelease.binding.deployment import Deployment
from kvrelease.binding.namespace import resolve_namespace
from kvrelease.binding.runtime import Runtime, declared_runtime
from kvrelease.config import Production
from kvrelease.demo.arm import Arm, key_space, open_arm, request_of
from kvrelease.demo.figures import (
    DemoReport,
    Gate,
    Impact,
    Served,
    Strategy,
    choose_example,
    strategy_figures,
    ttft_gap,
    ttft_spread,
)
from kvrelease.demo.pair import PROMPTS, STORE, DemoPair, keep_pair
from kvrelease.demo.traffic import Turn, Worker, draw_traffic
from kvrelease.engines.block_cache import TOKENS_ONLY
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.fingerprint import Fingerprint, load_release
from kvrelease.verify.evidence import Limits
from kvrelease.verify.run import Twins, conclude, observe
from kvrelease.workload.prompt_set import Prompt

DEFAULT_REQUESTS = 300
# Six for each part in which identical arms are compared.
MIN_REQUESTS = 60

# Identical arms of each strategy: their difference is the noise of the timing.
TWINS = 2

# A dozen probes support this claim (docs/statistics.md); the gate's own default of 5 % takes 59.
STALE_BELOW = 0.25

# Key making is timed so often for each prompt, strategies in turn.
KEY_ROUNDS = 20


async def demo(
    pair: DemoPair,
    *,
    requests: int = DEFAULT_REQUESTS,
    seed: int = 0,
    keep: Path | None = None,
    progress: Progress = silent,
) -> DemoReport:
    """The incident and its remedy, measured.

    Args:
        pair: two releases and their prompts.
        requests: of the traffic, the same for every arm; at least `MIN_REQUESTS`.
        seed: of the traffic.
        keep: a new directory for a copy of the pair and of the tokens-only store; None keeps nothing.
        progress: told after each request.

    Raises:
        MissingExtra: torch or transformers is not installed.
        UsageError: `keep` is not empty.
        InputError: the pair cannot be loaded, or `keep` not be written.
    """
    started = time.monotonic()
    if keep is not None:
        pair = await asyncio.to_thread(keep_pair, pair, keep)
    prompts = {prompt.id: prompt for prompt in pair.prompts.prompts}
    traffic = draw_traffic(pair.prompts.prompts, requests=requests, seed=seed)
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(await open_local(pair.old))
        new = await stack.enter_async_context(await open_local(pair.new))
        ledger = stack.enter_context(Ledger(IN_MEMORY))
        releases = {Worker.OLD: load_release(pair.old), Worker.NEW: load_release(pair.new)}
        runtime = declared_runtime((await new.identify()).runtime)
        namespaces = _namespaces(releases, runtime=runtime, ledger=ledger)
        arms = [
            await stack.enter_async_context(open_arm(strategy, twin=twin, pair=pair, namespaces=namespaces))
            for twin in range(TWINS)
            for strategy in Strategy
        ]
        answers = {
            worker: await _clean_answers(engine, prompts.values(), progress=progress)
            for worker, engine in ((Worker.OLD, old), (Worker.NEW, new))
        }
        served = await _serve(traffic, arms, prompts=prompts, progress=progress)
        if keep is not None:
            await asyncio.to_thread(arms[0].store.save, BlockFiles(keep / STORE))
        key_us = await _key_costs(new, prompts.values(), namespace=namespaces[Worker.NEW])
        gates = tuple(
            [
                await _gate(
                    arm,
                    deployment=Deployment(
                        release=releases[Worker.NEW].release,
                        namespace=namespaces[Worker.NEW],
                        runtime=runtime,
                        production=Production(),
                        salt=arm.salts[Worker.NEW],
                        prompt_set=pair.prompts,
                    ),
                    twins=Twins(release=new, old_release=old),
                    seed=seed,
                    progress=progress,
                )
                for arm in arms[: len(Strategy)]
            ]
        )
    difference = diff_fingerprints(releases[Worker.OLD], releases[Worker.NEW])
    return DemoReport(
        old=releases[Worker.OLD].release,
        new=releases[Worker.NEW].release,
        strategies=tuple(
            strategy_figures(strategy, served, clean=answers[Worker.NEW], key_us=key_us[strategy])
            for strategy in Strategy
        ),
        ttft_spread=ttft_spread(served),
        ttft_gap=ttft_gap(served),
        example=choose_example(served, prompts=prompts, old=answers[Worker.OLD], clean=answers[Worker.NEW]),
        impact=Impact(status=difference.kv.status, summary=difference.summary),
        gates=gates,
        requests=requests,
        moved=sum(turn.worker is Worker.NEW for turn in traffic),
        different=sum(answers[Worker.OLD][name] != text for name, text in answers[Worker.NEW].items()),
        questions=len(prompts),
        prompt_set=PROMPTS,
        seconds=round(time.monotonic() - started, 1),
        kept=None if keep is None else str(keep / STORE),
    )


def _namespaces(releases: Mapping[Worker, Fingerprint], *, runtime: Runtime, ledger: Ledger) -> dict[Worker, str]:
    made = {}
    for worker, found in releases.items():
        record, _ = resolve_namespace(found.release, runtime=runtime, ledger=ledger, command="demo")
        made[worker] = record.namespace
    return made


async def _clean_answers(engine: LocalEngine, prompts: Collection[Prompt], *, progress: Progress) -> dict[str, str]:
    """What a release answers over no KV but its own, by prompt id."""
    found = {}
    for prompt in prompts:
        found[prompt.id] = (await engine.complete(request_of(prompt, bypasses_cache=True))).text
        progress(ProgressEvent(stage="clean answers", done=len(found), total=len(prompts), unit="requests"))
    return found


async def _serve(
    traffic: Sequence[Turn], arms: Sequence[Arm], *, prompts: Mapping[str, Prompt], progress: Progress
) -> list[Served]:
    """All arms serve the same traffic in turn, so that the machine's moods meet them alike."""
    served: list[Served] = []
    for number, turn in enumerate(traffic):
        first = number % len(arms)
        in_turn = (*arms[first:], *arms[:first])
        served += [await arm.serve(turn, number=number, prompts=prompts) for arm in in_turn]
        progress(ProgressEvent(stage="serving traffic", done=number + 1, total=len(traffic), unit="requests"))
    return served


async def _key_costs(engine: LocalEngine, prompts: Collection[Prompt], *, namespace: str) -> dict[Strategy, float]:
    """Median microseconds to make the keys of one prompt's blocks."""
    tokens = [await engine.tokenize(request_of(prompt)) for prompt in prompts]
    spent: dict[Strategy, list[float]] = {strategy: [] for strategy in Strategy}
    for _ in range(KEY_ROUNDS):
        for token_ids in tokens:
            for strategy in Strategy:
                salt = key_space(strategy, namespace)
                began = time.perf_counter()
                TOKENS_ONLY.block_keys(token_ids, block_tokens=engine.block_tokens, salt=salt)
                spent[strategy].append(time.perf_counter() - began)
    return {strategy: statistics.median(seconds) * 1e6 for strategy, seconds in spent.items()}


async def _gate(arm: Arm, *, deployment: Deployment, twins: Twins, seed: int, progress: Progress) -> Gate:
    """The release gate on the new worker of an arm, as `kvrelease verify` runs it."""
    with Ledger(IN_MEMORY) as ledger:
        observed = await observe(
            [arm.workers[Worker.NEW]],
            deployment=deployment,
            ledger=ledger,
            limits=Limits(stale_below=STALE_BELOW),
            twins=twins,
            seed=seed,
            progress=progress,
        )
        if observed.interrupted:  # it hands over what it has instead of raising; a demo cut short has nothing to show
            raise asyncio.CancelledError
        report, _ = conclude(observed, deployment=deployment, ledger=ledger)
    return Gate(strategy=arm.strategy, verdict=report.verdict, reason=report.reason)
