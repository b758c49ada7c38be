"""A load sweep that looks for the knee and the capacity: levels measured one by one, all stored.

Every level is a run like any other, with fresh prompts and a verdict of its own, so a level that a
prefix cache has answered, or whose client was the limit, is void and counts for nothing. A search
that was cut off goes on where it was.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from ridgeline.domain.knee import (
    KneeLevel,
    KneeResult,
    LevelState,
    find_capacity,
    find_knee,
    plateau,
)
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Interval, Summary
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.engines.base import Endpoint, Engine
from ridgeline.experiment.kneesearch import Asked, next_load
from ridgeline.experiment.ledger import begin_index, entry_of, split_runs
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs
from ridgeline.experiment.protocol import Calibrate, carry_out
from ridgeline.experiment.runner import StudyWatch
from ridgeline.experiment.steady import QUEUE_GREW
from ridgeline.store.codec import from_plain, infinities_back
from ridgeline.store.files import read_json, write_json
from ridgeline.store.run_directory import StoredRun, set_aside
from ridgeline.store.study_directory import StudyDirectory

KIND = "knee"
RESULT_FILE = "knee.json"
SHORTEST_S = 15.0  # of a level's window, open loop: shorter ones show no growing queue
TURNS = 8  # closed loop: so many requests of each user at least, which are several stays
WARMUP_LIMIT_S = 20.0
PROBE_USERS, PROBE_TURNS = 16, 4
GRACE_S = 30.0  # what an overloaded level is followed for after its window


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is swept: the configuration, its traffic (arrivals are replaced), and the limits.

    requests: those that a level must have. longest_s: of one level's window. budget_s: of the whole
    search; no level starts that would probably exceed it. None = no limit.
    """

    name: str
    configuration: Configuration
    workload: Workload
    asked: Asked
    slo: Slo = field(default_factory=Slo)
    requests: int = 100
    longest_s: float = 120.0
    budget_s: float | None = None
    endpoint: str = "chat"


class SweepWatch(StudyWatch, Protocol):
    """A study's watch that also hears of every level. See cli/knee."""

    def level(self, level: KneeLevel) -> None:
        """Take a level that is done."""


def search_knee(
    sweep: Sweep,
    directory: StudyDirectory,
    engine: Engine,
    watch: SweepWatch,
    *,
    command: str,
    calibrate: Calibrate | None = None,
) -> tuple[KneeResult, bool]:
    """Measure level after level; the result, and whether the user stopped it. Raises StoreError."""
    begun = time.monotonic()
    levels: list[KneeLevel] = []
    notes: list[str] = []
    with directory.held(), _kept_up(engine, sweep.configuration) as held:
        book = _Levels(sweep, directory, held, watch, command, calibrate)
        if sweep.asked.start <= 0:
            sweep, note = book.with_start()
            notes += [note] if note else []
        again: float | None = None  # a void level is measured once more: it may have been a chance
        while (load := next_load(levels, sweep.asked)) is not None and not watch.stop_asked():
            left = None
            if sweep.budget_s is not None:
                left = sweep.budget_s - (time.monotonic() - begun)
            stored = book.measure(load, levels, left)
            if stored is None:
                notes.append(
                    f"the time budget of {sweep.budget_s:g} s was used up before the level at"
                    f" {load:g}: give it more --minutes"
                )
                break
            if stored.state == "interrupted":
                break
            found = level_of(stored, load, sweep)
            if found.state == "void" and again != load and _may_pass(sweep):
                again = load
                continue
            levels.append(found)
            watch.level(levels[-1])
        result = result_of(sweep, levels, notes, time.monotonic() - begun, book.server)
        write_json(directory.path / RESULT_FILE, result.to_json())
    return result, watch.stop_asked()


def _may_pass(sweep: Sweep) -> bool:
    """Whether another try can end otherwise: a twin only repeats itself."""
    return sweep.configuration.engine != "twin"


