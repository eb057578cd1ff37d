"""The noise floor of real kernels: `python -m benchmarks.gpu_noise` prints the table of DESIGN's section on `verify`.

Runs the in-process engine on CUDA in bfloat16 (`--device cpu` elsewhere): clean against clean, cold and hit, one
request at a time and in batches; and stale against clean, old keys and values under new weights. The releases are
SmolLM2's pair where it is installed (`python scripts/engines.py install`), else a random Llama that is made here, whose
successor's weights are moved by a share of their size. A few minutes on a GPU; a deadline ends it whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.gate.places import engines_cache
from benchmarks.gate.prompts import prompt_set
from kvrelease.binding.production import production_request
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Observation, Request, Route
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.verify.distance import distance
from kvrelease.verify.record import MAX_TOKENS, TOP_LOGPROBS

SEED = 20261130
PROMPTS = 24
BATCH = 8
OWN_TOKENS = 40  # of each prompt's end, which no other shares
RANDOM_TOKENS = 852
CACHE_BYTES = 32 * 1024**3
DEADLINE_S = 540.0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Of the random Llama.

    Attributes:
        hidden: width.
        layers: decoder layers.
        step: how far the successor's weights are moved, as a share of their standard deviation.
    """

    hidden: int
    layers: int
    step: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        pair: what is compared.
        first: [prompts] distances at the first token, nats.
        decoded: [prompts] largest log-probability differences of the chosen tokens, as long as both choose the same.
        texts: how many texts differ.
    """

    pair: str
    first: tuple[float, ...]
    decoded: tuple[float, ...]
    texts: int


def main(arguments: Sequence[str]) -> int:
    """0, also when the deadline came: what was measured by then is printed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_noise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--old", type=Path, help="directory of the old release; a random pair without")
    parser.add_argument("--new", type=Path, help="directory of the new one")
    parser.add_argument("--random", action="store_true", help="a random pair, even where SmolLM2's is installed")
    parser.add_argument("--hidden", type=int, default=2048, help="of the random Llama")
    parser.add_argument("--layers", type=int, default=16, help="of the random Llama")
    parser.add_argument("--step", type=float, default=0.02, help="how far its successor's weights are moved")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="S")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kvrelease-noise-") as scratch:
        pair = _pair(options, Path(scratch))
        asyncio.run(_measure(options, *pair))
    return 0


