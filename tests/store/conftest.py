"""Records that look like a run's, made from numpy seeds."""

import numpy as np

from ridgeline.domain.records import STEP_PARTS, RequestRecord, StepRuns, StepTable
from ridgeline.domain.rows import MISSING, ROW, ROW_NUMBERS, ROW_TEXTS, RequestRows, RowsBuilder


def measured_request(index: int, rng: np.random.Generator, **changes: object) -> RequestRecord:
    sent = 1_000_000 * index + int(rng.integers(0, 1000))
    chunks = sent + 50_000_000 + np.cumsum(rng.integers(1, 10_000_000, size=rng.integers(1, 40)))
    values: dict[str, object] = {
        "index": index,
        "user": index % 7,
        "intended_ns": sent - 5,
        "sent_ns": sent,
        "first_ns": int(chunks[0]),
        "last_ns": int(chunks[-1]),
        "end_ns": int(chunks[-1]) + 77,
        "planned_prompt_tokens": 128,
        "planned_output_tokens": len(chunks),
        "prompt_tokens": 130,
        "output_tokens": len(chunks),
        "finish_reason": "length",
        "http_status": 200,
        "chunk_ns": chunks.astype(np.int64),
        "chunk_shared": rng.random(len(chunks)) < 0.1,
    }
    return RequestRecord(**(values | changes))  # type: ignore[arg-type]


def failed_request(index: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        user=None,
        intended_ns=index * 1000,
        sent_ns=index * 1000 + 3,
        first_ns=None,
        last_ns=None,
        end_ns=index * 1000 + 9,
        planned_prompt_tokens=10,
        planned_output_tokens=5,
        failure="http_status",
        failure_detail='503 "Überlast" <script>\n\u2028',
        http_status=503,
        chunk_ns=np.empty(0, np.int64),
    )


def rows_of(requests: list[RequestRecord]) -> RequestRows:
    """The same requests as a load client hands them in."""
    rows = RowsBuilder()
    for request in requests:
        texts = tuple(getattr(request, name) for name in ROW_TEXTS)
        place = rows.places.get(texts)
        place = rows.say(texts, texts) if place is None else place
        values = [getattr(request, name) for name in ROW_NUMBERS]
        assert request.chunk_ns is not None
        chunks = len(request.chunk_ns)
        rows.numbers += ROW(*[MISSING if v is None else v for v in values], place, chunks)
        rows.stamps.extend(request.chunk_ns.tolist())
        shared = (
            np.zeros(chunks, np.bool_) if request.chunk_shared is None else request.chunk_shared
        )
        rows.shared += shared.tobytes()
    return rows.take()


def step_table(rng: np.random.Generator, per_replica: tuple[int, ...] = (40, 0, 25)) -> StepTable:
    columns: dict[str, list[np.ndarray]] = {"replica": [], "start": [], "end": [], "out": []}
    for replica, n in enumerate(per_replica):
        start = np.cumsum(rng.integers(1_000_000, 30_000_000, size=n))
        end = start + rng.integers(900_000, 25_000_000, size=n)
        columns["replica"].append(np.full(n, replica))
        columns["start"].append(start)
        columns["end"].append(end)
        columns["out"].append(end + rng.integers(0, 900_000, size=n))
    n = sum(per_replica)
    whole = {k: np.concatenate(v) for k, v in columns.items()}
    return StepTable(
        replica=whole["replica"].astype(np.int16),
        start_ns=whole["start"].astype(np.int64),
        end_ns=whole["end"].astype(np.int64),
        delivered_ns=whole["out"].astype(np.int64),
        prefill_tokens=rng.integers(0, 2048, n).astype(np.int32),
        decode_tokens=rng.integers(0, 64, n).astype(np.int32),
        padded_tokens=rng.integers(0, 2048, n).astype(np.int32),
        context_tokens=rng.integers(0, 1 << 40, n).astype(np.int64),
        mode=rng.integers(0, 3, n).astype(np.int8),
        running=rng.integers(0, 64, n).astype(np.int32),
        waiting=rng.integers(0, 64, n).astype(np.int32),
        kv_used_blocks=rng.integers(0, 5000, n).astype(np.int32),
        flops=rng.random(n) * 1e15,
        bytes_read=rng.random(n) * 1e10,
        parts={name: rng.random(n).astype(np.float32) for name in STEP_PARTS},
        kv_total_blocks=30_000,
    )


def twin_request(index: int, table: StepTable, rng: np.random.Generator) -> RequestRecord:
    replica = int(rng.choice(np.unique(table.replica)))
    n = int((table.replica == replica).sum())
    bounds = np.sort(rng.choice(n + 1, size=4, replace=False))
    runs = StepRuns(replica, bounds[[0, 2]].astype(np.int64), (bounds[[1, 3]] - bounds[[0, 2]]))
    return RequestRecord(
        index=index,
        user=index,
        intended_ns=0,
        sent_ns=index,
        first_ns=5,
        last_ns=6,
        end_ns=7,
        planned_prompt_tokens=1,
        planned_output_tokens=int(runs.count.sum()),
        arrived_ns=2,
        scheduled_ns=3,
        preemptions=1,
        traffic_class="chat",
        steps=runs,
    )
