from __future__ import annotations

import pytest

from kvrelease.binding.settings import binding_settings
from kvrelease.engines.base import EngineKind
from tests.builders import NAMESPACE


@pytest.mark.parametrize("kind", list(EngineKind))
def test_every_kind_is_bound_or_says_what_cannot_be(kind: EngineKind) -> None:
    found = binding_settings(kind, NAMESPACE)
    values = " ".join([*found.env.values(), *found.flags, *map(str, found.body.values()), *found.directories.values()])
    assert NAMESPACE in values or found.limits


@pytest.mark.parametrize(
    ("kind", "field"),
    [(EngineKind.VLLM, "cache_salt"), (EngineKind.SGLANG, "extra_key"), (EngineKind.LOCAL, "cache_salt")],
)
def test_a_request_carries_the_namespace_in_the_engines_own_field(kind: EngineKind, field: str) -> None:
    assert binding_settings(kind, NAMESPACE).body == {field: NAMESPACE}


@pytest.mark.parametrize("kind", [EngineKind.LLAMACPP, EngineKind.OPENAI])
def test_an_engine_without_a_salt_gets_no_field_and_the_reason(kind: EngineKind) -> None:
    found = binding_settings(kind, NAMESPACE)
    assert found.body == {}
    assert any("start a process for each release" in limit for limit in found.limits)
