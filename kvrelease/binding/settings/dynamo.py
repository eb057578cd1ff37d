"""Dynamo's KV block manager (KVBM), below vLLM or TensorRT-LLM: the engine's salt, a directory and a bucket.

Source: ai-dynamo/dynamo: salt and adapter make `salt_hash`, lib/bindings/kvbm/src/block_manager/vllm/request.rs, commit
6103406; `DYN_KVBM_DISK_CACHE_DIR`, lib/bindings/kvbm/README.md, commit 1d3b036; `DYN_KVBM_OBJECT_BUCKET`,
lib/runtime/src/config/environment_names.rs; object keys without a model, lib/kvbm-engine/src/object/mod.rs. Names of
buckets (3 to 63 of lower-case letters, digits and hyphens): Amazon S3, "General purpose bucket naming rules".
"""

from __future__ import annotations

import hashlib

from kvrelease.binding.settings.binding import BindingSettings, Wanted

MAX_BUCKET_CHARACTERS = 63
_MARK_CHARACTERS = 32


def dynamo(wanted: Wanted) -> BindingSettings:
    """What binds KVBM, with the engine above it."""
    directory = wanted.directory("dynamo")
    return BindingSettings(
        env={"DYN_KVBM_DISK_CACHE_DIR": directory},
        body={"cache_salt": wanted.salt},
        directories={"DYN_KVBM_DISK_CACHE_DIR": directory},
        prefixes={"DYN_KVBM_OBJECT_BUCKET": bucket_name(wanted.namespace)},
        limits=(
            "requests without the salt share one key space; a bucket of the namespace's own separates releases in the "
            "object store, and nothing else does there",
            "Dynamo's router follows tokens, adapter and cache_namespace, not the weights: behind it, prove it on "
            "every worker's own address with --check",
            "set_weight_version changes a label and resets no cache",
            "read in single files of several commits, and tried on no server",
            "the engine above has settings of its own: kvrelease namespace RELEASE --engine vllm (or tensorrt-llm)",
        ),
    )


def bucket_name(namespace: str) -> str:
    """A bucket's name: the namespace, or where that is longer than 63 characters `kv-` and 32 digits of its SHA-256."""
    if len(namespace) <= MAX_BUCKET_CHARACTERS:
        return namespace
    return f"kv-{hashlib.sha256(namespace.encode()).hexdigest()[:_MARK_CHARACTERS]}"
