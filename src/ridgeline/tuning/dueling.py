"""The duel: the baseline and the finalists, interleaved, with fresh seeds, until it is decided.

Its runs are the study of the tuning's directory: every contender is an experiment of it and every
round a repeat, so a report of the directory shows them like any study.
"""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.summary import Summary
from ridgeline.experiment.plan import Plan, PlannedExperiment, file_name
from ridgeline.experiment.protocol import Calibrate
from ridgeline.experiment.runner import run_plan
from ridgeline.experiment.statistics import merge
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.objective import judge, value_of
from ridgeline.tuning.outcome import Duelist, DuelResult
from ridgeline.tuning.setting import LONGEST_NAME, Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.tuning.watching import TrialsWatch, TuneWatch

KIND = "tune"
BASELINE = "baseline"
FRESH_SEEDS = 1000  # added to the study's: no draw of the search comes again
FEWEST_ROUNDS, MOST_ROUNDS = 3, 8
LEVEL = 0.05
EQUAL = 1.02  # contenders whose ratio lies inside need no further round
NO_CLEAR = "no clear difference"


def name_of(candidate: Candidate) -> str:
    """A contender as an experiment."""
    if not candidate.change:
        return BASELINE
    words = file_name("-".join(f"{n}-{v}" for n, v in candidate.change.items()))
    if len(words) <= LONGEST_NAME:
        return words
    digest = hashlib.sha256(repr(candidate.key).encode()).hexdigest()[:6]
    return f"{words[: LONGEST_NAME - 7].rstrip('-.')}-{digest}"