def _pair(options: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    if options.old and options.new:
        return options.old, options.new
    models = engines_cache() / "models"
    installed = models / "smollm2-v1.2", models / "smollm2-v1.3"
    if not options.random and all(one.exists() for one in installed):
        return installed
    sizes = Sizes(hidden=options.hidden, layers=options.layers, step=options.step)
    return _random_pair(scratch, sizes, device=options.device)


def _random_pair(scratch: Path, sizes: Sizes, *, device: str) -> tuple[Path, Path]:
    """A random Llama with the tests' byte tokenizer, and a successor of it."""
    import torch  # noqa: PLC0415 - seconds, and --help needs none
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    from tests.tiny_models import VOCABULARY, save_tokenizer  # noqa: PLC0415

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden,
        intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=max(1, sizes.hidden // 64),
        num_key_value_heads=max(1, sizes.hidden // 256),
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=VOCABULARY - 1,
        # Large enough for the answers to depend on what was read: with the usual 0.02 they hardly do.
        initializer_range=0.06,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).bfloat16()
    folders = scratch / "old", scratch / "new"
    for folder in folders:
        model.save_pretrained(folder)
        save_tokenizer(folder)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.add_(torch.randn_like(parameter), alpha=sizes.step * float(parameter.std()))
    return folders


async def _measure(options: argparse.Namespace, old_dir: Path, new_dir: Path) -> None:
    started = time.monotonic()
    cache = BlockCache(max_bytes=CACHE_BYTES)
    opened = [
        await open_local(one, cache=cache, dtype=options.dtype, device=options.device) for one in (old_dir, new_dir)
    ]
    old, new = opened
    prompts = await _prompts(new, count=options.prompts)
    identity = await new.identify()
    print(
        f"{new_dir.name} against {old_dir.name}, {options.dtype} on {options.device} ({_device_name(options.device)}), "
        f"{identity.version}; {len(prompts)} prompts of {len(prompts[0])} tokens, batches of {options.batch}\n"
    )
    print(
        "| pair | first token's top 20, mean difference: median, most (nats) | chosen tokens, largest difference: "
        "median, most (nats) | texts that differ |\n|---|---|---|---|"
    )
    bench = _Bench(old, new, prompts, batch=options.batch)
    for name, measure in bench.rows():
        if time.monotonic() - started > options.deadline:
            print(f"\nThe deadline of {options.deadline:.0f} s came before: {name}", file=sys.stderr)
            break
        print(_line(await _row(name, measure)), flush=True)
    for engine in opened:
        await engine.aclose()
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)


async def _prompts(engine: LocalEngine, *, count: int) -> list[list[int]]:
    """[count][tokens] ids of one length, the first of each desk's questions; random bytes where nothing is learnt."""
    if engine.url.endswith("new"):
        source = random.Random(SEED)  # noqa: S311 - drawn to be repeated
        shared = [source.randrange(256) for _ in range(RANDOM_TOKENS - OWN_TOKENS)]
        return [[*shared, *(source.randrange(256) for _ in range(OWN_TOKENS))] for _ in range(count)]
    found = []
    for prompt in prompt_set(limit=count).prompts[:count]:
        request = production_request(
            prompt, production=Production(), model="local", kind=EngineKind.LOCAL, salt=None, max_tokens=MAX_TOKENS
        )
        found.append(list(await engine.tokenize(request)))
    length = min(map(len, found))
    # Cut between the system prompt and the question, so that all have one length, and ends and beginnings stay.
    return [[*ids[: length - OWN_TOKENS], *ids[-OWN_TOKENS:]] for ids in found]


Answers = list[Observation]
Compared = Callable[[], Awaitable[tuple[Answers, Answers]]]


class Ask(Protocol):
    """One way to ask for every prompt."""

    def __call__(self, salt: str, *, engine: LocalEngine | None = None) -> Awaitable[Answers]:
        """[prompts] answers in a key space; of the new release where no engine is named."""


class _Bench:
    """The measurements, each a pair of lists of answers."""

    def __init__(self, old: LocalEngine, new: LocalEngine, prompts: list[list[int]], *, batch: int) -> None:
        self._old, self._new = old, new
        self._prompts = prompts
        self._batch = batch

    def rows(self) -> list[tuple[str, Compared]]:
        """Names and what to compare, in the order that fills the cache."""
        alone, batched = self._one_by_one, self._in_batches
        apart = "clean/clean, one at a time"
        return [
            (f"{apart}: cold against cold", lambda: _both(alone("a"), alone("b"))),
            (f"{apart}: hit against hit of one entry", lambda: _both(alone("a"), alone("a"))),
            (f"{apart}: hits of two entries", lambda: _both(alone("a"), alone("b"))),
            (f"{apart}: cold against hit", lambda: _both(alone("c"), alone("c"))),
            ("clean/clean, hits: one at a time against in a batch", lambda: _both(alone("a"), batched("a"))),
            ("clean/clean, hits: in a batch against in another", lambda: _both(batched("a"), batched("a", turn=1))),
            ("clean/clean, cold: one at a time against in a batch", lambda: _both(alone("d"), batched("e"))),
            (f"{apart}: hit of an entry written alone against in a batch", lambda: _both(alone("d"), alone("e"))),
            ("stale/clean, one at a time, entries written alone", lambda: _both(self._stale(alone, "old"), alone("a"))),
            (
                "stale/clean, in batches, entries written in batches",
                lambda: _both(self._stale(batched, "old e"), batched("e")),
            ),
        ]

    def _request(self, ids: list[int], salt: str) -> Request:
        body = {"prompt": ids, "ignore_eos": True}
        return Request(
            route=Route.COMPLETIONS,
            body=json.loads(json.dumps(body)),
            salt=salt,
            max_tokens=MAX_TOKENS,
            top_logprobs=TOP_LOGPROBS,
        )

    async def _one_by_one(self, salt: str, *, engine: LocalEngine | None = None) -> Answers:
        # A salt for each prompt: no entry is shared, so that each is written whole.
        return [
            await (engine or self._new).complete(self._request(ids, f"{salt} {number}"))
            for number, ids in enumerate(self._prompts)
        ]

    async def _in_batches(self, salt: str, *, turn: int = 0, engine: LocalEngine | None = None) -> Answers:
        """The same in batches; another `turn` gives prompts other companions, and another place in the batch."""
        order = list(range(len(self._prompts)))
        random.Random(turn).shuffle(order)  # noqa: S311 - drawn to be repeated
        found: dict[int, Observation] = {}
        for start in range(0, len(order), self._batch):
            members = order[start : start + self._batch]
            requests = [self._request(self._prompts[number], f"{salt} {number}") for number in members]
            found |= dict(zip(members, await (engine or self._new).complete_together(requests), strict=True))
        return [found[number] for number in range(len(self._prompts))]

    async def _stale(self, ask: Ask, salt: str) -> Answers:
        await ask(salt, engine=self._old)
        return await ask(salt, engine=self._new)


async def _both(one: Awaitable[Answers], other: Awaitable[Answers]) -> tuple[Answers, Answers]:
    return await one, await other


async def _row(name: str, measure: Compared) -> Row:
    pairs = list(zip(*await measure(), strict=True))
    return Row(
        pair=name,
        first=tuple(nats for one, other in pairs if (nats := distance(one, other).nats) is not None),
        decoded=tuple(_decoded(one, other) for one, other in pairs),
        texts=sum(one.text != other.text for one, other in pairs),
    )


def _decoded(one: Observation, other: Observation) -> float:
    """The largest difference of chosen tokens' log-probabilities, up to the first token that differs."""
    largest = 0.0
    for left, right in zip(one.tokens, other.tokens, strict=False):
        if left.token_id != right.token_id or left.logprob is None or right.logprob is None:
            break
        largest = max(largest, abs(left.logprob - right.logprob))
    return largest


def _line(row: Row) -> str:
    def sizes(found: tuple[float, ...]) -> str:
        return f"{statistics.median(found):.4f}, {max(found):.4f}" if found else "-"

    return f"| {row.pair} | {sizes(row.first)} | {sizes(row.decoded)} | {row.texts} of {len(row.decoded)} |"


def _device_name(device: str) -> str:
    import torch  # noqa: PLC0415

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
