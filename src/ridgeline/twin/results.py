"""What a simulated run leaves: the step table, one record a request, and the server's counters."""

from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.records import STEP_PARTS, Floats, RequestRecord, StepTable
from ridgeline.domain.run import ServerCounters
from ridgeline.twin.fleet import Fleet
from ridgeline.twin.pools import AnyFleet, fleets_in
from ridgeline.twin.replica import STEP_FIELDS, Replica
from ridgeline.twin.request import Request
from ridgeline.twin.steptime import StepColumns

_NONE = np.empty(0, dtype=np.int64)


def step_table(fleet: AnyFleet) -> StepTable:
    """All steps that were delivered, ordered by replica, then time. Parts add up to end - start.

    Pools of unlike KV caches have no common size of one.
    """
    tables = [_steps_of(pool) for pool in fleets_in(fleet)]
    if len(tables) == 1:
        return tables[0]
    names = [f.name for f in fields(StepTable) if f.name not in ("parts", "kv_total_blocks")]
    sizes = {table.kv_total_blocks for table in tables}
    return StepTable(
        **{n: np.concatenate([getattr(t, n) for t in tables]) for n in names},
        parts={n: np.concatenate([t.parts[n] for t in tables]) for n in STEP_PARTS},
        kv_total_blocks=sizes.pop() if len(sizes) == 1 else None,
    )


def _steps_of(fleet: Fleet) -> StepTable:
    replicas = fleet.replicas
    counts = [len(r.delivered) for r in replicas]
    table = np.concatenate([r.step_rows(n) for r, n in zip(replicas, counts, strict=True)])
    column = {name: table[:, i] for i, name in enumerate(STEP_FIELDS)}
    steps = fleet.cost.seen(_formula_inputs(column))
    return StepTable(
        replica=np.repeat(np.array([r.number for r in replicas], dtype=np.int16), counts),
        start_ns=column["start"].astype(np.int64),
        end_ns=column["end"].astype(np.int64),
        delivered_ns=np.array([t for r in replicas for t in r.delivered], dtype=np.int64),
        prefill_tokens=column["prefill"].astype(np.int32),
        decode_tokens=column["decodes"].astype(np.int32),
        padded_tokens=column["padded"].astype(np.int32),
        context_tokens=(column["context"] + column["chunk_context"]).astype(np.int64),
        mode=column["mode"].astype(np.int8),
        running=column["running"].astype(np.int32),
        waiting=column["waiting"].astype(np.int32),
        kv_used_blocks=column["used_blocks"].astype(np.int32),
        flops=fleet.cost.flops(steps),
        bytes_read=fleet.cost.bytes_read(steps),
        parts=_parts(fleet, column, steps),
        kv_total_blocks=fleet.twin.memory.usable_blocks,
    )


def _formula_inputs(column: dict[str, Floats]) -> StepColumns:
    return StepColumns(
        decodes=column["decodes"],
        prefill=column["prefill"],
        padded=column["padded"],
        context=column["context"],
        chunks=column["chunks"],
        chunk_context=column["chunk_context"],
        pairs=column["pairs"],
        sampled=column["sampled"],
        drafts=column["drafts"],
    )


