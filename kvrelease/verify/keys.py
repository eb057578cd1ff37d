"""What is weak in how this engine's blocks are keyed, whatever is cached now: a note with the remedy."""

from __future__ import annotations

from kvrelease.verify.checks import Check, CheckId, CheckVerdict, space_name
from kvrelease.verify.evidence import ReplicaEvidence

# vLLM's label of the function that hashes blocks. Of its choices only SHA-256 withstands prompts that are made to
# collide. Source: https://github.com/vllm-project/vllm/pull/12621 (GHSA-rm76-4mrf-v9r8).
HASH_LABEL = "prefix_caching_hash_algo"
_STRONG_HASH = "sha256"

# vLLM's connector to a store outside the process, where development mode tells it.
CONNECTOR_LABEL = "kv_connector"


def check_keys(replica: ReplicaEvidence, *, namespace: str, production_salt: str | None) -> Check | None:
    """What lets one prompt, or the next release, find blocks that are not its own; None where nothing does."""
    weak = []
    algorithm = replica.identity.labels.get(HASH_LABEL)
    if algorithm is not None and not algorithm.startswith(_STRONG_HASH):
        weak.append(
            f"blocks are hashed with {algorithm}, for which prompts can be made that collide with others: start with "
            "--prefix-caching-hash-algo sha256"
        )
    identity = replica.identity
    has_store = identity.capabilities.cache_outlives_process or CONNECTOR_LABEL in identity.labels
    if has_store and production_salt != namespace:
        weak.append(
            f"what is cached outlives this process, and {space_name(production_salt)} requests have no version in "
            "their keys: the next release will find what this one leaves. Bind them (kvrelease namespace)"
        )
    if not weak:
        return None
    return Check(id=CheckId.KEYS, verdict=CheckVerdict.NOTE, detail="; ".join(weak), replica=replica.identity.shown)
