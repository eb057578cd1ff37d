"""A pool: what one engine answered for one release, in compact form; runs are drawn from it.

Of every prompt it has several *entries* (written alone, written in company of other requests, written by the old
release) and of every entry several *reads*. Equal observations are kept once.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from kvrelease.engines.base import EngineIdentity, GeneratedToken, Observation, TopLogprob

Reads = tuple[int, ...]

# The kinds of entries of a prompt, as `PooledPrompt` has them.
KINDS = ("alone", "company", "again", "stale")


class PooledPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's observations, by their numbers in the pool.

    Attributes:
        id: of the prompt.
        prefix: the shared prefix that it belongs to.
        weight: traffic weight.
        prompt_tokens: of it.
        cached_tokens: of a hit.
        shared_tokens: of these, what other prompts of its prefix have too: what is cached of it before it was asked.
        cold: [reads] misses: the answers to what wrote `alone`.
        alone: [entries][reads] the reference's entries of the new release.
        company: [entries][reads] entries of the new release that users' requests hit, written among other requests.
        again: [entries][reads] entries of the new release that the gate has written once more, in company too.
        stale: [entries][reads] entries of the old release that users' requests hit, read by the new one.
        clean_in_process: without noise, in process; for `identity` and `power`.
        stale_in_process: the same over the old release's keys and values.
        old_in_process: the old release itself.
    """

    id: str
    prefix: str
    weight: float
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    cold: Reads
    alone: tuple[Reads, ...]
    company: tuple[Reads, ...]
    again: tuple[Reads, ...]
    stale: tuple[Reads, ...]
    clean_in_process: int
    stale_in_process: int
    old_in_process: int

    def entries(self, kind: str) -> tuple[Reads, ...]:
        """[entries][reads] of one of `KINDS`."""
        found: dict[str, tuple[Reads, ...]] = {
            "alone": self.alone,
            "company": self.company,
            "again": self.again,
            "stale": self.stale,
        }
        return found[kind]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """All observations of one cell.

    Attributes:
        engine: `local` or `vllm`.
        level: of noise, by its name.
        release: by its name.
        about: versions, sizes, seed: what the figures depend on.
        identity: of the engine that was recorded, without what names it.
        prompts: in the order of the set.
        tokens: every spelling that occurs.
        lengths: [observations] uint8, candidates of each.
        candidates: [all candidates] uint32, numbers in `tokens`.
        logprobs: [all candidates] float32, nats.
    """

    engine: str
    level: str
    release: str
    about: dict[str, str]
    identity: EngineIdentity
    prompts: tuple[PooledPrompt, ...]
    tokens: tuple[str, ...]
    lengths: bytes
    candidates: bytes
    logprobs: bytes

    @property
    def name(self) -> str:
        """Of its file."""
        return pool_name(self.engine, self.level, self.release)

    def observations(self) -> list[Observation]:
        """Every observation, by number."""
        lengths = np.frombuffer(self.lengths, dtype=np.uint8).tolist()
        candidates = np.frombuffer(self.candidates, dtype=np.uint32).tolist()
        logprobs = np.frombuffer(self.logprobs, dtype=np.float32).tolist()
        found, start = [], 0
        for length in lengths:
            span = slice(start, start + length)
            found.append(self._observation(candidates[span], logprobs[span]))
            start += length
        return found

    def _observation(self, candidates: list[int], logprobs: list[float]) -> Observation:
        top = tuple(
            TopLogprob(token=self.tokens[token], logprob=logprob)
            for token, logprob in zip(candidates, logprobs, strict=True)
        )
        first = GeneratedToken(token=top[0].token, logprob=top[0].logprob, top=top)
        return Observation(text=first.token, tokens=(first,), total_s=0.0, finish_reason="length")


def pool_name(engine: str, level: str, release: str) -> str:
    """Of a pool's file."""
    return f"{engine}.{level}.{release}.pool"


