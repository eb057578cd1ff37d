"""Pools of a real vLLM, asked one at a time and under load; the upgrade is an in-place reload of the weights.

One server runs the old release, whose entries are written once, in key spaces of their own, and stay: a reload resets
no prefix cache. Then each new release is loaded in turn, reads the old entries, and writes its own. A release's pools
are there when both are whole: a recording that was stopped goes on with the next release, on a new server.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import msgspec

from benchmarks.gate.levels import CONCURRENCY, ENTRIES, VLLM_LEVELS, VLLM_READS, WRITTEN_AGAIN
from benchmarks.gate.pace import Pace
from benchmarks.gate.pool import KINDS, Pool, PooledPrompt, PoolWriter, is_recorded, load, pool_name, save
from benchmarks.gate.prompts import shared_tokens
from benchmarks.gate.releases import weights_digest
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, Observation, Request
from kvrelease.engines.detect import open_engine
from kvrelease.errors import one_of
from kvrelease.verify.calibration import KERNEL_BOUND_NATS
from kvrelease.verify.distance import distance
from kvrelease.verify.record import TOP_LOGPROBS
from kvrelease.workload.grouping import prefix_labels
from kvrelease.workload.prompt_set import Prompt, PromptSet
from tests.live.servers import ServerDidNotStart, vllm_server

MODEL = "gate"
# Of float32 KV: 116,000 tokens. Between two readings of the old release's entries seven key spaces are written and read
# with them: 45,000 tokens, and half as many again of blocks that requests in flight at once compute twice.
CACHE_GIB = "5"
RELOAD_S = 300.0
# Eight cold prompts at once take 20 s on two idle cores.
REQUEST_S = 600.0

Say = Callable[[str], None]
Pause = Callable[[], None]


async def record(
    old: Path, releases: Mapping[str, Path], prompts: PromptSet, folder: Path, *, say: Say, pause: Pause
) -> None:
    """Writes the pools that are not there yet. Needs the in-process pools of the same releases, for `power`.

    Raises:
        SystemExit: a release has no in-process pool of the same prompts yet; or there is no vLLM, or it did not start.
        KvreleaseError: it did not answer properly.
    """
    missing = {
        name: directory
        for name, directory in releases.items()
        if not all(
            is_recorded(folder / pool_name("vllm", level, name), _recipe(level, directory, old=old, prompts=prompts))
            for level in VLLM_LEVELS
        )
    }
    say(f"vllm: pools of {len(releases) - len(missing)} of {len(releases)} releases are there already")
    if not missing:
        return
    for name in missing:
        _in_process(name, folder, prompts)
    say("vllm: starting the old release")
    log = folder.parent / "vllm.log"
    space = {"VLLM_CPU_KVCACHE_SPACE": CACHE_GIB}
    try:
        with vllm_server(old, served_model_name=MODEL, log_path=log, env=space) as server:
            say(f"vllm: up after {server.start_s:.0f} s; its log is {log}")
            await record_from(server.url, old, missing, prompts, folder, say=say, pause=pause)
    except ServerDidNotStart as error:
        raise SystemExit(f"vllm: {error}") from error


async def record_from(
    url: str, old: Path, releases: Mapping[str, Path], prompts: PromptSet, folder: Path, *, say: Say, pause: Pause
) -> None:
    """The same of a server that is there: it serves the old release, and nobody else uses it."""
    engine = await open_engine(url, kind=EngineKind.VLLM, timeout_s=REQUEST_S)
    try:
        recording = _Recording(engine, prompts, pause=pause)
        say("vllm: writing the old release's entries")
        for salt in _STALE:
            await recording.ask(salt, at_once=CONCURRENCY)
        for number, (name, directory) in enumerate(releases.items()):
            say(f"vllm, {name} ({number + 1} of {len(releases)}): reloading in place")
            await _reload(url, directory)
            levels = {level: _recipe(level, directory, old=old, prompts=prompts) for level in VLLM_LEVELS}
            await recording.record(name, _in_process(name, folder, prompts), folder, levels, say=say)
    finally:
        await engine.aclose()


async def _reload(url: str, directory: Path) -> None:
    """Loads a release's weights in place; the prefix cache stays.

    Source: vLLM 0.32.0, entrypoints/serve/dev/rpc/api_router.py and model_executor/model_loader/reload/inplace.py.
    """
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
    async with httpx.AsyncClient(timeout=RELOAD_S, trust_env=False) as client:
        reply = await client.post(f"{url}/collective_rpc", json=body)
    if reply.status_code != httpx.codes.OK:
        raise SystemExit(f"vllm: reloading {directory} in place: status {reply.status_code}, {reply.text[:500]}")


def _recipe(level: str, directory: Path, *, old: Path, prompts: PromptSet) -> dict[str, str]:
    """How a pool is recorded: with the same, it is the same."""
    return {
        "prompts": prompts.digest,
        "old weights": weights_digest(old),
        "weights": weights_digest(directory),
        "at once": str(VLLM_LEVELS[level]),
        "recorded": f"{ENTRIES} entries of users, by either release, and {WRITTEN_AGAIN} written again, "
        f"{VLLM_READS[level]} reads of each, {_reads(level, 'again')} of those written again",
    }


def _in_process(name: str, folder: Path, prompts: PromptSet) -> Pool:
    path = folder / pool_name("local", "reading", name)
    hint = f"python -m benchmarks.gate record --release {name} --level reading"
    if not path.exists():
        raise SystemExit(f"no in-process pool of {name} yet: {hint}")
    found = load(path)
    if {one.id for one in found.prompts} != {one.id for one in prompts.prompts}:
        raise SystemExit(f"the in-process pool of {name} is of other prompts: {hint}")
    return found


_STALE = tuple(f"old {entry}" for entry in range(ENTRIES))


def _reads(level: str, kind: str) -> int:
    """Of each entry. Of one that was written again the gate reads each but once."""
    return max(1, VLLM_READS[level] // 2) if kind == "again" else VLLM_READS[level]


class _Spaces(msgspec.Struct, frozen=True, kw_only=True):
    """[entries] key spaces of one release's entries.

    Attributes:
        alone: the reference's, asked one at a time.
        beside: the reference's where other clients are on the engine too: written in company like everything else.
        company: users'.
        again: written once more.
    """

    alone: str
    beside: str
    company: tuple[str, ...]
    again: tuple[str, ...]

    def of(self, level: str) -> dict[str, tuple[str, ...]]:
        """By kind of entry, the key spaces that are read at a level."""
        reference = self.alone if VLLM_LEVELS[level] == 1 else self.beside
        return {"alone": (reference,), "company": self.company, "again": self.again, "stale": _STALE}


class _Recording:
    """What is asked of one server."""

    def __init__(self, engine: EngineClient, prompts: PromptSet, *, pause: Pause) -> None:
        self._engine = engine
        self._prompts = _interleaved(prompts)
        self._pause = pause

    async def record(
        self, name: str, in_process: Pool, folder: Path, levels: Mapping[str, Mapping[str, str]], *, say: Say
    ) -> None:
        """The pools of the release that is loaded now.

        Args:
            name: of the release.
            in_process: its pool, for what it answers without noise.
            folder: for the pools.
            levels: how each level's pool is recorded.
            say: told how far it is.
        """
        spaces = _Spaces(
            alone=f"{name} alone",
            beside=f"{name} beside",
            company=tuple(f"{name} {entry}" for entry in range(ENTRIES)),
            again=tuple(f"{name} again {entry}" for entry in range(WRITTEN_AGAIN)),
        )
        in_company = (spaces.beside, *spaces.company, *spaces.again)
        rounds = sum(_reads(level, kind) * len(salts) for level in levels for kind, salts in spaces.of(level).items())
        pace = Pace(f"vllm, {name}", (1 + len(in_company) + rounds) * len(self._prompts), say=say, unit="requests")
        cold = {spaces.alone: await self.ask(spaces.alone, at_once=1, pace=pace)}
        loaded = _distance_of_all(cold[spaces.alone], in_process)
        if loaded > KERNEL_BOUND_NATS:
            raise SystemExit(
                f"vllm, {name}: its own answers lie {loaded:.3f} nats from the same release's in process (median): the "
                "reload in place did not load it"
            )
        for salt in in_company:
            cold[salt] = await self.ask(salt, at_once=CONCURRENCY, pace=pace)
        shared = {prompt: one.cached_tokens for prompt, one in cold[spaces.alone].items()}
        identity = await self._engine.identify()
        pools = []
        for level, recipe in levels.items():
            seen: dict[str, dict[str, list[list[Observation]]]] = {}
            for kind, salts in spaces.of(level).items():
                for salt in salts:
                    again = [
                        await self.ask(salt, at_once=VLLM_LEVELS[level], pace=pace) for _ in range(_reads(level, kind))
                    ]
                    for prompt in self._prompts:
                        answers = [one[prompt.id] for one in again]
                        seen.setdefault(prompt.id, defaultdict(list))[kind].append(answers)
            self._require_whole_hits(seen, identity=identity)
            about = {
                **recipe,
                "vLLM": identity.version or "?",
                "dtype": identity.runtime.get("dtype", "?"),
                "from the release in process": f"{loaded:.4f} nats (median)",
            }
            misses = cold[spaces.of(level)["alone"][0]]
            pools.append(
                _pool(
                    name,
                    level,
                    in_process,
                    seen,
                    misses=misses,
                    cached=shared,
                    about=about,
                    identity=identity,
                )
            )
        for pool in pools:
            save(pool, folder)

    def _require_whole_hits(
        self, seen: Mapping[str, Mapping[str, list[list[Observation]]]], *, identity: EngineIdentity
    ) -> None:
        """Checks that every entry was still there when it was read.

        Raises:
            SystemExit: one was evicted, at least in part, or hits are not told.
        """
        for prompt, kinds in seen.items():
            answers = [one for entries in kinds.values() for reads in entries for one in reads]
            tokens = answers[0].prompt_tokens
            wanted = None if tokens is None else identity.capabilities.expected_hit(tokens)
            found = {one.cached_tokens for one in answers}
            if found != {wanted}:
                raise SystemExit(
                    f"vllm: {prompt} should hit {wanted} tokens of every entry, and hit {sorted(found, key=str)}: "
                    f"entries were evicted (more than {CACHE_GIB} GiB of cache), or somebody else uses the server"
                )

    async def ask(self, salt: str, *, at_once: int, pace: Pace | None = None) -> dict[str, Observation]:
        """One answer of every prompt in a key space."""
        await asyncio.to_thread(self._pause)
        limit = asyncio.Semaphore(at_once)
        found: dict[str, Observation] = {}

        async def one(prompt: Prompt) -> None:
            async with limit:
                found[prompt.id] = await self._engine.complete(_request(prompt, salt=salt))
            if pace is not None:
                pace.step()

        try:
            async with asyncio.TaskGroup() as group:
                for prompt in self._prompts:
                    group.create_task(one(prompt))
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
        return found


def _interleaved(prompts: PromptSet) -> tuple[Prompt, ...]:
    """One of each shared prefix after the other: what is computed at once is of different ones, as users' requests."""
    groups: dict[str, list[Prompt]] = {}
    labels = prefix_labels(prompts)
    for prompt in prompts.prompts:
        groups.setdefault(labels[prompt.id], []).append(prompt)
    rounds = itertools.zip_longest(*groups.values())
    return tuple(prompt for one in rounds for prompt in one if prompt is not None)


