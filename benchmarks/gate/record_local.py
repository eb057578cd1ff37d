"""Pools of the in-process engine with kernel noise, and one real run of the gate on it.

Entries of users' requests are written in company: with noise that stays with them. The reference's are written alone,
without. What reads them is off by noise that is drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from benchmarks.gate.levels import ENTRIES, LOCAL_LEVELS, LOCAL_READS
from benchmarks.gate.pool import PooledPrompt, PoolWriter, pool_name, save
from benchmarks.gate.real_run import observed_evidence
from kvrelease.binding.production import production_request
from kvrelease.engines.base import EngineKind, Observation, Request
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.verify.evidence import Evidence
from kvrelease.verify.record import TOP_LOGPROBS
from kvrelease.workload.grouping import prefix_labels
from kvrelease.workload.prompt_set import Prompt, PromptSet

SEED = 20261130
# The old release's entries are read by every new one: with its own, 66 prompts' take 2.2 GiB in float32.
CACHE_BYTES = 4 * 1024**3


class LocalRecording:
    """Both releases in process, on one cache; opened by `open_recording`."""

    def __init__(self, old: LocalEngine, cache: BlockCache, prompts: PromptSet, *, threads: int) -> None:
        self._old = old
        self._cache = cache
        self._prompts = prompts
        self._labels = prefix_labels(prompts)
        self._threads = threads

    async def record(
        self,
        name: str,
        directory: Path,
        folder: Path,
        *,
        levels: Sequence[str],
        say: Callable[[str], None],
        pause: Callable[[], None],
    ) -> None:
        """Writes the pools of one release at these levels that are not there yet."""
        missing = [level for level in levels if not (folder / pool_name("local", level, name)).exists()]
        if not missing:
            return
        async with await open_local(directory, cache=self._cache, threads=self._threads) as new:
            exact = await self._in_process(name, new, say=say, pause=pause)
            for level in missing:
                say(f"local, {name}, {level}: recording")
                await self._record(name, level, new, exact, folder, pause=pause)

    async def _in_process(
        self, name: str, new: LocalEngine, *, say: Callable[[str], None], pause: Callable[[], None]
    ) -> dict[str, tuple[Observation, Observation, Observation]]:
        """(clean, stale, old) of each prompt, without noise; leaves the entries written alone in the cache."""
        found = {}
        for number, prompt in enumerate(self._prompts.prompts):
            pause()
            old = await self._old.complete(request_of(prompt, salt="old alone"))
            stale = (await new.reread(request_of(prompt, salt="old alone"), times=1))[0]
            clean = await new.complete(request_of(prompt, salt=f"{name} alone"))
            found[prompt.id] = (clean, stale, old)
            if number % 10 == 9:
                say(f"local, {name}: {number + 1} of {len(self._prompts)} prompts without noise")
        return found

    async def _record(
        self,
        name: str,
        level: str,
        new: LocalEngine,
        exact: Mapping[str, tuple[Observation, Observation, Observation]],
        folder: Path,
        *,
        pause: Callable[[], None],
    ) -> None:
        noise, writer, prompts = LOCAL_LEVELS[level], PoolWriter(), []
        is_written = noise.written > 0
        clean_salts = [f"{name} {level} {entry}" for entry in range(ENTRIES)] if is_written else [f"{name} alone"]
        stale_salts = [f"old {level} {entry}" for entry in range(ENTRIES)] if is_written else ["old alone"]
        async with AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(
                    engine.beside(
                        msgspec.structs.replace(noise, seed=SEED + 10 * number + list(LOCAL_LEVELS).index(level))
                    )
                )
                for number, engine in enumerate((new, self._old))
            ]
            for prompt in self._prompts.prompts:
                pause()
                if is_written:
                    for worker, salts in zip(workers, (clean_salts, stale_salts), strict=True):
                        for salt in salts:
                            await worker.complete(request_of(prompt, salt=salt))
                prompts.append(
                    await self._pooled(
                        prompt,
                        workers[0],
                        writer,
                        alone=[f"{name} alone"],
                        company=clean_salts,
                        stale=stale_salts,
                        exact=exact[prompt.id],
                    )
                )
        about = {
            "noise": str(msgspec.structs.replace(noise, seed=SEED + list(LOCAL_LEVELS).index(level))),
            "entries": str(ENTRIES),
            "reads": str(LOCAL_READS),
            "engine": await _version(new),
        }
        save(writer.pool(engine="local", level=level, release=name, about=about, prompts=tuple(prompts)), folder)

    async def _pooled(
        self,
        prompt: Prompt,
        reader: LocalEngine,
        writer: PoolWriter,
        *,
        alone: list[str],
        company: list[str],
        stale: list[str],
        exact: tuple[Observation, Observation, Observation],
    ) -> PooledPrompt:
        seen: list[Observation] = []

        async def reads(salts: list[str]) -> tuple[tuple[int, ...], ...]:
            found = []
            for salt in salts:
                answers = await reader.reread(request_of(prompt, salt=salt), times=LOCAL_READS)
                seen.extend(answers)
                found.append(tuple(writer.add(one) for one in answers))
            return tuple(found)

        clean, stale_exact, old = (writer.add(one) for one in exact)
        entries = {"alone": await reads(alone), "company": await reads(company), "stale": await reads(stale)}
        hits = {one.cached_tokens for one in seen}
        assert len(hits) == 1, f"{prompt.id}: entries were evicted between writing and reading, {hits}"
        return PooledPrompt(
            id=prompt.id,
            prefix=self._labels[prompt.id],
            weight=prompt.weight,
            prompt_tokens=seen[0].prompt_tokens or 0,
            cached_tokens=seen[0].cached_tokens or 0,
            clean_in_process=clean,
            stale_in_process=stale_exact,
            old_in_process=old,
            **entries,
        )


async def open_recording(old: Path, prompts: PromptSet, *, threads: int) -> LocalRecording:
    """A recording whose old release is loaded."""
    cache = BlockCache(max_bytes=CACHE_BYTES)
    return LocalRecording(await open_local(old, cache=cache, threads=threads), cache, prompts, threads=threads)


async def real_run(directory: Path, *, threads: int) -> Evidence:
    """The evidence of one real run of the gate on the in-process engine: what drawn runs are built on."""
    async with await open_local(directory, threads=threads, noise=LOCAL_LEVELS["reading"]) as engine:
        return await observed_evidence(engine, directory)


def request_of(prompt: Prompt, *, salt: str | None) -> Request:
    """The prompt's first token, as production sends it."""
    from kvrelease.config import Production  # noqa: PLC0415

    return production_request(
        prompt,
        production=Production(),
        model="local",
        kind=EngineKind.LOCAL,
        salt=salt,
        max_tokens=1,
        top_logprobs=TOP_LOGPROBS,
    )


async def _version(engine: LocalEngine) -> str:
    return (await engine.identify()).version or ""
