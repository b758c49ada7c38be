"""A study as plain values: what is compared with what, under which traffic, against which limits.

`studyfile.load_study` builds it from a file; nothing here knows YAML.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.knobs import Calibration, Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Workload

Mark = Literal["reproduced", "not reproduced", "reversed"]
ENGINES = ("twin", "vllm", "sglang", "trtllm", "llamacpp", "endpoint")

OBJECTIVES = ("cost", "throughput_per_gpu", "goodput", "pareto")
RISKS = ("exact", "numerics", "lossy")

ROUNDING = 1e-9  # a twin repeats itself exactly; what floating point adds is no difference

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_TIMES = ("ttft_s", "ttft_intent_s", "itl_s", "tpot_s", "e2e_s", "worst_stall_s")
_RATES = (
    "output_tokens_per_s",
    "input_tokens_per_s",
    "chunks_per_s",
    "requests_per_s",
    "per_gpu_output_tokens_per_s",
)
EQUAL_WITHIN = 0.005  # half a percent: a difference that nobody would pay for

# Figures of a Summary, by dotted path, that a finding may compare. Each has a ratio: a share that
# may be zero (error rate, attainment) has none.
METRICS = (
    *(f"{time}.{statistic}" for time in _TIMES for statistic in _STATISTICS),
    *(f"throughput.{rate}" for rate in _RATES),
    "cost.usd_per_million_output_tokens",
    "cost.usd_per_thousand_requests",
    "goodput.requests_per_s",
)


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """One experiment, complete: nothing is left to inherit. `change` says what differs.

    `lines` says where in its file each key stands that matters for it ("model", "max_num_seqs",
    ...), so that what is found out later can still be told with its line; "" is its first line.
    `repeats`: its own number, None = as many as the study has.
    """

    name: str
    change: str
    configuration: Configuration
    workload: Workload
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """The claimed ratio of one metric (a path of METRICS), the first experiment over the second.

    The claim is that the ratio lies in [low, high]; None is an open end. low = 1 says "more",
    high = 1 "less".
    """

    metric: str
    low: float | None = None
    high: float | None = None

    def mark(self, low: float, high: float, equal_within: float = 0.0) -> Mark:
        """Hold the 95 % interval [low, high] of the ratio that was found against the claim.

        reproduced: the whole interval lies in the claimed range. reversed: the claim names a
        direction and the whole interval lies on the other side of 1. Otherwise not reproduced.
        A plain "more" or "less" leaves out 1 itself, and an interval that lies wholly within
        `equal_within` of it: no difference is not a little more.
        """
        plain = (self.low, self.high) in ((1, None), (None, 1))
        if plain and low >= 1 - equal_within and high <= 1 + equal_within:
            return "not reproduced"
        if self.low == 1 and self.high is None:
            inside = low > 1 + ROUNDING
        elif self.high == 1 and self.low is None:
            inside = high < 1 - ROUNDING
        else:
            inside = (self.low is None or low >= self.low - ROUNDING) and (
                self.high is None or high <= self.high + ROUNDING
            )
        if inside:
            return "reproduced"
        says_more = self.low is not None and self.low >= 1
        says_less = self.high is not None and self.high <= 1
        if (says_more and high < 1 - ROUNDING) or (says_less and low > 1 + ROUNDING):
            return "reversed"
        return "not reproduced"

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.metric} x {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"{self.metric} " + ("higher" if self.low == 1 else f"at least x {self.low:g}")
        return f"{self.metric} " + ("lower" if self.high == 1 else f"at most x {self.high:g}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A published claim about two experiments, and what the twin is expected to say of it.

    `first` is compared with `second`; all `statements` must hold. `expected` and `because` were
    written before the twin ran; None = no expectation.
    """

    id: str
    claim: str
    first: str
    second: str
    statements: tuple[Statement, ...]
    expected: Mark | None = None
    because: str | None = None
    published: str | None = None

    def mark(
        self, intervals: Mapping[str, tuple[float, float]], equal_within: float = 0.0
    ) -> Mark | None:
        """The mark from the ratio's interval of each metric; None while one is not known.

        reversed when any statement is, reproduced when all are.
        """
        if any(s.metric not in intervals for s in self.statements):
            return None
        marks = [s.mark(*intervals[s.metric], equal_within) for s in self.statements]
        if "reversed" in marks:
            return "reversed"
        return "reproduced" if set(marks) == {"reproduced"} else "not reproduced"


