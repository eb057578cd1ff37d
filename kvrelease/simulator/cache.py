"""The prefix cache of one replica, block by block, in vLLM's exact order of eviction.

Pure. A block is whatever identifies it *with all that stands before it* in the prompt: a chained key, a trace's hash.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

# In the queue, something that no caller can name: another copy of a block that is cached already, or a block of an
# answer, whose key nobody asks for.
_Handle = Hashable


class _Copy:
    """One more copy of a block; `key` None for a block of an answer."""

    __slots__ = ("key",)

    def __init__(self, key: Hashable | None) -> None:
        self.key = key


class Hold:
    """The blocks of one request in flight.

    Attributes:
        hits: leading blocks that were cached when it began.
    """

    __slots__ = ("answer_blocks", "hits", "keys", "pages", "tail_blocks")

    def __init__(self, *, hits: int, pages: list[_Handle], keys: Sequence[Hashable], tail: int, answer: int) -> None:
        self.hits = hits
        self.pages = pages  # handles of the prompt's blocks that can be hit, in the prompt's order
        self.keys = keys  # of blocks still being computed; empty once they are visible
        self.tail_blocks = tail  # held, and empty again afterwards
        self.answer_blocks = answer  # held, and cached afterwards under keys that nobody asks for


class SimulatedBlocks:
    """Blocks of one replica; the least recently used go first, tails before what they continue.

    vLLM's rules, followed to the block: free blocks stand in one queue. Whoever needs one takes the head; what was
    cached in it is evicted then, not before. A finished request's blocks join the queue tail first, so that a prefix
    outlives what continues it; blocks that hold nothing anybody can hit are put at the head. A block in use is not in
    the queue. A block that had to be computed again although a copy is cached (the last one of a prompt of whole
    blocks) is a second copy, with a place of its own.

    Attributes:
        capacity_blocks: what it holds; of vLLM's `num_gpu_blocks` one is reserved, so give one less.
        evicted: cached blocks that were overwritten so far.

    Source:
        vLLM 0.32, vllm/v1/core/block_pool.py (`get_new_blocks`, `touch`, `free_blocks`, `BlockHashToBlockMap`),
        kv_cache_utils.py (`FreeKVCacheBlockQueue`), single_type_kv_cache_manager.py (`free`).
    """

    def __init__(self, capacity_blocks: int, *, hits_in_flight: bool = False) -> None:
        """Makes an empty one.

        Args:
            capacity_blocks: >= 1.
            hits_in_flight: whether a request hits blocks that another in flight is still computing, as with vLLM,
                which enters them when it schedules them; else they are there once they are computed.
        """
        assert capacity_blocks >= 1, "a cache holds at least one block"
        self.capacity_blocks = capacity_blocks
        self.evicted = 0
        self._hits_in_flight = hits_in_flight
        self._blank = capacity_blocks  # the head of the queue: blocks that hold nothing
        self._queue: OrderedDict[_Handle, None] = OrderedDict()  # the rest: cached, not in use, next evicted first
        self._uses: dict[_Handle, int] = {}  # cached and in use, by how many requests
        # Keys with other than exactly one copy of their own name: their copies, first inserted first.
        self._copies: dict[Hashable, list[_Handle]] = {}

    @property
    def cached_blocks(self) -> int:
        """Blocks that hold something, in use or not; copies count each."""
        return len(self._queue) + len(self._uses)

    @property
    def free_blocks(self) -> int:
        """Blocks that a new request could take."""
        return self._blank + len(self._queue)

    def peek(self, blocks: Sequence[Hashable]) -> int:
        """How many leading blocks would hit now; changes nothing."""
        queue, uses, copies = self._queue, self._uses, self._copies
        for count, block in enumerate(blocks):
            if block not in queue and block not in uses and block not in copies:
                return count
        return len(blocks)

    def request(
        self, blocks: Sequence[Hashable], *, hit_limit: int | None = None, tail_blocks: int = 1, answer_blocks: int = 0
    ) -> int | None:
        """A request that nobody else overlaps: how many of its leading blocks hit; None, as `begin`, without room.

        Args:
            blocks: [full blocks] of the prompt, from its start.
            hit_limit: most blocks that can hit; None for all. A prompt of whole blocks computes its last one anew.
            tail_blocks: blocks held for what fills no block, and empty afterwards.
            answer_blocks: full blocks of what is generated; cached, and hit by nobody.
        """
        if not self._uses and not self._copies and not answer_blocks:
            return self._request_alone(blocks, len(blocks) if hit_limit is None else hit_limit, tail_blocks)
        hold = self.begin(blocks, hit_limit=hit_limit, tail_blocks=tail_blocks, answer_blocks=answer_blocks)
        if hold is not None:
            self.finish(hold)
        return None if hold is None else hold.hits

    def begin(
        self, blocks: Sequence[Hashable], *, hit_limit: int | None = None, tail_blocks: int = 1, answer_blocks: int = 0
    ) -> Hold | None:
        """Takes the blocks of a request; None when there is no room now, and nothing has changed.

        Args:
            blocks: as in `request`.
            hit_limit: as in `request`.
            tail_blocks: as in `request`; taken at once, though an engine takes those of an answer as it grows.
            answer_blocks: as in `request`; likewise.
        """
        hits = min(self.peek(blocks), len(blocks) if hit_limit is None else hit_limit)
        pages: list[_Handle] = list(blocks[:hits])
        if self._copies:
            pages = [self._copies[page][0] if page in self._copies else page for page in pages]
        queue, uses = self._queue, self._uses
        needed = len(blocks) - hits + tail_blocks + answer_blocks
        if needed > self._blank + len(queue) - sum(page in queue for page in pages):
            return None
        for page in pages:
            if page in uses:
                uses[page] += 1
            else:
                del queue[page]
                uses[page] = 1
        self._take(needed)
        hold = Hold(hits=hits, pages=pages, keys=blocks[hits:], tail=tail_blocks, answer=answer_blocks)
        if self._hits_in_flight:
            self.computed(hold)
        return hold

    def computed(self, hold: Hold) -> None:
        """The prompt of a request in flight is computed: others can hit its blocks from now on."""
        for key in hold.keys:
            handle = self._insert(key)
            self._uses[handle] = 1
            hold.pages.append(handle)
        hold.keys = ()

    def finish(self, hold: Hold) -> None:
        """Gives a request's blocks back."""
        self.computed(hold)
        queue, uses = self._queue, self._uses
        for _ in range(hold.answer_blocks):
            queue[_Copy(None)] = None
        self._blank += hold.tail_blocks
        for page in reversed(hold.pages):
            if uses[page] > 1:
                uses[page] -= 1
            else:
                del uses[page]
                queue[page] = None

    def _insert(self, key: Hashable) -> _Handle:
        """The handle of a freshly computed block."""
        queue, uses, copies = self._queue, self._uses, self._copies
        is_taken = key in queue or key in uses
        if not is_taken and key not in copies:
            return key
        handle: _Handle = _Copy(key) if is_taken else key
        copies.setdefault(key, [key]).append(handle)
        return handle

    def _take(self, count: int) -> None:
        """Takes blocks from the head of the queue, which has that many."""
        blank = min(count, self._blank)
        self._blank -= blank
        handles = list(islice(self._queue, count - blank))
        _run(map(self._queue.__delitem__, handles))
        if self._copies:
            _run(map(self._forget, handles))
        self.evicted += len(handles)

    def _forget(self, handle: _Handle) -> None:
        key = handle.key if isinstance(handle, _Copy) else handle
        left = self._copies.get(key)
        if left is None:
            return
        left.remove(handle)
        if not left or left == [key]:
            del self._copies[key]

    def _request_alone(self, blocks: Sequence[Hashable], hit_limit: int, tail_blocks: int) -> int | None:
        """`request` where every cached block is in the queue under its own name: the same, several times as fast."""
        queue = self._queue
        hits = 0
        for block in blocks:
            if block not in queue:
                break
            hits += 1
        hits = min(hits, hit_limit)
        new = len(blocks) - hits
        free = self._blank + len(queue) - hits
        if new + tail_blocks > free:
            return None
        if hits < len(blocks) and not queue.keys().isdisjoint(blocks[hits:]):
            hold = self.begin(blocks, hit_limit=hit_limit, tail_blocks=tail_blocks)  # some of it is a second copy
            assert hold is not None, "room was counted"
            self.finish(hold)
            return hold.hits
        if new + tail_blocks > self._blank:
            _run(map(queue.__delitem__, blocks[:hits]))
            self._take(new + tail_blocks)
            self._blank += tail_blocks
            queue.update(dict.fromkeys(reversed(blocks)))
        else:
            self._blank -= new
            queue.update(dict.fromkeys(islice(reversed(blocks), new)))
            _run(map(queue.move_to_end, islice(reversed(blocks), new, None)))
        return hits


def _run(calls: Iterable[object]) -> None:
    """Makes every call of a lazy sequence, without a loop of our own."""
    deque(calls, maxlen=0)
