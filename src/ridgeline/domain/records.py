"""What a run leaves behind: one record per request, steps for a twin, and the port they go through.

Time is monotonic and counted in whole nanoseconds from the run's own zero. In columns a missing
value is NaN (float64 holds whole nanoseconds exactly up to 104 days); in values it is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ridgeline.domain.rows import RequestRows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Failure classes. A request without one succeeded. These words go into records and reports.
FAILURES = (
    "connect",          # no connection within the limit
    "http_status",      # the server answered with another status than 200
    "timeout_first",    # no content within the first-token limit
    "timeout_gap",      # the stream stopped for longer than the limit
    "timeout_total",    # the whole request took longer than the limit
    "stream_error",     # an error event inside the stream
    "stream_cut",       # the connection closed before the end of the stream
    "no_finish",        # the stream ended without a finish reason
    "aborted",          # the server finished the request with "abort"
    "no_tokens",        # a reply without any content
    "bad_stream",       # not SSE, not JSON, not UTF-8
    "cancelled",        # the client gave up at the end of its grace time
    "stopped",          # the user stopped the run while it was on its way
)  # fmt: skip
# Ends that the client chose: how the request would have ended is not known. They are not the
# server's failures; what is known is only that they took longer than they were followed.
UNFINISHED = ("cancelled", "stopped")


@dataclass(frozen=True, slots=True)
class StepRuns:
    """The steps of one replica that each gave this request one token, as consecutive runs.

    `first[i]` is an index into the replica's own step sequence, `count[i]` the number of steps
    from there on. A twin stores this instead of one time stamp per chunk.
    """

    replica: int
    first: Ints
    count: Ints


@dataclass(slots=True)
class RequestRecord:
    """One request as the client saw it. Times in ns from the run's zero, None = did not happen.

    Exactly one of `chunk_ns` (arrival of each content chunk) and `steps` is given.
    `chunk_shared[i]` marks a chunk that came out of the same read as the one before it.
    `arrived_ns` and `scheduled_ns` (taken in by the engine, first scheduled) are known to twins.
    `retries`: times it was sent again because a kept-alive connection had closed unanswered.
    `read_timed`: how many of its chunks carry the time of the read, not the kernel's receive time.
    `traffic_class`: the name of its class, where the workload has some. `cap_wait_ns`: how long it
    waited for a slot, where the requests in flight were capped. `session` and `turn` (from 0) of a
    conversation. `first_error_ns` and `chunk_error_ns`: by how much its first chunk, and any of its
    chunks, may look too late because the client read them late.

    Nobody changes one. It is not declared frozen, because it is made while the load goes on, and
    Python takes four times as long for a frozen value of so many fields.
    """

    index: int
    user: int | None
    intended_ns: int
    sent_ns: int | None
    first_ns: int | None
    last_ns: int | None
    end_ns: int | None
    planned_prompt_tokens: int
    planned_output_tokens: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failure: str | None = None
    failure_detail: str | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    connect_ns: int | None = None
    first_answer_ns: int | None = None
    arrived_ns: int | None = None
    scheduled_ns: int | None = None
    traffic_class: str | None = None
    target: int | None = None
    preemptions: int | None = None
    retries: int | None = None
    read_timed: int | None = None
    cap_wait_ns: int | None = None
    session: int | None = None
    turn: int | None = None
    first_error_ns: int | None = None
    chunk_error_ns: int | None = None
    chunk_ns: Ints | None = None
    chunk_shared: Bools | None = None
    steps: StepRuns | None = None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened during a run, for the time line and the verdict.

    kind: for example "compile", "throttle", "client_late", "server_error", "stalled".
    """

    at_ns: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TelemetryRow:
    """One reading beside a run: what `unit` of `source` said of `metric`.

    at_ns: on the run's clock. source: "engine" (its /metrics), "gpu" or "host". unit: for example
    "replica 0", "gpu 0" or "replica 0: engine core". A reading that could not be had has no row.
    """

    at_ns: int
    source: str
    unit: str
    metric: str
    value: float


# Named parts of a step's time, in the order in which they are stacked in charts. All in ns.
STEP_PARTS = (
    "weights",       # linear layers at padded rows: max of bytes and FLOPs
    "attention_decode",
    "attention_prefill",
    "head",          # LM head on sampled rows
    "launch",        # kernel launches that the GPU waits for
    "communication", # all-reduce between tensor-parallel ranks
    "sampler",
    "cpu",           # engine-core CPU that is not hidden behind the GPU
)  # fmt: skip

# graph mode of a step
NO_GRAPH, PIECEWISE_GRAPH, FULL_GRAPH = 0, 1, 2


@dataclass(frozen=True, slots=True)
class StepTable:
    """Every step of every replica of a twin, one row a step, ordered by replica, then time.

    All arrays have the same length n. `delivered_ns` is when the client receives the step's chunks;
    steps of one replica with the same time were merged into one chunk a request.
    `padded_tokens` are the rows that the GEMMs computed. `mode` is NO_GRAPH, PIECEWISE or FULL.
    """

    replica: NDArray[np.int16]
    start_ns: Ints
    end_ns: Ints
    delivered_ns: Ints
    prefill_tokens: NDArray[np.int32]
    decode_tokens: NDArray[np.int32]
    padded_tokens: NDArray[np.int32]
    context_tokens: Ints
    mode: NDArray[np.int8]
    running: NDArray[np.int32]
    waiting: NDArray[np.int32]
    kv_used_blocks: NDArray[np.int32]
    flops: Floats
    bytes_read: Floats
    parts: dict[str, NDArray[np.float32]]  # STEP_PARTS -> ns
    kv_total_blocks: int | None = None

    def __len__(self) -> int:
        return len(self.replica)

    def offset(self, replica: int) -> int:
        """Row of the replica's first step."""
        # Of the column's own type: another one would make numpy convert the whole column.
        return int(np.searchsorted(self.replica, self.replica.dtype.type(replica)))


