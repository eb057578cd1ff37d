r"""vLLM: the salt of each request, the root of its block hashes, its label, its connectors' stores.

Source: vLLM 0.32.0. Salt: entrypoints/generate/base/protocol.py, 36-57 (1 to 128 characters, none of `@ / \ NUL`); it
is in the first block's extra keys, v1/core/kv_cache_utils.py, 647-651, and the rest chains. Root: the same file,
122-144. Label: entrypoints/serve/utils/fingerprint.py. Served names: config/model.py, `get_served_model_name`. Stores,
below distributed/kv_transfer/kv_connector/v1: example_connector.py, 104; mooncake/store/worker.py, 1519-1528, and
data.py, 143-170; hf3fs/hf3fs_connector.py, 492. Tiers of the OffloadingConnector: v1/kv_offload/tiering/spec.py, 241;
fs/manager.py, 114; obj/manager.py, 170. The indexer: llm-d/llm-d-kv-cache, pkg/kvcache/kvblock/token_processor.go,
`HashSeed`, commit 026424f.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted, hash_seed

_CONNECTOR = "--kv-transfer-config: kv_connector_extra_config"


def vllm(wanted: Wanted) -> BindingSettings:
    """What binds vLLM."""
    seed = str(hash_seed(wanted.namespace))
    directory = wanted.directory("vllm")
    names = () if wanted.model is None else ("--served-model-name", wanted.model, wanted.namespace)
    return BindingSettings(
        env={"PYTHONHASHSEED": seed},
        flags=("--fingerprint-mode", "custom", "--fingerprint-value", wanted.namespace, *names),
        body={"cache_salt": wanted.salt},
        directories={
            f"{_CONNECTOR}.shared_storage_path (ExampleConnector)": directory,
            f"{_CONNECTOR}.secondary_tiers[].root_dir (OffloadingConnector, type fs)": directory,
            f"{_CONNECTOR}.hf3fs_storage_path (HF3FS)": directory,
        },
        prefixes={
            f"{_CONNECTOR}.cache_prefix (MooncakeStore)": wanted.namespace,
            f"{_CONNECTOR}.secondary_tiers[].prefix (OffloadingConnector, type obj)": wanted.namespace,
        },
        beside={"llm-d index: tokenProcessorConfig.hashSeed": seed},
        limits=(
            "requests without the salt still share one unsalted key space within one process: a reload in place needs "
            "the salt in every request. Between processes PYTHONHASHSEED separates their block hashes too",
            "ExampleConnector and HF3FS name entries by tokens alone, LMCache in process by tokens and the model's "
            "path (--engine lmcache): there only a directory or a tag of the namespace's own separates releases",
            *(
                ()
                if wanted.model is not None
                else (
                    "indexes of routers know a pod by the served name: --model NAME writes out --served-model-name "
                    "with the namespace as a second name",
                )
            ),
        ),
    )