@dataclass(slots=True)
class _Levels:
    """Measures single levels and keeps the index on disk in step."""

    sweep: Sweep
    directory: StudyDirectory
    engine: Engine
    watch: StudyWatch
    command: str
    calibrate: Calibrate | None = None
    experiments: list[PlannedExperiment] = field(default_factory=list)
    server: str | None = None  # what answered, by its own word

    def with_start(self) -> tuple[Sweep, str | None]:
        """The sweep with a first rate: half of what PROBE_USERS users get through.

        A rate far below the capacity takes minutes to bring enough requests. Where the probe finds
        nothing the first rate is 1 request/s, and a note says why.
        """
        sweep = self.sweep
        workload = replace(
            level_workload(replace(sweep, asked=replace(sweep.asked, load="users")), PROBE_USERS),
            requests=PROBE_USERS * PROBE_TURNS,
        )
        probe = PlannedExperiment("probe", sweep.configuration, workload)
        self.sweep = replace(sweep, slo=Slo())  # too few requests for any target
        stored = self._run(probe, None, 0.0)
        rate = None
        if stored is not None and stored.summary is not None:
            rate = stored.summary.throughput.requests_per_s
        note = None if rate else "the probe found no rate: the search began at 1 request/s"
        start = float(f"{(rate or 2.0) / 2:.2g}")
        self.sweep = replace(sweep, asked=replace(sweep.asked, start=start))
        return self.sweep, note

    def measure(
        self, load: float, levels: Sequence[KneeLevel], left_s: float | None
    ) -> StoredRun | None:
        """The level's run, from disk when it is there; None when the time left does not do."""
        sweep = self.sweep
        workload = level_workload(sweep, load)
        rates = [level.requests_per_s for level in levels if level.requests_per_s]
        expected_s = workload.duration_s + WARMUP_LIMIT_S / 2
        if workload.requests is not None and rates:
            expected_s = min(expected_s, workload.requests / max(rates) + WARMUP_LIMIT_S / 2)
        if sweep.configuration.engine == "twin":
            expected_s = 0.0
        name = level_name(sweep.asked.load, load)
        experiment = PlannedExperiment(name, sweep.configuration, workload)
        return self._run(experiment, left_s, expected_s)

    def _run(
        self, experiment: PlannedExperiment, left_s: float | None, expected_s: float
    ) -> StoredRun | None:
        sweep = self.sweep
        if experiment not in self.experiments:  # a second try of the same level
            self.experiments.append(experiment)
        whole = Plan(sweep.name, KIND, None, tuple(self.experiments), sweep.slo, 1, sweep.endpoint)
        mine = replace(whole, experiments=(experiment,))
        (run,) = plan_runs(mine)
        index = begin_index(mine, (run,), self.directory, self.command, whole)
        order = tuple(dict.fromkeys([*index.order[1:], run.run_id]))
        index = replace(index, order=order)
        _, kept = split_runs((run,), self.directory, keep=True)
        if kept and self._will_do(kept[0]):
            self.directory.write_index(index.with_run(entry_of(kept[0])))
            self._hear(kept[0])
            return kept[0]
        if left_s is not None and expected_s > left_s:
            return None
        self.directory.write_index(index.with_run(replace(index.runs[run.run_id], state="running")))
        folder = self.directory.run_folder(run.run_id)
        if kept:
            set_aside(folder)
        watch = self.watch.started(run)
        stored = carry_out(run, folder, self.engine, watch, calibrate=self.calibrate)
        self.directory.write_index(index.with_run(entry_of(stored)))
        self.watch.ended(stored)
        self._hear(stored)
        return stored

    def _hear(self, run: StoredRun) -> None:
        """Keep what the run's server calls itself."""
        name = None if run.facts is None else run.facts.server.get("engine")
        self.server = str(name) if name else self.server

    def _will_do(self, run: StoredRun) -> bool:
        """True for a level on disk that need not be measured again: valid, or overloaded; a twin
        would only repeat itself.
        """
        if run.valid or run.meta.configuration.engine == "twin":
            return True
        open_loop = self.sweep.asked.load == "rate"
        summary = run.summary
        return summary is not None and _state(run, summary, open_loop=open_loop) == "overloaded"


def level_name(kind: str, load: float) -> str:
    """The experiment of a level."""
    return f"{kind}-{load:g}"


