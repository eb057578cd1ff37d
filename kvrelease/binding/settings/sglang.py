"""SGLang: the extra key of each request, its label, HiCache's store.

Source: SGLang 0.5.23, below srt: `extra_key` entrypoints/openai/protocol.py, 434-436, 1052-1054 (no limit of length or
characters; `cache_salt` is another part of the same key, mem_cache/utils.py, 116-152); `--weight-version`
entrypoints/http_server.py, `/model_info`; HiCache's files mem_cache/hicache_storage.py, 728-830, which are never
written again (893-897); Mooncake's prefix mem_cache/storage/mooncake_store/mooncake_store.py, 456-475.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted

_DIRECTORY = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"


def sglang(wanted: Wanted) -> BindingSettings:
    """What binds SGLang."""
    directory = wanted.directory("sglang")
    return BindingSettings(
        env={_DIRECTORY: directory},
        flags=("--weight-version", wanted.namespace),
        body={"extra_key": wanted.salt},
        directories={_DIRECTORY: directory},
        prefixes={"--hicache-storage-backend-extra-config: extra_backend_tag (Mooncake)": wanted.namespace},
        limits=(
            "requests without the extra key still share one key space",
            "a tenant's cache_salt may stay in the request beside the extra key: SGLang keeps both in its keys",
            "HiCache's files carry the key and no weights, and are never written again: a directory of the "
            "namespace's own is what separates releases of requests without the key",
            "routers that follow KV events do not see the extra key",
        ),
    )
