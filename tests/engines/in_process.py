"""Engines in process: a release is loaded once, and every worker on it has a process of its own to whoever asks."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.kernel_noise import KernelNoise
from kvrelease.engines.local import LocalEngine, open_local


def opened(
    directory: Path,
    *,
    cache: BlockCache | None = None,
    key_scheme: KeyScheme = TOKENS_ONLY,
    noise: KernelNoise | None = None,
    **options: Any,
) -> LocalEngine:
    """A worker with a cache of its own unless one is given. Called outside of an event loop.

    Args:
        directory: of the release, which does not change any more.
        cache: as for `open_local`.
        key_scheme: likewise.
        noise: likewise.
        options: further ones of `open_local`.
    """
    return _loaded(directory, **options).replica(cache=cache, key_scheme=key_scheme, noise=noise)


@functools.cache
def _loaded(directory: Path, **options: Any) -> LocalEngine:
    # One thread: beside other work, two that wait for each other take seconds over a tiny matrix.
    return asyncio.run(open_local(directory, **{"threads": 1} | options))
