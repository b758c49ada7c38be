"""The ground that a real tuning stands on: trials are runs of a study directory.

Each is measured by the protocol of a study's runs (warm-up, steady window, verdict, one retry of a
void one) and stored like one, in the folder `trials` of the tuning's directory. Several engines are
up side by side, one of them loaded, where the study's launch keeps engines resident; several trials
run side by side where the host has GPUs for them (`sidebyside`).
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration
from ridgeline.experiment.ledger import begin_index
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs
from ridgeline.experiment.protocol import Calibrate, recover
from ridgeline.experiment.runner import run_plan
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.journal import Asked, TuneJournal, missing
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.port import Ask, Expected
from ridgeline.tuning.room import Room
from ridgeline.tuning.setting import Setting, trial_name
from ridgeline.tuning.sidebyside import Meter, Round, SideBySide, Task
from ridgeline.tuning.sidework import Job
from ridgeline.tuning.trial import Candidate, Trial
from ridgeline.tuning.watching import TrialsWatch, TuneWatch, Wanted

TRIALS = "trials"
KIND = "trials"
RETRIES = 1  # of a void run
LEAST_START_S = 2.0  # less is what any run takes beside its traffic

Expect = Callable[[Sequence[Candidate]], tuple[Expected, ...]]


@dataclass(slots=True)
class StudyGround:
    """A Ground over a directory. `expect_by` answers for the twin. `most_s`: GPU seconds that the
    next question may take in all, None = no limit: a start that takes longer is given up.
    """

    setting: Setting
    folder: Path
    engines: LastingEngines
    journal: TuneJournal
    watch: TuneWatch
    expect_by: Expect
    command: str = ""
    calibrate: Calibrate | None = None
    most_s: float | None = None
    start_s: float | None = None
    side: SideBySide | None = None
    _planned: dict[int, PlannedExperiment] = field(default_factory=dict)
    _stayed: tuple[Candidate, ...] = ()  # what would be up, on a twin

    def __post_init__(self) -> None:
        told = self.journal.told()
        self.start_s = told.start_s
        for asked in told.asked:
            if asked is not told.open and asked.phase == "search":
                for group in self._groups(asked.candidates):
                    self._stay(group)
        seen: dict[tuple[tuple[str, str], ...], int] = {}
        for asked in told.asked:
            for number, candidate, seed in self._seeded(asked, seen):
                self._plan(number, candidate, asked.window_s, seed)

    @property
    def places(self) -> int:
        """How many engines may be up side by side."""
        return self.setting.places

    @property
    def lasting(self) -> bool:
        """Whether engines stay up from one question to the next: not those of processes that are
        side by side on several GPUs.
        """
        return self.side is None

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        """What the twin says of each, as calibrated by what was measured so far."""
        return self.expect_by(candidates)

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        """GPU seconds that measuring them together would take, engine starts included."""
        if self.side is not None and len({c.key for c in candidates}) > 1:
            return self._side_s(self.side.room, candidates, window_s)
        return sum(self._group_s(group, window_s) for group in self._groups(candidates))

    def _side_s(self, room: Room, candidates: Sequence[Candidate], window_s: float) -> float:
        """The same side by side: nothing is up, so each pays for a start."""
        times = Counter(c.key for c in candidates)
        distinct = {c.key: c for c in candidates}
        each_s = {
            key: times[key] * self.setting.run_s(window_s)
            + self.setting.cold_s + self.expected_start_s
            for key in distinct
        }  # fmt: skip
        own = {key: room.gpus_of(c) for key, c in distinct.items()}
        turns = max(sum(own.values()) / len(room.gpus), len(distinct) / room.most)
        least_s = math.ceil(turns) * max(each_s.values()) * self.setting.gpus_for()
        return max(sum(own[key] * each_s[key] for key in distinct), least_s)

    def _group_s(self, group: Sequence[Candidate], window_s: float) -> float:
        fresh = {c.key for c in group if not self._is_up(c)}
        runs_s = len(group) * self.setting.run_s(window_s) + len(fresh) * self.setting.cold_s
        starts_s = self.setting.starting_s(self.expected_start_s, len(fresh))
        return (runs_s + starts_s) * self.setting.gpus_for(*group)

    @property
    def expected_start_s(self) -> float:
        """Seconds that a group of engines is expected to take until all are ready."""
        return self.setting.first_start_s if self.start_s is None else self.start_s

    @property
    def slowest_start_s(self) -> float:
        """The same, by the longest start that was seen: what a reserve has to hold."""
        longest = self.journal.told().longest_start_s
        return self.expected_start_s if longest is None else max(longest, self.expected_start_s)

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        """Measure the search's question; see Ground. The user's stop leaves trials out."""
        return self.put(Asked(first, ask.candidates, ask.window_s, ask.why, "search", time.time()))

    def put(self, asked: Asked) -> tuple[Trial, ...]:
        """Write a question down and answer it."""
        self.journal.asked(asked)
        return self.answer(asked)

    def answer(self, asked: Asked) -> tuple[Trial, ...]:
        """Measure what a question has no answer to yet, also one from before a kill."""
        told = self.journal.told()
        before = [t for t in told.trials if t.number < asked.first]
        seen: dict[tuple[tuple[str, str], ...], int] = {}
        for trial in before:
            seen[trial.candidate.key] = seen.get(trial.candidate.key, 0) + 1
        open_ = missing(asked, told.trials)
        found = {t.number: t for t in told.trials if t.number not in open_}
        self.watch.asked(asked, self.cost_s(asked.candidates, asked.window_s))
        wanted: list[Wanted] = []
        for number, candidate, seed in self._seeded(asked, seen):
            if number not in open_:
                continue
            try:
                self._plan(number, candidate, asked.window_s, seed)
            except BadInput as error:
                found[number] = Trial(number, candidate, "refused", reason=str(error))
                self.journal.trial(found[number])
                continue
            gpus = self.setting.gpus_for(candidate)
            wanted.append(Wanted(number, candidate, gpus, bool(candidate.change)))
        left_s = math.inf if self.most_s is None else self.most_s
        if self.side is not None and len({w.candidate.key for w in wanted}) > 1:
            measured = self._measure_beside(self.side, wanted, dict(told.bounds), left_s)
            left_s -= sum(t.gpu_s for t in measured.values())
            found |= measured
            wanted = [w for w in wanted if not self._fits_beside(w)]
        for group in self._groups([w.candidate for w in wanted]):
            numbers = [w for w in wanted if w.candidate in group]
            measured = self._measure(numbers, dict(told.bounds), left_s)
            left_s -= sum(t.gpu_s for t in measured.values())
            found |= measured
            if self.watch.stop_asked():
                break
        return tuple(found[n] for n in sorted(found) if n >= asked.first)

    def _seeded(
        self, asked: Asked, seen: dict[tuple[tuple[str, str], ...], int]
    ) -> list[tuple[int, Candidate, int]]:
        """(number, candidate, seed): a candidate that is measured again gets fresh draws."""
        found = []
        for i, candidate in enumerate(asked.candidates):
            times = seen.get(candidate.key, 0)
            seen[candidate.key] = times + 1
            found.append((asked.first + i, candidate, self.setting.workload.seed + times))
        return found

    def _plan(self, number: int, candidate: Candidate, window_s: float, seed: int) -> Configuration:
        made = PlannedExperiment(
            trial_name(number, candidate),
            self.setting.served(candidate),
            self.setting.offered(window_s, seed),
            candidate.words,
        )
        self._planned[number] = made
        return made.configuration

    def _is_up(self, candidate: Candidate) -> bool:
        if self.setting.simulated:
            return candidate.key in {c.key for c in self._stayed}
        return self.engines.is_up(self.setting.served(candidate))

    def _stay(self, group: Sequence[Candidate]) -> None:
        """A twin has no engines; what it would have up is kept as `LastingEngines` keeps it."""
        if not self.setting.simulated or not self.lasting:
            return
        found = list({c.key: c for c in group}.values())
        for other in sorted(self._stayed, key=lambda c: bool(c.change)):
            fresh = other.key not in {c.key for c in found}
            if fresh and len(found) < self.places and self._fits([*found, other]):
                found.append(other)
        self._stayed = tuple(found)

    def _groups(self, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
        """Those that fit side by side, in order; what is listed again is with its first."""
        times: dict[tuple[tuple[str, str], ...], list[Candidate]] = {}
        for candidate in candidates:
            times.setdefault(candidate.key, []).append(candidate)
        groups: list[list[Candidate]] = []
        for candidate, *_ in times.values():
            last = groups[-1] if groups else []
            if last and len(last) < self.places and self._fits([*last, candidate]):
                last.append(candidate)
            else:
                groups.append([candidate])
        return [[again for c in group for again in times[c.key]] for group in groups]

    def _fits(self, group: Sequence[Candidate]) -> bool:
        knobs = [self.setting.served(c).knobs for c in group]
        known = all(k.kv_cache_memory_bytes is not None for k in knobs)
        return known and sum(k.gpu_memory_utilization or 0.0 for k in knobs) <= 1.0 + 1e-9

    def _fits_beside(self, wanted: Wanted) -> bool:
        room = None if self.side is None else self.side.room
        return room is not None and room.gpus_of(wanted.candidate) <= len(room.gpus)

    def _measure_beside(
        self, side: SideBySide, wanted: Sequence[Wanted], bounds: dict[str, str], left_s: float
    ) -> dict[int, Trial]:
        """Each candidate in a process of its own; what is up here gives its GPUs to them."""
        tasks: list[Task] = []
        found: dict[int, Trial] = {}
        by_key: dict[tuple[tuple[str, str], ...], list[Wanted]] = {}
        for one in filter(self._fits_beside, wanted):
            own = replace(one, gpus=side.room.gpus_of(one.candidate))
            by_key.setdefault(one.candidate.key, []).append(own)
        for mine in by_key.values():
            watch, todo = self._not_on_disk(mine, bounds)
            found |= watch.found
            if todo:
                plan = self._plan_of([self._planned[w.number] for w in todo])
                tasks.append(Task(tuple(todo), plan, watch))
        if not tasks:
            return found
        meter = Meter(self.setting.gpus_for())
        self.engines.release()
        able = None if self.calibrate is None else self.calibrate(self.setting.workload)
        plan = self._plan_of([self._planned[w.number] for t in tasks for w in t.wanted])
        directory = StudyDirectory(self.folder / TRIALS)
        job = Job(
            plan, directory.path, (), side.engine_for, self.command, RETRIES,
            start_s=self.start_s, calibration=able,
        )  # fmt: skip
        with directory.held():
            index = begin_index(plan, plan_runs(plan), directory, self.command, self.whole)
            directory.write_index(index)
            asked = Round(
                side, tasks, job, self.journal, meter,
                directory=directory, index=index, left_s=left_s,
            )  # fmt: skip
            asked.run()
        meter.change(0)
        return found | self._book_beside(tasks, meter.used_s)

    def _book_beside(self, tasks: Sequence[Task], used_s: float) -> dict[int, Trial]:
        """Each has what its own process took; what was held beside that is shared."""
        over_s = max((task.watch.over_s for task in tasks), default=0.0)
        if over_s > LEAST_START_S:
            self.start_s = over_s
        measured: dict[int, Trial] = {}
        own_s: dict[int, float] = {}
        for task in tasks:
            mine = {w.number: task.watch.found[w.number] for w in task.wanted
                    if w.number in task.watch.found}  # fmt: skip
            measured |= mine
            own_s |= dict.fromkeys(mine, task.own_s / max(len(mine), 1))
        if not measured:
            self.journal.write("spent", gpu_s=used_s, what="search", at=time.time())
            return {}
        rest_s = max(used_s - sum(own_s.values()), 0.0)
        shares = {n: s + rest_s / len(own_s) for n, s in own_s.items()}
        self.journal.write("booked", gpu_s=shares, start_s=self.start_s, at=time.time())
        return {n: replace(t, gpu_s=shares[n]) for n, t in measured.items()}

    def _not_on_disk(
        self, wanted: Sequence[Wanted], bounds: dict[str, str]
    ) -> tuple[TrialsWatch, list[Wanted]]:
        """Who takes the runs of these, and which of them were not measured before a kill."""
        plan = self._plan_of([self._planned[w.number] for w in wanted])
        ids = {run.experiment: run.run_id for run in plan_runs(plan)}
        by_run = {ids[self._planned[w.number].name]: w for w in wanted}
        watch = TrialsWatch(
            by_run, self.journal, self.setting.goal, self.watch, bounds, retries=RETRIES
        )
        return watch, [w for r, w in by_run.items() if not self._on_disk(r, w, plan, watch)]

    def _measure(
        self, wanted: Sequence[Wanted], bounds: dict[str, str], left_s: float
    ) -> dict[int, Trial]:
        watch, todo = self._not_on_disk(wanted, bounds)
        if not todo:
            return dict(watch.found)
        plan = self._plan_of([self._planned[w.number] for w in todo])
        fresh = {w.candidate.key for w in todo if not self._is_up(w.candidate)}
        begun = time.monotonic()
        run_plan(
            plan,
            StudyDirectory(self.folder / TRIALS),
            self.engines,
            watch,
            command=self.command,
            gpu_minutes=self.setting.minutes_for(left_s, *(w.candidate for w in todo)),
            retries=RETRIES,
            whole=self.whole,
            calibrate=self.calibrate,
            start_s=self.start_s,
        )
        watch.flush()
        self._stay([w.candidate for w in todo])
        return self._book(watch, wanted, len(fresh), time.monotonic() - begun)

    def _on_disk(self, run_id: str, wanted: Wanted, plan: Plan, watch: TrialsWatch) -> bool:
        """Whether it was measured before the process was killed; its trial is then written."""
        run = recover(self.folder / TRIALS / run_id)
        asked = next(r for r in plan_runs(plan) if r.run_id == run_id)
        if run is None or run.meta.fingerprint != asked.fingerprint:
            return False
        spent = run.state == "void" and run.meta.tries > RETRIES
        if run.state not in ("done", "failed") and not spent and run_id not in watch.bounds:
            return False
        # the time of a real one was charged when the tuning was taken up again
        simulated_s = self.setting.run_s(asked.workload.duration_s) * wanted.gpus
        watch.write(wanted, run, simulated_s if self.setting.simulated else 0.0)
        return wanted.number in watch.found

    @property
    def whole(self) -> Plan:
        """Every trial that was asked for, as the plan of its folder."""
        return self._plan_of(self._planned.values())

    def _plan_of(self, experiments: Iterable[PlannedExperiment]) -> Plan:
        return Plan(
            self.setting.study, KIND, None, tuple(experiments), self.setting.slo, 1,
            self.setting.api,
        )  # fmt: skip

    def _book(
        self, watch: TrialsWatch, wanted: Sequence[Wanted], fresh: int, wall_s: float
    ) -> dict[int, Trial]:
        """Share what the starts took among the trials that needed one, and keep it."""
        gpus = {w.number: w.gpus for w in wanted}
        if self.setting.simulated:
            own = {n: self.setting.run_s(t.window_s) * gpus[n] for n, t in watch.found.items()}
            waits_s = self.setting.starting_s(self.expected_start_s, fresh)
            start_s = waits_s * max(gpus.values(), default=1)
        else:
            own = {n: min(watch.took_s.get(n, 0.0), wall_s) * gpus[n] for n in watch.found}
            if fresh and watch.over_s > LEAST_START_S:
                self.start_s = watch.over_s
            start_s = max(wall_s * max(gpus.values(), default=1) - sum(own.values()), 0.0)
        if not own:  # the user's stop: there is no trial to bear it
            self.journal.write("spent", gpu_s=start_s, what="search", at=time.time())
            return {}
        shares = {n: s + start_s / len(own) for n, s in own.items()}
        self.journal.write("booked", gpu_s=shares, start_s=self.start_s, at=time.time())
        return {n: replace(t, gpu_s=shares[n]) for n, t in watch.found.items()}
