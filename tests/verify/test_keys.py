"""What is weak in how blocks are keyed."""

from __future__ import annotations

from typing import Any

import msgspec

from kvrelease.engines.base import EngineIdentity
from kvrelease.verify.evidence import ReplicaEvidence
from kvrelease.verify.keys import check_keys
from tests.verify.builders import NAMESPACE, identity, replica


def found(who: EngineIdentity, *, salt: str | None) -> str:
    evidence: ReplicaEvidence = replica(who=who)
    check = check_keys(evidence, namespace=NAMESPACE, production_salt=salt)
    return "" if check is None else check.detail


def engine(*, outlives: bool = False, **labels: Any) -> EngineIdentity:
    who = identity()
    abilities = msgspec.structs.replace(who.capabilities, cache_outlives_process=outlives)
    return msgspec.structs.replace(who, capabilities=abilities, labels=labels)


def test_a_cache_that_dies_with_its_process_and_a_strong_hash_are_no_weakness() -> None:
    assert found(engine(), salt=None) == ""
    assert found(engine(prefix_caching_hash_algo="sha256_cbor"), salt=None) == ""


def test_a_store_wants_the_namespace_in_its_keys() -> None:
    for who in (engine(outlives=True), engine(kv_connector="ExampleConnector")):
        assert "unsalted requests have no version in their keys" in found(who, salt=None)
        assert "kv1-old-undeclared-e0 requests" in found(who, salt="kv1-old-undeclared-e0")
        assert found(who, salt=NAMESPACE) == ""


def test_a_hash_that_collides_on_purpose_is_named_with_the_flag() -> None:
    assert "--prefix-caching-hash-algo sha256" in found(engine(prefix_caching_hash_algo="xxhash"), salt=NAMESPACE)
