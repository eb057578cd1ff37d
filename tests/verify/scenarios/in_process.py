"""Deployments on the in-process engine: tiny releases loaded once, and replicas over caches and stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvrelease.binding.deployment import Deployment
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Request
from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.kernel_noise import KernelNoise
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.ledger.store import Ledger
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.run import conclude, observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.ledger.opening import given_or_new
from tests.loops import run
from tests.tiny_models import VOCABULARY, build_release
from tests.verify.deployments import deployment

# Four clean probes prove less than 53 %.
LIMITS = Limits(stale_below=0.53)
BLOCK = 16


def rules(desk: str, *, questions: int = 2) -> tuple[Prompt, ...]:
    """Questions to one desk; a token is a byte here, so three blocks of 16 are of the desk and one of the question."""
    return tuple(
        Prompt(
            id=f"{desk}-{number}",
            weight=1.0,
            kind=PromptKind.CHAT,
            body={"messages": [{"role": "user", "content": f"{desk:20} desk, and its rules: question {number}?"}]},
            prefix=desk,
        )
        for number in range(questions)
    )


RETURNS, BILLING = rules("returns"), rules("billing")
PROMPTS = PromptSet(name="desks", source="desks.yaml", prompts=(*RETURNS, *BILLING))


def asked(release: str = "new", *, salt: str | None = None) -> Deployment:
    """What is asked of a replica that is said to serve `release`; salt `release` is its own namespace."""
    return deployment(release, salt=salt, prompt_set=PROMPTS)


class Releases:
    """Tiny releases, each loaded once; a replica is a new engine process on the loaded weights.

    Every answer ends at its first token, which carries all that the gate compares: a run takes a tenth of a second.
    """

    def __init__(self, root: Path, **options: object) -> None:
        self.root = root
        self._loaded: dict[str, LocalEngine] = {}
        for seed, name in enumerate(("old", "new"), start=1):
            directory = build_release(root / name, seed=seed, eos_ids=tuple(range(VOCABULARY)))
            self._loaded[name] = run(open_local(directory, threads=1, **options))  # type: ignore[arg-type]

    def replica(
        self,
        name: str,
        *,
        cache: BlockCache | None = None,
        key_scheme: KeyScheme = TOKENS_ONLY,
        directory: Path | None = None,
        noise: KernelNoise | None = None,
    ) -> LocalEngine:
        """An engine that has just been started."""
        return self._loaded[name].replica(cache=cache, key_scheme=key_scheme, directory=directory, noise=noise)


def request(prompt: Prompt, *, salt: str | None = None) -> Request:
    """One user's request."""
    return production_request(
        prompt, production=Production(), model="tiny", kind=EngineKind.LOCAL, salt=salt, max_tokens=1
    )


def serve(engine: LocalEngine, prompts: Sequence[Prompt] = PROMPTS.prompts, *, salt: str | None = None) -> None:
    """Traffic that nobody remembers."""

    async def main() -> None:
        for prompt in prompts:
            await engine.complete(request(prompt, salt=salt))

    run(main())


def gate(
    *engines: LocalEngine,
    deployed: Deployment | None = None,
    ledger: Ledger | None = None,
    limits: Limits = LIMITS,
    twins: Twins | None = None,
) -> VerifyReport:
    """The gate's report on these replicas, written to the ledger."""
    what = deployed or asked()
    with given_or_new(ledger) as store:
        found = run(observe(engines, deployment=what, ledger=store, limits=limits, twins=twins or Twins()))
        report, faults = conclude(found, deployment=what, ledger=store)
    assert faults == ()
    return report