class RecordSink(Protocol):
    """Where a run's records go as they come. Implementations: MemorySink, the store's journal."""

    def request(self, record: RequestRecord) -> None:
        """Take one ended request."""

    def rows(self, rows: "RequestRows") -> None:
        """Take many ended requests."""

    def event(self, event: RunEvent) -> None:
        """Take one event."""

    def steps(self, table: StepTable) -> None:
        """Take a twin's steps, once, at the end."""


@dataclass(slots=True)
class MemorySink:
    """Keeps everything in lists: the sink of tests and of searches that store nothing."""

    requests: list[RequestRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    step_table: StepTable | None = None

    def request(self, record: RequestRecord) -> None:
        """Take one ended request."""
        self.requests.append(record)

    def rows(self, rows: "RequestRows") -> None:
        """Take many ended requests."""
        self.requests += rows.records()

    def event(self, event: RunEvent) -> None:
        """Take one event."""
        self.events.append(event)

    def steps(self, table: StepTable) -> None:
        """Take a twin's steps."""
        self.step_table = table

    def records(self) -> "RunRecords":
        """All requests as columns."""
        return records_from_requests(self.requests, self.step_table)


# Columns of RunRecords that hold numbers or times, NaN where missing.
NUMBER_COLUMNS = (
    "user", "intended_ns", "sent_ns", "first_ns", "last_ns", "end_ns",
    "planned_prompt_tokens", "planned_output_tokens",
    "prompt_tokens", "output_tokens", "cached_tokens",
    "http_status", "connect_ns", "first_answer_ns", "arrived_ns", "scheduled_ns",
    "target", "preemptions", "retries", "read_timed", "cap_wait_ns", "session", "turn",
    "first_error_ns", "chunk_error_ns",
)  # fmt: skip
TEXT_COLUMNS = ("failure", "failure_detail", "finish_reason", "traffic_class")


@dataclass(frozen=True, slots=True)
class RunRecords:
    """All requests of a run as columns of length n, ordered by `index`.

    The content chunks of request i are `chunk_ns[chunk_start[i]:chunk_start[i + 1]]` (ascending);
    `chunk_start` has length n + 1. `text` columns hold str or None.
    """

    index: Ints
    numbers: dict[str, Floats]
    text: dict[str, list[str | None]]
    chunk_start: Ints
    chunk_ns: Ints
    chunk_shared: Bools
    steps: StepTable | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getattr__(self, name: str) -> Floats:
        """Number columns by name: `records.sent_ns`."""
        try:
            return self.numbers[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def ok(self) -> Bools:
        """True for requests that succeeded."""
        return np.array([f is None for f in self.text["failure"]], dtype=np.bool_)

    def failed_with(self, *classes: str) -> Bools:
        """True for requests whose failure is one of the classes."""
        return np.array([f in classes for f in self.text["failure"]], dtype=np.bool_)


def step_chunk_ns(runs: StepRuns, table: StepTable) -> Ints:
    """Arrival times (ns) of the chunks that the given steps delivered.

    Steps that were delivered at one time were merged by the API server into one chunk a request.
    """
    base = table.offset(runs.replica)
    firsts, counts = runs.first.tolist(), runs.count.tolist()
    pieces = [
        table.delivered_ns[base + f : base + f + c] for f, c in zip(firsts, counts, strict=True)
    ]
    times = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])
    apart = times[1:] != times[:-1]
    if apart.all():
        return times
    return np.concatenate([times[:1], times[1:][apart]])


def records_from_requests(
    requests: Sequence[RequestRecord], steps: StepTable | None = None
) -> RunRecords:
    """Turn single records into columns; derives a twin's chunk times from its steps."""
    rows = sorted(requests, key=lambda r: r.index)
    chunks: list[Ints] = []
    for row in rows:
        if row.chunk_ns is not None:
            stamps = row.chunk_ns
        elif row.steps is not None:
            assert steps is not None, "a record refers to steps that were not given"
            stamps = step_chunk_ns(row.steps, steps)
        else:
            stamps = np.empty(0, dtype=np.int64)
        chunks.append(stamps)
    start = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(c) for c in chunks], out=start[1:])
    shared = np.zeros(int(start[-1]), dtype=np.bool_)
    for row, low, high in zip(rows, start.tolist(), start[1:].tolist(), strict=False):
        if row.chunk_shared is not None:
            shared[low:high] = row.chunk_shared
    return RunRecords(
        index=np.array([r.index for r in rows], dtype=np.int64),
        numbers={
            name: np.array(
                [np.nan if (v := getattr(r, name)) is None else v for r in rows], dtype=np.float64
            )
            for name in NUMBER_COLUMNS
        },
        text={name: [getattr(r, name) for r in rows] for name in TEXT_COLUMNS},
        chunk_start=start,
        chunk_ns=np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64),
        chunk_shared=shared,
        steps=steps,
    )
