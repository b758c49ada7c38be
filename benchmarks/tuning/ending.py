"""How `ridgeline tune` would have ended a replayed search: the product's own code decides.

The reserve, the finalists that the budget holds, the duel's rounds, who is named and what is
printed of it are calls of `tuning.budgeting`, `choosing`, `dueling` and `claims`. Only what would
be measured is drawn from the ground instead, and what would take time is what the product expects
it to take. Everything, duel and soak as well, is inside the budget. Not replayed: the quality gate
(no answers to judge; it costs nothing here) and the soak's outcome (its time is kept).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tuning import real
from benchmarks.tuning.ground import COLD_S, WARM_S
from benchmarks.tuning.keeping import each
from benchmarks.tuning.score import Replay, policy_of
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.domain.summary import Interval, Percentiles, SloResult, Summary
from ridgeline.store.run_directory import StoredRun
from ridgeline.tuning import budgeting
from ridgeline.tuning.assembling import standings_of
from ridgeline.tuning.choosing import choose
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.goingon import BUDGET_USED
from ridgeline.tuning.journal import AIM, Asked, Told
from ridgeline.tuning.search import Search
from ridgeline.tuning.session import Session
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, History
from ridgeline.workload.study import TuneSpec

MINUTES = (25.0, 40.0)  # budgets of each GPU that are scored; the bars hold the last one
DUEL_S = 25.0
Z = 1.959964


@dataclass(frozen=True, slots=True)
class Ending:
    """One tuning with a budget of so many minutes of each GPU, held against the truth.

    stays: the baseline is named. clear, sure: the product says that it is clearly better, that it
    meets the targets (by its runs in the duel, at 95 %); an answer that is not sure names no
    configuration to serve, it is what came nearest. shown, regret: what the answer's
    true value is short of the optimum that runs can show to be feasible, and of the best that is
    feasible in truth (0.02 = 2 % below). infeasible, crashed: the answer's true state. error: log
    of the printed value over the true one, None where none is printed. search_s, duel_s: GPU
    seconds.
    """

    setting: str
    seed: int
    minutes: float
    stays: bool
    clear: bool
    sure: bool
    shown: float
    regret: float
    infeasible: bool
    crashed: bool
    error: float | None
    finalists: int
    rounds: int
    search_s: float
    duel_s: float


def ended(ground: Any, seed: int, minutes: float) -> Ending:
    """Search and end as the product does with this budget."""
    setting, start_s = setting_of(ground), _start_s()
    limits = budgeting.Limits(gpu_s=60 * minutes * ground.gpus)
    search = policy_of(ground, "ours", seed)
    assert isinstance(search, Search)
    assert limits.gpu_s is not None
    replay = Replay(ground, search)
    replay.go(limits.gpu_s - budgeting.reserve_of(setting, limits, start_s).total_s)
    left_s = limits.gpu_s - replay.history.gpu_s
    history = replay.history
    ranked = _finalists(ground, setting, limits, search, history)
    if not ranked:
        return _held(ground, seed, minutes, None, history.gpu_s)
    duel = ReplayDuel.of(ground, setting, ranked, start_s, history)
    duel.fight(left_s - budgeting.soak_s(setting, start_s, len(ranked)))
    return _held(ground, seed, minutes, duel, history.gpu_s)


def _finalists(
    ground: Any, setting: Setting, limits: budgeting.Limits, search: Search, history: History
) -> tuple[Candidate, ...]:
    """Whom the product's session chooses after this search, given what is left of the budget."""
    quiet: Any = _Quiet(history)
    parts: Any = _Parts(ground, _start_s())
    session = Session(
        setting, Path(), parts, parts, search, standings_of(search), parts, quiet, quiet, limits,
        parts,
    )  # fmt: skip
    chosen = session._finalists(BUDGET_USED)
    assert chosen is not None  # nobody stops it
    return chosen[0]


