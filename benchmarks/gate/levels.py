"""The levels of noise that pools are recorded at, and how many entries and reads they have."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvrelease.engines.kernel_noise import KernelNoise

CONCURRENCY = 8
# Of each prompt, written in company, by either release: those that users' requests hit.
ENTRIES = 2
# Of each prompt, written in company by the new release: what the gate has written once more, for the noise floor and to
# rank users' own among. The gate may write many more of one prompt: a run draws them from these, with replacement.
WRITTEN_AGAIN = 3

SEED = 20261130


class LocalLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Noise of the in-process engine.

    Attributes:
        noise: of what the new release writes and reads in company; its seed is the level's own.
        old_seed: of what the old release wrote, under the same noise.
    """

    noise: KernelNoise
    old_seed: int

    @property
    def is_written(self) -> bool:
        """Whether entries differ by how they were written; else one entry stands for all."""
        return self.noise.written > 0


def _level(number: int, noise: KernelNoise) -> LocalLevel:
    return LocalLevel(noise=msgspec.structs.replace(noise, seed=SEED + number), old_seed=SEED + 10 + number)


# Of the in-process engine, by name; docs/statistics.md has what they make at the first token, in nats.
LOCAL_LEVELS: Mapping[str, LocalLevel] = {
    "reading": _level(0, KernelNoise(read_nats=0.005)),
    "bf16": _level(1, KernelNoise(written=0.002, read_nats=0.005)),
    "heavy": _level(2, KernelNoise(written=0.01, read_nats=0.02)),
}
LOCAL_READS = 8

# Of a real vLLM, by name: requests in flight while legs are read.
VLLM_LEVELS: Mapping[str, int] = {"one-at-a-time": 1, "under-load": CONCURRENCY}

# Of each entry. One at a time every read is the same (docs/statistics.md): two show it.
VLLM_READS: Mapping[str, int] = {"one-at-a-time": 2, "under-load": 4}

# In the repository: one level of each engine, and as many reads of each entry.
SHIPPED_LEVEL: Mapping[str, str] = {"local": "reading", "vllm": "under-load"}
SHIPPED_READS = 8
