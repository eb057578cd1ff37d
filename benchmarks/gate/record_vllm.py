"""Pools of a real vLLM, asked one at a time and under load; the upgrade is an in-place reload of the weights.

One server runs the old release, whose entries are written once, in key spaces of their own, and stay: a reload resets
no prefix cache. Then each new release is loaded in turn, reads the old entries, and writes its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from benchmarks.gate.drawing import PROBES
from benchmarks.gate.levels import CONCURRENCY, ENTRIES, VLLM_LEVELS, VLLM_READS
from benchmarks.gate.pool import Pool, PooledPrompt, PoolWriter, load, pool_name, save
from benchmarks.gate.real_run import observed_evidence
from benchmarks.gate.template import has_template, save_template
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineClient, EngineKind, Observation, Request
from kvrelease.engines.detect import open_engine
from kvrelease.verify.record import TOP_LOGPROBS
from kvrelease.workload.prompt_set import Prompt, PromptSet
from tests.live.servers import vllm_server

MODEL = "gate"
CACHE_GIB = "4"  # of float32 KV: 93,000 tokens, where all entries of one release and the old one's take 34,000
RELOAD_S = 300.0

Say = Callable[[str], None]
Pause = Callable[[], None]


async def record(
    old: Path, releases: Mapping[str, Path], prompts: PromptSet, folder: Path, *, say: Say, pause: Pause
) -> None:
    """Writes the pools that are not there yet. Needs the in-process pools of the same releases, for `power`.

    Raises:
        SystemExit: a release has no in-process pool of the same prompts yet.
    """
    missing = {
        name: directory
        for name, directory in releases.items()
        if not all((folder / pool_name("vllm", level, name)).exists() for level in VLLM_LEVELS)
    }
    if not missing and has_template("vllm", folder):
        return
    for name in missing:
        _in_process(name, folder)
    say("vllm: starting the old release")
    log = folder.parent / "vllm.log"
    space = {"VLLM_CPU_KVCACHE_SPACE": CACHE_GIB}
    with vllm_server(old, served_model_name=MODEL, log_path=log, env=space) as server:
        await record_from(server.url, old, missing, prompts, folder, say=say, pause=pause)


async def record_from(
    url: str, old: Path, releases: Mapping[str, Path], prompts: PromptSet, folder: Path, *, say: Say, pause: Pause
) -> None:
    """The same of a server that is there: it serves the old release, and nobody else uses it."""
    engine = await open_engine(url, kind=EngineKind.VLLM)
    try:
        if not has_template("vllm", folder):
            say("vllm: one real run of the gate on the old release")
            save_template("vllm", await observed_evidence(engine, old), folder, probes=PROBES)
        recording = _Recording(engine, prompts, say=say, pause=pause)
        await recording.write([f"old {entry}" for entry in range(ENTRIES)], in_company=True)
        for name, directory in releases.items():
            say(f"vllm, {name}: reloading in place")
            async with httpx.AsyncClient(timeout=RELOAD_S, trust_env=False) as client:
                reply = await client.post(
                    f"{url}/collective_rpc",
                    json={"method": "reload_weights", "kwargs": {"weights_path": str(directory)}},
                )
                reply.raise_for_status()
            await recording.record(name, _in_process(name, folder), folder)
    finally:
        await engine.aclose()


def _in_process(name: str, folder: Path) -> Pool:
    path = folder / pool_name("local", "reading", name)
    if not path.exists():
        raise SystemExit(f"no in-process pool of {name} yet: python -m benchmarks.gate record --release {name}")
    return load(path)


class _Recording:
    """What is asked of one server."""

    def __init__(self, engine: EngineClient, prompts: PromptSet, *, say: Say, pause: Pause) -> None:
        self._engine = engine
        self._prompts = prompts
        self._say = say
        self._pause = pause

    async def write(self, salts: Sequence[str], *, in_company: bool) -> None:
        """Entries of every prompt in so many key spaces."""
        for salt in salts:
            await self._ask(salt, at_once=CONCURRENCY if in_company else 1)

    async def record(self, name: str, in_process: Pool, folder: Path) -> None:
        """The pools of the release that is loaded now."""
        self._say(f"vllm, {name}: writing its entries")
        alone, company = f"{name} alone", [f"{name} {entry}" for entry in range(ENTRIES + 1)]
        await self.write([alone], in_company=False)
        await self.write(company, in_company=True)
        stale = [f"old {entry}" for entry in range(ENTRIES)]
        for level, at_once in VLLM_LEVELS.items():
            self._say(f"vllm, {name}, {level}: reading")
            # Beside other clients the reference's entries are written in company like everything else.
            spaces = {"alone": [alone if at_once == 1 else company[-1]], "company": company[:ENTRIES], "stale": stale}
            seen: dict[str, dict[str, list[list[Observation]]]] = {}
            for kind, salts in spaces.items():
                for salt in salts:
                    rounds = [await self._ask(salt, at_once=at_once) for _ in range(VLLM_READS[level])]
                    for prompt in self._prompts.prompts:
                        answers = [one[prompt.id] for one in rounds]
                        seen.setdefault(prompt.id, {}).setdefault(kind, []).append(answers)
            save(await self._pool(name, level, in_process, seen), folder)

    async def _pool(
        self, name: str, level: str, in_process: Pool, seen: Mapping[str, Mapping[str, list[list[Observation]]]]
    ) -> Pool:
        writer = PoolWriter()
        exact, known = in_process.observations(), {one.id: one for one in in_process.prompts}
        prompts = []
        for prompt in self._prompts.prompts:
            entries = {
                kind: tuple(tuple(writer.add(one) for one in reads) for reads in salts)
                for kind, salts in seen[prompt.id].items()
            }
            first = seen[prompt.id]["company"][0][0]
            twin = known[prompt.id]
            prompts.append(
                PooledPrompt(
                    id=prompt.id,
                    prefix=twin.prefix,
                    weight=prompt.weight,
                    prompt_tokens=first.prompt_tokens or twin.prompt_tokens,
                    cached_tokens=first.cached_tokens or 0,
                    clean_in_process=writer.add(exact[twin.clean_in_process]),
                    stale_in_process=writer.add(exact[twin.stale_in_process]),
                    old_in_process=writer.add(exact[twin.old_in_process]),
                    **entries,
                )
            )
        identity = await self._engine.identify()
        about = {
            "vLLM": identity.version or "?",
            "dtype": identity.runtime.get("dtype", "?"),
            "at once": str(VLLM_LEVELS[level]),
            "entries": str(ENTRIES),
            "reads": str(VLLM_READS[level]),
        }
        return writer.pool(engine="vllm", level=level, release=name, about=about, prompts=tuple(prompts))

    async def _ask(self, salt: str, *, at_once: int) -> dict[str, Observation]:
        """One answer of every prompt in a key space."""
        limit = asyncio.Semaphore(at_once)
        found: dict[str, Observation] = {}

        async def one(prompt: Prompt) -> None:
            async with limit:
                self._pause()
                found[prompt.id] = await self._engine.complete(_request(prompt, salt=salt))

        async with asyncio.TaskGroup() as group:
            for prompt in self._prompts.prompts:
                group.create_task(one(prompt))
        return found


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
