"""The release's salt and the tenant's own, together."""

from __future__ import annotations

import hashlib

import pytest

from kvrelease.binding.salts import combined_salt, key_spaces
from kvrelease.engines.vllm_salt import checked_salt
from kvrelease.workload.key_space import KeySpace, salt_mark
from tests.workload.builders import prompt, prompt_set

NAMESPACE = "kv1-" + "a" * 32 + "-undeclared-e0"


def test_without_a_tenants_salt_it_is_productions() -> None:
    assert combined_salt(NAMESPACE, None) == NAMESPACE
    assert combined_salt(None, None) is None


def test_where_production_has_none_tenants_send_their_own_as_it_is() -> None:
    assert combined_salt(None, "tenant-7") == "tenant-7"


def test_the_two_are_combined_as_documented_so_that_any_client_can() -> None:
    mark = hashlib.sha256("tenant 7 / ü".encode()).hexdigest()[:32]
    assert combined_salt(NAMESPACE, "tenant 7 / ü") == f"{NAMESPACE}.{mark}"


@pytest.mark.parametrize("production", ["p", NAMESPACE, "x" * 95, "x" * 96, "x" * 128])
@pytest.mark.parametrize("own", ["t", "with @ / \\ \0", "long" * 300])
def test_engines_take_every_combination(production: str, own: str) -> None:
    found = combined_salt(production, own)
    assert found is not None
    assert checked_salt(found) == found
    assert own not in found or len(own) == 1


def test_no_two_tenants_and_no_two_releases_meet() -> None:
    releases = [NAMESPACE, NAMESPACE[:-1] + "1", "x" * 96, "x" * 97]
    tenants = [None, "a", "b", "A", "a "]
    found = {combined_salt(release, tenant) for release in releases for tenant in tenants}
    assert len(found) == len(releases) * len(tenants)


def test_a_mark_gives_no_salt_away() -> None:
    assert salt_mark("tenant-7") == hashlib.sha256(b"tenant-7").hexdigest()[:8]


def test_a_release_of_95_characters_is_kept_as_it_is_and_a_longer_one_is_marked() -> None:
    assert combined_salt("x" * 95, "t") == f"{'x' * 95}.{salt_mark('t', characters=32)}"
    assert combined_salt("x" * 96, "t") == f"{salt_mark('x' * 96, characters=32)}.{salt_mark('t', characters=32)}"


def test_a_key_space_is_adapter_and_tenant_and_the_served_model_is_no_adapter_by_name_either() -> None:
    asked = prompt_set(
        prompt("plain", {"prompt": "a"}),
        prompt("named", {"prompt": "a", "model": "served"}),
        prompt("adapted", {"prompt": "a", "model": "lora"}),
        prompt("tenant", {"prompt": "a", "model": "served"}, salt="t"),
    )
    assert key_spaces(asked, model="served") == {
        "plain": KeySpace(model="", salt=""),
        "named": KeySpace(model="", salt=""),
        "adapted": KeySpace(model="lora", salt=""),
        "tenant": KeySpace(model="", salt="t"),
    }
