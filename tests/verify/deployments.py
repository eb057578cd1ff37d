"""A deployment on scripted engines, and short ways to prewarm, record and verify it over real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

from kvrelease.artifacts import JsonObject, ReleaseRef
from kvrelease.binding.deployment import Deployment
from kvrelease.binding.runtime import declared_runtime
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.engines.detect import open_engine
from kvrelease.ledger.store import Ledger
from kvrelease.prewarm.journal import Journal
from kvrelease.prewarm.result import Limits as Wanted
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.prewarm.run import prewarm
from kvrelease.progress import Progress, silent
from kvrelease.verify.evidence import Evidence, Limits
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.record import Record, record
from kvrelease.verify.run import Observed, conclude, keeps_nothing, observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.scripted import ScriptedEngine
from tests.ledger.opening import given_or_new
from tests.loops import run

T = TypeVar("T")


class Served(Protocol):
    """A server of the tests: an engine, or something in front of one."""

    kind: EngineKind

    @property
    def url(self) -> str:
        """The base URL."""


DESKS = ("returns", "billing", "repairs")
# What six prompts support; the claim's own numbers are tested in test_claim.py.
TWO_FIFTHS = Limits(stale_below=0.4)


def system_prompt(desk: str, *, words: int = 40) -> str:
    return f"You answer for the {desk} desk. " + " ".join(f"{desk}-rule-{number}" for number in range(words))


def prompts(*, per_desk: int = 2, desks: Sequence[str] = DESKS, words: int = 40) -> PromptSet:
    """Several questions under each desk's system prompt; the first desk gets the most traffic."""
    made = [
        Prompt(
            id=f"{desk}-{number}",
            weight=float((len(desks) - place) * 4 + per_desk - number),
            kind=PromptKind.CHAT,
            body=chat_body(desk, question(number), words=words),
            prefix=desk,
        )
        for place, desk in enumerate(desks)
        for number in range(per_desk)
    ]
    return PromptSet(name="desks", prompts=tuple(made), source="desks.yaml")


def question(number: int) -> str:
    """Longer than a block, so that every prompt has a block of its own."""
    return f"Question {number}: " + " ".join(f"detail-{number}-{detail}" for detail in range(20))


def chat_body(desk: str, question: str, *, words: int = 40) -> JsonObject:
    return {
        "messages": [
            {"role": "system", "content": system_prompt(desk, words=words)},
            {"role": "user", "content": question},
        ]
    }


# For what depends on how many requests a run has: one error of them is within a budget of a tenth.
DOZEN = prompts(per_desk=4)


def namespace_of(release: str, *, epoch: int = 0) -> str:
    return f"kv1-{release}-undeclared-e{epoch}"


def deployment(
    release: str = "new",
    *,
    salt: str | None = None,
    prompt_set: PromptSet | None = None,
    epoch: int = 0,
    weights: str | None = None,
) -> Deployment:
    """What is asked of a replica that is said to serve `release`; salt `release` is the release's own namespace."""
    namespace = namespace_of(release, epoch=epoch)
    return Deployment(
        release=ReleaseRef(name=release, version=None, source=f"/models/{release}", kv_name=f"kv1-{release}"),
        namespace=namespace,
        runtime=declared_runtime({}),
        production=Production(),
        salt=namespace if salt == "release" else salt,
        prompt_set=prompt_set or prompts(),
        weights=weights,
    )


def with_clients(
    engines: Sequence[Served],
    do: Callable[[list[EngineClient]], Awaitable[T]],
    *,
    kind: EngineKind | None = None,
    model: str | None = None,
    timeout_s: float = 5.0,
    max_retries: int = 4,
) -> T:
    """What `do` gives with a client of each engine."""

    async def main() -> T:
        async with AsyncExitStack() as stack:
            clients = []
            for engine in engines:
                client = await open_engine(
                    engine.url,
                    kind=kind or engine.kind,
                    model=model,
                    timeout_s=timeout_s,
                    max_retries=max_retries,
                    backoff_s=0.001,
                )
                stack.push_async_callback(client.aclose)
                clients.append(client)
            return await do(clients)

    return run(main())


