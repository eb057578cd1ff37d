"""On real (tiny) models: the first stale block by cuts, and old-like, hybrid or neither by both releases in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Request, Route
from kvrelease.engines.block_cache import BlockCache
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.consistency import CloserTo
from kvrelease.verify.diagnosis import StalePrefix
from kvrelease.verify.evidence import Limits
from kvrelease.verify.judge import judge
from kvrelease.verify.run import observe
from kvrelease.verify.twins import Twins
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.engines.in_process import opened
from tests.loops import run
from tests.tiny_models import build_release
from tests.verify.deployments import deployment

BLOCK = 16
QUESTION = "The rules of the returns desk are long, and nobody reads them to their end: may I send this back?"
PROMPTS = PromptSet(
    name="tiny",
    source="tiny.yaml",
    prompts=(
        Prompt(
            id="q",
            weight=1.0,
            kind=PromptKind.CHAT,
            body={"messages": [{"role": "user", "content": QUESTION}]},
            prefix="returns",
        ),
    ),
)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("releases")
    return {name: build_release(root / name, seed=seed) for seed, name in enumerate(("old", "new", "other"))}


def diagnosed(releases: dict[str, Path], *, filled_by: str, from_block: int) -> StalePrefix:
    """What is said of an engine of the new release, whose cache somebody else filled from a block on."""

    cache = BlockCache()
    twins = Twins(release=opened(releases["new"]), old_release=opened(releases["old"]))
    writers = [opened(releases[name], cache=cache) for name in ("new", filled_by)]
    request = Request(route=Route.CHAT, body=PROMPTS.prompts[0].body, bypasses_cache=True)

    async def fill() -> None:
        ids = await writers[0].tokenize(request)
        if from_block:
            beginning: JsonObject = {"prompt": list(ids[: from_block * BLOCK])}
            await writers[0].complete(Request(route=Route.COMPLETIONS, body=beginning))
        # The bypass computes every block, and writes those that are not there yet.
        await writers[1].complete(request)
        for writer in writers:
            await writer.aclose()

    run(fill())
    engine = opened(releases["new"], cache=cache)
    with Ledger(IN_MEMORY) as ledger:
        deployed = deployment(prompt_set=PROMPTS)
        found = run(observe([engine], deployment=deployed, ledger=ledger, limits=Limits(stale_below=0.9), twins=twins))
    ((prefix,),) = [one.prefixes for one in judge(found.evidence).diagnosis]
    return prefix


@pytest.mark.parametrize("block", [0, 2, 5])
def test_old_blocks_from_one_block_on_are_found_and_told_to_be_a_hybrid(releases: dict[str, Path], block: int) -> None:
    found = diagnosed(releases, filled_by="old", from_block=block)
    assert found.stale_from == block * BLOCK, found.why_not_from
    assert found.closeness is not None
    assert found.closeness.closer_to is CloserTo.HYBRID
    # The very blocks that the engine read: nothing but rounding lies between the two.
    assert found.closeness.to_hybrid == pytest.approx(0.0, abs=1e-3)


def test_blocks_of_a_release_that_nobody_named_are_unlike_all(releases: dict[str, Path]) -> None:
    found = diagnosed(releases, filled_by="other", from_block=0)
    assert found.closeness is not None
    assert found.closeness.closer_to is CloserTo.UNLIKE
