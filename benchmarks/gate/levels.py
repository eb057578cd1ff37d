"""The levels of noise that pools are recorded at, and how many entries and reads they have."""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.engines.kernel_noise import KernelNoise

CONCURRENCY = 8
# Written in company, of each prompt, by either release: production's, and one that is written once more.
ENTRIES = 2

# Of the in-process engine, by name; docs/statistics.md has what they make at the first token, in nats.
LOCAL_LEVELS: Mapping[str, KernelNoise] = {
    "reading": KernelNoise(read_nats=0.005),
    "bf16": KernelNoise(written=0.002, read_nats=0.005),
    "heavy": KernelNoise(written=0.01, read_nats=0.02),
}
LOCAL_READS = 8

# Of a real vLLM, by name: requests in flight while legs are read.
VLLM_LEVELS: Mapping[str, int] = {"one-at-a-time": 1, "under-load": CONCURRENCY}

# Of each entry. One at a time every read is the same (docs/statistics.md): two show it.
VLLM_READS: Mapping[str, int] = {"one-at-a-time": 2, "under-load": 4}

# In the repository: one level of each engine, and as many reads of each entry.
SHIPPED_LEVEL: Mapping[str, str] = {"local": "reading", "vllm": "under-load"}
SHIPPED_READS = 8