@dataclass
class _Parts:
    """What a session asks of its ground, its twin and its quality gate, which lets all pass."""

    ground: Any
    slowest_start_s: float
    known: bool = True

    def expect(self, candidates: Sequence[Candidate]) -> Any:
        """The believed twin's word."""
        return self.ground.expect(candidates)

    def qualify(self, ranked: Sequence[Any], most: int, left_s: Any) -> list[Any]:
        """The first of them."""
        return list(ranked[:most])


def _held(ground: Any, seed: int, minutes: float, duel: "ReplayDuel | None", search_s: float) -> Ending:  # noqa: E501  # fmt: skip
    named, clear, sure, value = Candidate(), False, False, None
    if duel is not None:
        choice = choose(duel, ())
        named, clear, value = choice.winner, choice.clear, duel.estimate(choice.winner)[0]
        sure = duel.meets(named) is True
    truth, row = ground.truth, ground.row(named)
    own = float(truth.figures[row, 0])
    crashed = bool(ground.crashing[row])
    most = float(truth.figures[truth.feasible, 0].max())
    return Ending(
        ground.name, seed, minutes, not named.change, clear, sure,
        1 - own / truth.best, 1 - own / most,
        not crashed and not bool(truth.feasible[row]), crashed,
        None if value is None else math.log(value / own),
        0 if duel is None else len(duel.candidates) - 1, 0 if duel is None else duel.held,
        search_s, 0.0 if duel is None else duel.quiet.used_s,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplaySetting(Setting):
    """The product's setting, simulated, with the ground's places and first loads."""

    seats: int = 1

    @property
    def places(self) -> int:
        return self.seats

    @property
    def cold_s(self) -> float:
        return COLD_S


def setting_of(ground: Any) -> ReplaySetting:
    """What the product would be asked to tune; the objective is the ground's own."""
    configuration = replace(ground.baseline, engine="twin", launch=None, price_per_gpu_hour=None)
    load = replace(ground.workload, duration_s=DUEL_S, warmup_s=WARM_S)
    slo = slo_from_mapping(ground.limits)
    return ReplaySetting(
        ground.name, configuration, load, slo, "completions", TuneSpec(), ground.places
    )


def _start_s() -> float:
    """Of the slowest engine of a search, which FP8 weights make slower."""
    return real.starts().alone_s + real.starts().fp8_s


@dataclass
class _Quiet:
    """Stands for a tuning's journal and display: keeps its phases, and the GPU seconds booked."""

    history: History = field(default_factory=History)
    used_s: float = 0.0
    phases: dict[str, Any] = field(default_factory=dict)
    aims: tuple[Mapping[str, Any], ...] = ()

    def write(self, kind: str, **fields: Any) -> None:
        """A line of the journal."""
        if kind == "spent":
            self.used_s += float(fields["gpu_s"])
        self.phases[kind] = fields
        if kind == AIM:
            self.aims = (*self.aims, fields)

    def told(self, text: str | None = None) -> Told:
        """What the journal tells; a text is the display's, and goes nowhere."""
        trials = self.history.trials
        all_of_them = Asked(
            1, tuple(t.candidate for t in trials), 0.0, ("",) * len(trials), "search", 0.0
        )
        return Told(trials=trials, asked=(all_of_them,), aims=self.aims, phases=dict(self.phases))

    def stop_asked(self) -> bool:
        """Nobody does."""
        return False


@dataclass(slots=True)
class ReplayDuel(Duel):
    """The product's duel; only a round's runs are drawn from the ground."""

    ground: Any = None
    quiet: _Quiet = field(default_factory=_Quiet)
    _up: str | None = None  # where one engine is up at a time

    @classmethod
    def of(
        cls,
        ground: Any,
        setting: Setting,
        finalists: Sequence[Candidate],
        start_s: float,
        history: History | None = None,
    ) -> "ReplayDuel":
        """Of the baseline and these, after the search of that history."""
        quiet = _Quiet(history or History())
        stand_in: Any = quiet
        engines: Any = None
        return cls(
            setting, Path(), engines, stand_in, stand_in, (Candidate(), *finalists), "", None,
            start_s=start_s, ground=ground, quiet=quiet,
        )  # fmt: skip

    def _rounds_on_disk(self) -> int:
        return 0

    def _round(self, rounds: int, left_s: float) -> None:
        out = self.standing().out - {0} if self.rounds else frozenset()
        together = len(self.candidates) <= self.setting.places
        starts_s = self.rounds_s(0, first=True) / self.setting.gpus_for(*self.candidates)
        if together and not self._runs:
            self.ground.now_s += starts_s
        inside = [(i, c) for i, c in enumerate(self.candidates) if i not in out]
        for i, candidate in inside if rounds % 2 else reversed(inside):  # as plan_runs has it
            runs = self._runs.setdefault(self.name(candidate), {})
            due = range(len(runs) + 1, rounds + 1)
            if due and not together and candidate.words != self._up:  # an engine in its turn
                self.ground.now_s += starts_s / len(inside)
                self._up = candidate.words
            for n in due:
                self.ground.now_s += self.setting.run_s(DUEL_S)
                figures, errors = self.ground.one(candidate, 10_000 + 100 * (n - 1) + i, DUEL_S)
                runs[n] = _run(self.ground.limits, figures, errors)


@cache
def _template() -> StoredRun:
    return next(iter(real.stored().values()))[0]


def _run(limits: Mapping[str, float], figures: Any, errors: Any) -> StoredRun:
    """A valid run with these figures; the intervals are what a run knows of itself."""
    like = _template()
    assert like.summary is not None
    found = {k: float(v) for k, v in zip(("value", *limits), figures, strict=True)}
    latency = {k: Percentiles(p95=found[k] / 1e3, n=1000) for k in limits}
    ttft, itl = (
        next((v for k, v in latency.items() if k.startswith(m)), Percentiles())
        for m in ("ttft", "itl")
    )
    own = math.sqrt(max(0.0, real.noise().within ** 2 / real.noise().covariance[0, 0]))
    rows = dict(zip(limits, errors[1:], strict=True))
    intervals = {
        f"{k.split('_')[0]}_s.p95": Interval(
            found[k] / 1e3 * math.exp(-Z * own * e), found[k] / 1e3 * math.exp(Z * own * e), 1000
        )
        for k, e in rows.items()
    }
    slo = tuple(
        SloResult(str(limit), found[limit.key], found[limit.key] <= limit.value)
        for limit in slo_from_mapping(limits).limits
    )
    rate = replace(
        like.summary.throughput, output_tokens_per_s=found["value"],
        per_gpu_output_tokens_per_s=found["value"],
    )  # fmt: skip
    summary: Summary = replace(
        like.summary, throughput=rate, ttft_s=ttft, itl_s=itl, intervals=intervals, slo=slo,
        failures_as_infinite={"ttft_s": ttft, "itl_s": itl},
    )  # fmt: skip
    return replace(like, summary=summary)


def endings(
    grounds: Mapping[str, Callable[[int], Any]], seeds: Sequence[int], kept: Path
) -> Iterator[Ending]:
    """Every setting, seed and budget, seed by seed; what `kept` (JSON lines) has is not run again.

    Seeds whose truth has no configuration that can be shown to be feasible are left out.
    """
    return each(
        grounds, seeds, MINUTES, kept,
        kind=Ending, which=lambda e: (e.setting, e.seed, e.minutes), run=ended,
    )  # fmt: skip


def bias(found: Sequence[Ending]) -> float:
    """Mean error (log) of the values that are printed of winners; NaN without any. A baseline that
    stays was chosen for no figure of its own, and would only thin the winner's curse.
    """
    errors = [e.error for e in found if e.error is not None and not e.stays]
    return float(np.mean(errors)) if errors else math.nan
