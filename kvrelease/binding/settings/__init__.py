"""Which settings bind one engine's caches to a namespace: data, one module for each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvrelease.binding.settings.aibrix import aibrix
from kvrelease.binding.settings.binding import BindingSettings, Wanted
from kvrelease.binding.settings.compatible import compatible
from kvrelease.binding.settings.dynamo import dynamo
from kvrelease.binding.settings.llamacpp import llamacpp
from kvrelease.binding.settings.lmcache import lmcache
from kvrelease.binding.settings.local import local
from kvrelease.binding.settings.sglang import sglang
from kvrelease.binding.settings.tensorrt_llm import tensorrt_llm
from kvrelease.binding.settings.vllm import vllm
from kvrelease.binding.target import BindingTarget

_SETTINGS: Mapping[BindingTarget, Callable[[Wanted], BindingSettings]] = {
    BindingTarget.VLLM: vllm,
    BindingTarget.SGLANG: sglang,
    BindingTarget.LLAMACPP: llamacpp,
    BindingTarget.LMCACHE: lmcache,
    BindingTarget.TENSORRT_LLM: tensorrt_llm,
    BindingTarget.DYNAMO: dynamo,
    BindingTarget.AIBRIX: aibrix,
    BindingTarget.OPENAI: compatible,
    BindingTarget.LOCAL: local,
}


def binding_settings(target: BindingTarget, wanted: Wanted) -> BindingSettings:
    """The settings of one target."""
    return _SETTINGS[target](wanted)
