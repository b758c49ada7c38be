"""What a tuning found, as plain values: stored as tune.json, printed, and shown on the page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import StoreError
from ridgeline.domain.summary import jsonable
from ridgeline.store.codec import from_plain, infinities_back
from ridgeline.store.files import read_json, write_json
from ridgeline.tuning.trial import Miss

RESULT = "tune.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Side:
    """A configuration in the result. Figures are those of its runs in the duel, or of its trial.

    value: the objective, an estimate; low, high: its 95 % interval. Price and tokens/s are those of
    that estimate, latencies of the worst of its runs. runs: valid ones behind it. measured: "duel",
    "trial", or None without a figure. meets: the targets, by the intervals of `limits`. Times in
    ms; None = not known.
    """

    words: str
    change: Mapping[str, Any]
    gpus: int
    command: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    usd_per_million_output_tokens: float | None = None
    output_tokens_per_s_per_gpu: float | None = None
    ttft_p95_ms: float | None = None
    itl_p95_ms: float | None = None
    meets: bool | None = None
    limits: tuple[Miss, ...] = ()
    runs: int = 0
    measured: str | None = None


@dataclass(frozen=True, slots=True)
class Nearest:
    """What came nearest to the targets where nothing was shown to meet them.

    over: the largest factor by which a figure exceeds its limit (1.4 = 40 % too much). would_meet:
    for each limit that is not met the one that it would meet, by its rounds in a duel; had: without
    enough rounds what its one run had and may stand for; both count that it was picked among so
    many that were measured alike (`promised`). against: what it
    gives over the baseline, in words, by paired rounds where there are any; clearly: it is clearly
    more. chance: the largest probability (0..1) that the twin, as corrected by what was measured,
    gives any of `looks` configurations of meeting all targets; None without a twin.
    """

    side: Side
    over: float
    would_meet: tuple[str, ...] = ()
    against: str = ""
    clearly: bool = False
    chance: float | None = None
    looks: int = 0
    had: tuple[str, ...] = ()
    among: int = 1


@dataclass(frozen=True, slots=True)
class Line:
    """One trial in the history. beside: how many others were measured meanwhile."""

    number: int
    words: str
    change: Mapping[str, Any]
    state: str
    why: str
    phase: str
    value: float | None
    low: float | None
    high: float | None
    gpu_s: float
    window_s: float
    stopped: bool
    reason: str | None
    run: str | None
    limits: tuple[Miss, ...] = ()
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Duelist:
    """A contender of the duel: what it gives, with its 95 % interval (value_low, value_high), and
    gives over the baseline by `pairs` rounds, with bounds that hold for all pairs and looks
    together at 95 % (None with too few rounds); see `tuning.claims`. meets: the targets, by its
    intervals.
    """

    words: str
    change: Mapping[str, Any]
    experiment: str
    value: float | None
    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    verdict: str
    meets: bool | None
    reason: str | None = None
    searched: float | None = None  # what the search had estimated
    value_low: float | None = None
    value_high: float | None = None


@dataclass(frozen=True, slots=True)
class DuelResult:
    """The duel. ended: why no further round was run."""

    rounds: int
    ended: str
    duelists: tuple[Duelist, ...]


@dataclass(frozen=True, slots=True)
class Soaked:
    """A run at the worst case. margin_gib: memory of the GPU that was left; basis: by what.
    memory: in words what was used of what, each with its source.

    soaked False: the budget did not hold it.
    """

    words: str
    change: Mapping[str, Any]
    load: str
    passed: bool
    reason: str | None
    margin_gib: float | None = None
    basis: str | None = None
    run: str | None = None
    memory: tuple[str, ...] = ()
    soaked: bool = True

    @property
    def state(self) -> str:
        """ "passed", "failed" or NOT_SOAKED."""
        if not self.soaked:
            return NOT_SOAKED
        return "passed" if self.passed else "failed"


NOT_SOAKED = "not soaked: budget"


@dataclass(frozen=True, slots=True)
class Judged:
    """The quality gate's word on a candidate that is not exact, against the baseline.

    part: of the change what had to be judged. outcome: pass, fail, no-op, not applicable or
    unknown; only "pass" may win. verdict: every figure, as `ridgeline quality --json` writes it.
    gpu_s: that asking took.
    """

    words: str
    change: Mapping[str, Any]
    part: Mapping[str, Any]
    outcome: str
    may_win: bool
    reasons: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    verdict: Mapping[str, Any] = field(default_factory=dict)
    gpu_s: float = 0.0

    def sentence(self) -> str:
        """One line for people."""
        return f"{self.outcome}: {'; '.join(self.reasons)}"


@dataclass(frozen=True, slots=True)
class Bought:
    """What one knob of the winner is worth: the winner over the winner without it.

    by: "measured" or "twin". low, high: 95 % interval, None where it is not known.
    """

    knob: str
    value: str
    ratio: float | None
    low: float | None
    high: float | None
    by: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """How far one property of the traffic may move on the twin before another one should be used.

    down, up: the first value tried at which the winner should not be used any more, None = it holds
    to the end of what was looked at, least to most. Values are factors of today's, for a `share`
    the share itself, today's being `at`. to: what should be used beyond `up`, else beyond `down`.
    down_why, up_why: what happens at that end (the winner breaks a target, another one is ahead),
    None where only the look ended.
    """

    what: str
    down: float | None
    up: float | None
    least: float
    most: float
    to: str | None = None
    down_why: str | None = None
    up_why: str | None = None
    share: bool = False
    at: float = 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure with its 95 % interval; without one the point stands for it."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def least(self) -> float:
        """The lower end."""
        return self.value if self.low is None else self.low

    @property
    def most(self) -> float:
        """The upper end."""
        return self.value if self.high is None else self.high


@dataclass(frozen=True, slots=True)
class Point:
    """A measured configuration that meets the targets ("feasible") or may meet them ("unsure").

    by: "duel" or "trial" (`number`). tokens: output tokens/s per GPU; ttft, itl: p95 in ms. on:
    fronts ("ttft", "itl") on which it lies, no other being better in both; near: those on which
    none is better in both by whole intervals. outside: limits that its own figures are outside of
    though no interval shows it, in words.
    """

    words: str
    change: Mapping[str, Any]
    state: str
    by: str
    runs: int
    tokens: Spread
    ttft: Spread | None
    itl: Spread | None
    number: int | None = None
    on: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def latency(self, axis: str) -> Spread | None:
        """The latency of a front, by its name."""
        return self.ttft if axis == "ttft" else self.itl


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All of it. `verdict` is the answer in one sentence; `clear`: the duel decided it.
    recommended False: no configuration is, not even the baseline that stands as the winner.
    nearest: what came nearest where nothing was shown to meet the targets, nearest_miss its words.

    source: "twin" or "measured". goal: what was made larger, in `unit`. ended: why the search
    stopped. envelope_by: what the envelope compares with. judged: candidates that are not exact;
    quality: why there are none. front: what was measured inside the targets.
    """

    study: str
    source: str
    goal: str
    unit: str
    verdict: str
    clear: bool
    winner: Side
    baseline: Side
    trials: tuple[Line, ...]
    ended: str
    gpu_s: float
    duel: DuelResult | None = None
    soak: tuple[Soaked, ...] = ()
    ablation: tuple[Bought, ...] = ()
    envelope: tuple[Reach, ...] = ()
    envelope_by: str | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    quality: tuple[str, ...] = ()
    judged: tuple[Judged, ...] = ()
    notes: tuple[str, ...] = ()
    nearest_miss: str | None = None
    nearest: Nearest | None = None
    recommended: bool = True
    front: tuple[Point, ...] = ()
    schema: int = SCHEMA


def to_json(result: TuneResult) -> dict[str, Any]:
    """The published JSON form."""
    found: dict[str, Any] = jsonable(result)
    return found


def write_result(folder: Path, result: TuneResult) -> None:
    """Keep it beside the runs; raises StoreError."""
    write_json(folder / RESULT, to_json(result))


def read_result(folder: Path) -> TuneResult | None:
    """The result in a folder, None where none was reached; raises StoreError."""
    path = folder / RESULT
    if not path.exists():
        return None
    body = read_json(path)
    if body.get("schema") != SCHEMA:
        raise StoreError(f"has schema {body.get('schema')!r}", where=str(path))
    return from_plain(TuneResult, json.loads(json.dumps(infinities_back(body))), str(path))
