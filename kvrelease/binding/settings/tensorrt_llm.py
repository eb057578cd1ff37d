"""TensorRT-LLM: the salt of chat requests.

Source: NVIDIA/TensorRT-LLM, single files: `cache_salt` on ChatCompletionRequest alone, CompletionRequest forbids what
it does not know, tensorrt_llm/serve/openai_protocol.py, commit 0076e93; the salt's id is the first 8 bytes of its
SHA-256, tensorrt_llm/runtime/kv_cache_hash.py, commit 991de58; a connector's files named by tokens alone,
examples/llm-api/llm_kv_cache_connector.py.
"""

from __future__ import annotations

from kvrelease.binding.settings.binding import BindingSettings, Wanted


def tensorrt_llm(wanted: Wanted) -> BindingSettings:
    """What binds TensorRT-LLM."""
    return BindingSettings(
        body={"cache_salt": wanted.salt},
        directories={"kv_connector_config: the connector's own directory": wanted.directory("tensorrt-llm")},
        limits=(
            "chat requests alone take the salt; completions that carry it are refused (400), and without it they share "
            "one key space: start a process for each release where completions are used",
            "read in single files of several commits, and tried on no server: prove it with --check",
            "connectors that name entries by tokens alone ignore the salt: a directory of the namespace's own "
            "separates releases there",
        ),
    )
