"""The digests of a release, from payload digests, configuration and rule. Pure; docs/fingerprint.md to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.algorithm import (
    ADAPTER_ALGORITHM,
    ADAPTER_CONFIG_ALGORITHM,
    CONFIG_ALGORITHM,
    FAST_ALGORITHM,
    FULL_ALGORITHM,
)
from kvrelease.release.canonical import digest_of, encode_json
from kvrelease.release.impact import Rule, config_affects_kv, impacts_under, tied_names
from kvrelease.release.mode import Mode


def algorithm_of(mode: Mode) -> str:
    """The name that digests of tensors read in this mode begin with; those of two modes are never equal."""
    return FULL_ALGORITHM if mode is Mode.FULL else FAST_ALGORITHM


_DIGEST_LENGTH = (32).to_bytes(8, "little")


class LayerDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer's KV depends on, all earlier layers included: it changes exactly when that KV may.

    Attributes:
        layer: from 0.
        digest: `algorithm:hex`.
    """

    layer: int
    digest: str


def without_tied_copy(payloads: Mapping[str, str], rule: Rule) -> dict[str, str]:
    """The tensors without an output layer that only repeats the embeddings it is tied to.

    Whether such a copy is stored depends on who saved the model, not on the model.
    """
    kept = dict(payloads)
    tied = tied_names(payloads, rule)
    if tied is not None and kept[tied[0]] == kept[tied[1]]:
        del kept[tied[0]]
    return kept


def weights_digest(payloads: Mapping[str, str], *, algorithm: str = FULL_ALGORITHM) -> str:
    """Digest of all tensors, sorted by name.

    Args:
        payloads: tensor name → payload or sample digest (hex), tied copies removed.
        algorithm: `FULL_ALGORITHM` over payloads, `FAST_ALGORITHM` over samples.
    """
    return f"{algorithm}:{digest_of(f'{algorithm} weights', [], framed=_pairs(payloads))}"


def config_digest(entries: JsonObject, code: Mapping[str, str], rule: Rule) -> str:
    """Digest of all configuration entries in the rule's canonical form, and of the code that they bring."""
    algorithm = f"{CONFIG_ALGORITHM}/{rule.family}"
    return f"{algorithm}:{digest_of(algorithm, [encode_json(entries)], framed=_pairs(code))}"


def kv_digests(
    payloads: Mapping[str, str],
    entries: JsonObject | None,
    code: Mapping[str, str],
    rule: Rule,
    *,
    algorithm: str = FULL_ALGORITHM,
) -> tuple[str, tuple[LayerDigest, ...]]:
    """The kv digest, and the cumulative digest of each layer (none where the rule knows no layers).

    Args:
        payloads: tensor name → payload or sample digest (hex), tied copies removed.
        entries: canonical configuration; None when there is no configuration.
        code: file name → BLAKE3 (hex) of code that the configuration brings.
        rule: of the release.
        algorithm: `FULL_ALGORITHM` over payloads, `FAST_ALGORITHM` over samples.
    """
    algorithm = f"{algorithm}/{rule.name}"
    counted = None if entries is None else {key: entries[key] for key in entries if config_affects_kv(key, rule)}
    running = digest_of(f"{algorithm} configuration", [encode_json(counted)], framed=_pairs(code))
    by_layer = {0: _pairs(payloads)} if rule.layers is None else _pairs_by_layer(payloads, rule)
    layers = []
    for layer in range(rule.cached_layers or 1):
        running = digest_of(f"{algorithm} layer", [bytes.fromhex(running)], framed=by_layer.get(layer, b""))
        layers.append(LayerDigest(layer=layer, digest=f"{algorithm}:{running}"))
    kv = f"{algorithm}:{digest_of(f'{algorithm} kv', [bytes.fromhex(running)])}"
    return kv, tuple(layers) if rule.layers is not None else ()


def adapter_config_digest(entries: JsonObject) -> str:
    """Digest of the canonical configuration of an adapter."""
    return f"{ADAPTER_CONFIG_ALGORITHM}:{digest_of(ADAPTER_CONFIG_ALGORITHM, [encode_json(entries)])}"


def adapter_digest(payloads: Mapping[str, str], entries: JsonObject) -> str:
    """Digest of an adapter: all of its tensors, and its canonical configuration."""
    return f"{ADAPTER_ALGORITHM}:{digest_of(ADAPTER_ALGORITHM, [encode_json(entries)], framed=_pairs(payloads))}"


def adapted_kv_digest(base_kv: str, adapter: str) -> str:
    """Digest of what KV of base and adapter together depends on; its algorithm's name tells both.

    Args:
        base_kv: kv digest of the base, `algorithm:hex`.
        adapter: digest of the adapter, `algorithm:hex`.
    """
    rule, _, base_hex = base_kv.partition(":")
    algorithm = f"{rule}+adapter"
    fields = [bytes.fromhex(base_hex), bytes.fromhex(adapter.partition(":")[2])]
    return f"{algorithm}:{digest_of(f'{algorithm} kv', fields)}"


def release_digest(parts: Mapping[str, str | None], *, algorithm: str = FULL_ALGORITHM) -> str:
    """Digest over the release's other digests, by name.

    The kv digest is left out: weights and configuration decide it, and a rule that improves must not rename releases.
    """
    known = {name: digest for name, digest in parts.items() if digest is not None}
    return f"{algorithm}:{digest_of(f'{algorithm} release', [encode_json(known)])}"


def _pairs_by_layer(payloads: Mapping[str, str], rule: Rule) -> dict[int, bytes]:
    """The pairs of the tensors by the first layer whose KV they touch, those that touch none left out."""
    impact, named = impacts_under(rule), dict[int, list[tuple[str, str]]]()
    for name in sorted(payloads):
        first_layer = impact(name).first_layer
        if first_layer is not None:
            named.setdefault(first_layer, []).append((name, payloads[name]))
    return {layer: _framed(pairs) for layer, pairs in named.items()}


def _pairs(named: Mapping[str, str]) -> bytes:
    """Name, digest, name, digest, … framed, sorted by the name's UTF-8 bytes, which is the order of its code points."""
    return _framed(sorted(named.items()))


def _framed(pairs: Iterable[tuple[str, str]]) -> bytes:
    parts: list[bytes] = []
    for name, digest in pairs:
        raw = name.encode()
        parts += (len(raw).to_bytes(8, "little"), raw, _DIGEST_LENGTH, bytes.fromhex(digest))
    return b"".join(parts)
