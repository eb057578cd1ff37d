"""The whole demo: traffic over two strategies, then what the other commands say about the same pair."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from kvrelease.artifacts import Fault, fault_of
from kvrelease.binding.deployment import Deployment
from kvrelease.binding.namespace import resolve_namespace
from kvrelease.binding.runtime import Runtime, declared_runtime
from kvrelease.config import DEFAULT_DEMO_REQUESTS, MIN_DEMO_REQUESTS, Production
from kvrelease.demo.arm import Arm, key_space, open_arm, request_of
from kvrelease.demo.figures import (
    DemoReport,
    Gate,
    Impact,
    Kept,
    Served,
    Strategy,
    choose_example,
    strategy_figures,
    ttft_gap,
    ttft_spread,
    warm_everywhere,
    wrong_answers,
)
from kvrelease.demo.keeping import keep, require_room
from kvrelease.demo.pair import PROMPTS, DemoPair
from kvrelease.demo.traffic import Turn, Worker, draw_traffic
from kvrelease.engines.block_cache import TOKENS_ONLY
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.errors import InputError, UsageError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.progress import Progress, ProgressEvent, silent
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.verify.consistency import ProbeVerdict
from kvrelease.verify.evidence import Limits
from kvrelease.verify.run import conclude, observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt

# Identical arms of each strategy: their difference is the noise of the timing.
COPIES = 2

# A dozen probes support this claim (docs/statistics.md); the gate's own default of 5 % takes 59.
STALE_BELOW = 0.25

# Key making is timed so often for each prompt, strategies in turn.
KEY_ROUNDS = 20


async def demo(
    pair: DemoPair,
    *,
    requests: int = DEFAULT_DEMO_REQUESTS,
    seed: int = 0,
    keep_in: Path | None = None,
    progress: Progress = silent,
) -> DemoReport:
    """The incident and its remedy, measured.

    Args:
        pair: two releases and their prompts.
        requests: of the traffic, the same for every arm; at least `MIN_DEMO_REQUESTS`.
        seed: of the traffic.
        keep_in: a new directory for a copy of the pair and of what the traffic left in the stores; None keeps nothing.
        progress: told after each request.

    Raises:
        MissingExtra: torch or transformers is not installed.
        UsageError: `keep_in` is not empty, or cannot be written.
        InputError: the pair cannot be loaded, or there is no room for `keep_in`.
    """
    started = time.monotonic()
    if requests < MIN_DEMO_REQUESTS:
        raise UsageError(f"a demo of {requests} requests shows nothing; it takes at least {MIN_DEMO_REQUESTS}")
    if keep_in is not None:
        require_room(keep_in)
    prompts = {prompt.id: prompt for prompt in pair.prompts.prompts}
    traffic = draw_traffic(pair.prompts.prompts, requests=requests, seed=seed)
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(await open_local(pair.old))
        new = await stack.enter_async_context(await open_local(pair.new))
        ledger = stack.enter_context(Ledger(IN_MEMORY))
        releases = {
            Worker.OLD: await asyncio.to_thread(load_release, pair.old),
            Worker.NEW: await asyncio.to_thread(load_release, pair.new),
        }
        # Undeclared, as for somebody who types the commands below the table without a kvrelease.yaml.
        runtime = declared_runtime({})
        namespaces = _namespaces(releases, runtime=runtime, ledger=ledger)
        arms = [
            await stack.enter_async_context(open_arm(strategy, copy=copy, pair=pair, namespaces=namespaces))
            for copy in range(COPIES)
            for strategy in Strategy
        ]
        firsts = [arm for arm in arms if arm.copy == 0]
        answers = {
            worker: await _clean_answers(engine, prompts.values(), progress=progress)
            for worker, engine in ((Worker.OLD, old), (Worker.NEW, new))
        }
        served = await _serve(traffic, arms, prompts=prompts, progress=progress)
        kept, faults = await asyncio.to_thread(_keep, pair, firsts, keep_in)
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
                for arm in firsts
            ]
        )
    wrong = wrong_answers(served, clean=answers[Worker.NEW])
    difference = diff_fingerprints(releases[Worker.OLD], releases[Worker.NEW])
    return DemoReport(
        old=releases[Worker.OLD].release,
        new=releases[Worker.NEW].release,
        strategies=tuple(
            strategy_figures(strategy, served, clean=answers, key_us=key_us[strategy]) for strategy in Strategy
        ),
        ttft_spread=ttft_spread(served, seed=seed),
        ttft_gap=ttft_gap(served),
        ttft_requests=len({one.number for one in warm_everywhere(served)}),
        stale=len(wrong),
        stale_of_neither=sum(one.text != answers[Worker.OLD][one.prompt_id] for one in wrong),
        example=choose_example(wrong, prompts=prompts, old=answers[Worker.OLD], clean=answers[Worker.NEW]),
        impact=Impact(status=difference.kv.status, summary=difference.summary),
        gates=gates,
        requests=requests,
        moved=sum(turn.worker is Worker.NEW for turn in traffic),
        different=sum(answers[Worker.OLD][name] != text for name, text in answers[Worker.NEW].items()),
        questions=len(prompts),
        prompt_set=PROMPTS,
        seconds=round(time.monotonic() - started, 1),
        kept=kept,
        faults=faults,
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
    judged = [probe.verdict for probe in report.probes]
    return Gate(
        strategy=arm.strategy,
        verdict=report.verdict,
        reason=report.reason,
        probes=len(judged),
        stale=judged.count(ProbeVerdict.STALE),
        suspect=judged.count(ProbeVerdict.SUSPECT),
        stale_below=STALE_BELOW,
    )


def _keep(pair: DemoPair, arms: Sequence[Arm], directory: Path | None) -> tuple[Kept | None, tuple[Fault, ...]]:
    """What was left behind; a disk that filled up meanwhile costs that, and not the figures."""
    if directory is None:
        return None, ()
    try:
        return keep(pair, [arm.store for arm in arms], directory), ()
    except InputError as error:
        return None, (fault_of(error, where=str(directory)),)
