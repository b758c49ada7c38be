"""The duel: the baseline and the finalists, interleaved, with fresh seeds, until it is decided.

Its runs are the study of the tuning's directory: every contender is an experiment of it and every
round a repeat, so a report of the directory shows them like any study.
"""

import datetime
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.summary import Summary
from ridgeline.experiment.engines import BLOCKS_NOTE
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.protocol import Calibrate
from ridgeline.experiment.runner import run_plan
from ridgeline.experiment.statistics import merge
from ridgeline.store.codec import to_plain
from ridgeline.store.run_directory import StoredRun
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.blocks import Known, known_of
from ridgeline.tuning.claims import NONE, Claim, claim_of, value_of_each
from ridgeline.tuning.duel import Against, DuelPlan, DuelState, Round, Word, last_look, stand
from ridgeline.tuning.dueldisk import DuelDisk
from ridgeline.tuning.journal import AIM, Told, TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.meeting import LEAST, judge_together
from ridgeline.tuning.objective import value_of
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Miss, State
from ridgeline.tuning.undecided import more_would_tell, runs_to_decide
from ridgeline.tuning.watching import TrialsWatch, TuneWatch

KIND = "tune"
BASELINE = "baseline"
FRESH_SEEDS = 1000  # added to the study's: no draw of the search comes again
PLAN = DuelPlan(contenders=2)
BLOCKS_WORDS = "its engines ran one after another: what the host did meanwhile is not told apart"


def names_of(candidates: Sequence[Candidate], before: int = 0) -> dict[str, str]:
    """Contenders as experiments, by their words: baseline, finalist-1, ... (their changes are
    long, and stand beside the names in every table). before: finalists of earlier duels.
    """
    return {
        c.words: f"finalist-{before + i}" if c.change else BASELINE
        for i, c in enumerate(candidates)
    }


