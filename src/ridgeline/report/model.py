"""What a report shows, as plain values: the loader fills them, the page and the console read them.

Metric names are dotted paths into `Summary`, as in its `intervals`: "ttft_s.p95",
"throughput.output_tokens_per_s", "cost.usd_per_million_output_tokens".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.domain.knee import KneeResult
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.run import Source
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.tuning.outcome import TuneResult

Mark = Literal["reproduced", "not reproduced", "reversed"]
Comparison = Literal["clearly better", "clearly worse", "no clear difference"]
RunState = Literal["valid", "void", "failed", "interrupted", "not run", "left out"]

COST = "cost.usd_per_million_output_tokens"
TOKENS = "throughput.output_tokens_per_s"
TOKENS_PER_GPU = "throughput.per_gpu_output_tokens_per_s"
CHUNKS = "throughput.chunks_per_s"
TTFT_P95 = "ttft_s.p95"
TTFT_INTENT_P95 = "ttft_intent_s.p95"
ITL_P95 = "itl_s.p95"
ERROR_RATE = "requests.error_rate"


@dataclass(frozen=True, slots=True)
class Badge:
    """Where the numbers come from. None = not known.

    `calibration` belongs to twins only: "prior" (constants from public facts) or "calibrated"
    (fitted to measurements of this hardware). `date` is the day of the first run, ISO.
    """

    source: Source
    calibration: Literal["prior", "calibrated"] | None = None
    engine: str | None = None
    engine_version: str | None = None
    gpu: str | None = None
    date: str | None = None

    @property
    def word(self) -> str:
        """TWIN or MEASURED."""
        return "TWIN" if self.source == "twin" else "MEASURED"

    @property
    def explanation(self) -> str:
        """What the word means for these numbers."""
        if self.source == "twin":
            basis = f", {self.calibration}" if self.calibration else ""
            about = self.gpu or ""
            return f"prediction{basis}" + (f" for {about}" if about else "") + self._day()
        engine = " ".join(filter(None, (self.engine, self.engine_version)))
        if "twin" in (self.engine or ""):
            # The client measured, but what answered was no real engine: that must not be missed.
            return f"at the client; the server is a digital twin ({engine})" + self._day()
        return ", ".join(filter(None, (engine, self.gpu or "hardware not known"))) + self._day()

    def _day(self) -> str:
        return f", {self.date}" if self.date else ""


@dataclass(frozen=True, slots=True)
class Difference:
    """(experiment - baseline) / baseline with its 95 % interval, from paired runs.

    `low` and `high` are None when there are too few pairs; `reason` then says so. Beside an
    interval `reason` says that it is too close to zero to matter. `detectable`: the relative
    change that as many pairs with as much noise would find in four of five studies.
    """

    delta: float | None
    low: float | None
    high: float | None
    verdict: Comparison
    pairs: int | None = None
    reason: str | None = None
    detectable: float | None = None


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of an experiment. `order` is its place in the study, from 1. `tries`: how often it
    was measured, this one included.
    """

    run_id: str
    experiment: str
    repeat: int
    order: int
    state: RunState
    reasons: tuple[str, ...] = ()
    seed: int | None = None
    warnings: tuple[str, ...] = ()
    tries: int = 1


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A class of failed requests: how many, and one message in the server's or client's words."""

    kind: str
    count: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """An empirical distribution as about 300 quantile points, not raw samples.

    `shares[i]` of the sample is at most `values_s[i]` (both ascending). `worst_s` are the largest
    stalls (one per request), largest first. `n` is the sample size; `failed` requests are in none.
    """

    shares: tuple[float, ...]
    values_s: tuple[float, ...]
    n: int
    worst_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Roof:
    """The hardware's two roofs, per GPU, dense. FLOP/s and bytes/s."""

    name: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    dtype: str

    @property
    def ridge(self) -> float:
        """Intensity (FLOP per byte) at which compute and memory take equally long."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    def attainable(self, intensity: float) -> float:
        """The roof above an intensity, FLOP/s per GPU."""
        return min(self.peak_flops_per_s, intensity * self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Where one kind of step sits: FLOP per byte, and FLOP/s per GPU while such steps run."""

    phase: Literal["decode", "prefill"]
    intensity: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over the time of one run, for each second of it.

    `t_s[i]` from the run's start; `values` by name: "output_tokens_per_s", "running", "waiting",
    "kv_used_share", "ttft_p95_s"; None inside = not known in that second. `events` are (t_s, text).
    """

    run_id: str
    t_s: tuple[float, ...]
    values: Mapping[str, tuple[float | None, ...]]
    window_s: tuple[float, float]
    events: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment: its valid repeats merged into one summary, and what the charts need of it.

    `summary` is None when no run of it ended with figures; `runs` then tell why. When every run is
    void it is the summary of one void run and `void` is True: shown, never ranked, never averaged.
    `published` holds reference values in the units of SLO keys: ttft_p95_ms, itl_p95_ms,
    chunks_per_s, error_rate. `step_parts` are shares of step time by name, summing to 1.
    `details_of` is the one run behind distributions, roofline and series; every other figure is
    over all valid repeats. `other_workload`: its traffic is not the baseline's (load, lengths,
    prefixes or classes), so its figures are those of another question.
    """

    name: str
    change: str
    summary: Summary | None
    configuration: Configuration | None = None
    load: str | None = None
    void: bool = False
    failure: str | None = None
    against_baseline: Mapping[str, Difference] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    runs: tuple[RunLine, ...] = ()
    ttft: Distribution | None = None
    itl: Distribution | None = None
    roof: Roof | None = None
    roofline: tuple[RooflinePoint, ...] = ()
    step_parts: Mapping[str, float] = field(default_factory=dict)
    series: Series | None = None
    errors: tuple[ErrorLine, ...] = ()
    details_of: str | None = None
    other_workload: bool = False

    @property
    def gpus_known(self) -> bool:
        """False for an endpoint that nobody described: its one GPU is only a default."""
        return self.configuration is not None and self.configuration.gpu is not None

    @property
    def ranked(self) -> bool:
        """True when its figures may be compared: at least one valid run."""
        return self.summary is not None and not self.void


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A published finding held against our results, with the reason from the step accounting."""

    claim: str
    mark: Mark | None
    published: str
    ours: str
    reason: str
    expected: Mark | None = None
    expected_because: str | None = None

    @property
    def as_expected(self) -> bool | None:
        """Whether the mark is the one expected beforehand; None when nothing was expected."""
        return None if self.expected is None or self.mark is None else self.mark == self.expected


@dataclass(frozen=True, slots=True)
class StudyReport:
    """Everything on the page. One row and `baseline` None for a single measured endpoint.

    `how` are (label, text) facts about the measurement, in the order shown. `gpus` names the
    baseline's hardware in words ("4 H100-SXM"). `load` is the offered load ("400 users").
    `knee`: what a load sweep found; its rows are the levels. `tune`: what a tuning found; its rows
    are the contenders of the duel.
    `warnings` are about how pairs were measured (far apart, on different servers), `router_costs`
    sentences about what routers cost.
    """

    name: str
    model: str
    badge: Badge
    rows: tuple[ExperimentRow, ...]
    baseline: str | None = None
    gpus: str | None = None
    load: str | None = None
    open_loop: bool = False
    slo: Slo = field(default_factory=Slo)
    findings: tuple[FindingLine, ...] = ()
    findings_source: str | None = None
    how: tuple[tuple[str, str], ...] = ()
    study_yaml: str | None = None
    reproduce: str | None = None
    ridgeline_version: str | None = None
    warnings: tuple[str, ...] = ()
    router_costs: tuple[str, ...] = ()
    speculation: tuple[str, ...] = ()
    knee: KneeResult | None = None
    tune: TuneResult | None = None

    def row(self, name: str | None) -> ExperimentRow | None:
        """The row of that name."""
        return next((r for r in self.rows if r.name == name), None)
