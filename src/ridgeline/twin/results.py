"""What a simulated run leaves: the step table, one record a request, and the server's counters."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.records import STEP_PARTS, Floats, RequestRecord, StepTable
from ridgeline.domain.run import ServerCounters
from ridgeline.twin.fleet import Fleet
from ridgeline.twin.replica import Replica, StepRow
from ridgeline.twin.request import Request
from ridgeline.twin.steptime import StepColumns


def step_table(fleet: Fleet) -> StepTable:
    """All steps that were delivered, ordered by replica, then time. Parts add up to end - start."""
    replicas = fleet.replicas
    counts = [len(r.delivered) for r in replicas]
    rows = [row for r, n in zip(replicas, counts, strict=True) for row in r.rows[:n]]
    table = np.array(rows, dtype=np.float64).reshape(-1, len(StepRow._fields))
    column = {name: table[:, i] for i, name in enumerate(StepRow._fields)}
    steps = fleet.cost.seen(_formula_inputs(column))
    return StepTable(
        replica=np.repeat(np.arange(len(replicas), dtype=np.int16), counts),
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


def request_record(
    request: Request, *, cancelled_ns: int | None = None, first_limit_ns: int | None = None
) -> RequestRecord:
    """The record of a request that was sent.

    A client's limits are applied afterwards: whoever had no token after `first_limit_ns`, or no
    end at the time `cancelled_ns`, is recorded as failed; the engine has done the work all the
    same. A request that nothing ever answered ends as cancelled.
    """
    failure, detail, status = request.failure, None, None
    first, last = request.first_ns, request.last_ns
    end = last
    if failure == "http_status":
        status, last = 400, None
        detail = "prompt and answer are longer than max_model_len"
    elif first_limit_ns is not None and (first is None or first - request.sent_ns > first_limit_ns):
        failure, first, last, end = "timeout_first", None, None, request.sent_ns + first_limit_ns
    elif last is None or (cancelled_ns is not None and last > cancelled_ns):
        failure, end = "cancelled", cancelled_ns
        last = None if first is None else min(last or first, cancelled_ns or first)
    answered = first is not None
    return RequestRecord(
        index=request.number,
        user=request.user,
        intended_ns=request.intended_ns,
        sent_ns=request.sent_ns,
        first_ns=first,
        last_ns=last,
        end_ns=end,
        planned_prompt_tokens=request.prompt,
        planned_output_tokens=request.output,
        prompt_tokens=request.prompt if answered else None,
        output_tokens=request.produced if answered else None,
        cached_tokens=request.cached if answered else None,
        failure=failure,
        failure_detail=detail,
        finish_reason="length" if failure is None else None,
        http_status=status if status is not None else (200 if answered else None),
        arrived_ns=request.arrived_ns,
        scheduled_ns=request.scheduled_ns,
        target=request.replica,
        preemptions=request.preemptions,
        chunk_ns=None if answered else np.empty(0, dtype=np.int64),
        steps=request.step_runs() if answered else None,
    )


def server_counters(fleet: Fleet, requests: list[Request]) -> ServerCounters:
    """What the engine's own counters would show after the run (TTFT as its front end sees it)."""
    answered = [r for r in requests if r.first_ns is not None]
    network = 2 * int(fleet.twin.constants.network_ns)
    waits = [r.first_ns - r.sent_ns - network for r in answered if r.first_ns is not None]
    caching = fleet.twin.knobs.prefix_caching
    schedulers = [r.scheduler for r in fleet.replicas]
    return ServerCounters(
        requests_ok=sum(r.last_ns is not None for r in answered),
        prompt_tokens=sum(r.prompt for r in answered),
        generation_tokens=sum(r.produced for r in answered),
        prefix_cache_queries=sum(s.queried_tokens for s in schedulers) if caching else None,
        prefix_cache_hits=sum(s.hit_tokens for s in schedulers) if caching else None,
        preemptions=sum(s.preemptions for s in schedulers),
        ttft_mean_s=float(np.mean(waits)) / 1e9 if waits else None,
    )


def stuck(replica: Replica) -> int:
    """Requests that can never be admitted: they wait although the replica has nothing to do."""
    return len(replica.scheduler.waiting) if replica.idle else 0
