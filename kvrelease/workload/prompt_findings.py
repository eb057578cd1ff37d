"""What `prompts check` finds in single prompts of a set: key spaces, secrets, what can never be cached."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from kvrelease.workload.key_space import salt_mark
from kvrelease.workload.prompt_set import PromptSet, key_space_of
from kvrelease.workload.sensitive import SensitiveKind, sensitive_in
from kvrelease.workload.tokens import Tokens, too_short
from kvrelease.workload.volatile import volatile_prefixes


class KeySpaceShare(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one key space.

    Attributes:
        model: the model or adapter that the bodies name; None where they name none.
        salt: digits that tell the tenant's salt apart, never the salt; None without one.
        prompts: how many.
        share: their part of the traffic, 0 … 1.
    """

    model: str | None
    salt: str | None
    prompts: int
    share: float


class SensitiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Likely secrets or personal data of one kind in one prompt.

    Attributes:
        prompt_id: where.
        kind: what; the text itself is not repeated.
        is_secret: a credential, not personal data.
        count: how often.
    """

    prompt_id: str
    kind: SensitiveKind
    is_secret: bool
    count: int


class UncacheableReason(enum.StrEnum):
    """Why nothing of a prompt, or nothing behind its front, can be hit."""

    SHORT = "short"
    VOLATILE = "volatile"


class Uncacheable(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that cannot be cached.

    Attributes:
        reason: why.
        prompt_ids: which, in the set's order.
        share: their part of the traffic, 0 … 1.
        message: for people.
    """

    reason: UncacheableReason
    prompt_ids: tuple[str, ...]
    share: float
    message: str


def key_space_shares(prompt_set: PromptSet, shares: Mapping[str, float]) -> tuple[KeySpaceShare, ...]:
    """The key spaces of a set, most traffic first."""
    members: dict[tuple[str, str], list[str]] = {}
    for prompt in prompt_set.prompts:
        space = key_space_of(prompt)
        members.setdefault((space.model, space.salt), []).append(prompt.id)
    found = [
        KeySpaceShare(
            model=model or None,
            salt=salt_mark(salt) if salt else None,
            prompts=len(ids),
            share=min(sum(shares[prompt_id] for prompt_id in ids), 1.0),
        )
        for (model, salt), ids in members.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.share, one.model or "", one.salt or "")))


def sensitive_findings(prompt_set: PromptSet) -> tuple[tuple[SensitiveFinding, ...], tuple[str, ...]]:
    """(findings in the set's order, ids of prompts that are token ids and could not be looked into)."""
    findings, unseen = [], []
    for prompt in prompt_set.prompts:
        counts = sensitive_in(prompt.body, kind=prompt.kind)
        if counts is None:
            unseen.append(prompt.id)
            continue
        findings += [
            SensitiveFinding(prompt_id=prompt.id, kind=kind, is_secret=kind.is_secret, count=counts[kind])
            for kind in sorted(counts)
        ]
    return tuple(findings), tuple(unseen)


def uncacheable(
    prompt_set: PromptSet, shares: Mapping[str, float], *, tokens: Tokens | None, block_tokens: int
) -> tuple[Uncacheable, ...]:
    """What can never be hit, and why; the short ones only where tokens are known."""
    found = []
    if tokens is not None and (ids := too_short(tokens, block_tokens=block_tokens)):
        found.append((UncacheableReason.SHORT, ids, f"no longer than one block of {block_tokens} tokens"))
    spoilt = {prompt_id for finding in volatile_prefixes(prompt_set) for prompt_id in finding.prompt_ids}
    if spoilt:
        ids = tuple(prompt.id for prompt in prompt_set.prompts if prompt.id in spoilt)
        found.append((UncacheableReason.VOLATILE, ids, "nothing behind what changes near their front"))
    return tuple(
        Uncacheable(
            reason=reason,
            prompt_ids=ids,
            share=min(sum(shares[prompt_id] for prompt_id in ids), 1.0),
            message=message,
        )
        for reason, ids, message in found
    )