def warmed(
    *engines: ScriptedEngine,
    deployed: Deployment | None = None,
    ledger: Ledger | None = None,
    concurrency: int = 4,
    min_hit_rate: float = Wanted().min_hit_rate,
    allows_flush: bool = False,
    budget_s: float | None = None,
    budget_tokens: int | None = None,
    block_tokens: int | None = None,
    max_ttft_ms: float | None = None,
    max_error_rate: float = 0.0,
    accepts_ttft: bool = False,
    passes: int = 1,
    journal: Journal | None = None,
    progress: Progress = silent,
    timeout_s: float = 5.0,
    max_retries: int = 4,
) -> PrewarmReport:
    """The report of a prewarm of these replicas."""

    async def main(clients: list[EngineClient]) -> PrewarmReport:
        with given_or_new(ledger) as store:
            return await prewarm(
                clients,
                deployment=deployed or deployment(),
                ledger=store,
                concurrency=concurrency,
                limits=Wanted(
                    min_hit_rate=min_hit_rate,
                    max_ttft_ms=max_ttft_ms,
                    max_error_rate=max_error_rate,
                    accepts_ttft=accepts_ttft,
                ),
                allows_flush=allows_flush,
                budget_s=budget_s,
                budget_tokens=budget_tokens,
                block_tokens=block_tokens,
                passes=passes,
                journal=journal,
                progress=progress,
            )

    return with_clients(engines, main, timeout_s=timeout_s, max_retries=max_retries)


def recorded(engine: Served, *, deployed: Deployment | None = None, ledger: Ledger | None = None) -> Record:
    """A record of one engine."""

    async def main(clients: list[EngineClient]) -> Record:
        with given_or_new(ledger) as store:
            return await record(clients[0], deployment=deployed or deployment(), ledger=store)

    return with_clients([engine], main)


def observed(
    *engines: Served,
    deployed: Deployment | None = None,
    ledger: Ledger | None = None,
    limits: Limits = TWO_FIFTHS,
    twins: Twins | None = None,
    reference: ScriptedEngine | None = None,
    max_probes: int | None = None,
    allows_flush: bool = False,
    before_flush: Callable[[Evidence], None] = keeps_nothing,
    progress: Progress = silent,
    model: str | None = None,
    max_retries: int = 4,
) -> Observed:
    """What verify observes on these replicas."""

    async def main(clients: list[EngineClient]) -> Observed:
        second = twins or Twins()
        if reference is not None:
            second = Twins(reference=clients[-1], golden=second.golden, baseline=second.baseline)
        with given_or_new(ledger) as store:
            return await observe(
                clients[: len(engines)],
                deployment=deployed or deployment(),
                ledger=store,
                limits=limits,
                twins=second,
                max_probes=max_probes,
                allows_flush=allows_flush,
                before_flush=before_flush,
                progress=progress,
            )

    every = [*engines, *([reference] if reference else [])]
    return with_clients(every, main, model=model, max_retries=max_retries)


def verified(
    *engines: Served,
    deployed: Deployment | None = None,
    ledger: Ledger | None = None,
    limits: Limits = TWO_FIFTHS,
    twins: Twins | None = None,
    reference: ScriptedEngine | None = None,
    max_probes: int | None = None,
    allows_flush: bool = False,
    model: str | None = None,
    max_retries: int = 4,
) -> VerifyReport:
    """The report of the gate on these replicas, written to the ledger."""
    with given_or_new(ledger) as store:
        found = observed(
            *engines,
            deployed=deployed,
            ledger=store,
            limits=limits,
            twins=twins,
            reference=reference,
            max_probes=max_probes,
            allows_flush=allows_flush,
            model=model,
            max_retries=max_retries,
        )
        report, _ = conclude(found, deployment=deployed or deployment(), ledger=store)
    return report


def serve_users(engine: ScriptedEngine, *, salt: str | None = None, prompt_set: PromptSet | None = None) -> None:
    """Traffic that nobody remembers: every prompt once, by a ledger that is thrown away."""
    recorded(engine, deployed=deployment(engine.release, salt=salt, prompt_set=prompt_set))
