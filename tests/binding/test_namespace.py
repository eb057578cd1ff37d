from __future__ import annotations

import pytest

from kvrelease.binding.namespace import resolve_namespace, salt_of
from kvrelease.binding.runtime import declared_runtime
from kvrelease.errors import DamagedFile, InputError, UsageError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.builders import NAMESPACE, NEW_KV, release

UNDECLARED = declared_runtime({})


def test_a_namespace_is_the_weights_the_runtime_and_the_epoch() -> None:
    runtime = declared_runtime({"engine": "vllm"})
    with Ledger(IN_MEMORY) as ledger:
        record, is_new = resolve_namespace(release(), runtime=runtime, ledger=ledger, command="prewarm")
    assert is_new
    assert record.namespace == f"{NEW_KV}-{runtime.name}-e0"
    assert len(record.namespace) <= 64


def test_making_one_is_an_event_and_finding_it_is_none() -> None:
    with Ledger(IN_MEMORY) as ledger:
        for _ in range(2):
            resolve_namespace(release(), runtime=UNDECLARED, ledger=ledger, command="verify")
        (event,) = ledger.events()
    assert (event.command, event.namespace, event.reason) == ("namespace", NAMESPACE, "made by verify")


def test_only_a_full_digest_names_a_cache() -> None:
    with Ledger(IN_MEMORY) as ledger, pytest.raises(InputError, match="only a full digest may name a cache") as caught:
        resolve_namespace(release(kv_name=None, source="my model"), runtime=UNDECLARED, ledger=ledger, command="verify")
    assert caught.value.hint == "kvrelease fingerprint 'my model'"


@pytest.mark.parametrize(
    "kv_name", ["", "kv1-", "../../etc", NEW_KV.upper(), NEW_KV + "a", NEW_KV + "\n", "kv1-" + "1" * 32]
)
def test_a_kv_name_that_was_tampered_with_is_a_damaged_file(kv_name: str) -> None:
    with Ledger(IN_MEMORY) as ledger, pytest.raises(DamagedFile, match="kv name"):
        resolve_namespace(release(kv_name=kv_name), runtime=UNDECLARED, ledger=ledger, command="verify")


@pytest.mark.parametrize(
    ("choice", "salt"),
    [
        ("none", None),
        ("release", NAMESPACE),
        ("team-7", "team-7"),
        ("nonesuch", "nonesuch"),
        ("release-1", "release-1"),
    ],
)
def test_a_key_space_is_none_the_releases_own_or_a_text(choice: str, salt: str | None) -> None:
    assert salt_of(choice, namespace=NAMESPACE) == salt


@pytest.mark.parametrize("choice", ["", " ", "None", "NONE", "Release", " none"])
def test_a_misspelt_key_space_is_refused_because_probing_it_would_prove_nothing(choice: str) -> None:
    with pytest.raises(UsageError, match="no salt"):
        salt_of(choice, namespace=NAMESPACE)


@pytest.mark.parametrize(("slip", "meant"), [("relase", "release"), ("relaese", "release"), ("non", "none")])
def test_a_slip_of_the_keyboard_is_no_salt_that_users_send(slip: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"misspelt '{meant}'"):
        salt_of(slip, namespace=NAMESPACE)


def test_the_releases_own_key_space_needs_a_release() -> None:
    with pytest.raises(InputError, match="no release was named"):
        salt_of("release", namespace=None)
