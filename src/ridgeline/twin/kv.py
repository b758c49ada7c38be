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

from ridgeline.twin.request import FreeRun, Request, SharedBlock


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
        self._shared: dict[tuple[int, int], list[SharedBlock]] = {}  # copies of equal contents

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.capacity - self.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def lookup(self, request: Request) -> Hits:
        """What a request that waits could reuse. Ends one token before its last one."""
        if not self.caching or not (request.shared_tokens or request.own_free):
            return NO_HITS
        limit = (request.total - 1) // self.block_size
        shared = idle = 0
        if request.group is not None:
            last, size = min(request.shared_tokens // self.block_size, limit), self.block_size
            while shared < last:
                blocks = self._shared.get(request.block_key(shared, size))
                if blocks is None:
                    break
                idle += blocks[0].idle is not None
                shared += 1
        own = 0
        # Its own blocks follow the prefix in the hash chain: they count if the chain gets there.
        if request.own_free is not None and shared == request.own_from:
            own = max(0, min(request.own_free.count, request.own_full, limit - shared))
        return Hits(shared, own, idle + own)

    def claim(self, request: Request, hits: Hits) -> None:
        """Let the request hold the blocks it hit."""
        for place in range(hits.shared):
            block = self._shared[request.block_key(place, self.block_size)][0]
            if block.idle is not None:
                block.idle.count = 0
                block.idle = None
                self.free -= 1
            block.holders += 1
            request.shared_blocks.append(block)
        if hits.own:
            assert request.own_free is not None
            request.own_free.count -= hits.own
            self.free -= hits.own
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
            if part and head.block is not None:
                self._forget(head.block)
            if not head.count:
                queue.popleft()

    def give_back(self, blocks: int) -> None:
        """Return blocks that were taken and never filled."""
        if blocks:
            self.free += blocks
            if self.caching:
                self._queue.append(FreeRun(blocks))

    def _forget(self, block: SharedBlock) -> None:
        blocks = self._shared[block.key]
        blocks.remove(block)
        if not blocks:
            del self._shared[block.key]

    def publish(self, request: Request, tokens: int | None = None) -> None:
        """Make the full prefix blocks that were just scheduled findable for others.

        Whoever computes a block that is there already keeps a copy of its own: hits go to the
        oldest copy. `tokens`: so many are known, where that is fewer than are computed.
        """
        if not self.caching or not request.shared_tokens:
            return
        known = request.computed if tokens is None else tokens
        full = min(known, request.shared_tokens) // self.block_size
        held = request.shared_blocks
        while len(held) < full:
            block = SharedBlock(request.block_key(len(held), self.block_size))
            self._shared.setdefault(block.key, []).append(block)
            held.append(block)

    def release(self, request: Request, hashed: int | None = None) -> None:
        """Give back everything that the request holds (`computed` tokens), tail first.

        `hashed`: so many tokens are known to the cache; fewer than are computed when the last of
        them are in flight.
        """
        blocks = self.blocks_for(request.computed)
        if request.chain is not None:  # the answer's blocks, which the next turn may begin with
            self.publish(request, hashed)
        if not self.caching:
            self.free += blocks
            assert self.free <= self.capacity
            return
        held = request.shared_blocks
        own = blocks - len(held)
        full = (request.computed if hashed is None else hashed) // self.block_size
        request.own_from, request.own_full = len(held), full - len(held)
        self.free += own
        if own > request.own_full and self.unhashed_first:
            self._queue.appendleft(FreeRun(1))
            own -= 1
        if own:
            request.own_free = FreeRun(own)
            self._queue.append(request.own_free)
        for block in reversed(held):
            block.holders -= 1
            if not block.holders:
                block.idle = FreeRun(1, block)
                self._queue.append(block.idle)
                self.free += 1
        held.clear()
        assert self.free <= self.capacity

    def check(self) -> None:
        """Assert that the queue and the counts agree (tests call it; it walks the queue)."""
        assert 0 <= self.free <= self.capacity
        if self.caching:
            assert sum(run.count for run in self._queue) == self.free
            for blocks in self._shared.values():
                for block in blocks:
                    assert (block.holders == 0) == (block.idle is not None)
