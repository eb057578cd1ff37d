"""The release's salt and the tenant's own, together."""

from __future__ import annotations

import hashlib

from kvrelease.binding.salts import combined_salt, key_spaces
from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.workload.key_space import KeySpace, salt_mark
from tests.builders import NAMESPACE
from tests.workload.builders import prompt, prompt_set


def test_without_a_tenants_salt_it_is_productions() -> None:
    assert combined_salt(NAMESPACE, None) == NAMESPACE
    assert combined_salt(None, None) is None


def test_where_production_has_none_tenants_send_their_own_as_it_is() -> None:
    assert combined_salt(None, "tenant-7") == "tenant-7"


def test_where_both_have_one_it_is_the_bound_salt() -> None:
    assert combined_salt(NAMESPACE, "tenant-7") == bound_salt(NAMESPACE, "tenant-7")


def test_a_mark_gives_no_salt_away() -> None:
    assert salt_mark("tenant-7") == hashlib.sha256(b"tenant-7").hexdigest()[:8]


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