@dataclass(slots=True)
class Duel:
    """Runs it; see the module. The first of `candidates` is the baseline."""

    setting: Setting
    folder: Path
    engines: LastingEngines
    journal: TuneJournal
    watch: TuneWatch
    candidates: tuple[Candidate, ...]
    command: str
    study_text: str | None
    calibrate: Calibrate | None = None
    start_s: float | None = None
    _runs: dict[str, dict[int, StoredRun]] = field(default_factory=dict)

    @property
    def round_s(self) -> float:
        """GPU seconds of one round on engines that are up."""
        gpus = sum(self.setting.served(c).gpus for c in self.candidates)
        return gpus * self.setting.run_s(self.setting.workload.duration_s)

    def fight(self, left_s: float) -> int:
        """Run rounds until it is decided, or `left_s` GPU seconds are used; returns the rounds."""
        rounds = self._rounds_on_disk()
        together = self.setting.simulated or len(self.candidates) <= self.setting.places
        begun, used_s = time.monotonic(), 0.0
        while not self.watch.stop_asked():
            if rounds >= FEWEST_ROUNDS and (self.decided() or rounds >= MOST_ROUNDS):
                break
            coming = rounds + 1 if together else max(rounds + 1, FEWEST_ROUNDS)
            if rounds >= 1 and used_s + self.round_s > left_s:
                break
            self._round(coming, left_s - used_s)
            rounds = coming
            spent = self.round_s if self.setting.simulated else time.monotonic() - begun
            self.journal.write("spent", gpu_s=spent, what="duel", at=time.time())
            used_s, begun = used_s + spent, time.monotonic()
        return rounds

    def decided(self) -> bool:
        """Whether the best that meets the targets is clearly ahead of every rival or clearly equal
        to it.
        """
        leader = self.leader()
        rivals = [c for c in self.candidates if c != leader and self.meets(c) is not False]
        looks = MOST_ROUNDS - FEWEST_ROUNDS + 1
        level = self.level / looks
        found = [self.ratio(leader, c, level) for c in rivals]
        return all(r is not None and (r[1] > 1 or _equal(r)) for r in found)

    def beats(self, one: Candidate, other: Candidate) -> bool:
        """Whether it is clearly better, however often the duel was looked at: half of LEVEL is
        spent on the looks before the last, half on this one.
        """
        pairs = set(self.summaries(one)) & set(self.summaries(other))
        found = self.ratio(one, other, self.level)
        return len(pairs) >= FEWEST_ROUNDS and found is not None and found[1] > 1

    @property
    def level(self) -> float:
        """The share of error that one comparison may take: there is one for each finalist."""
        return LEVEL / 2 / max(len(self.candidates) - 1, 1)

    def leader(self) -> Candidate:
        """The best of those that meet the targets as far as is known, else the baseline."""
        may = [c for c in self.candidates if self.meets(c) is not False and self.value(c)]
        return max(may, key=lambda c: self.value(c) or 0.0) if may else self.candidates[0]

    def summaries(self, candidate: Candidate) -> dict[int, Summary]:
        """Its valid runs by round."""
        runs = self._runs.get(name_of(candidate), {})
        return {n: r.summary for n, r in runs.items() if r.valid and r.summary is not None}

    def merged(self, candidate: Candidate) -> Summary | None:
        """Its valid runs as one."""
        found = list(self.summaries(candidate).values())
        return merge(found) if found else None

    def value(self, candidate: Candidate) -> float | None:
        """The objective: the geometric mean over its valid runs."""
        logs = [math.log(v) for v in self._values(candidate).values()]
        return math.exp(sum(logs) / len(logs)) if logs else None

    def meets(self, candidate: Candidate) -> bool | None:
        """Whether its valid runs meet every target; None = not known, or no run."""
        summary = self.merged(candidate)
        if summary is None:
            return None
        state, _ = judge(summary)
        return {"feasible": True, "infeasible": False}.get(state)

    def ratio(
        self, one: Candidate, other: Candidate, level: float = LEVEL
    ) -> tuple[float, float, float] | None:
        """(ratio, low, high) of one over the other from paired rounds; None with fewer than two."""
        a, b = self._values(one), self._values(other)
        steps = [math.log(a[n] / b[n]) for n in sorted(set(a) & set(b))]
        return interval(steps, level)

    def span(self, candidate: Candidate) -> tuple[float, float, float] | None:
        """(value, low, high) of the objective over its rounds; None with fewer than two."""
        return interval([math.log(v) for v in self._values(candidate).values()], LEVEL)

    def result(self, rounds: int, estimates: Mapping[str, float]) -> DuelResult:
        """What came of it; `estimates`: the search's, by a candidate's words."""
        if self.watch.stop_asked():
            ended = "stopped by the user"
        elif self.decided():
            ended = "decided"
        else:
            ended = "the rounds planned for are over" if rounds >= MOST_ROUNDS else "the budget"
        lines = [self._line(c, estimates.get(c.words)) for c in self.candidates]
        return DuelResult(rounds, ended, tuple(lines))

    def _line(self, candidate: Candidate, searched: float | None) -> Duelist:
        base = self.candidates[0]
        found = None if candidate == base else self.ratio(candidate, base)
        pairs = len(set(self.summaries(candidate)) & set(self.summaries(base)))
        ratio, low, high = found or (None, None, None)
        verdict = "the baseline" if candidate == base else NO_CLEAR
        if self.beats(candidate, base):
            verdict = "clearly better"
        elif self.beats(base, candidate):
            verdict = "clearly worse"
        runs = self._runs.get(name_of(candidate), {}).values()
        reasons = [r.failure.text for r in runs if r.failure is not None]
        reasons += [
            "; ".join(r.summary.verdict.reasons) for r in runs if r.state == "void" and r.summary
        ]
        return Duelist(
            candidate.words, candidate.change, name_of(candidate), self.value(candidate),
            ratio, low, high, pairs, verdict, self.meets(candidate),
            "; ".join(dict.fromkeys(reasons)) or None, searched,
        )  # fmt: skip

    def _values(self, candidate: Candidate) -> dict[int, float]:
        gpus = self.setting.served(candidate).gpus
        found = {
            n: value_of(s, self.setting.goal, gpus) for n, s in self.summaries(candidate).items()
        }
        return {n: v for n, v in found.items() if v}

    def plan(self, rounds: int) -> Plan:
        """The duel as a study's plan."""
        load = replace(self.setting.workload, seed=self.setting.workload.seed + FRESH_SEEDS)
        return Plan(
            self.setting.study, KIND, BASELINE,
            tuple(
                PlannedExperiment(name_of(c), self.setting.served(c), load, c.words)
                for c in self.candidates
            ),
            self.setting.slo, rounds, self.setting.api,
        )  # fmt: skip

    def _round(self, rounds: int, left_s: float) -> None:
        """Everything up to that round; what is there is not measured again."""
        watch = TrialsWatch({}, self.journal, self.setting.goal, self.watch, {})
        limited = not self.setting.simulated and left_s != float("inf")
        run_plan(
            self.plan(rounds), StudyDirectory(self.folder), self.engines, watch,
            command=self.command, study_text=self.study_text,
            gpu_minutes=max(left_s, 0.0) / 60 if limited else None,
            retries=1, calibrate=self.calibrate, start_s=self.start_s,
        )  # fmt: skip
        self._read(rounds)

    def _rounds_on_disk(self) -> int:
        """Whole rounds from before the process was killed."""
        rounds = 0
        while all(
            is_finished(self.folder / f"{name_of(c)}-r{rounds + 1}") for c in self.candidates
        ):
            rounds += 1
        self._read(rounds)
        return rounds

    def _read(self, rounds: int) -> None:
        for candidate in self.candidates:
            name = name_of(candidate)
            folders = {n: self.folder / f"{name}-r{n}" for n in range(1, rounds + 1)}
            self._runs[name] = {n: read_run(f) for n, f in folders.items() if is_finished(f)}


def _equal(ratio: tuple[float, float, float]) -> bool:
    """Whether nobody would pay for the difference."""
    return ratio[1] > 1 / EQUAL and ratio[2] < EQUAL


def interval(steps: Sequence[float], level: float) -> tuple[float, float, float] | None:
    """(ratio, low, high) from the log ratios of pairs, Student's t; None with fewer than two."""
    from scipy.stats import t  # noqa: PLC0415  half a second to import

    n = len(steps)
    if n < 2:
        return None
    mean = sum(steps) / n
    error = math.sqrt(sum((s - mean) ** 2 for s in steps) / (n - 1) / n)
    reach = float(t.ppf(1 - level / 2, n - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)
