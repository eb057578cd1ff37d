"""Each target's settings carry the namespace within its rules, and say what they cannot reach."""

from __future__ import annotations

import json

import pytest

from kvrelease.binding.runtime import declared_runtime
from kvrelease.binding.settings import binding_settings
from kvrelease.binding.settings.binding import BindingSettings, Wanted
from kvrelease.binding.settings.dynamo import bucket_name
from kvrelease.binding.settings.lmcache import TAG
from kvrelease.binding.target import BindingTarget, asked_as, may_be
from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.engines.base import EngineKind
from kvrelease.engines.vllm_salt import checked_salt
from kvrelease.ledger.records import MAX_NAMESPACE_CHARS, is_namespace_text
from tests.builders import NAMESPACE

LONGEST = "kv1-" + "a" * (MAX_NAMESPACE_CHARS - len("kv1--undeclared-e10")) + "-undeclared-e10"
SALTED = [
    BindingTarget.VLLM,
    BindingTarget.LMCACHE,
    BindingTarget.TENSORRT_LLM,
    BindingTarget.DYNAMO,
    BindingTarget.AIBRIX,
    BindingTarget.LOCAL,
]


def settings_of(target: BindingTarget, **wanted: str) -> BindingSettings:
    return binding_settings(target, Wanted(**{"namespace": NAMESPACE, **wanted}))


def texts_of(found: BindingSettings) -> str:
    """Every value that is set, as one text; what it does not say is nothing that is bound."""
    named = (found.env, found.directories, found.prefixes)
    return json.dumps([found.flags, found.body, *(list(one.values()) for one in named)])


@pytest.mark.parametrize("target", set(BindingTarget) - {BindingTarget.OPENAI})
def test_every_target_is_bound_by_something(target: BindingTarget) -> None:
    assert NAMESPACE in texts_of(settings_of(target))


def test_of_a_server_that_nobody_knows_nothing_is_promised() -> None:
    found = settings_of(BindingTarget.OPENAI)
    assert found == BindingSettings(limits=found.limits)
    assert any("start a process for each release" in limit for limit in found.limits)


@pytest.mark.parametrize("target", set(BindingTarget) - {BindingTarget.LOCAL})
def test_every_target_says_what_it_cannot_reach(target: BindingTarget) -> None:
    assert settings_of(target).limits


@pytest.mark.parametrize("target", list(BindingTarget))
def test_two_namespaces_share_no_value(target: BindingTarget) -> None:
    one, other = (settings_of(target, namespace=f"{NAMESPACE}{digit}") for digit in (1, 2))
    for left, right in (
        (one.env, other.env),
        (one.directories, other.directories),
        (one.prefixes, other.prefixes),
        (one.body, other.body),
        (one.beside, other.beside),
    ):
        assert left.keys() == right.keys()
        assert not any(left[name] == right[name] for name in left)


@pytest.mark.parametrize("target", SALTED)
def test_a_request_carries_the_namespace_as_its_salt(target: BindingTarget) -> None:
    assert settings_of(target).body["cache_salt"] == NAMESPACE


def test_sglangs_salt_is_its_extra_key() -> None:
    assert settings_of(BindingTarget.SGLANG).body == {"extra_key": NAMESPACE}


def test_an_engine_without_a_salt_gets_no_field_and_the_reason() -> None:
    found = settings_of(BindingTarget.LLAMACPP)
    assert found.body == {}
    assert any("start a process for each release" in limit for limit in found.limits)


@pytest.mark.parametrize("target", [*SALTED, BindingTarget.SGLANG])
def test_a_tenants_salt_is_combined_and_not_shown(target: BindingTarget) -> None:
    found = settings_of(target, tenant_salt="a secret/of@tenant 7")
    assert bound_salt(NAMESPACE, "a secret/of@tenant 7") in json.dumps(found.body)
    assert "secret" not in texts_of(found)


@pytest.mark.parametrize("namespace", [NAMESPACE, LONGEST])
@pytest.mark.parametrize("tenant_salt", [None, "t" * 300])
def test_salts_keep_the_narrowest_rule_and_tags_hold_no_separator(namespace: str, tenant_salt: str | None) -> None:
    assert is_namespace_text(namespace)
    body = binding_settings(BindingTarget.LMCACHE, Wanted(namespace=namespace, tenant_salt=tenant_salt)).body
    salt = str(body["cache_salt"])
    assert checked_salt(salt) == salt
    assert body["kv_transfer_params"] == {TAG: salt}
    assert not set("@%") & set(salt)


def test_a_bucket_has_at_most_63_characters_and_is_the_namespace_where_that_fits() -> None:
    assert bucket_name(NAMESPACE) == NAMESPACE
    assert len(LONGEST) == MAX_NAMESPACE_CHARS
    cut = bucket_name(LONGEST)
    assert len(cut) <= 63
    assert cut != bucket_name(LONGEST.replace("e10", "e11"))
    assert set(cut) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_pods_of_a_release_and_their_indexer_have_one_hash_root_that_python_takes() -> None:
    pod, indexer = settings_of(BindingTarget.VLLM).env["PYTHONHASHSEED"], settings_of(BindingTarget.VLLM).beside
    assert set(indexer.values()) == {pod}
    assert settings_of(BindingTarget.LMCACHE).env["PYTHONHASHSEED"] == pod
    assert settings_of(BindingTarget.VLLM, tenant_salt="t", store_root="/x").env["PYTHONHASHSEED"] == pod
    assert pod.isdecimal()
    assert 0 <= int(pod) < 2**32


def test_the_hash_root_is_the_documented_one() -> None:
    """BLAKE3 of `kvseed1` and the namespace, each behind its length: docs/engines.md."""
    from blake3 import blake3

    framed = b"".join(len(part).to_bytes(8, "little") + part for part in (b"kvseed1", NAMESPACE.encode()))
    root = int.from_bytes(blake3(framed).digest()[:4], "big")
    assert settings_of(BindingTarget.VLLM).env["PYTHONHASHSEED"] == str(root)


def test_the_users_name_comes_first_and_the_namespace_beside_it() -> None:
    flags = settings_of(BindingTarget.VLLM, model="support").flags
    assert flags[-3:] == ("--served-model-name", "support", NAMESPACE)
    assert "--served-model-name" not in settings_of(BindingTarget.VLLM).flags


def test_directories_lie_below_the_root_that_was_named() -> None:
    for target in BindingTarget:
        for setting in settings_of(target, store_root="/mnt/kv/").directories.values():
            assert setting.removeprefix("file://").rstrip("/") == f"/mnt/kv/{target}/{NAMESPACE}"


@pytest.mark.parametrize("target", list(BindingTarget))
def test_a_declared_engine_of_the_targets_own_name_never_contradicts_it(target: BindingTarget) -> None:
    declared = declared_runtime({"engine": target.value})
    assert may_be(target, declared.fields["engine"])
    kind = asked_as(target)
    assert kind is None or kind.value == target.value or kind is EngineKind.OPENAI