@dataclass(frozen=True, slots=True)
class Published:
    """Reference values of another study: per experiment by SLO-like key.

    Keys: ttft_p95_ms, itl_p95_ms, chunks_per_s, error_rate.
    """

    source: str
    runs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of numbers, both ends included."""

    low: float
    high: float


# What a user allows for one option: these values, a range, or None: it stays as in the baseline.
Choice = tuple[Any, ...] | Span | None


@dataclass(frozen=True, slots=True)
class TuneSpec:
    """What `ridgeline tune` looks for, and where; the `tune:` section of a study file.

    objective: one of OBJECTIVES. risk: the highest class (of RISKS) that a winner may have. space:
    the user's own choice by knob name or "routing"; what it does not name is left to the tuner, or
    with `only` as in the baseline. finalists: candidates in the duel. window_s: the shortest window
    of a trial, None = the workload's. quality_threshold: share of the baseline's quality that a
    candidate which is not exact must recover, on the prompts of a file, None = a bundled set.
    side_by_side: the most trials at a time on GPUs of their own, None = as many as the host has
    GPUs and cores for; host_gpus: those by the file's hardware.count, None = the baseline's.
    """

    objective: str = "cost"
    risk: str = "exact"
    space: Mapping[str, Choice] = field(default_factory=dict)
    only: bool = False
    finalists: int = 3
    window_s: float | None = None
    quality_prompts: str | None = None
    quality_threshold: float = 0.99
    side_by_side: int | None = None
    host_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A whole study. The baseline is the first of `experiments`; `text` is the file as given.

    equal_within: a relative difference whose whole interval lies inside it counts as none.
    api: chat or completions. tune: what the tuner looks for. calibration: of the twin that predicts
    what another engine serves; what is measured does not depend on it.
    """

    name: str
    model: str
    engine: str
    experiments: tuple[ExperimentSpec, ...]
    slo: Slo = field(default_factory=Slo)
    repeats: int = 5
    published: Published | None = None
    findings: tuple[Finding, ...] = ()
    text: str = ""
    equal_within: float = EQUAL_WITHIN
    api: str = "chat"
    tune: TuneSpec = field(default_factory=TuneSpec)
    calibration: Calibration | None = None

    @property
    def baseline(self) -> ExperimentSpec:
        """What the other experiments are compared with."""
        return self.experiments[0]

    def experiment(self, name: str) -> ExperimentSpec:
        """The experiment of that name; raises BadInput naming the nearest one."""
        for spec in self.experiments:
            if spec.name == name:
                return spec
        names = [spec.name for spec in self.experiments]
        raise BadInput(
            f"there is no experiment {name!r}{nearest(name, names)}",
            where=f"study {self.name}",
            fix=f"it has {', '.join(names)}",
        )


def _served_by(
    spec: ExperimentSpec, engine: str, calibration: Calibration | None
) -> ExperimentSpec:
    """The experiment on another engine: GPUs as many as that engine's layout takes."""
    configuration = spec.configuration
    if engine == configuration.engine:
        return spec
    if engine == "endpoint":
        raise BadInput(
            "an endpoint needs the key 'url', which belongs to engine: endpoint in the study file",
            where="--engine endpoint",
        )
    gpus = configuration.layout_gpus
    served = replace(configuration, engine=engine, gpus=gpus, url=None)
    return replace(spec, configuration=on_twin(served, calibration) if engine == "twin" else served)


def on_twin(configuration: Configuration, calibration: Calibration | None) -> Configuration:
    """A configuration as the twin's, with its study's calibration where it has none of its own."""
    made = configuration.calibration or calibration
    return replace(configuration, engine="twin", calibration=made)


def override(
    study: Study,
    *,
    engine: str | None = None,
    repeats: int | None = None,
    only: Iterable[str] = (),
) -> Study:
    """Apply the command line's choices: another engine, other repeats, only some experiments.

    The baseline always stays, and so do the findings whose experiments both stay. Raises BadInput
    for unknown names and for repeats below 1.
    """
    if engine is not None:
        if engine not in ENGINES:
            raise BadInput(
                f"unknown engine {engine!r}{nearest(engine, ENGINES)}",
                where="--engine",
                fix=f"use one of {', '.join(ENGINES)}",
            )
        specs = tuple(_served_by(spec, engine, study.calibration) for spec in study.experiments)
        study = replace(study, engine=engine, experiments=specs)
    if repeats is not None:
        if repeats < 1:
            raise BadInput(f"repeats must be at least 1, not {repeats}", where="--repeats")
        specs = tuple(replace(spec, repeats=None) for spec in study.experiments)
        study = replace(study, repeats=repeats, experiments=specs)
    chosen = {study.experiment(name).name for name in only}
    if not chosen:
        return study
    chosen.add(study.baseline.name)
    return replace(
        study,
        experiments=tuple(spec for spec in study.experiments if spec.name in chosen),
        findings=tuple(f for f in study.findings if {f.first, f.second} <= chosen),
    )
