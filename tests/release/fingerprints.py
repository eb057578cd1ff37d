"""Fingerprints of releases that lie nowhere, with digests that follow from what they say, for tests of diffs."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject, ReleaseRef
from kvrelease.release.digests import config_digest, kv_digests, release_digest, weights_digest
from kvrelease.release.fingerprint import Digests, Fingerprint
from kvrelease.release.impact import rule_for
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import canonical_config
from tests.release.builders import config_json, tensors

PAYLOADS = {name: f"{index:064x}" for index, name in enumerate(tensors())}
NEW = "f" * 64
# How the first line of a diff begins where old KV is valid and no runtime was compared.
STAYS_VALID = "Old KV stays valid in every layer, if engine, version and settings stay (not compared)"


def fingerprint(
    payloads: dict[str, str] | None = None,
    config: JsonObject | None = None,
    *,
    tokenizer: str = "t:00",
    generation: str = "g:00",
    template: str = "c:00",
) -> Fingerprint:
    """A fingerprint without files."""
    payloads = PAYLOADS if payloads is None else payloads
    canonical = canonical_config(config_json() if config is None else config)
    rule = rule_for(canonical)
    kv, layers = kv_digests(payloads, canonical.entries, {}, rule)
    parts: dict[str, str | None] = {
        "weights": weights_digest(payloads),
        "config": config_digest(canonical.entries, {}, rule),
        "tokenizer": tokenizer,
        "generation": generation,
        "template": template,
    }
    return Fingerprint(
        release=ReleaseRef(name="support", version=None, source="support", kv_name=None),
        mode=Mode.FULL,
        digests=Digests(
            release=release_digest(parts),
            weights=weights_digest(payloads),
            kv=kv,
            config=parts["config"],
            tokenizer=tokenizer,
            template=template,
            generation=generation,
        ),
        fast=None,
        adapters=(),
        rule=rule,
        layers=layers,
        tensors=len(payloads),
        bytes=0,
        seconds=0.0,
        files=(),
        config=canonical.entries,
        transformers_version=None,
        tensor_digests=payloads,
        warnings=(),
        code={},
    )


OLD = fingerprint()


def replaced(base: Fingerprint, **changes: object) -> Fingerprint:
    """The same with other fields, and the digests that it had."""
    return msgspec.structs.replace(base, **changes)
