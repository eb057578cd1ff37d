from __future__ import annotations

import hashlib

import pytest

from kvrelease.binding.salts import combined_salt, probe_salt
from kvrelease.ledger.records import namespace_text
from kvrelease.workload.key_space import key_space_name

NAMESPACE = namespace_text("kv1-ixwalxnsoyzigeatgayuuivwq7xaawd6", runtime="undeclared", epoch=3)


def test_a_namespace_is_no_secret_and_is_told() -> None:
    probes = probe_salt("ready"), probe_salt("first-touch"), combined_salt(probe_salt("reference"), "tenant-7")
    for salt in (None, NAMESPACE, combined_salt(NAMESPACE, "tenant-7"), *probes):
        assert key_space_name(salt) == salt


@pytest.mark.parametrize(
    "salt",
    [
        "my-private-salt-77",
        "",
        f"{NAMESPACE}x",
        f" {NAMESPACE}",
        f"{NAMESPACE}.tenant-7",
        f"{NAMESPACE}\n",
        "kvrelease-x",
    ],
)
def test_a_salt_that_is_text_is_told_by_its_mark_alone(salt: str) -> None:
    assert key_space_name(salt) == f"sha256:{hashlib.sha256(salt.encode()).hexdigest()[:32]}"
