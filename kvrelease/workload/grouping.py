"""Which shared prefix each prompt belongs to, and a readable name for it."""

from __future__ import annotations

import msgspec

from kvrelease.chain import DEFAULT_BLOCK_TOKENS
from kvrelease.workload.body import whole_text
from kvrelease.workload.key_space import KeySpace
from kvrelease.workload.prefix_tree import PrefixTree, tree_of_packed
from kvrelease.workload.prompt_set import Prompt, PromptSet, key_space_of

UNSHARED = "unshared"
# Every chat prompt shares the template's first tokens; below one block a shared start is not a prefix worth a name. In
# text, 16 tokens of English are about 64 characters.
MIN_SHARED_TOKENS = DEFAULT_BLOCK_TOKENS
MIN_SHARED_CHARACTERS = 64
# Texts are compared up to here: several times the longest context of common deployments' shared prefixes.
MAX_COMPARED_CHARACTERS = 262_144


class PrefixGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts for which one shared prefix saves the most.

    Attributes:
        length: of the prefix, in the tree's symbols (tokens, or characters of a text tree).
        prompt_ids: in the tree's order.
        saved: symbols that a cache saves by the prefix when each prompt through it is sent once.
    """

    length: int
    prompt_ids: tuple[str, ...]
    saved: int


def shared_groups(tree: PrefixTree, *, at_least: int = MIN_SHARED_TOKENS) -> tuple[PrefixGroup, ...]:
    """The prompts by the shared prefix that saves the most on their way, most saving first.

    A few common words after a long system prompt, or the template's header before it, make no group of their own: a
    prefix counts by its length times the number of prompts that reuse it. Prompts that share nothing are in no group.
    """
    best: list[int | None] = []
    for segment in tree.segments:
        inherited = best[segment.parent] if segment.parent is not None else None
        is_better = inherited is None or _saved(tree, segment.index) > _saved(tree, inherited)
        is_eligible = segment.prompts > 1 and segment.end_tokens >= at_least
        best.append(segment.index if is_eligible and is_better else inherited)
    members: dict[int, list[str]] = {}
    for prompt_id in tree.order:
        end = tree.branches[prompt_id].segment
        chosen = best[end] if end is not None else None
        if chosen is not None:
            members.setdefault(chosen, []).append(prompt_id)
    groups = [
        PrefixGroup(length=tree.segments[index].end_tokens, prompt_ids=tuple(ids), saved=_saved(tree, index))
        for index, ids in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.saved, group.prompt_ids)))


def prefix_labels(prompt_set: PromptSet, tree: PrefixTree | None = None) -> dict[str, str]:
    """A label of the shared prefix of every prompt, by prompt id.

    The set's own label where it gives one. Otherwise that of the group's labelled members, when they agree; otherwise
    `shared-1`, `shared-2`, … by what they save; `unshared` for a prompt that shares nothing.

    Args:
        prompt_set: the prompts.
        tree: over their token ids; None compares their texts instead.
    """
    given = {prompt.id: prompt.prefix for prompt in prompt_set.prompts if prompt.prefix is not None}
    if len(given) == len(prompt_set.prompts):
        return given
    if tree is None:
        groups = shared_groups(text_tree(prompt_set), at_least=MIN_SHARED_CHARACTERS)
    else:
        groups = shared_groups(tree)
    labels = {prompt.id: UNSHARED for prompt in prompt_set.prompts}
    number = 0
    for group in groups:
        owned = {given[prompt_id] for prompt_id in group.prompt_ids if prompt_id in given}
        if len(owned) == 1:
            label = owned.pop()
        else:
            number += 1
            label = f"shared-{number}"
        labels |= dict.fromkeys(group.prompt_ids, label)
    return labels | given


def compared_text(prompt: Prompt) -> str:
    """As much of a prompt's text as is compared with others'."""
    return whole_text(prompt.body, kind=prompt.kind)[:MAX_COMPARED_CHARACTERS]


def text_tree(prompt_set: PromptSet) -> PrefixTree:
    """The prefix tree over the characters of the prompts' texts, for when no tokenizer is at hand."""
    packed = {prompt.id: compared_text(prompt).encode("utf-32-le") for prompt in prompt_set.prompts}
    return tree_of_packed(packed, block_tokens=1, key_spaces=key_spaces(prompt_set))


def key_spaces(prompt_set: PromptSet) -> dict[str, KeySpace]:
    """The key space of each prompt, by its id, as the bodies ask for them."""
    return {prompt.id: key_space_of(prompt) for prompt in prompt_set.prompts}


def _saved(tree: PrefixTree, index: int) -> int:
    segment = tree.segments[index]
    return segment.end_tokens * (segment.prompts - 1)
