"""Pools of the in-process engine with kernel noise.

Entries of users' requests are written in company: with noise that stays with them. The reference's are written alone,
without. What reads them is off by noise that is drawn anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from benchmarks.gate.levels import ENTRIES, LOCAL_LEVELS, LOCAL_READS, WRITTEN_AGAIN, LocalLevel
from benchmarks.gate.pace import Pace
from benchmarks.gate.pool import KINDS, PooledPrompt, PoolWriter, Reads, is_recorded, pool_name, save
from benchmarks.gate.prompts import shared_tokens
from benchmarks.gate.releases import weights_digest
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Observation, Request
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.verify.record import TOP_LOGPROBS
from kvrelease.workload.grouping import prefix_labels
from kvrelease.workload.prompt_set import Prompt, PromptSet

# All prompts of the set under one salt take 0.21 GiB in float32. Between two readings of the old release's entries of
# one level sixteen salts are written or read: 3.4 GiB.
CACHE_BYTES = 4 * 1024**3


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt is answered without noise.

    Attributes:
        clean: by the new release, which writes its entry.
        stale: by the new release over the old one's entry.
        old: by the old release.
    """

    clean: Observation
    stale: Observation
    old: Observation


class LocalRecording:
    """Both releases in process, on one cache; opened by `open_recording`."""

    def __init__(
        self, old: LocalEngine, cache: BlockCache, prompts: PromptSet, *, threads: int, recipe: Mapping[str, str]
    ) -> None:
        self._old = old
        self._cache = cache
        self._prompts = prompts
        self._labels = prefix_labels(prompts)
        self._threads = threads
        self._recipe = recipe
        self._old_answers: dict[str, Observation] = {}
        self._old_wrote: set[str] = set()

    def missing(self, name: str, directory: Path, folder: Path, *, levels: Collection[str]) -> list[str]:
        """The levels of which no pool of this release is there yet that was recorded in this way."""
        return [
            level
            for level in levels
            if not is_recorded(folder / pool_name("local", level, name), self._about(level, directory))
        ]

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
        """Writes the pools of one release at these levels; each is there when it is whole."""
        async with await open_local(directory, cache=self._cache, threads=self._threads) as new:
            exact = await self._without_noise(name, new, say=say, pause=pause)
            about = {"engine": (await new.identify()).version or "", "threads": str(self._threads)}
            for level in levels:
                pace = Pace(f"local, {name}, {level}", len(self._prompts), say=say, unit="prompts")
                writer = PoolWriter()
                prompts = await self._pooled_all(name, level, new, exact, writer, pace=pace, pause=pause)
                about |= self._about(level, directory)
                # As a worker tells that has a cache of this size for itself; this recording's has two writers.
                own = BlockCache(max_bytes=CACHE_BYTES)
                async with new.replica(cache=own, noise=LOCAL_LEVELS[level].noise) as worker:
                    identity = await worker.identify()
                pool = writer.pool(
                    engine="local", level=level, release=name, about=about, identity=identity, prompts=prompts
                )
                save(pool, folder)

    def _about(self, level: str, directory: Path) -> dict[str, str]:
        """How a pool is recorded: with the same, it is the same."""
        noise = LOCAL_LEVELS[level]
        return {
            **self._recipe,
            "weights": weights_digest(directory),
            "noise": str(noise.noise),
            **({"noise of the old release's entries": f"seed {noise.old_seed}"} if noise.is_written else {}),
            "recorded": f"{_entries_text(noise)}, {LOCAL_READS} reads of each",
        }

    async def _without_noise(
        self, name: str, new: LocalEngine, *, say: Callable[[str], None], pause: Callable[[], None]
    ) -> dict[str, Exact]:
        """Of each prompt; leaves the entries written alone in the cache."""
        found = {}
        pace = Pace(f"local, {name}, without noise", len(self._prompts), say=say, unit="prompts")
        for prompt in self._prompts.prompts:
            pause()
            old = request_of(prompt, salt="old alone")
            if prompt.id not in self._old_answers:
                self._old_answers[prompt.id] = await self._old.complete(old)
            (stale,) = await new.reread(old, times=1)
            clean = await new.complete(request_of(prompt, salt=f"{name} alone"))
            found[prompt.id] = Exact(clean=clean, stale=stale, old=self._old_answers[prompt.id])
            pace.step()
        return found

    async def _pooled_all(
        self,
        name: str,
        level: str,
        new: LocalEngine,
        exact: Mapping[str, Exact],
        writer: PoolWriter,
        *,
        pace: Pace,
        pause: Callable[[], None],
    ) -> tuple[PooledPrompt, ...]:
        noise, salts = LOCAL_LEVELS[level], _salts(name, level)
        shared = shared_tokens(self._labels, {prompt: one.clean.cached_tokens for prompt, one in exact.items()})
        found = []
        async with AsyncExitStack() as stack:
            reader = await stack.enter_async_context(new.beside(noise.noise))
            old = await stack.enter_async_context(
                self._old.beside(msgspec.structs.replace(noise.noise, seed=noise.old_seed))
            )
            for prompt in self._prompts.prompts:
                pause()
                if noise.is_written:
                    await _write(reader, prompt, (*salts["company"], *salts["again"]))
                    if level not in self._old_wrote:
                        await _write(old, prompt, salts["stale"])
                seen = exact[prompt.id]
                reads = await _read(reader, prompt, salts, is_written=noise.is_written, writer=writer)
                found.append(
                    PooledPrompt(
                        id=prompt.id,
                        prefix=self._labels[prompt.id],
                        weight=prompt.weight,
                        prompt_tokens=seen.clean.prompt_tokens or 0,
                        cached_tokens=reads.cached_tokens,
                        shared_tokens=shared[prompt.id],
                        cold=reads.cold,
                        clean_in_process=writer.add(seen.clean),
                        stale_in_process=writer.add(seen.stale),
                        old_in_process=writer.add(seen.old),
                        **reads.entries,
                    )
                )
                pace.step()
        self._old_wrote.add(level)
        return tuple(found)


