"""Which tier of a cache answered, by the reply's own word, else by the server's counters; pure."""

from __future__ import annotations

import enum

from kvrelease.binding.observe import Leg
from kvrelease.engines.base import CacheTiers, Counters
from kvrelease.verify.evidence import Lookup


class Tier(enum.StrEnum):
    """Where cached tokens were kept."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"
    REMOTE = "remote"
    OUTSIDE = "outside"
    """Brought in from outside the engine's own prefix cache; nobody tells whether from host, storage or remote."""


# vLLM 0.32.0, v1/metrics/cache_hit_source.py.
_SOURCES = {
    "device": Tier.DEVICE,
    "host": Tier.HOST,
    "disk": Tier.STORAGE,
    "p2p": Tier.REMOTE,
    "external_unspecified": Tier.OUTSIDE,
}

# Backends of SGLang's HiCache that keep their entries on other machines (0.5.23, mem_cache/storage).
_REMOTE_STORES = ("mooncake", "hf3fs", "aibrix", "eic", "simm")


def tiers_of(leg: Leg, lookup: Lookup | None) -> dict[Tier, int]:
    """Cached tokens of one leg by tier; empty where nobody tells, or nothing hit.

    Args:
        leg: a production leg.
        lookup: how the counters moved meanwhile; None where they were not read, or for another leg.
    """
    if leg.observation.tiers is not None:
        return _replied(leg.observation.tiers)
    if lookup is None or not leg.cached_tokens or lookup.counted.queried_tokens != leg.prompt_tokens:
        return {}
    found = _counted(lookup.counted)
    return found if sum(found.values()) == leg.cached_tokens else {}


def _replied(tiers: CacheTiers) -> dict[Tier, int]:
    is_remote = any(name in (tiers.storage or "").lower() for name in _REMOTE_STORES)
    return _only_hits(
        {
            Tier.DEVICE: tiers.device_tokens,
            Tier.HOST: tiers.host_tokens,
            Tier.REMOTE if is_remote else Tier.STORAGE: tiers.storage_tokens or 0,
        }
    )


def _counted(counted: Counters) -> dict[Tier, int]:
    if counted.cached_by_source:
        found: dict[Tier, int] = {}
        for source, tokens in counted.cached_by_source.items():
            tier = _SOURCES.get(source, Tier.OUTSIDE)
            found[tier] = found.get(tier, 0) + int(tokens)
        return _only_hits(found)
    if counted.external_cached_tokens is None:
        return {}
    return _only_hits({Tier.DEVICE: int(counted.cached_tokens), Tier.OUTSIDE: int(counted.external_cached_tokens)})


def _only_hits(found: dict[Tier, int]) -> dict[Tier, int]:
    return {tier: tokens for tier, tokens in found.items() if tokens}


def tier_in_words(tier: Tier) -> str:
    """How reports name it."""
    return "outside (host, storage or remote: not told)" if tier is Tier.OUTSIDE else str(tier)
