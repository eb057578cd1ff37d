"""The engine that answers from a pool has a cache: what a request reads depends on what was asked before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from benchmarks.gate.pool import Pool, PooledPrompt, Reads
from benchmarks.gate.prompts import deployment
from benchmarks.gate.recorded import RecordedReplica
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Observation
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from tests.benchmarks.pools import made_pool

POOL = made_pool()
SEEN = POOL.observations()
FIRST, BESIDE = POOL.prompts[0], POOL.prompts[3]  # of one shared prefix
COLD_SPACE, OTHER_SPACE = "kvrelease-one-0123456789abcdef", "kvrelease-two-0123456789abcdef"


def replica(*, stale: Collection[str] = (), seed: int = 0, pool: Pool = POOL) -> RecordedReplica:
    return RecordedReplica(
        pool.prompts,
        SEEN,
        identity=pool.identity,
        deployment=deployment("all-36", PromptSet(name="set", prompts=(), source="set")),
        stale=stale,
        source=random.Random(seed),
    )


async def ask(engine: RecordedReplica, prompt: PooledPrompt, *, salt: str | None) -> Leg:
    asked = Prompt(id=prompt.id, weight=prompt.weight, kind=PromptKind.CHAT, body={})
    return await engine.observe(engine.request(asked, salt=salt, max_tokens=1))


def answers(*entries: Reads) -> list[Observation]:
    return [SEEN[number] for reads in entries for number in reads]


def test_a_key_space_is_empty_until_something_is_asked_in_it() -> None:
    async def main() -> None:
        engine = replica()
        miss, hit = [await ask(engine, FIRST, salt=COLD_SPACE) for _ in range(2)]
        assert (miss.cached_tokens, hit.cached_tokens) == (0, FIRST.cached_tokens)
        beside = await ask(engine, BESIDE, salt=COLD_SPACE)
        assert beside.cached_tokens == BESIDE.shared_tokens, "what the two prompts share is there"
        elsewhere = await ask(engine, BESIDE, salt=OTHER_SPACE)
        assert elsewhere.cached_tokens == 0
        assert all(leg.foreign_tokens == 0 for leg in (miss, hit, beside, elsewhere))
        assert miss.observation in answers(FIRST.cold)
        assert hit.observation in answers(*FIRST.alone)
        assert engine.spent.requests == 4

    asyncio.run(main())


def test_what_is_written_while_others_are_in_flight_is_an_entry_written_in_company() -> None:
    async def main() -> None:
        engine = replica()
        async with asyncio.TaskGroup() as group:
            for prompt, salt in ((FIRST, COLD_SPACE), (BESIDE, OTHER_SPACE)):
                group.create_task(ask(engine, prompt, salt=salt))
        assert (await ask(engine, FIRST, salt=COLD_SPACE)).observation in answers(*FIRST.again)
        assert (await ask(engine, BESIDE, salt=OTHER_SPACE)).observation in answers(*BESIDE.again)
        later = "kvrelease-three-0123456789abcdef"
        await ask(engine, FIRST, salt=later)
        assert (await ask(engine, FIRST, salt=later)).observation in answers(*FIRST.alone)

    asyncio.run(main())


def test_users_key_space_was_written_before_the_run_by_nobody_who_is_known() -> None:
    async def main() -> None:
        engine = replica(stale={BESIDE.id})
        clean, stale = await ask(engine, FIRST, salt=None), await ask(engine, BESIDE, salt=None)
        assert clean.observation in answers(*FIRST.company)
        assert stale.observation in answers(*BESIDE.stale)
        for leg in (clean, stale):
            assert leg.cached_tokens == leg.foreign_tokens == leg.cacheable_tokens

    asyncio.run(main())


def test_a_run_reads_one_of_users_entries_and_the_same_under_one_prefix() -> None:
    async def main() -> set[int]:
        places = set()
        for seed in range(12):
            engine = replica(seed=seed)
            read = set()
            for prompt in (FIRST, BESIDE, FIRST, BESIDE):
                seen = (await ask(engine, prompt, salt=None)).observation
                read |= {place for place, reads in enumerate(prompt.company) if seen in answers(reads)}
            assert len(read) == 1
            places |= read
        return places

    assert asyncio.run(main()) == {0, 1}
