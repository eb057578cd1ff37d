"""aibrix' offloading cache, below vLLM or SGLang: the namespace of its second level, which is all that its keys have.

Source: vllm-project/aibrix, python/aibrix_kvcache/aibrix_kvcache: `AIBRIX_KV_CACHE_OL_L2_CACHE_NAMESPACE`, stripped and
in lower case, and `AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT`, envs.py, commit 15e62c9; keys of namespace, heads, layers, layout
and tokens, l2/l2_cache.py, commit 0103c7e.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted


def aibrix(wanted: Wanted) -> BindingSettings:
    """What binds aibrix, with the engine above it."""
    return BindingSettings(
        env={"AIBRIX_KV_CACHE_OL_L2_CACHE_NAMESPACE": wanted.namespace},
        body={"cache_salt": wanted.salt},
        directories={"AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT": wanted.directory("aibrix")},
        limits=(
            "its keys have the namespace and the tokens, and no salt: tenants share its second level, and a reload in "
            "place reads what the old weights left there. Start a process for each release",
            "the first level lies in the process, and its keys are tokens alone",
            "read in its source, and tried on no server",
            "the engine above has settings of its own: kvrelease namespace RELEASE --engine vllm (or sglang)",
        ),
    )
