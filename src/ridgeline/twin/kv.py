"""The pool of KV blocks: who holds them, what a prefix can reuse, what is evicted first.

Asking (`lookup`, `free`) never changes anything; doing (`claim`, `take`, `publish`, `release`)
asserts that it was asked first. Blocks have no contents: a prompt is known as the shared prefix of
its group (or as a chain of pieces: a conversation's turns, a trace's blocks) and a part of its own,
so a prefix hit is possible on what is shared, and for a preempted request on its own blocks. Freed
blocks keep their place in one queue (least recently freed first), as runs of neighbours, so that
releasing a long request costs one entry.
"""

from collections import deque
from typing import NamedTuple

from ridgeline.twin.request import FreeRun, Request


class Hits(NamedTuple):
    """Blocks that need not be computed: of the group's prefix, of the request's own past.

    `idle` of them lie in the free queue, so taking them uses up that many free blocks.
    """

    shared: int
    own: int
    idle: int

    @property
    def blocks(self) -> int:
        """All hit blocks."""
        return self.shared + self.own


NO_HITS = Hits(0, 0, 0)


class BlockPool:
    """All KV blocks of one replica. `free` are those that nobody holds."""

    def __init__(
        self, blocks: int, block_size: int, *, caching: bool, unhashed_first: bool = False
    ) -> None:
        """`unhashed_first`: blocks without a hash are reused before all others (release 0.33)."""
        assert blocks > 0
        assert block_size > 0
        self.capacity = blocks
        self.block_size = block_size
        self.caching = caching
        self.unhashed_first = unhashed_first
        self.free = blocks
        self._queue: deque[FreeRun] = deque([FreeRun(blocks)])
        self._shared: dict[tuple[int, int], _Shared] = {}

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.capacity - self.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def lookup(self, request: Request) -> Hits:
        """What a request that waits could reuse. Ends one token before its last one."""
        if not self.caching or (request.group is None and request.own_free is None):
            return NO_HITS
        limit = (request.total - 1) // self.block_size
        shared = idle = 0
        if request.group is not None:
            last, size = min(request.shared_tokens // self.block_size, limit), self.block_size
            while shared < last:
                block = self._shared.get(request.block_key(shared, size))
                if block is None:
                    break
                idle += block.idle is not None
                shared += 1
        own = 0
        # Its own blocks follow the prefix in the hash chain: they count if the chain gets there.
        if request.own_free is not None and shared == request.shared_held:
            own = max(0, min(request.own_free.count, request.own_full, limit - shared))
        return Hits(shared, own, idle + own)

    def claim(self, request: Request, hits: Hits) -> None:
        """Let the request hold the blocks it hit."""
        for place in range(hits.shared):
            block = self._shared[request.block_key(place, self.block_size)]
            if block.idle is not None:
                block.idle.count = 0
                block.idle = None
                self.free -= 1
            block.holders += 1
        if hits.own:
            assert request.own_free is not None
            request.own_free.count -= hits.own
            self.free -= hits.own
        request.shared_held = hits.shared
        request.own_free = None
        assert self.free >= 0

    def take(self, blocks: int) -> None:
        """Hand out free blocks from the head of the queue; what they cached is forgotten."""
        assert 0 <= blocks <= self.free, "blocks taken without asking"
        self.free -= blocks
        if not self.caching:
            return
        queue = self._queue
        while blocks:
            head = queue[0]
            part = min(blocks, head.count)
            head.count -= part
            blocks -= part
            if part and head.key is not None:
                del self._shared[head.key]
            if not head.count:
                queue.popleft()

    def give_back(self, blocks: int) -> None:
        """Return blocks that were taken and never filled."""
        if blocks:
            self.free += blocks
            if self.caching:
                self._queue.append(FreeRun(blocks))

    def publish(self, request: Request) -> None:
        """Make the full prefix blocks that were just scheduled findable for the group.

        A block that the group already has stays the request's own copy, and so do those after it.
        """
        if not self.caching or request.group is None or request.duplicate:
            return
        full = min(request.computed, request.shared_tokens) // self.block_size
        while request.shared_held < full:
            key = request.block_key(request.shared_held, self.block_size)
            if key in self._shared:
                request.duplicate = True
                return
            self._shared[key] = _Shared()
            request.shared_held += 1

    def release(self, request: Request) -> None:
        """Give back everything that the request holds (`computed` tokens), tail first."""
        blocks = self.blocks_for(request.computed)
        if request.chain is not None:  # the answer's blocks, which the next turn may begin with
            self.publish(request)
        request.duplicate = False
        if not self.caching:
            self.free += blocks
            assert self.free <= self.capacity
            return
        own = blocks - request.shared_held
        request.own_full = request.computed // self.block_size - request.shared_held
        self.free += own
        if own > request.own_full and self.unhashed_first:
            self._queue.appendleft(FreeRun(1))
            own -= 1
        if own:
            request.own_free = FreeRun(own)
            self._queue.append(request.own_free)
        for place in range(request.shared_held - 1, -1, -1):
            key = request.block_key(place, self.block_size)
            block = self._shared[key]
            block.holders -= 1
            if not block.holders:
                block.idle = FreeRun(1, key)
                self._queue.append(block.idle)
                self.free += 1
        assert self.free <= self.capacity

    def check(self) -> None:
        """Assert that the queue and the counts agree (tests call it; it walks the queue)."""
        assert 0 <= self.free <= self.capacity
        if self.caching:
            assert sum(run.count for run in self._queue) == self.free
            for block in self._shared.values():
                assert (block.holders == 0) == (block.idle is not None)


class _Shared:
    """A block of a group's prefix: how many hold it, and its entry in the free queue if none."""

    __slots__ = ("holders", "idle")

    def __init__(self) -> None:
        self.holders = 1
        self.idle: FreeRun | None = None
