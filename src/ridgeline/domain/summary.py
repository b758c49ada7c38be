"""The figures of a run in the one shape that every verb prints, stores and exports.

The JSON form is `to_json`; its JSON Schema is printed by `ridgeline schema --of summary`.
Times in seconds. None = not measured, or not supported by the sample (then `intervals` has the
reason). An infinite value (a percentile that falls among failures) is the text "infinite".
"""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ridgeline.domain.arrivalcheck import ArrivalFigures
from ridgeline.domain.run import Source, Warmup

SUMMARY_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests sent inside the window and what became of them.

    `unfinished`: those that the client ended itself, at a stop or at the end of its grace time;
    they are no failures. error_rate = failed / (sent - unfinished), None without any.
    """

    sent: int
    ok: int
    failed: int
    error_rate: float | None
    failures: dict[str, int] = field(default_factory=dict)
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Statistics of a latency, in seconds."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    n: int = 0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of successful requests, inside the window: tokens and chunks by arrival, requests by end.

    Input tokens count when the first chunk arrives. The peak is that of the best whole second.
    """

    output_tokens_per_s: float | None = None
    input_tokens_per_s: float | None = None
    chunks_per_s: float | None = None
    requests_per_s: float | None = None
    per_gpu_output_tokens_per_s: float | None = None
    peak_output_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """USD, from the price of the GPUs used."""

    usd_per_million_output_tokens: float | None = None
    usd_per_thousand_requests: float | None = None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Arithmetic intensity (FLOP per byte) and shares of the hardware's bounds (0..1)."""

    decode_intensity: float | None = None
    prefill_intensity: float | None = None
    mfu: float | None = None
    mbu: float | None = None
    share_of_bound: float | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the requests that meet every per-request limit, and those per second."""

    attainment: float | None = None
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SloResult:
    """One limit, the value found (ms or share, infinite among failures) and whether it was met.

    met is None when the value is not known (sample too small, not measured).
    """

    limit: str
    value: float | None
    met: bool | None
    traffic_class: str | None = None  # the limit holds for this class of requests alone

    @property
    def words(self) -> str:
        """The limit, and of which class it is."""
        return self.limit if self.traffic_class is None else f"{self.traffic_class}: {self.limit}"


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % interval of one figure; `reason` says why there is none or why to distrust it."""

    low: float | None
    high: float | None
    n: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """Where the measured figure is expected, nine times of ten (`domain.bands`)."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The client's self-check; see `run.ClientCheck`."""

    loop_lag_p99_s: float | None = None
    send_lateness_p99_s: float | None = None
    cpu_share: float | None = None
    receive_clock: str | None = None
    loop_lag_max_s: float | None = None
    send_lateness_p50_s: float | None = None
    send_lateness_max_s: float | None = None
    backlog_p99_s: float | None = None
    stamp_error_p95_s: float | None = None
    stamp_error_p99_s: float | None = None
    stamp_error_p999_s: float | None = None
    stamp_error_max_s: float | None = None
    first_error_p95_s: float | None = None
    first_error_p99_s: float | None = None
    first_error_max_s: float | None = None
    connections: int | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class VerdictFigures:
    """valid, or void with reasons."""

    valid: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Figures of a part of a run: of one class of its requests, or of one step of its load.

    Defined as those of the whole run are. `failures_as_infinite`: as in Summary.
    """

    requests: RequestCounts
    ttft_s: Percentiles
    ttft_intent_s: Percentiles
    itl_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    worst_stall_s: Percentiles
    throughput: Throughput
    goodput: Goodput
    slo: tuple[SloResult, ...] = ()
    failures_as_infinite: dict[str, Percentiles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadStepFigures:
    """One step of a stepped load: what was offered, and its figures.

    They are those of [from_s, to_s), counted from the run's zero: the beginning of a step, in which
    the load still settles, is left out. `notes`: why they are no steady state's, if so.
    """

    load: str
    from_s: float
    to_s: float
    figures: PartFigures
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plateau:
    """Where the throughput of a run that rises or falls holds still: from when to when (from the
    run's zero), and the rate there.
    """

    from_s: float
    to_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of one run (or of the repeats of one experiment, merged).

    `ttft_s` to `worst_stall_s` are over successes; `failures_as_infinite` has the same statistics
    with every failure counted as infinitely slow, which SLOs and goodput use.
    `tokens_estimated`: True when the server sent no usage and tokens were counted from chunks.
    `stalled_requests_share`: share of the successes with a gap above half a second.
    `notes`: how figures have to be read (tokens spread over chunks, partial replies, ...).
    `first_answer_s`: to the first chunk of the answer itself, where replies began with reasoning.
    `early_stops_share`: share of the successes that are shorter than planned.
    `warmup`: how the window's start was found, None when its length was fixed.
    `bands`: of a twin's figures by path, from how well its constants are known.
    `accounting`: mean seconds of a request by where they went (queue, prefill, decode, ...).
    `classes`: of each class of requests; `slo` has their limits too, with their name.
    `load_steps`: of each step of a stepped load. `cap_wait_s`: the wait for a slot where the
    requests in flight were capped (of all that were sent), and `e2e_intent_s` the end counted from
    the intended start, which contains it; None without a cap.
    `plateau`: the steady part of a window whose ramps lower its mean rate; None where the window
    is one plateau, or has none. `warmup_ttft_s`: TTFT of the successes sent before the window (the
    first wave of users is among them); None without any.
    """

    source: Source
    window_s: float
    requests: RequestCounts
    ttft_s: Percentiles
    ttft_intent_s: Percentiles
    itl_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    worst_stall_s: Percentiles
    throughput: Throughput
    cost: Cost
    roofline: Roofline
    goodput: Goodput
    slo: tuple[SloResult, ...]
    intervals: dict[str, Interval]
    client: ClientFigures
    verdict: VerdictFigures
    failures_as_infinite: dict[str, Percentiles] = field(default_factory=dict)
    tokens_estimated: bool = False
    itl_note: str | None = None
    stalled_requests_share: float | None = None
    notes: tuple[str, ...] = ()
    accounting: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    binding_limit: str | None = None
    arrivals: ArrivalFigures | None = None
    warmup: Warmup | None = None
    first_answer_s: Percentiles | None = None
    early_stops_share: float | None = None
    classes: dict[str, PartFigures] = field(default_factory=dict)
    load_steps: tuple[LoadStepFigures, ...] = ()
    cap_wait_s: Percentiles | None = None
    e2e_intent_s: Percentiles | None = None
    bands: dict[str, Band] = field(default_factory=dict)
    plateau: Plateau | None = None
    warmup_ttft_s: Percentiles | None = None

    def to_json(self) -> dict[str, Any]:
        """The published JSON form."""
        body: dict[str, Any] = {"schema": SUMMARY_SCHEMA}
        for f in fields(self):
            body[f.name] = jsonable(getattr(self, f.name))
        return body


def jsonable(value: Any) -> Any:
    """Values of this module as JSON types; infinity becomes the text "infinite", NaN None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    return value
