"""One engine core on a simulated clock: schedule, launch, wait for the oldest step, hand over.

The loop follows the engine's own with steps in flight: with depth 2 step k + 1 is scheduled and
launched before the wait for step k, so a long launch delays the delivery of the step before it,
and an arrival waits for the step that is already queued. The GPU works through launched steps in
order; a step cannot end before its last kernel was launched.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.twin.interval import StreamInterval
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision, Scheduler
from ridgeline.twin.steptime import StepCost

# What is kept of a step, as a plain tuple in this order: times in ns, counts, and the formulas'
# inputs. `cpu` is the time at the step's start in which the GPU waited for the engine core.
STEP_FIELDS = (
    "start", "end", "prefill", "decodes", "padded", "context", "mode", "running", "waiting",
    "used_blocks", "chunks", "chunk_context", "pairs", "sampled", "cpu", "drafts",
)  # fmt: skip
StepRow = tuple[float, ...]
PACKED_STEPS = 4_096


class Flight(NamedTuple):
    """A step that was launched: its decision and when the GPU is done with it."""

    decision: Decision
    end: int


class Replica:
    """An engine core with its scheduler. Times are whole ns; `rows` has one entry a step.

    Of a long run `rows` has the last steps only, the others are packed: `step_rows` has all.
    """

    def __init__(self, number: int, scheduler: Scheduler, cost: StepCost) -> None:
        self.number = number
        self.scheduler = scheduler
        self.cost = cost
        self.inbox: deque[Request] = deque()
        self.rows: list[StepRow] = []
        self._packed: list[Floats] = []
        self.delivered: list[int] = []
        self.idle = True
        self.ended: Decision | None = None  # whose outputs are to be handed over at the next turn
        self._flights: deque[Flight] = deque()
        self._depth = scheduler.knobs.async_depth
        self._gpu_free = 0
        self._busy = False
        every = scheduler.knobs.stream_interval
        self._interval = StreamInterval(every) if every > 1 else None
        c = cost.constants
        self._schedule_ns = int(c.schedule_ns)
        self._schedule_ns_each = int(c.schedule_ns_per_request)
        self._prompt_ns = int(c.prompt_step_ns)
        self._update_ns = int(c.update_ns)
        self._update_ns_each = int(c.update_ns_per_request)
        self._tail_ns = int(c.launch_tail_ns)

    def turn(self, now: int) -> int | None:
        """One turn of the engine loop at `now`; when the next one is due, None when idle.

        The caller hands over `ended` first. A step whose wait is over at the next turn is left in
        `ended`.
        """
        scheduler, flights = self.scheduler, self._flights
        if self.ended is not None:
            if self.ended.finished:
                scheduler.update(self.ended)
            self.ended = None
        if self.inbox:
            for request in self.inbox:
                request.queued_ns = now
                scheduler.add(request)
            self.inbox.clear()
        preempted = scheduler.preemptions
        decision = scheduler.schedule() if scheduler.has_work else None
        if decision is not None:
            now = self._launch(decision, now)
            if len(flights) < self._depth and flights[0].end > now:
                return now
        if flights:
            # Wait for the oldest step and process its outputs; the next turn hands them over.
            step, end = flights.popleft()
            self.ended = step
            done = end if end > now else now
            return done + self._update_ns + step.outputs * self._update_ns_each
        if scheduler.preemptions > preempted:
            return now  # a step that only preempted: what gave way may now be admitted
        self.idle = True
        self._busy = False
        return None

    def step_rows(self, steps: int) -> Floats:
        """The first so many steps, one row each with the columns of STEP_FIELDS."""
        last = np.array(self.rows, dtype=np.float64).reshape(-1, len(STEP_FIELDS))
        found: Floats = np.concatenate([*self._packed, last])[:steps]
        return found

    def _pack(self) -> None:
        """A tuple of numbers takes four times the memory of a row."""
        self._packed.append(np.array(self.rows, dtype=np.float64))
        self.rows.clear()

    def _launch(self, decision: Decision, now: int) -> int:
        """Put a step on the GPU; returns when the CPU is free again."""
        cost = self.cost
        decodes, prefill, drafts = decision.decodes, decision.prefill_tokens, decision.drafts
        chunks = len(decision.prefills)
        for request in decision.admitted:
            request.scheduled_ns = now
        sampled = decodes + drafts
        # Uniform: every request computes as many tokens (one, or one with its drafts).
        uniform = prefill == chunks if not drafts else not chunks
        mode, padded = cost.graph(sampled + prefill, uniform)
        decision.outputs = outputs = decodes + len(decision.firsts)
        interval = self._interval
        decision.chunks = outputs if interval is None else interval.chunks(decision)
        sampled = outputs + drafts
        # After an idle spell the GPU waited for work, not for the CPU: the step begins here.
        start = self._gpu_free if self._busy else now
        self._busy = True
        ready = now + self._schedule_ns + (decodes + chunks) * self._schedule_ns_each
        if chunks:
            ready += self._prompt_ns
        launched = ready + cost.launch_ns(mode)
        begin = start if start > ready else ready
        end = begin + int(cost.gpu_ns(decision, padded))
        end = max(end, launched + self._tail_ns)
        self._gpu_free = end
        self._flights.append(Flight(decision, end))
        self.rows.append(
            (
                start, end, prefill, decodes, padded, decision.context, mode, decision.running,
                decision.waiting, decision.used_blocks, chunks, decision.chunk_context,
                decision.pairs, sampled, begin - start, drafts,
            )
        )  # fmt: skip
        if len(self.rows) == PACKED_STEPS:
            self._pack()
        return launched
