"""What `kvrelease prompts check` says of a prompt set: what it holds, what its prompts share, what looks wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.artifacts import Artifact
from kvrelease.chain import DEFAULT_BLOCK_TOKENS, common_prefix
from kvrelease.workload.grouping import compared_text, key_spaces, prefix_labels
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree
from kvrelease.workload.prompt_findings import (
    KeySpaceShare,
    SensitiveFinding,
    Uncacheable,
    UncacheableReason,
    key_space_shares,
    sensitive_findings,
    uncacheable,
)
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet
from kvrelease.workload.prompt_warnings import PromptsWarning, WarningCode, prompt_warnings
from kvrelease.workload.tokens import TokenFigures, Tokens


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one label.

    Attributes:
        prefix: the label.
        prompts: how many carry it.
        share: their part of the traffic, 0 … 1.
        characters: length of what their texts have in common from the start (the whole text for a single prompt).
        tokens: the same in tokens; None when the tokens of one of them are not known.
    """

    prefix: str
    prompts: int
    share: float
    characters: int
    tokens: int | None = None


class PromptsReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/prompts"):
    """What a prompt set holds.

    Attributes:
        name: of the set.
        source: where it was read.
        digest: `kvprompts1:…`, of what would be sent and how often.
        prompts: how many.
        chat: of these, for the chat route.
        completions: for the completions route.
        total_weight: sum of the weights.
        largest_share: part of the traffic of the heaviest prompt, 0 … 1.
        effective_prompts: 1 / sum of squared shares: how many equally frequent prompts would be as varied.
        shared_prefixes: most traffic first.
        warnings: what looks wrong; the set is usable all the same.
        tokens: how long the prompts are; None when nobody counted.
        key_spaces: most traffic first.
        uncacheable: what can never be hit, and why.
        sensitive: likely secrets and personal data, by prompt and kind.
    """

    name: str
    source: str
    digest: str
    prompts: int
    chat: int
    completions: int
    total_weight: float
    largest_share: float
    effective_prompts: float
    shared_prefixes: tuple[SharedPrefix, ...]
    warnings: tuple[PromptsWarning, ...]
    # Artifacts of before have none of these.
    tokens: TokenFigures | None = None
    key_spaces: tuple[KeySpaceShare, ...] = ()
    uncacheable: tuple[Uncacheable, ...] = ()
    sensitive: tuple[SensitiveFinding, ...] = ()

    @property
    def is_searched(self) -> bool:
        """Every prompt is text, so that all of it could be looked into."""
        return all(warning.code is not WarningCode.NOT_SEARCHED for warning in self.warnings)

    @property
    def is_counted(self) -> bool:
        """The tokens of every prompt are known."""
        return self.tokens is not None and not self.tokens.unknown

    @property
    def is_volatile(self) -> bool:
        """Text that changes stands near the front of some prompt."""
        return any(one.reason is UncacheableReason.VOLATILE for one in self.uncacheable)

    @property
    def has_short(self) -> bool:
        """Some prompt is no longer than a block."""
        return any(one.reason is UncacheableReason.SHORT for one in self.uncacheable)


def check_prompt_set(
    prompt_set: PromptSet, *, tokens: Tokens | None = None, block_tokens: int = DEFAULT_BLOCK_TOKENS
) -> PromptsReport:
    """The report of a loaded prompt set.

    Args:
        prompt_set: the prompts.
        tokens: their ids; None when nobody counted.
        block_tokens: granularity of a hit, >= 1.
    """
    shares = prompt_set.shares
    tree = _tree(tokens, prompt_set, block_tokens=block_tokens)
    labels = prefix_labels(prompt_set, tree if tokens is not None and not tokens.unknown else None)
    sensitive, unseen = sensitive_findings(prompt_set)
    chat = sum(prompt.kind is PromptKind.CHAT for prompt in prompt_set.prompts)
    return PromptsReport(
        name=prompt_set.name,
        source=prompt_set.source,
        digest=prompt_set.digest,
        prompts=len(prompt_set.prompts),
        chat=chat,
        completions=len(prompt_set.prompts) - chat,
        total_weight=prompt_set.total_weight,
        largest_share=max(shares.values()),
        effective_prompts=1 / sum(share**2 for share in shares.values()),
        shared_prefixes=_shared_prefixes(prompt_set, labels, shares, tokens),
        warnings=prompt_warnings(prompt_set, labels, tokens=tokens, unseen=unseen),
        tokens=None if tokens is None or tree is None else _figures(tokens, tree),
        key_spaces=key_space_shares(prompt_set, shares),
        uncacheable=uncacheable(prompt_set, shares, tokens=tokens, block_tokens=block_tokens),
        sensitive=sensitive,
    )


def _shared_prefixes(
    prompt_set: PromptSet, labels: Mapping[str, str], shares: Mapping[str, float], tokens: Tokens | None
) -> tuple[SharedPrefix, ...]:
    members: dict[str, list[Prompt]] = {}
    for prompt in prompt_set.prompts:
        members.setdefault(labels[prompt.id], []).append(prompt)
    prefixes = [
        SharedPrefix(
            prefix=label,
            prompts=len(prompts),
            share=min(math.fsum(shares[prompt.id] for prompt in prompts), 1.0),
            characters=_common([compared_text(prompt) for prompt in prompts]),
            tokens=_common_tokens(prompts, tokens),
        )
        for label, prompts in members.items()
    ]
    return tuple(sorted(prefixes, key=lambda prefix: (-prefix.share, prefix.prefix)))


def _common_tokens(prompts: Sequence[Prompt], tokens: Tokens | None) -> int | None:
    ids = [] if tokens is None else [tokens.ids[prompt.id] for prompt in prompts if prompt.id in tokens.ids]
    return _common(ids) if len(ids) == len(prompts) else None


def _common(texts: Sequence[str] | Sequence[tuple[int, ...]]) -> int:
    # What the smallest and the largest text share, all between them share too.
    return common_prefix(min(texts), max(texts))


def _tree(tokens: Tokens | None, prompt_set: PromptSet, *, block_tokens: int) -> PrefixTree | None:
    if tokens is None:
        return None
    return build_prefix_tree(tokens.ids, block_tokens=block_tokens, key_spaces=key_spaces(prompt_set))


def _figures(tokens: Tokens, tree: PrefixTree) -> TokenFigures:
    lengths = [len(ids) for ids in tokens.ids.values()]
    return TokenFigures(
        by=tokens.by,
        counted=len(lengths),
        unknown=tuple(Counter(tokens.unknown.values()).most_common()),
        total=sum(lengths),
        shortest=min(lengths, default=0),
        longest=max(lengths, default=0),
        block_tokens=tree.block_tokens,
        cacheable=sum(branch.cacheable_tokens for branch in tree.branches.values()),
        unique=sum(segment.tokens for segment in tree.segments),
    )
