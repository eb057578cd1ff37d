"""What can be bound to a namespace: kinds of engines, and cache layers that engines are built on."""

from __future__ import annotations

import enum
from typing import assert_never

from kvrelease.engines.base import EngineKind

DEFAULT_STORE_ROOT = "/var/lib/kvrelease"
"""Below it each target has a directory for each namespace."""


class BindingTarget(enum.StrEnum):
    """Whose settings are asked for."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    LMCACHE = "lmcache"
    TENSORRT_LLM = "tensorrt-llm"
    DYNAMO = "dynamo"
    AIBRIX = "aibrix"
    OPENAI = "openai"
    LOCAL = "local"


def asked_as(target: BindingTarget) -> EngineKind | None:
    """The adapter that speaks to a server of this target; None where it can be of several kinds, and tells itself."""
    match target:
        case BindingTarget.VLLM:
            return EngineKind.VLLM
        case BindingTarget.SGLANG:
            return EngineKind.SGLANG
        case BindingTarget.LLAMACPP:
            return EngineKind.LLAMACPP
        case BindingTarget.LOCAL:
            return EngineKind.LOCAL
        case BindingTarget.TENSORRT_LLM | BindingTarget.OPENAI:
            return EngineKind.OPENAI
        case BindingTarget.LMCACHE | BindingTarget.DYNAMO | BindingTarget.AIBRIX:
            return None
        case _:
            assert_never(target)


_IN_FRONT_OF = {
    BindingTarget.LMCACHE: ("vllm", "sglang"),
    BindingTarget.DYNAMO: ("vllm", "sglang", "tensorrt-llm"),
    BindingTarget.AIBRIX: ("vllm", "sglang"),
    BindingTarget.OPENAI: None,
}


def may_be(target: BindingTarget, engine: str) -> bool:
    """Whether the engine that a runtime declares can be the one that is bound; a layer stands below several.

    `openai` is any server that speaks the protocol, and contradicts no name.
    """
    names = _IN_FRONT_OF.get(target, ())
    return names is None or engine == target.value or engine in names
