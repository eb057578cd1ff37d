"""What SGLang's answers hold beyond the OpenAI protocol: hits without a flag, tiers, token ids, rank, weight versions.

Source: SGLang 0.5.23: `sglext.cached_tokens_details` (entrypoints/openai/protocol.py `SglExt`, `CachedTokensDetails`;
absent on a miss: managers/scheduler_components/output_streamer.py), `meta_info` (managers/tokenizer_manager.py),
`metadata.weight_versions` (utils/weight_versions.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import CacheTiers, GeneratedToken, Observation
from kvrelease.engines.foreign import as_count, as_list, as_object, as_text, at
from kvrelease.errors import UnexpectedReply


class _Extensions(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in an answer; empty where it has none."""

    meta: JsonObject
    metadata: JsonObject
    details: JsonObject


def extended(found: Observation, payloads: Sequence[JsonObject], *, url: str) -> Observation:
    """The observation with what SGLang adds to the protocol.

    Args:
        found: as the protocol alone shows it.
        payloads: [events] the answer's JSON.
        url: names the server in messages.

    Raises:
        UnexpectedReply: the weights were swapped while it generated.
    """
    extensions = _extensions(payloads)
    meta, metadata = extensions.meta, extensions.metadata
    _require_one_version(meta, metadata, url=url)
    tiers = _tiers(extensions.details)
    cached = found.cached_tokens
    if cached is None:
        cached = as_count(meta.get("cached_tokens"))
    if cached is None and tiers is not None:
        # No details are a miss, or a server that tells none: only a hit can be taken from them.
        cached = tiers.tokens
    return msgspec.structs.replace(
        found,
        cached_tokens=cached,
        tiers=tiers,
        tokens=_with_ids(found.tokens, meta),
        rank=as_count(meta.get("dp_rank")),
        system_fingerprint=found.system_fingerprint or as_text(metadata.get("weight_version")),
    )


def _require_one_version(meta: JsonObject, metadata: JsonObject, *, url: str) -> None:
    spans = as_list(metadata.get("weight_versions")) or as_list(meta.get("weight_versions"))
    versions = {as_text(as_object(span).get("version")) for span in spans}
    if len(versions) > 1:
        raise UnexpectedReply(
            f"{url}: the weights were swapped while it generated, so the answer is of no release",
            hint="ask again when the swap is over; drain a server before its weights are swapped",
        )


def _extensions(payloads: Sequence[JsonObject]) -> _Extensions:
    meta: JsonObject = {}
    metadata: JsonObject = {}
    details: JsonObject = {}
    for payload in payloads:
        details = as_object(at(payload, "sglext", "cached_tokens_details")) or details
        metadata = as_object(payload.get("metadata")) or metadata
        for choice in map(as_object, as_list(payload.get("choices"))):
            if (as_count(choice.get("index")) or 0) == 0:
                meta = as_object(choice.get("meta_info")) or meta
    return _Extensions(meta=meta, metadata=metadata, details=details or as_object(meta.get("cached_tokens_details")))


def _tiers(details: JsonObject) -> CacheTiers | None:
    device = as_count(details.get("device"))
    if device is None:
        return None
    return CacheTiers(
        device_tokens=device,
        host_tokens=as_count(details.get("host")) or 0,
        storage_tokens=as_count(details.get("storage")),
        storage=as_text(details.get("storage_backend")),
    )


def _with_ids(tokens: tuple[GeneratedToken, ...], meta: JsonObject) -> tuple[GeneratedToken, ...]:
    """The tokens with their ids, which `meta_info` lists as [log-probability, id, text], one for one."""
    rows = [as_list(row) for row in as_list(meta.get("output_token_logprobs"))]
    if len(rows) != len(tokens):
        return tokens
    return tuple(
        token
        if token.token_id is not None or len(row) < 2
        else msgspec.structs.replace(token, token_id=as_count(row[1]))
        for token, row in zip(tokens, rows, strict=True)
    )
