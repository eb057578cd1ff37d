"""Asks an engine whose gate is held a few prompts of the set, so that its answers say whose weights it has."""

from __future__ import annotations

from collections.abc import Collection

from kvrelease.binding.deployment import Deployment
from kvrelease.binding.production import production_request
from kvrelease.binding.reloading.drive import Told
from kvrelease.binding.reloading.plan import Outcome
from kvrelease.binding.salts import combined_salt, probe_salt
from kvrelease.engines.base import EngineClient, EngineIdentity, Observation
from kvrelease.errors import PromptSetError
from kvrelease.verify.record import MAX_TOKENS, TOP_LOGPROBS, Record
from kvrelease.verify.swapped import told_to_be_new, told_to_be_the_same
from kvrelease.workload.prompt_set import Prompt

# Clients wait meanwhile: enough that one odd prompt does not decide, and 0.2 s each on a GPU.
PROBES = 3


class SwapProbes:
    """The questions to one engine, and its answers before the swap."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        identity: EngineIdentity,
        golden: Record | None,
        is_other_release: bool,
    ) -> None:
        """Chooses the questions.

        Args:
            deployment: of the new release.
            identity: of the engine.
            golden: record of the new release from a clean process; None without one.
            is_other_release: the engine serves another namespace than the new one, and its gate is open.
        """
        self._deployment, self._identity = deployment, identity
        self._golden = {} if golden is None else {one.id: one.leg.observation for one in golden.observations}
        self._is_alike = golden is not None and golden.is_like(identity)
        self._is_other_release = is_other_release
        self._prompts = chosen(deployment, recorded=self._golden.keys() if golden is not None else None)
        self._before: dict[str, Observation] = {}

    async def ask_old(self, engine: EngineClient) -> Told:
        """Keeps the answers of the weights that are there."""
        self._before = await self._answers(engine)
        return Told(outcome=Outcome.DONE, detail=f"{len(self._before)} answers kept")

    async def ask_again(self, engine: EngineClient) -> Told:
        """Whether the same weights are still there."""
        return told_to_be_the_same(self._before, await self._answers(engine))

    async def ask_new(self, engine: EngineClient) -> Told:
        """Whether the new release's are."""
        now = await self._answers(engine)
        golden = {prompt: answer for prompt, answer in self._golden.items() if prompt in now}
        return told_to_be_new(
            now,
            golden=golden,
            before=self._before,
            is_alike=self._is_alike,
            is_other_release=self._is_other_release,
        )

    async def _answers(self, engine: EngineClient) -> dict[str, Observation]:
        """One at a time, in a key space of this question's own: what others cached, or we, is not met."""
        salt = probe_salt("reload")
        found: dict[str, Observation] = {}
        for prompt in self._prompts:
            request = production_request(
                prompt,
                production=self._deployment.production,
                model=self._identity.model,
                kind=self._identity.kind,
                salt=combined_salt(salt, prompt.salt),
                max_tokens=MAX_TOKENS,
                top_logprobs=TOP_LOGPROBS,
            )
            found[prompt.id] = await engine.complete(request)
        return found


def chosen(deployment: Deployment, *, recorded: Collection[str] | None) -> tuple[Prompt, ...]:
    """[<= PROBES] the heaviest prompts of the set.

    Args:
        deployment: has the set.
        recorded: ids in the golden record, which alone are of use where there is one; None without one.

    Raises:
        PromptSetError: none of the set is in the record.
    """
    usable = [one for one in deployment.prompt_set.prompts if recorded is None or one.id in recorded]
    if not usable:
        raise PromptSetError(
            f"--golden has no prompt of {deployment.prompt_set.source}", hint="record it again with these prompts"
        )
    return tuple(sorted(usable, key=lambda prompt: -prompt.weight)[:PROBES])