def _parts(
    fleet: Fleet, column: dict[str, Floats], steps: StepColumns
) -> dict[str, NDArray[np.float32]]:
    """The named parts; what the GPU waited for launches is the rest of the step's time."""
    parts = fleet.cost.parts(steps)
    parts["cpu"] = column["cpu"]
    known = sum(v for name, v in parts.items() if name != "launch")
    parts["launch"] = column["end"] - column["start"] - known
    return {name: parts[name].astype(np.float32) for name in STEP_PARTS}


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client would not have waited for. Times in ns; None = it would.

    `first_ns` is the longest wait for a first token, `gap_ns` for the next one, `total_ns` for the
    whole answer, `cancel_ns` the time at which it gives up on everything that is still open. They
    are applied afterwards: the engine has done the work, and the client did not go on to its next
    request early.
    """

    first_ns: int | None = None
    gap_ns: int | None = None
    total_ns: int | None = None
    cancel_ns: int | None = None

    def gives_up(self, sent_ns: int, stands_ns: int | None = None) -> tuple[int | None, str]:
        """When the client leaves an answer that has begun (None: never), and the failure class.

        `stands_ns`: since when nothing came for longer than `gap_ns`.
        """
        total = None if self.total_ns is None else sent_ns + self.total_ns
        gap = None if stands_ns is None or self.gap_ns is None else stands_ns + self.gap_ns
        ends = ((total, "timeout_total"), (gap, "timeout_gap"), (self.cancel_ns, "cancelled"))
        known = [(at, why) for at, why in ends if at is not None]
        return min(known, key=lambda end: end[0], default=(None, "cancelled"))


NO_LIMITS = ClientLimits()


REFUSALS = {
    400: "prompt and answer are longer than max_model_len",
    503: "the server's limit on queued requests or tokens is reached",
}


def request_record(
    request: Request, replica: Replica, limits: ClientLimits = NO_LIMITS
) -> RequestRecord:
    """The record of a request that was sent, as a client with such limits has seen it."""
    first, last = request.first_ns, request.last_ns
    if request.failure is not None:
        status = request.status or 400
        detail = REFUSALS[status]
        return _failed(request, request.failure, last, status=status, detail=detail)
    late = first is None or first - request.sent_ns > (limits.first_ns or 0)
    if limits.first_ns is not None and late:
        return _failed(request, "timeout_first", request.sent_ns + limits.first_ns)
    interval = replica.scheduler.knobs.stream_interval
    stands_ns = _stands_since(request, replica, limits.gap_ns, interval)
    left_ns, failure = limits.gives_up(request.sent_ns, stands_ns)
    if last is None or (left_ns is not None and last > left_ns):
        return _left(request, replica, left_ns, failure, interval)
    return _record(
        request,
        first_ns=first,
        last_ns=last,
        end_ns=last,
        prompt_tokens=request.prompt,
        output_tokens=request.produced,
        cached_tokens=request.cached,
        finish_reason="length",
        http_status=200,
        steps=request.step_runs(interval),
    )


def _failed(
    request: Request,
    failure: str,
    end_ns: int | None,
    *,
    status: int | None = None,
    detail: str | None = None,
) -> RequestRecord:
    """A record without any chunk."""
    return _record(
        request,
        first_ns=None,
        last_ns=None,
        end_ns=end_ns,
        failure=failure,
        failure_detail=detail,
        http_status=status,
        chunk_ns=_NONE,
    )


def _record(request: Request, **outcome: Any) -> RequestRecord:
    """What was planned and what the engine did with it; `outcome` is what the client saw."""
    return RequestRecord(
        index=request.number,
        user=request.user,
        intended_ns=request.intended_ns,
        sent_ns=request.sent_ns,
        planned_prompt_tokens=request.prompt,
        planned_output_tokens=request.output,
        arrived_ns=request.arrived_ns,
        scheduled_ns=request.scheduled_ns,
        target=request.replica,
        preemptions=request.preemptions,
        cap_wait_ns=request.cap_wait_ns,
        **outcome,
    )


def _left(
    request: Request, replica: Replica, left_ns: int | None, failure: str, interval: int
) -> RequestRecord:
    """A client that gave up keeps the chunks that it had by then."""
    record = _failed(request, failure, left_ns)
    times = _chunk_times(request, replica, interval)
    if left_ns is not None:
        times = times[times <= left_ns]
    if not len(times):
        return record
    return replace(
        record, first_ns=int(times[0]), last_ns=int(times[-1]), http_status=200, chunk_ns=times
    )


def _stands_since(
    request: Request, replica: Replica, gap_ns: int | None, interval: int
) -> int | None:
    """The chunk after which none came for longer than the limit (of an open request also the last
    one it had); None where there is none.
    """
    first, last = request.first_ns, request.last_ns
    if gap_ns is None or first is None or (last is not None and last - first <= gap_ns):
        return None  # nearly all: nothing to look for
    times = _chunk_times(request, replica, interval)
    long = np.flatnonzero(np.diff(times) > gap_ns)
    if len(long):
        return int(times[long[0]])
    return int(times[-1]) if last is None and len(times) else None


def _chunk_times(request: Request, replica: Replica, interval: int) -> NDArray[np.int64]:
    """When the client had its chunks, as far as they were delivered."""
    request.close_run(replica.scheduler.step + 1)  # of one that was still at it
    runs = request.step_runs(interval)
    # The steps of this request only: a run has a hundred thousand, and many requests that are left.
    rows = [
        replica.delivered[first : first + count]
        for first, count in zip(runs.first.tolist(), runs.count.tolist(), strict=True)
    ]
    times: NDArray[np.int64] = np.unique(np.array([*chain(*rows)], dtype=np.int64))
    return times  # the last may still be on the way


class Tally:
    """Adds up requests for `server_counters`, one at a time: they need not be kept."""

    def __init__(self) -> None:
        self.answered = self.ended = 0
        self.prompt_tokens = self.output_tokens = 0
        self.ttft_ns = self.stay_ns = 0
        self.stays = 0

    def add(self, request: Request) -> None:
        """Take a request that has ended, or, at the end of the run, one that has not."""
        if request.last_ns is not None and request.failure is None:  # a refusal is no stay
            self.stays += 1
            self.stay_ns += request.last_ns - request.sent_ns
        if request.first_ns is None:
            return
        self.answered += 1
        self.ended += request.last_ns is not None
        self.prompt_tokens += request.prompt
        self.output_tokens += request.produced
        self.ttft_ns += request.first_ns - request.sent_ns


def server_counters(fleet: AnyFleet, seen: Tally) -> ServerCounters:
    """What the engine's own counters would show after the run (TTFT as its front end sees it)."""
    network = 2 * int(fleet.twin.constants.network_ns)
    pools = fleets_in(fleet)
    caching = any(pool.twin.knobs.prefix_caching for pool in pools)
    schedulers = [r.scheduler for r in fleet.replicas]
    cached = [r.scheduler for p in pools if p.twin.knobs.prefix_caching for r in p.replicas]
    wait_ns = seen.ttft_ns / seen.answered - network if seen.answered else None
    return ServerCounters(
        requests_ok=seen.ended,
        prompt_tokens=seen.prompt_tokens,
        generation_tokens=seen.output_tokens,
        prefix_cache_queries=sum(s.queried_tokens for s in cached) if caching else None,
        prefix_cache_hits=sum(s.hit_tokens for s in cached) if caching else None,
        preemptions=sum(s.preemptions for s in schedulers),
        ttft_mean_s=None if wait_ns is None else wait_ns / 1e9,
    )


def stall(replica: Replica) -> str | None:
    """Why requests wait although the replica has nothing to do (None: none does).

    The first in the queue can never be admitted, and those behind it wait for it.
    """
    scheduler = replica.scheduler
    if not replica.idle or not scheduler.waiting:
        return None
    waiting, first = len(scheduler.waiting), scheduler.waiting[0]
    pool, budget = scheduler.pool, scheduler.knobs.max_num_scheduled_tokens
    who = f"request {first.number} ({first.prompt} prompt + {first.output} output tokens)"
    blocks = pool.blocks_for(first.prompt + first.output - 1)  # nothing follows the last token
    if blocks > pool.capacity:
        why = (
            f"{who} can never end: it needs {blocks} blocks of"
            f" {pool.block_size} tokens, requests can have {pool.capacity} (the engine keeps one)"
        )
    else:
        why = f"{who} lacks {first.total} tokens, a step without chunked prefill takes {budget}"
    return f"replica {replica.number}: {why}; {waiting} wait for ever"
