"""Pools that nobody recorded: answers with a little noise, and stale ones farther off."""

from __future__ import annotations

import functools
import random

from benchmarks.gate.drawing import PROBES
from benchmarks.gate.pool import Pool, PooledPrompt, PoolWriter
from tests.verify.builders import identity, observation

READ_NATS = 0.002
STALE_NATS = 0.5
READS = 4


@functools.cache
def made_pool(*, stale_nats: float = STALE_NATS) -> Pool:
    """A pool of a few more prompts than a run has probes, under three shared prefixes."""
    source, writer = random.Random(0), PoolWriter()

    def reads(shift: float) -> tuple[int, ...]:
        return tuple(writer.add(observation(shift + source.uniform(-READ_NATS, READ_NATS))) for _ in range(READS))

    prompts = tuple(
        PooledPrompt(
            id=f"p{number}",
            prefix=f"desk{number % 3}",
            weight=1.0 / (1 + number),
            prompt_tokens=200,
            cached_tokens=192,
            shared_tokens=128,
            cold=reads(0.0),
            alone=(reads(0.0),),
            company=(reads(0.0), reads(0.0)),
            again=(reads(0.0), reads(0.0), reads(0.0)),
            stale=(reads(stale_nats),),
            clean_in_process=writer.add(observation()),
            stale_in_process=writer.add(observation(stale_nats)),
            old_in_process=writer.add(observation(2 * stale_nats)),
        )
        for number in range(PROBES + 6)
    )
    return writer.pool(
        engine="local",
        level="reading",
        release="all-36",
        about={"prompts": "some", "entries": "as somebody thought"},
        identity=identity(),
        prompts=prompts,
    )
