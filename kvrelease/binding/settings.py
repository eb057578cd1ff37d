"""Which settings bind one engine's caches to a namespace.

Source: the engines' own code, versions and lines in docs/engines.md.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import EngineKind


class BindingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to set so that every cache key an engine lets us reach carries the namespace.

    Attributes:
        env: environment variables of the engine process.
        flags: arguments of the engine's command line.
        body: fields of every request's body.
        directories: persistent stores: setting name → a directory of the namespace's own below the store's root.
        limits: what these settings cannot reach, one sentence each.
    """

    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    body: JsonObject = {}
    directories: dict[str, str] = {}
    limits: tuple[str, ...] = ()


def binding_settings(kind: EngineKind, namespace: str) -> BindingSettings:
    """The settings for one kind of engine."""
    match kind:
        case EngineKind.VLLM:
            return BindingSettings(
                flags=("--fingerprint-mode", "custom", "--fingerprint-value", namespace),
                body={"cache_salt": namespace},
                directories={
                    "kv_connector_extra_config.shared_storage_path": namespace,
                    "kv_connector_extra_config.root_dir": namespace,
                },
                limits=(
                    "requests without the salt still share one unsalted key space",
                    "MooncakeStore: set kv_connector_extra_config.cache_prefix to the namespace as well",
                    "ExampleConnector, HF3FS and LMCache in process ignore the salt: only a directory or tag of the "
                    "namespace's own separates releases there",
                ),
            )
        case EngineKind.SGLANG:
            return BindingSettings(
                env={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": f"/var/lib/hicache/{namespace}"},
                flags=("--weight-version", namespace),
                body={"extra_key": namespace},
                directories={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": namespace},
                limits=(
                    "requests without the extra key still share one key space",
                    "HiCache's files carry the key and no weights, and are never written again: a directory of the "
                    "namespace's own is what separates releases of requests without the key",
                    "routers that follow KV events do not see the extra key",
                ),
            )
        case EngineKind.LLAMACPP:
            return BindingSettings(
                flags=("--alias", namespace, "--slot-save-path", f"/var/lib/llamacpp/{namespace}"),
                directories={"--slot-save-path": namespace},
                limits=(
                    "llama.cpp has no salt: within one process keys are tokens only, so start a process for each "
                    "release, and never restore a slot file from another namespace's directory",
                ),
            )
        case EngineKind.LOCAL:
            return BindingSettings(body={"cache_salt": namespace}, directories={"cache directory": namespace})
        case EngineKind.OPENAI:
            return BindingSettings(
                limits=("nothing is known of this server's cache keys: start a process for each release",)
            )
        case _:
            assert_never(kind)
