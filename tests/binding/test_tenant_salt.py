"""The release's namespace and the tenant's own salt, in one salt."""

from __future__ import annotations

import hashlib

import pytest

from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.engines.vllm_salt import checked_salt
from kvrelease.workload.key_space import key_space_name, salt_mark
from tests.builders import NAMESPACE

LONG = "x" * 96
OWN = ["t", "with @ / \\ \0", "long" * 300, "tenant 7 / ü", "half a pair \ud800"]


@pytest.mark.parametrize("own", [None, ""])
def test_without_a_tenants_salt_it_is_the_namespace(own: str | None) -> None:
    assert bound_salt(NAMESPACE, own) == NAMESPACE


def test_a_tenants_salt_is_combined_as_documented_so_that_any_client_can() -> None:
    mark = hashlib.sha256("tenant 7 / ü".encode()).hexdigest()[:32]
    assert bound_salt(NAMESPACE, "tenant 7 / ü") == f"{NAMESPACE}.{mark}"


@pytest.mark.parametrize("namespace", [NAMESPACE, "x" * 95, LONG])
@pytest.mark.parametrize("own", OWN)
def test_binding_twice_is_binding_once(namespace: str, own: str) -> None:
    once = bound_salt(namespace, own)
    assert bound_salt(namespace, once) == once
    assert bound_salt(namespace, namespace) == namespace


def test_a_salt_bound_to_another_namespace_is_a_tenants_own_like_any_other() -> None:
    other = bound_salt(NAMESPACE[:-1] + "1", "tenant")
    assert bound_salt(NAMESPACE, other) == f"{NAMESPACE}.{hashlib.sha256(other.encode()).hexdigest()[:32]}"


@pytest.mark.parametrize("tail", ["", "g" * 32, "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n", "0" * 32 + ".x"])
def test_what_only_begins_like_a_bound_salt_is_none(tail: str) -> None:
    own = f"{NAMESPACE}.{tail}"
    assert bound_salt(NAMESPACE, own) == f"{NAMESPACE}.{hashlib.sha256(own.encode()).hexdigest()[:32]}"


@pytest.mark.parametrize("namespace", ["p", NAMESPACE, "x" * 95, LONG, "x" * 128])
@pytest.mark.parametrize("own", OWN)
def test_the_narrowest_engine_takes_every_combination(namespace: str, own: str) -> None:
    found = bound_salt(namespace, own)
    assert checked_salt(found) == found
    assert len(own) == 1 or own not in found


def test_no_two_pairs_are_written_alike() -> None:
    """A separator within a name or a salt moves nothing from one to the other."""
    names = [NAMESPACE, NAMESPACE + ".", NAMESPACE + ".a", NAMESPACE + "." + "0" * 32, LONG, LONG + "x"]
    tenants = [None, "a", ".a", "a.", "A", "a ", "0" * 32]
    found = {bound_salt(name, tenant) for name in names for tenant in tenants}
    assert len(found) == len(names) * len(tenants)


def test_a_namespace_that_is_too_long_is_told_by_its_mark() -> None:
    marks = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in (LONG, "t")]
    assert bound_salt(LONG, "t") == ".".join(marks)


def test_reports_tell_a_bound_salt_as_it_is_and_a_tenant_by_the_beginning_of_its_mark() -> None:
    bound = bound_salt(NAMESPACE, "tenant-7")
    assert key_space_name(bound) == bound
    assert bound.partition(".")[2].startswith(salt_mark("tenant-7"))


def test_no_namespace_is_refused_because_it_would_bind_nothing() -> None:
    with pytest.raises(ValueError, match="binds nothing"):
        bound_salt("", "tenant")
