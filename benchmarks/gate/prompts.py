"""The probes of the benchmark: the shipped support desks' questions, and the deployment that they are of."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gate.places import REPOSITORY
from kvrelease.artifacts import ReleaseRef
from kvrelease.binding.deployment import Deployment
from kvrelease.binding.runtime import declared_runtime
from kvrelease.config import Production
from kvrelease.workload.grouping import prefix_labels
from kvrelease.workload.loading import load_prompt_set
from kvrelease.workload.prompt_set import Prompt, PromptSet

SET = "prompts/support.yaml"


def prompt_set(*, limit: int | None = None) -> PromptSet:
    """The set, or the same number of each desk's first questions."""
    found = load_prompt_set(SET, directory=REPOSITORY)
    if limit is None:
        return found
    labels = prefix_labels(found)
    most = -(-limit // len(set(labels.values())))
    kept: dict[str, list[Prompt]] = {}
    for prompt in found.prompts:
        desk = kept.setdefault(labels[prompt.id], [])
        if len(desk) < most:
            desk.append(prompt)
    chosen = tuple(prompt for desk in kept.values() for prompt in desk)
    return PromptSet(name=found.name, prompts=chosen, source=found.source)


def deployment(release: str, prompts: PromptSet) -> Deployment:
    """The release on trial, in the unsalted key space."""
    return Deployment(
        release=ReleaseRef(name=release, version=None, source=release, kv_name=f"kv1-{release}"),
        namespace=f"kv1-{release}-undeclared-e0",
        runtime=declared_runtime({}),
        production=Production(),
        salt=None,
        prompt_set=prompts,
    )


def shared_tokens(labels: Mapping[str, str], cached: Mapping[str, int | None]) -> dict[str, int]:
    """What each prompt shares with the others of its prefix, in cached tokens, by its id.

    Args:
        labels: the shared prefix of each prompt.
        cached: tokens that were cached of each when it was written after all those before it, in one key space.
    """
    least: dict[str, int] = {}
    for prompt, tokens in cached.items():
        if tokens:
            least[labels[prompt]] = min(tokens, least.get(labels[prompt], tokens))
    return {prompt: least.get(labels[prompt], 0) for prompt in cached}
