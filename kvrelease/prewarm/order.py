"""Which prompt to send next, so that no block is computed twice at any concurrency; pure, no clock and no network.

Waves with a barrier leave an engine idle until the slowest request of each is answered. A schedule needs none: a prompt
may start as soon as every block on its way is computed, or is computed by nobody in flight. The first one through a
segment owns it until it is answered; those behind it wait for that one alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvrelease.workload.prefix_tree import PrefixTree


class Schedule:
    """What may be sent now. Every prompt that `start` gives must come back by `finish` or `give_up`.

    Args:
        tree: of the prompts, cut at the engine's blocks and never shared across key spaces.
        order: ids to send, each once; of those that may start, the earlier one does.
        done: of these, what is computed already (an earlier run was cut short); it is not sent.
    """

    def __init__(self, tree: PrefixTree, order: Sequence[str], *, done: frozenset[str] = frozenset()) -> None:
        self._tree = tree
        self._rank = {prompt_id: rank for rank, prompt_id in enumerate(order)}
        self._computed: set[int] = set()
        self._begun: set[int] = set()  # segments of which another prompt's last block is the first
        self._owner: dict[int, str] = {}
        self._owned: dict[str, tuple[int, ...]] = {}
        self._behind: dict[str, list[str]] = {}
        for prompt_id in order:
            if prompt_id in done:
                self._computed.update(self._uncomputed(prompt_id))
        self._ready = [rank for prompt_id, rank in self._rank.items() if prompt_id not in done]
        self._order = tuple(order)
        self._left = len(self._ready)

    @property
    def left(self) -> int:
        """How many were never started."""
        return self._left

    @property
    def is_over(self) -> bool:
        """Nothing is left, and nothing in flight."""
        return not self._left and not self._owned

    def start(self) -> str | None:
        """The next prompt to send, from now on in flight; None while all that are left wait for one in flight."""
        while self._ready:
            prompt_id = self._order[heapq.heappop(self._ready)]
            wanted = self._wanted(prompt_id)
            blocker = next((self._owner[index] for index in wanted if index in self._owner), None)
            if blocker is not None:
                self._behind.setdefault(blocker, []).append(prompt_id)
                continue
            self._owner.update(dict.fromkeys(wanted, prompt_id))
            self._owned[prompt_id] = wanted
            self._left -= 1
            return prompt_id
        return None

    def cost(self, prompt_id: str) -> int:
        """The fewest tokens that a prompt in flight makes the engine compute, given what is computed by then."""
        branch = self._tree.branches[prompt_id]
        own = [index for index in self._owned[prompt_id] if index != branch.continued_by]
        # Where its last block is there already (it begins what another prompt computed), it is computed again all the
        # same: an engine needs the last token, and hits whole blocks.
        given = self._begun & set(own)
        tokens = sum(self._tree.segments[index].tokens for index in own) - len(given) * self._tree.block_tokens
        return tokens + branch.tail_tokens

    def finish(self, prompt_id: str) -> None:
        """A prompt was answered: all blocks on its way are in the cache."""
        # A segment that only begins with this prompt's last block is claimed, and not computed, by it.
        self._computed.update(self._uncomputed(prompt_id))
        begun = self._tree.branches[prompt_id].continued_by
        if begun is not None:
            self._begun.add(begun)
        self._let_go(prompt_id)

    def give_up(self, prompt_id: str) -> None:
        """A prompt was not answered: what it owned is anybody's again."""
        self._let_go(prompt_id)

    def _let_go(self, prompt_id: str) -> None:
        for index in self._owned.pop(prompt_id):
            del self._owner[index]
        for waiting in self._behind.pop(prompt_id, ()):
            heapq.heappush(self._ready, self._rank[waiting])

    def _wanted(self, prompt_id: str) -> tuple[int, ...]:
        """Segments that this prompt would compute a block of, the first of them first."""
        begun = self._tree.branches[prompt_id].continued_by
        own = self._uncomputed(prompt_id)
        return own if begun is None or begun in self._computed else (*own, begun)

    def _uncomputed(self, prompt_id: str) -> tuple[int, ...]:
        # Whoever computed a segment computed all before it, so the first computed one from the end ends the search.
        found = []
        index = self._tree.branches[prompt_id].segment
        while index is not None and index not in self._computed:
            found.append(index)
            index = self._tree.segments[index].parent
        return tuple(reversed(found))