@dataclass(slots=True)
class Duel:
    """Runs it; see the module. The first of `candidates` is the baseline.

    One that the search went on to after another duel counts its rounds from `first` on: pairs
    are of its own rounds alone, as what the earlier ones had in common was another hour's, and so
    are limits: a baseline that is judged by another hour than the finalists would seem to be better
    or worse than they are. earlier: the finalists of those duels.
    most: rounds that it may have; of one that another has followed those that it had, as the
    baseline's rounds go on in the next one.
    """

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
    first: int = 1
    earlier: tuple[Candidate, ...] = ()
    most: int = PLAN.most
    _judging: DuelPlan | None = None
    _runs: dict[str, dict[int, StoredRun]] = field(default_factory=dict)
    _deaths: dict[str, frozenset[int]] = field(default_factory=dict)  # rounds, by experiment

    def rounds_s(self, rounds: int, *, first: bool) -> float:
        """GPU seconds of so many rounds more, with the engine starts that they take.

        Where not all engines stay up side by side they take turns (`Setting.starts`), and the one
        that begins is up if it has ended the last round. A twin has no engine: in its rehearsal
        each counts as if it had.
        """
        setting, due = self.setting, self._due()
        gpus, engines = setting.gpus_for(*self.candidates), len(due)
        start_s = setting.first_start_s if self.start_s is None else self.start_s
        run_s = setting.run_s(setting.workload.duration_s)
        if engines <= setting.places:
            up = (0 if first else engines) if setting.simulated else sum(map(self._is_up, due))
            starts_s = setting.starting_s(start_s, engines, up) + (engines - up) * setting.cold_s
        else:
            begins = due[0] if (self.first + self.held) % 2 else due[-1]
            up = not first if setting.simulated else self._is_up(begins)
            starts_s = _turns_s(setting, start_s, engines, rounds + up)
            starts_s -= up * _turns_s(setting, start_s, engines, 1)
        return gpus * (starts_s + engines * rounds * run_s)

    def _due(self) -> list[Candidate]:
        """Who is in the coming round: the baseline while it runs, and whoever is not out."""
        out = self.standing().out - {0} if self.held else frozenset()
        dead = self._deaths.get(BASELINE)
        return [c for i, c in enumerate(self.candidates) if i not in out and (i or not dead)]

    def _is_up(self, candidate: Candidate) -> bool:
        return self.engines.is_up(self.setting.served(candidate))

    def fight(self, left_s: float) -> int:
        """Run rounds until it is decided, or `left_s` GPU seconds are used; returns those that
        have runs. Beside a baseline that does not run finalists are paired with nothing: they have
        the least rounds, which tell whether they meet the targets.
        """
        rounds = self._rounds_on_disk()
        self._take_aim(rounds, left_s)
        gpus = self.setting.gpus_for(*self.candidates)
        begun, used_s, first = time.monotonic(), 0.0, True
        while not self.watch.stop_asked() and not self.is_over:
            cost_s = self.rounds_s(1, first=first)
            if used_s + cost_s > left_s:
                break
            if first:
                self._leave_cut(rounds)
            rounds += 1
            self._round(rounds, left_s - used_s)
            wall_s = time.monotonic() - begun
            spent = cost_s if self.setting.simulated else wall_s * gpus
            self.journal.write("spent", gpu_s=spent, what="duel", at=time.time())
            used_s, begun, first = used_s + spent, time.monotonic(), False
            if self.held < rounds:
                break  # the budget has refused every run of it
        return self.held

    def _take_aim(self, rounds: int, left_s: float) -> None:
        """Keep how many rounds the budget holds, once, before the first of them."""
        if rounds or self._aim_in(self.journal.told()) is not None:
            return
        costs = ((n, self.rounds_s(n, first=True)) for n in range(PLAN.least, PLAN.most + 1))
        aim = max((n for n, cost in costs if cost <= left_s), default=PLAN.least)
        known = known_of(self.journal.told().history.trials)
        self.journal.write(
            AIM, rounds=aim, of=[c.words for c in self.candidates], first=self.first,
            known=None if known is None else to_plain(known), at=time.time(),
        )  # fmt: skip
        self._judging = None

    def _aim_in(self, told: Told) -> Mapping[str, Any] | None:
        """This duel's own line; None where the journal tells nothing of it."""
        words = [c.words for c in self.candidates]
        ours = [
            line for line in told.aims
            if line["of"] == words and line.get("first", self.first) == self.first
        ]  # fmt: skip
        return ours[-1] if ours else None

    @property
    def judging(self) -> DuelPlan:
        """By what it is judged: how many there are, the noise that the search saw, the rounds. All
        of it as it was before the first round: a search that goes on later changes no verdict.
        """
        if self._judging is None:
            told = self.journal.told()
            line = self._aim_in(told)
            if line is None or "known" not in line:  # not begun, or a journal from before that
                known = known_of(told.history.trials)
            else:
                known = None if line["known"] is None else Known(**line["known"])
            aim = None if line is None else int(line["rounds"])
            self._judging = replace(PLAN, contenders=len(self.candidates), known=known, aim=aim)
        return replace(self._judging, in_blocks=self.in_blocks)

    @property
    def in_blocks(self) -> bool:
        """Whether a run of its own rounds was done in blocks, as duels once were: not in turns."""
        own = (r for runs in self._runs.values() for n, r in runs.items() if n >= self.first)
        return any(r.facts is not None and BLOCKS_NOTE in r.facts.notes for r in own)

    @property
    def held(self) -> int:
        """Rounds of its own that have a run."""
        return len({n for runs in self._runs.values() for n in runs if n >= self.first})

    @property
    def is_over(self) -> bool:
        """Whether more rounds are not wanted."""
        if self._deaths.get(BASELINE):
            return len(self._due()) == 0 or self.held >= PLAN.least
        if self.fallen:  # whether the baseline may stay takes the least rounds to be told
            return self.meets(self.candidates[0]) is not None or self.held >= PLAN.least
        state = self.standing()
        return state.done and not more_would_tell(self, state)

    def died(self, candidate: Candidate) -> str | None:
        """ "died in N of M rounds"; None for one whose engine has lived through all of them."""
        deaths = self._deaths.get(self.name(candidate))
        if not deaths:
            return None
        rounds = len(deaths | set(self._runs.get(self.name(candidate), {})))
        return f"died in {len(deaths)} of {rounds} round{'s' * (rounds != 1)}"

    @property
    def fallen(self) -> bool:
        """Whether no finalist is left: each misses a target by its intervals or died in it, on a
        baseline that runs. Who is only slower has lost, and is no reason to search on.
        """
        finalists = self.candidates[1:]
        return (
            bool(finalists) and self.held > 0 and not self._deaths.get(BASELINE)
            and all(self.meets(c) is False or self.died(c) for c in finalists)
        )  # fmt: skip

    def standing(self, dead: Collection[str] = ()) -> DuelState:
        """How it stands; `dead`: words of those that are disqualified for another reason."""
        barred = {
            i for i, c in enumerate(self.candidates)
            if self.meets(c) is False or self.died(c) or c.words in dead
        }  # fmt: skip
        plan = self.judging
        return stand(self.rounds, plan, frozenset(barred))

    @property
    def rounds(self) -> list[Round]:
        """The objective by contender, a mapping a round of its own."""
        values = [self._values(c) for c in self.candidates]
        most = max((n for found in values for n in found), default=0)
        return [{i: v.get(n) for i, v in enumerate(values)} for n in range(self.first, most + 1)]

    def beats(self, one: Candidate, other: Candidate) -> bool:
        """Whether it is clearly better, by the last look."""
        found = self.against(one, other)
        return found is not None and found.word == "clearly better"

    def once_clear(self, candidate: Candidate) -> int | None:
        """The first look at which it was clearly better than the baseline; None: at none."""
        plan, rounds = self.judging, self.rounds
        which = self.candidates.index(candidate)
        looks = range(plan.least, len(rounds) + 1)
        words = ((n, last_look(rounds[:n], plan, which, 0).word) for n in looks)
        return next((n for n, word in words if word == "clearly better"), None)

    def against(self, one: Candidate, other: Candidate) -> Against | None:
        """`one` over `other`, with the bounds and the word of the last look."""
        a, b = self.candidates.index(one), self.candidates.index(other)
        for pair in stand(self.rounds, self.judging).pairs:
            if (pair.one, pair.other) == (a, b):
                return pair
            if (pair.one, pair.other) == (b, a):
                return turned(pair)
        return None

    def estimate(self, candidate: Candidate) -> tuple[float | None, float | None, float | None]:
        """(value, low, high): a finalist's without the winner's curse, the baseline's as it is."""
        plan = self.judging
        return value_of_each(self.rounds, plan).get(self.candidates.index(candidate), NONE)

    def claim(self, candidate: Candidate) -> Claim | None:
        """A finalist over the baseline, as it is said everywhere; None without a common round."""
        plan = self.judging
        return claim_of(self.rounds, plan, self.candidates.index(candidate))

    def summaries(self, candidate: Candidate) -> dict[int, Summary]:
        """Its valid runs by round."""
        runs = self._runs.get(self.name(candidate), {})
        return {n: r.summary for n, r in runs.items() if r.valid and r.summary is not None}

    def runs(self) -> list[tuple[Candidate, StoredRun]]:
        """Its runs of its own rounds, round by round."""
        found = [
            (n, i, c, run)
            for i, c in enumerate(self.candidates)
            for n, run in self._runs.get(self.name(c), {}).items()
            if n >= self.first
        ]
        return [(c, run) for _, _, c, run in sorted(found, key=lambda one: one[:2])]

    def limits(self, candidate: Candidate) -> tuple[Miss, ...]:
        """Each limit as its valid runs have it; none without a run."""
        return self.judged(candidate)[1]

    def merged(self, candidate: Candidate) -> Summary | None:
        """Its valid runs as one."""
        found = list(self.summaries(candidate).values())
        return merge(found) if found else None

    def value(self, candidate: Candidate) -> float | None:
        """The objective: the geometric mean over its valid runs."""
        logs = [math.log(v) for v in self._values(candidate).values()]
        return math.exp(sum(logs) / len(logs)) if logs else None

    def meets(self, candidate: Candidate) -> bool | None:
        """Whether its valid runs meet every target; None = not known, or fewer than two runs."""
        return {"feasible": True, "infeasible": False}.get(self.judged(candidate)[0])

    def judged(self, candidate: Candidate) -> tuple[State, tuple[Miss, ...]]:
        """Its state and each limit, by the noise that all contenders show; void without a run.

        A finalist that missed one at some look has missed it: it was measured no more. The baseline
        is measured on, and judged by the last look.
        """
        runs, which = self._summaries_of_all(), self.candidates.index(candidate)
        if not runs[which]:
            return "void", ()
        last = max(n for own in runs for n in own)
        for seen in range(LEAST, last) if candidate.change else ():
            until = [{n: s for n, s in own.items() if n <= seen} for own in runs]
            found = (
                judge_together(until, which, self.judging.missing(seen)) if until[which] else None
            )
            if found is not None and found[0] == "infeasible":
                return found
        return judge_together(runs, which, self.judging.missing(last))

    def _summaries_of_all(self) -> list[dict[int, Summary]]:
        """Of each contender its valid runs by round, its first round 1."""
        found = (self.summaries(c) for c in self.candidates)
        return [{n - self.first + 1: s for n, s in own.items()} for own in found]

    def runs_to_decide(self, candidate: Candidate) -> dict[str, int | None]:
        """Its open limits on latencies: of how many runs in all each would be decided; None: of
        more than a duel has.
        """
        which = self.candidates.index(candidate)
        return runs_to_decide(self._summaries_of_all(), which, self.judging)

    def stored(self, candidate: Candidate) -> list[StoredRun]:
        """All its runs, of earlier duels, failed and void ones too."""
        return list(self._runs.get(self.name(candidate), {}).values())

    def name(self, candidate: Candidate) -> str:
        """Its experiment."""
        return names_of(self.candidates, len(self.earlier))[candidate.words]

    def _values(self, candidate: Candidate) -> dict[int, float]:
        gpus = self.setting.served(candidate).gpus
        found = {
            n: value_of(s, self.setting.goal, gpus) for n, s in self.summaries(candidate).items()
        }
        return {n: v for n, v in found.items() if v}

    def plan(self, rounds: int) -> Plan:
        """The duels up to so many rounds of this one as a study's plan; who is out is not measured
        any more.
        """
        setting = self.setting
        load = replace(setting.workload, seed=setting.workload.seed + FRESH_SEEDS)
        out = self.standing().out - {0} if self.rounds else frozenset()
        made = []
        for i, candidate in enumerate(self.candidates):
            name, since = self.name(candidate), self.first if candidate.change else 1
            ran = max(self._runs.get(name, {}), default=since)
            served = setting.served(candidate)
            made.append(
                PlannedExperiment(name, served, load, candidate.words, ran if i in out else None,
                                  since)
            )  # fmt: skip
        rounds += self.first - 1
        return Plan(setting.study, KIND, BASELINE, tuple(made), setting.slo, rounds, setting.api,
                    turns=True)  # fmt: skip

    def _with_earlier(self, plan: Plan) -> Plan:
        """With the finalists of earlier duels, whose runs stay in the study; one of several duels
        has several names.
        """
        load = plan.experiments[0].workload
        earlier = tuple(
            PlannedExperiment(f"finalist-{i}", self.setting.served(c), load, c.words)
            for i, c in enumerate(self.earlier, 1)
        )
        return replace(plan, experiments=(*plan.experiments, *earlier))

    def _round(self, rounds: int, left_s: float) -> None:
        """Everything up to that round; what is there is not measured again."""
        watch = TrialsWatch({}, self.journal, self.setting.goal, self.watch, {})
        whole = self.plan(rounds)
        # A failed run that is planned is measured again: a death would be forgotten. So is a void
        # one, and one of an earlier round would be no pair with what was measured beside it.
        now = self.first - 1 + rounds
        alive = tuple(
            replace(e, since=max(e.since, now))
            for e in whole.experiments if not self._deaths.get(e.name)
        )  # fmt: skip
        run_plan(
            replace(whole, experiments=alive), StudyDirectory(self.folder), self.engines, watch,
            command=self.command, study_text=self.study_text,
            gpu_minutes=self.setting.minutes_for(left_s, *self.candidates), retries=1,
            whole=self._with_earlier(whole), calibrate=self.calibrate, start_s=self.start_s,
        )  # fmt: skip
        self._read(rounds)

    def read(self) -> int:
        """Take up what is on the disk of it; returns its whole rounds."""
        return self._rounds_on_disk()

    def read_begun(self) -> int:
        """As `read`, with rounds that a kill has cut short; returns the last one that was begun."""
        begun = self._rounds_on_disk()
        while begun < self.most and any(self._disk.is_there(c, begun + 1) for c in self.candidates):
            begun += 1
        self._read(begun)
        return begun

    def _rounds_on_disk(self) -> int:
        """Whole rounds from before the process was killed."""
        rounds, disk = 0, self._disk
        self._read(rounds)
        while rounds < self.most and (due := self._due()):
            if not all(disk.is_there(c, rounds + 1) for c in due):
                break
            rounds += 1
            self._read(rounds)
        return rounds

    def _leave_cut(self, rounds: int) -> None:
        """A round that was begun in another hour is measured whole again."""
        if self.setting.simulated:
            return  # a twin does not drift
        left = self._disk.leave_cut(rounds + 1, self._due(), datetime.datetime.now(datetime.UTC))
        if left:
            self.watch.told(
                f"round {rounds + 1} of the duel was begun too long ago to be one with what is"
                f" measured now: it is measured again ({', '.join(left)} set aside)"
            )

    @property
    def _disk(self) -> DuelDisk:
        names = names_of(self.candidates, len(self.earlier))
        return DuelDisk(self.folder, self.setting, self.candidates, names, self.first, self.most)

    def _read(self, rounds: int) -> None:
        disk = self._disk
        for candidate in self.candidates:
            name = self.name(candidate)
            self._runs[name] = disk.runs(candidate, rounds)
            self._deaths[name] = disk.deaths(candidate)


def _turns_s(setting: Setting, start_s: float, engines: int, rounds: int) -> float:
    """Seconds of the starts of so many rounds of turns, with the first loads of fresh engines."""
    starts_s = setting.starting_s(start_s, engines, rounds=rounds)
    return starts_s + setting.starts(engines, rounds) * setting.cold_s


def turned(pair: Against) -> Against:
    """The other one over the one."""
    back = [None if v is None else -v / (1 + v) for v in (pair.delta, pair.high, pair.low)]
    words: dict[Word, Word] = {"clearly worse": "clearly better", "clearly better": "clearly worse"}
    word = words.get(pair.word, pair.word)
    return Against(pair.other, pair.one, back[0], back[1], back[2], word, pair.rounds)