def level_workload(sweep: Sweep, load: float) -> Workload:
    """The traffic of one level: as the sweep's, at this load and with enough requests."""
    base, wanted = sweep.workload, sweep.requests
    client = replace(base.client, timeouts=replace(base.client.timeouts, grace_s=GRACE_S))
    common = replace(base, warmup_s=WARMUP_LIMIT_S, warmup_auto=True, client=client)
    if sweep.asked.load == "users":
        users = round(load)
        pause = base.arrivals
        arrivals = Arrivals(
            users=users, think_time_s=pause.think_time_s, think_time=pause.think_time
        )
        return replace(
            common,
            arrivals=arrivals,
            duration_s=sweep.longest_s,
            requests=max(wanted, TURNS * users),
        )
    # three standard deviations of a Poisson count more than is wanted
    seconds = (wanted + 3 * wanted**0.5) / load
    arrivals = replace(
        base.arrivals, users=None, think_time_s=0.0, think_time="constant", rate_per_s=load
    )
    seconds = min(max(seconds, SHORTEST_S), sweep.longest_s)
    return replace(common, arrivals=arrivals, duration_s=seconds, requests=None)


def level_of(run: StoredRun, load: float, sweep: Sweep) -> KneeLevel:
    """A level from its run."""
    summary = run.summary
    if summary is None:
        reason = run.failure.text if run.failure is not None else "nothing was measured"
        return KneeLevel(run.meta.run_id, load, "void", 0, sweep.requests, (reason,))
    tokens = summary.intervals.get("throughput.output_tokens_per_s")
    inside = summary.intervals.get("goodput.attainment")
    low, high = _ends(tokens)
    attained_low, attained_high = _ends(inside)
    open_loop = sweep.asked.load == "rate"
    return KneeLevel(
        run_id=run.meta.run_id,
        load=load,
        state=_state(run, summary, open_loop=open_loop),
        requests=summary.requests.sent,
        wanted=sweep.requests,
        reasons=summary.verdict.reasons,
        tokens_per_s=summary.throughput.output_tokens_per_s,
        tokens_low=low,
        tokens_high=high,
        requests_per_s=summary.throughput.requests_per_s,
        ttft_p95_s=(summary.ttft_intent_s if open_loop else summary.ttft_s).p95,
        itl_p95_s=summary.itl_s.p95,
        error_rate=summary.requests.error_rate,
        attained=summary.goodput.attainment,
        attained_low=attained_low,
        attained_high=attained_high,
    )


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _state(run: StoredRun, summary: Summary, *, open_loop: bool) -> LevelState:
    """Overloaded: an open loop that was found void, its growing queue among the reasons.

    What a cache has answered or a client has held back stays void whatever else is wrong.
    """
    if run.valid:
        return "valid"
    reasons = summary.verdict.reasons
    grew = any(reason.startswith(QUEUE_GREW) for reason in reasons)
    others = [r for r in reasons if not r.startswith(("not steady", *_OF_OVERLOAD))]
    others = [r for r in others if "were not finished when the client gave up" not in r]
    return "overloaded" if open_loop and grew and not others else "void"


_OF_OVERLOAD = ("the window of",)  # shorter than a stay, which grows with the queue


def result_of(
    sweep: Sweep,
    levels: Sequence[KneeLevel],
    notes: Sequence[str],
    seconds: float | None,
    engine: str | None = None,
) -> KneeResult:
    """What the levels say; `engine`: what the server says that it is."""
    asked = sweep.asked
    best = plateau(levels)
    told = [
        f"{level_name(asked.load, level.load)} is void: {'; '.join(level.reasons)}"
        for level in levels
        if level.state == "void"
    ]
    return KneeResult(
        name=sweep.name,
        load=asked.load,
        measured=sweep.configuration.engine != "twin",
        levels=tuple(sorted(levels, key=lambda level: level.load)),
        plateau_tokens_per_s=None if best is None else best.value,
        knee=find_knee(levels),
        capacity=None
        if asked.target is None
        else find_capacity(levels, asked.target, asked.most_errors),
        target=asked.target,
        slo=tuple(str(limit) for limit in sweep.slo.limits),
        notes=(*told, *notes),
        engine=engine,
        seconds=seconds,
    )


def read_knee(directory: StudyDirectory) -> KneeResult | None:
    """The stored result of a search, None where there is none."""
    path = directory.path / RESULT_FILE
    if not path.exists():
        return None
    body = dict(read_json(path))
    return from_plain(KneeResult, infinities_back(body), str(path))


@dataclass(slots=True)
class _Held:
    """An engine that is up already and stays so."""

    name: str
    endpoint: Endpoint

    @contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        """The endpoint that is there."""
        yield self.endpoint


@contextmanager
def _kept_up(engine: Engine, configuration: Configuration) -> Iterator[Engine]:
    """The engine started once for all levels."""
    with engine.start(configuration) as endpoint:
        yield _Held(engine.name, endpoint)
