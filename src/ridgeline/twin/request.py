"""A request inside the twin's engine: how far it is, and which steps gave it tokens."""

import numpy as np

from ridgeline.domain.records import StepRuns


class Request:
    """One request. Mutable on purpose: a run touches each of these a million times.

    A request in steady decode gets one token in every step, so its progress is not written down
    step by step: `base_step` is the first step of that stretch, `base_computed` and
    `base_produced` what stood before it (see `Scheduler`). Counts are tokens unless they say
    blocks.
    """

    __slots__ = (
        "admitted",
        "arrived_ns",
        "at_valve",
        "base_computed",
        "base_produced",
        "base_step",
        "cached",
        "cap_wait_ns",
        "chain",
        "computed",
        "decoding",
        "ending",
        "failure",
        "finish_step",
        "first_ns",
        "group",
        "held",
        "intended_ns",
        "kind",
        "last_ns",
        "number",
        "output",
        "own_free",
        "own_from",
        "own_full",
        "phase",
        "place",
        "preemptions",
        "priority",
        "produced",
        "prompt",
        "queued_ns",
        "replica",
        "row",
        "run_first",
        "runs",
        "scheduled_ns",
        "sent_ns",
        "shared_blocks",
        "shared_tokens",
        "status",
        "turn",
        "user",
    )

    def __init__(
        self,
        number: int,
        prompt: int,
        output: int,
        *,
        group: int | None = None,
        shared_tokens: int = 0,
        sent_ns: int = 0,
        priority: int = 0,
        kind: int = 0,
        chain: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """`shared_tokens` leading prompt tokens are the same for all requests of `group`.

        A smaller `priority` comes first, where the engine's policy looks at it. `chain`, in place
        of both: pieces that others may have too, each (tokens up to its end, its key); a key stands
        for its piece and all before it. Pieces beyond the prompt are those of the answer. `kind`:
        place of its class of traffic.
        """
        self.number = number
        self.prompt = prompt
        self.output = output
        self.group = group
        self.shared_tokens = min(shared_tokens, prompt) if group is not None else 0
        self.chain = chain
        if chain:
            self.group, self.shared_tokens = chain[0][1], chain[-1][0]
        self.priority = priority
        self.kind = kind
        self.row = number
        self.user: int | None = None
        self.turn = 0
        self.replica = 0
        # progress
        self.computed = 0
        self.produced = 0
        self.cached = 0
        self.admitted = False
        self.decoding = False
        self.ending = False
        self.base_step = 0
        self.base_computed = 0
        self.base_produced = 0
        self.finish_step = -1
        self.phase = 0
        self.at_valve = False  # counts among the prompts whose first token has not come back
        self.place = 0  # in the running list: later ones stand behind
        self.preemptions = 0
        # KV blocks: leading blocks that others may find, and what of its own lies in the free list
        self.shared_blocks: list[SharedBlock] = []
        self.held = 0  # blocks in all, while it drafts
        self.own_free: FreeRun | None = None
        self.own_from = 0  # blocks before its own when it last gave them back
        self.own_full = 0
        # steps that gave a token
        self.run_first = -1
        self.runs: list[tuple[int, int]] = []
        # time stamps, ns
        self.intended_ns = sent_ns
        self.cap_wait_ns: int | None = None
        self.sent_ns = sent_ns
        self.arrived_ns: int | None = None
        self.queued_ns: int | None = None
        self.scheduled_ns: int | None = None
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.failure: str | None = None
        self.status: int | None = None  # HTTP, where the API server refused it

    @property
    def total(self) -> int:
        """Prompt and outputs so far: what a (resumed) request must have computed to go on."""
        return self.prompt + self.produced

    def block_key(self, place: int, block_size: int) -> tuple[int, int]:
        """What a shared block is known by: its place, and the piece that its last token is in."""
        if self.chain is None:
            assert self.group is not None
            return self.group, place
        last = (place + 1) * block_size
        return next(key for end, key in self.chain if end >= last), place

    def close_run(self, end_step: int) -> None:
        """End the current run of token-giving steps before `end_step`."""
        if self.run_first >= 0 and end_step > self.run_first:
            self.runs.append((self.run_first, end_step - self.run_first))
        self.run_first = -1

    def step_runs(self, interval: int = 1) -> StepRuns:
        """The steps that gave chunks, as the records keep them.

        With an `interval` N above 1 the first token, every N-th after it and the last one leave
        at once; those between leave with the next.
        """
        if interval == 1 and len(self.runs) == 1:  # nearly all
            run = np.array(self.runs[0], dtype=np.int64)
            return StepRuns(self.replica, run[:1], run[1:])
        runs = np.array(self.runs, dtype=np.int64).reshape(-1, 2)
        if interval > 1 and len(runs):
            steps = np.concatenate([np.arange(f, f + n) for f, n in runs])
            sent = np.union1d(steps[::interval], steps[-1:])
            return StepRuns(self.replica, sent, np.ones_like(sent))
        return StepRuns(self.replica, runs[:, 0], runs[:, 1])


class SharedBlock:
    """A block whose contents others may find by its key: how many hold it.

    `idle` is its entry in the free list when nobody does.
    """

    __slots__ = ("holders", "idle", "key")

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        self.holders = 1
        self.idle: FreeRun | None = None


class FreeRun:
    """Free blocks that lie next to each other in the free list.

    `block` is set for one that others may find (then count is 1); otherwise the blocks are one
    request's own, taken for reuse from the tail of that request.
    """

    __slots__ = ("block", "count")

    def __init__(self, count: int, block: SharedBlock | None = None) -> None:
        self.count = count
        self.block = block