class PoolWriter:
    """Collects observations and numbers them; equal ones once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._tokens: dict[str, int] = {}
        self._lengths = bytearray()
        self._candidates = bytearray()
        self._logprobs = bytearray()

    def add(self, observation: Observation) -> int:
        """The number of an observation's first token."""
        top = observation.tokens[0].top
        candidates = np.array([self._tokens.setdefault(one.token, len(self._tokens)) for one in top], dtype=np.uint32)
        logprobs = np.array([one.logprob for one in top], dtype=np.float32)
        key = candidates.tobytes() + logprobs.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._lengths.append(len(top))
            self._candidates += candidates.tobytes()
            self._logprobs += logprobs.tobytes()
        return self._numbers[key]

    def add_all(self, observations: Iterable[Observation]) -> Reads:
        """[observations] their numbers."""
        return tuple(self.add(one) for one in observations)

    def pool(
        self,
        *,
        engine: str,
        level: str,
        release: str,
        about: Mapping[str, str],
        identity: EngineIdentity,
        prompts: tuple[PooledPrompt, ...],
    ) -> Pool:
        """Everything that was added; how many entries and reads there are is counted, whatever `about` says."""
        return Pool(
            engine=engine,
            level=level,
            release=release,
            about={**about, **_sizes(prompts)},
            identity=msgspec.structs.replace(identity, url="recorded", process="recorded", name=None, labels={}),
            prompts=prompts,
            tokens=tuple(self._tokens),
            lengths=bytes(self._lengths),
            candidates=bytes(self._candidates),
            logprobs=bytes(self._logprobs),
        )


def _sizes(prompts: Iterable[PooledPrompt]) -> dict[str, str]:
    """How many entries of each kind the prompts have, and reads of each entry: the fewest."""
    entries = {kind: min((len(one.entries(kind)) for one in prompts), default=0) for kind in KINDS}
    reads = {kind: min((len(reads) for one in prompts for reads in one.entries(kind)), default=0) for kind in KINDS} | {
        "cold": min((len(one.cold) for one in prompts), default=0)
    }
    return {
        "entries": ", ".join(f"{kind} {count}" for kind, count in entries.items()),
        "reads": ", ".join(f"{kind} {count}" for kind, count in reads.items()),
    }


def trimmed(pool: Pool, *, reads: int) -> Pool:
    """The same with so many reads of each entry: small enough for the repository."""
    writer, seen = PoolWriter(), pool.observations()

    def kept(number: int) -> int:
        return writer.add(seen[number])

    def first_of(found: Reads) -> Reads:
        return tuple(kept(number) for number in found[:reads])

    prompts = tuple(
        msgspec.structs.replace(
            one,
            cold=first_of(one.cold),
            alone=tuple(map(first_of, one.alone)),
            company=tuple(map(first_of, one.company)),
            again=tuple(map(first_of, one.again)),
            stale=tuple(map(first_of, one.stale)),
            clean_in_process=kept(one.clean_in_process),
            stale_in_process=kept(one.stale_in_process),
            old_in_process=kept(one.old_in_process),
        )
        for one in pool.prompts
    )
    return writer.pool(
        engine=pool.engine,
        level=pool.level,
        release=pool.release,
        about=pool.about,
        identity=pool.identity,
        prompts=prompts,
    )


def save(pool: Pool, folder: Path) -> Path:
    """Writes a pool; its file is there only when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{pool.name}.draft"
    draft.write_bytes(lzma.compress(msgspec.msgpack.encode(pool), preset=9))
    return draft.rename(folder / pool.name)


def load(path: Path) -> Pool:
    """A pool from its file.

    Raises:
        SystemExit: it was recorded before pools had what runs are drawn from now.
    """
    try:
        return _decoded(path)
    except msgspec.ValidationError as error:
        raise SystemExit(f"{path} is an earlier recording ({error}): python -m benchmarks.gate record") from error


def is_recorded(path: Path, about: Mapping[str, str]) -> bool:
    """Whether a pool is there that was recorded in just this way; what only an open engine can tell is not compared."""
    try:
        found = _decoded(path).about
    except (FileNotFoundError, msgspec.ValidationError):
        return False
    return all(found.get(name) == value for name, value in about.items())


def _decoded(path: Path) -> Pool:
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Pool)
