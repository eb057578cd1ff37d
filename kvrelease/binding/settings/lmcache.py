r"""LMCache, below vLLM or SGLang: tags in process, the salt in a process of its own, directories.

In process its keys have no salt; a tag of the request is in them. In a process of its own (MP) its keys have vLLM's
`cache_salt`, or SGLang's `extra_key`. The request here carries both, so it is bound in either mode. Tags end at `@` and
`%`, which no salt of ours has.

Source: LMCache 0.5.6: tags integration/vllm/utils.py, 130-151, and utils.py, 418-475; MP salt v1/distributed/api.py,
98-160 (at most 128 characters, none of `@ / \ NUL`), and integration/vllm/lmcache_mp_metadata.py, 76-85; directories
v1/config.py (`local_disk`, `remote_url`, `gds_path`) and v1/storage_backend/connector/fs_connector.py, 150; the hash of
chunks, which takes its root from PYTHONHASHSEED as vLLM's does, v1/token_database.py, 250-295.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted, hash_seed

TAG = "lmcache.tag.kvrelease"


def lmcache(wanted: Wanted) -> BindingSettings:
    """What binds LMCache, with the engine above it."""
    directory = wanted.directory("lmcache")
    return BindingSettings(
        env={"PYTHONHASHSEED": str(hash_seed(wanted.namespace))},
        body={"cache_salt": wanted.salt, "kv_transfer_params": {TAG: wanted.salt}},
        directories={
            "LMCACHE_LOCAL_DISK": f"file://{directory}/",
            "LMCACHE_REMOTE_URL, of fs:// its directory": directory,
            "LMCACHE_GDS_PATH": directory,
        },
        limits=(
            "below SGLang the request's field is extra_key in place of cache_salt (--engine sglang)",
            "requests without tag and salt share one key space, named by the model's path: a directory of the "
            "namespace's own is what separates releases there",
            "PYTHONHASHSEED has to be set for the whole group of processes that share a store, or none of them finds "
            "what another stored",
            "the engine above has settings of its own: kvrelease namespace RELEASE --engine vllm (or sglang)",
        ),
    )