def _entries_text(noise: LocalLevel) -> str:
    if not noise.is_written:
        return "one entry of each release"
    return f"{ENTRIES} entries of users, by either release, and {WRITTEN_AGAIN} written again"


def _salts(name: str, level: str) -> dict[str, tuple[str, ...]]:
    """By kind of entry, [entries] the key spaces of one level; where nothing differs as it is written, one of each."""
    alone, stale = (f"{name} alone",), ("old alone",)
    if not LOCAL_LEVELS[level].is_written:
        return {"alone": alone, "company": alone, "again": alone, "stale": stale}
    return {
        "alone": alone,
        "company": tuple(f"{name} {level} {entry}" for entry in range(ENTRIES)),
        "again": tuple(f"{name} {level} again {entry}" for entry in range(WRITTEN_AGAIN)),
        "stale": tuple(f"old {level} {entry}" for entry in range(ENTRIES)),
    }


async def _write(engine: LocalEngine, prompt: Prompt, salts: Sequence[str]) -> None:
    for salt in salts:
        await engine.complete(request_of(prompt, salt=salt))


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt's entries answered.

    Attributes:
        cached_tokens: of each hit.
        cold: [reads] misses of the reference's.
        entries: by kind, [entries][reads].
    """

    cached_tokens: int
    cold: Reads
    entries: dict[str, tuple[Reads, ...]]


async def _read(
    reader: LocalEngine,
    prompt: Prompt,
    salts: Mapping[str, tuple[str, ...]],
    *,
    is_written: bool,
    writer: PoolWriter,
) -> _Reading:
    """Reads every entry of a prompt. One that stands for several is read in one pass, and often enough for all."""
    times = dict.fromkeys(KINDS, LOCAL_READS)
    if not is_written:
        times["again"] *= WRITTEN_AGAIN
    wanted = Counter({salt: 0 for found in salts.values() for salt in found})
    for kind, found in salts.items():
        wanted.update(dict.fromkeys(found, times[kind]))
    # A miss of the reference's is computed without noise that stays, as its entry was: it differs as a read does.
    (reference,) = salts["alone"]
    wanted[reference] += LOCAL_READS
    seen = {salt: list(await reader.reread(request_of(prompt, salt=salt), times=n)) for salt, n in wanted.items()}
    hits = {one.cached_tokens or 0 for answers in seen.values() for one in answers}
    if len(hits) != 1:
        raise SystemExit(f"{prompt.id}: entries were evicted between writing and reading ({hits} tokens): more cache")

    def taken(salt: str, count: int) -> Reads:
        answers, seen[salt] = seen[salt][:count], seen[salt][count:]
        return writer.add_all(answers)

    cold = taken(reference, LOCAL_READS)
    entries = {kind: tuple(taken(salt, times[kind]) for salt in found) for kind, found in salts.items()}
    return _Reading(cached_tokens=hits.pop(), cold=cold, entries=entries)


async def open_recording(old: Path, prompts: PromptSet, *, threads: int) -> LocalRecording:
    """A recording whose old release is loaded."""
    cache = BlockCache(max_bytes=CACHE_BYTES)
    recipe = {"prompts": prompts.digest, "old weights": weights_digest(old)}
    return LocalRecording(
        await open_local(old, cache=cache, threads=threads), cache, prompts, threads=threads, recipe=recipe
    )


def request_of(prompt: Prompt, *, salt: str) -> Request:
    """The prompt's first token, as production sends it."""
    return production_request(
        prompt,
        production=Production(),
        model="local",
        kind=EngineKind.LOCAL,
        salt=salt,
        max_tokens=1,
        top_logprobs=TOP_LOGPROBS,
    )
