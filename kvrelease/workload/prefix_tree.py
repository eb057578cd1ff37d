"""The prefix tree of a prompt set: what its prompts share, cut at block boundaries, and what caching them must cost.

Pure: from token ids to numbers. The tree is compressed, so its size grows with the number of prompts, not of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import msgspec

from kvrelease.chain import TOKEN_BYTES, cacheable_tokens, common_prefix, pack_tokens


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A run of blocks that exactly the same prompts go through.

    Attributes:
        index: position in `PrefixTree.segments`.
        parent: index of the segment before it, always smaller; None at the start of prompts.
        start_tokens: tokens before it, a multiple of the block size.
        end_tokens: tokens up to its end, a multiple of the block size, > `start_tokens`.
        first: the first of the prompts that go through it, in `PrefixTree.order`.
        last: one past the last of them.
        is_leaf: no other segment continues it.
    """

    index: int
    parent: int | None
    start_tokens: int
    end_tokens: int
    first: int
    last: int
    is_leaf: bool

    @property
    def tokens(self) -> int:
        """How many tokens the run holds."""
        return self.end_tokens - self.start_tokens

    @property
    def prompts(self) -> int:
        """How many prompts go through it."""
        return self.last - self.first


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's way through the tree.

    Attributes:
        tokens: length of the prompt.
        cacheable_tokens: of these, the most that a hit can ever cover.
        segment: index of the last segment that it goes through; None when nothing of it can be cached.
        continued_by: index of the segment that begins with this prompt's last block, so that sending this prompt
            first computes that block for others; None for nearly all.
    """

    tokens: int
    cacheable_tokens: int
    segment: int | None
    continued_by: int | None = None

    @property
    def tail_tokens(self) -> int:
        """Tokens that are computed whenever the prompt is sent."""
        return self.tokens - self.cacheable_tokens


class PrefixTree(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of a set, cut into shared runs of blocks.

    Attributes:
        block_tokens: granularity of a hit.
        order: [prompts] ids, a prompt before those that extend it and next to those that share most with it.
        branches: by prompt id.
        segments: parents before children.
    """

    block_tokens: int
    order: tuple[str, ...]
    branches: dict[str, Branch]
    segments: tuple[Segment, ...]

    @property
    def unique_blocks(self) -> int:
        """Different cacheable blocks of the whole set."""
        return self.blocks_of(self.branches)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, shared ones counted every time."""
        return sum(branch.tokens for branch in self.branches.values())

    @property
    def cacheable_tokens(self) -> int:
        """Cacheable tokens of all prompts, shared ones counted every time."""
        return sum(branch.cacheable_tokens for branch in self.branches.values())

    @property
    def uncacheable(self) -> tuple[str, ...]:
        """Prompts too short for a single cacheable block, in `order`."""
        return tuple(prompt_id for prompt_id in self.order if self.branches[prompt_id].segment is None)

    @property
    def leaves(self) -> tuple[Segment, ...]:
        """Segments that none continues: whoever sends one prompt through each has sent every block."""
        return tuple(segment for segment in self.segments if segment.is_leaf)

    def prompts_through(self, segment: Segment) -> tuple[str, ...]:
        """Ids of the prompts that go through a segment, in `order`."""
        return self.order[segment.first : segment.last]

    def path(self, prompt_id: str) -> tuple[Segment, ...]:
        """The segments that a prompt goes through, from its start."""
        path = []
        index = self.branches[prompt_id].segment
        while index is not None:
            path.append(self.segments[index])
            index = self.segments[index].parent
        return tuple(reversed(path))

    def shared_tokens(self, one: str, other: str) -> int:
        """Cacheable tokens that two prompts have in common from their start."""
        common = {segment.index for segment in self.path(one)} & {segment.index for segment in self.path(other)}
        return max((self.segments[index].end_tokens for index in common), default=0)

    def senders(self) -> tuple[str, ...]:
        """The fewest and cheapest prompts that go through every block: one per leaf, in `order`.

        Of the prompts that end in one leaf, the one with the shortest tail, then the smallest id.
        """
        best: dict[int, str] = {}
        for prompt_id in sorted(self.order):
            index = self.branches[prompt_id].segment
            if index is None or not self.segments[index].is_leaf:
                continue
            kept = best.setdefault(index, prompt_id)
            if self.branches[prompt_id].tail_tokens < self.branches[kept].tail_tokens:
                best[index] = prompt_id
        return tuple(best[leaf.index] for leaf in self.leaves)

    def blocks_of(self, prompt_ids: Collection[str]) -> int:
        """Different cacheable blocks of some of the prompts: what they occupy when all are resident."""
        tokens = sum(self.segments[index].tokens for index in self.covered(prompt_ids))
        return tokens // self.block_tokens

    def lower_bound_tokens(self, sent: Collection[str] | None = None) -> int:
        """The fewest tokens that an empty cache must compute when some prompts are sent once, in the best order.

        Unique blocks times the block size, plus the uncached tail of each prompt sent; minus a block wherever a
        prompt of whole blocks, sent first, leaves its last one to a prompt that extends it.

        Args:
            sent: ids; None for `senders()`, what a prewarm has to send.

        Source:
            DESIGN, section 8, item 5; tested against a simulated cache over all orders.
        """
        ids = set(self.senders() if sent is None else sent)
        covered = self.covered(ids)
        given = {self.branches[prompt_id].continued_by for prompt_id in ids} & covered
        tails = sum(self.branches[prompt_id].tail_tokens for prompt_id in ids)
        return sum(self.segments[index].tokens for index in covered) + tails - len(given) * self.block_tokens

    def covered(self, prompt_ids: Collection[str]) -> set[int]:
        """Indices of the segments that some prompts go through."""
        covered: set[int] = set()
        for prompt_id in prompt_ids:
            index = self.branches[prompt_id].segment
            while index is not None and index not in covered:
                covered.add(index)
                index = self.segments[index].parent
        return covered


def build_prefix_tree(
    tokens: Mapping[str, Sequence[int]], *, block_tokens: int, key_spaces: Mapping[str, Hashable] | None = None
) -> PrefixTree:
    """The prefix tree of a prompt set.

    Args:
        tokens: [prompts][tokens] ids by prompt id, as the server tokenises the whole request.
        block_tokens: granularity of a hit, >= 1.
        key_spaces: by prompt id, such as adapter and salt: prompts of two share no block, however alike they are. A
            prompt that is not in it has the key space None; without it all have.
    """
    packed = {key: pack_tokens(ids) for key, ids in tokens.items()}
    return tree_of_packed(packed, block_tokens=block_tokens, key_spaces=key_spaces)


def tree_of_packed(
    packed: Mapping[str, bytes], *, block_tokens: int, key_spaces: Mapping[str, Hashable] | None = None
) -> PrefixTree:
    """`build_prefix_tree` for sequences of 4-byte symbols, such as packed token ids or UTF-32 text."""
    assert block_tokens >= 1, "a block holds at least one token"
    block_bytes = block_tokens * TOKEN_BYTES
    lengths = {key: cacheable_tokens(len(data) // TOKEN_BYTES, block_tokens) for key, data in packed.items()}
    # Sorted, every shared prefix is a contiguous range, and neighbours share the longest ones.
    cuts = {key: data[: lengths[key] * TOKEN_BYTES] for key, data in packed.items()}
    spaces = _numbered(packed, key_spaces or {})
    order = sorted(packed, key=lambda key: (spaces[key], cuts[key], key))
    root = _Node(start=0, end=0, first=0)
    ends = _grow(root, [(spaces[key], cuts[key]) for key in order], block_bytes=block_bytes)
    segments = _number(root, block_tokens=block_tokens)
    starts = {}
    for segment in segments:
        first = order[segment.first]
        block = packed[first][segment.start_tokens * TOKEN_BYTES :][:block_bytes]
        starts[(spaces[first], segment.parent, block)] = segment.index
    branches = {}
    for key, end in zip(order, ends, strict=True):
        tail = packed[key][lengths[key] * TOKEN_BYTES :]
        branches[key] = Branch(
            tokens=len(packed[key]) // TOKEN_BYTES,
            cacheable_tokens=lengths[key],
            segment=end.index,
            continued_by=starts.get((spaces[key], end.index, tail)) if len(tail) == block_bytes else None,
        )
    return PrefixTree(block_tokens=block_tokens, order=tuple(order), branches=branches, segments=segments)


def _numbered(ids: Collection[str], key_spaces: Mapping[str, Hashable]) -> dict[str, int]:
    """A number for the key space of each prompt, by the smallest id in it, so that no order of a mapping matters."""
    numbers: dict[Hashable, int] = {}
    return {key: numbers.setdefault(key_spaces.get(key), len(numbers)) for key in sorted(ids)}


class _Node:
    """A segment under construction; positions in blocks."""

    def __init__(self, *, start: int, end: int, first: int) -> None:
        self.start, self.end = start, end
        self.first, self.last = first, first
        self.children: list[_Node] = []
        self.index: int | None = None


def _grow(root: _Node, cuts: Sequence[tuple[int, bytes]], *, block_bytes: int) -> list[_Node]:
    """Builds the tree of sorted (key space, bytes) below `root`; returns the node in which each ends."""
    open_nodes = [root]
    ends = []
    for position, (space, cut) in enumerate(cuts):
        previous_space, previous = cuts[position - 1] if position else (space, b"")
        common = common_prefix(previous, cut) // block_bytes if space == previous_space else 0
        while open_nodes[-1].end > common:
            node = open_nodes.pop()
            node.last = position
            if open_nodes[-1].end < common:  # the newcomer leaves in the middle of this node: split it there
                upper = _Node(start=node.start, end=common, first=node.first)
                upper.children = [node]
                node.start = common
                open_nodes[-1].children[-1] = upper
                open_nodes.append(upper)
        length = len(cut) // block_bytes
        if length > common:
            node = _Node(start=common, end=length, first=position)
            open_nodes[-1].children.append(node)
            open_nodes.append(node)
        ends.append(open_nodes[-1])
    for node in open_nodes:
        node.last = len(cuts)
    return ends


def _number(root: _Node, *, block_tokens: int) -> tuple[Segment, ...]:
    """The finished segments, parents before children; iterative, as a chain of prompts may be thousands deep."""
    segments: list[Segment] = []
    waiting = [(child, root) for child in reversed(root.children)]
    while waiting:
        node, parent = waiting.pop()
        node.index = len(segments)
        segments.append(
            Segment(
                index=node.index,
                parent=parent.index,
                start_tokens=node.start * block_tokens,
                end_tokens=node.end * block_tokens,
                first=node.first,
                last=node.last,
                is_leaf=not node.children,
            )
        )
        waiting += [(child, node) for child in reversed(node.children)]
    return tuple(segments)