def _distance_of_all(answers: Mapping[str, Observation], in_process: Pool) -> float:
    """The median distance of a release's answers to its own in process, nats; infinite where none can be told."""
    exact = in_process.observations()
    gaps = [distance(answers[one.id], exact[one.clean_in_process]).nats for one in in_process.prompts]
    known = [nats for nats in gaps if nats is not None]
    return statistics.median(known) if known else float("inf")


def _pool(
    name: str,
    level: str,
    in_process: Pool,
    seen: Mapping[str, Mapping[str, list[list[Observation]]]],
    *,
    misses: Mapping[str, Observation],
    cached: Mapping[str, int | None],
    about: Mapping[str, str],
    identity: EngineIdentity,
) -> Pool:
    writer, exact, prompts = PoolWriter(), in_process.observations(), []
    shared = shared_tokens({one.id: one.prefix for one in in_process.prompts}, cached)
    for twin in in_process.prompts:
        kinds = seen[twin.id]
        first = kinds["company"][0][0]
        entries = {kind: tuple(writer.add_all(reads) for reads in kinds[kind]) for kind in KINDS}
        prompts.append(
            PooledPrompt(
                id=twin.id,
                prefix=twin.prefix,
                weight=twin.weight,
                prompt_tokens=first.prompt_tokens or twin.prompt_tokens,
                cached_tokens=first.cached_tokens or 0,
                shared_tokens=shared[twin.id],
                cold=(writer.add(misses[twin.id]),),
                clean_in_process=writer.add(exact[twin.clean_in_process]),
                stale_in_process=writer.add(exact[twin.stale_in_process]),
                old_in_process=writer.add(exact[twin.old_in_process]),
                **entries,
            )
        )
    return writer.pool(engine="vllm", level=level, release=name, about=about, identity=identity, prompts=tuple(prompts))


def _request(prompt: Prompt, *, salt: str) -> Request:
    return production_request(
        prompt,
        production=Production(),
        model=MODEL,
        kind=EngineKind.VLLM,
        salt=salt,
        max_tokens=1,
        top_logprobs=TOP_LOGPROBS,
    )
