"""A tuning from its first question to its answer: search, duel, soak, what each knob bought.

Everything that is decided is in the journal before it is acted upon, and every run is in the store:
a session that was killed is begun again with the same arguments and goes on where it was.
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import GIVEN_UP, BadInput
from ridgeline.experiment.ledger import begin_index
from ridgeline.experiment.plan import plan_runs
from ridgeline.experiment.protocol import Calibrate
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning import budgeting
from ridgeline.tuning.blocks import known_of
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.choosing import Choice, Group, choose, groups_of
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.gate import Gate
from ridgeline.tuning.journal import SCHEMA, Asked, Told, TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.measuring import TRIALS, StudyGround
from ridgeline.tuning.outcome import NOT_SOAKED, Soaked
from ridgeline.tuning.port import Policy
from ridgeline.tuning.question import differences, question_of
from ridgeline.tuning.question import told as told_differences
from ridgeline.tuning.room import Room
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.soaking import Soak
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History, Trial
from ridgeline.tuning.watching import TuneWatch

# The finalists by a history, the best first, with what the search estimates of each.
Standings = Callable[[History], Sequence[tuple[Candidate, float]]]
THINKING_S = 0.5
TRIALS_USED, BUDGET_USED = "the trials of its budget are used", "its budget is used"
BUDGET_ENDS = (TRIALS_USED, BUDGET_USED)  # a larger budget goes on where the search ended so


@dataclass(frozen=True, slots=True)
class Found:
    """What a session came to; `complete` False: the user stopped it. recommended False: nothing
    is, not even the baseline (it does not run, or nothing was measured).
    """

    told: Told
    complete: bool
    ended: str
    finalists: tuple[Candidate, ...] = ()
    estimates: Mapping[str, float] = field(default_factory=dict)
    duel: Duel | None = None
    rounds: int = 0
    winner: Candidate = field(default_factory=Candidate)
    clear: bool = False
    why: str = ""
    soak: tuple[Soaked, ...] = ()
    recommended: bool = True


@dataclass(slots=True)
class Session:
    """Runs a tuning in a directory; see the module. `policy` chooses, `standings` ranks."""

    setting: Setting
    folder: Path
    ground: StudyGround
    oracle: Oracle
    policy: Policy
    standings: Standings
    engines: LastingEngines
    journal: TuneJournal
    watch: TuneWatch
    limits: Limits
    gate: Gate
    command: str = ""
    study_text: str | None = None
    calibrate: Calibrate | None = None
    space: Space | None = None
    room: Room | None = None

    def run(self) -> Found:
        """All of it; raises BadInput where the folder holds another tuning."""
        self._begin()
        ended = self._search()
        if self.watch.stop_asked():
            return Found(self.journal.told(), False, ended)
        chosen = self._finalists(ended)
        told = self.journal.told()
        if chosen is None:
            return Found(told, False, ended)
        finalists, estimates = chosen
        base = Found(told, True, ended, finalists, estimates)
        if not finalists:
            runs = _baseline_runs(told)
            return replace(base, why=self._without_finalists(told), recommended=runs)
        duel = self._duel(finalists)
        start_s = self.ground.slowest_start_s
        soak_s = budgeting.soak_s(self.setting, start_s, len(finalists))
        rounds = duel.fight(self._left_s() - soak_s)
        found = replace(base, duel=duel, rounds=rounds)
        if self.watch.stop_asked():
            return replace(found, told=self.journal.told(), complete=False)
        return self._with_winner(found, duel)

    def _begin(self) -> None:
        told = self.journal.told()
        question, price = question_of(self.setting), self.setting.configuration.price_per_gpu_hour
        self._check_same(told, question)
        self._show_baseline()
        if told.fingerprint is None:
            self.journal.write(
                "begin", schema=SCHEMA, fingerprint=self.setting.fingerprint, at=time.time(),
                question=question, price=price,
            )  # fmt: skip
        else:
            self._go_on(told)
        if not self.setting.simulated:
            self.journal.beat.begin()
        self._answer_open(told)

    def _check_same(self, told: Told, question: Mapping[str, Any]) -> None:
        """Refuse to go on with another question; raises BadInput that names the difference."""
        if told.fingerprint is None:
            return
        found = [] if told.question is None else differences(told.question, question)
        if not found and told.fingerprint == self.setting.fingerprint:
            return
        what = told_differences(found) if found else "another baseline, load or target"
        raise BadInput(
            f"holds the tuning of another question: {what}",
            where=str(self.journal.path),
            fix="choose another folder with --out, or take the change back",
        )

    def _go_on(self, told: Told) -> None:
        """Charge what the process before used and could not book; search on with a larger budget.

        The line is written also for nothing: from it on time is counted anew.
        """
        if not self.setting.simulated and told.asked:
            self.journal.write("lost", gpu_s=self._lost_s(told), at=time.time())
        price = self.setting.configuration.price_per_gpu_hour
        if price and told.price and price != told.price:
            self._price_again(told.price, price)
        ended = told.phases.get("finalists")
        if ended is None or ended["ended"] not in BUDGET_ENDS:
            return
        if self.limits.holds_more_than(ended.get("budget")):
            self.journal.write("reopened", at=time.time())
            self.watch.told("the budget is larger than before: the search goes on")

    def _price_again(self, before: float, price: float) -> None:
        """Another price changes what a token costs, and no measurement."""
        kept = self.journal.told().phases.get("finalists")
        duel = self._duel(() if kept is None else changes_of(kept))
        for folder, whole in (
            (self.folder, duel.plan(1)),
            (self.folder / TRIALS, self.ground.whole),
        ):
            directory = StudyDirectory(folder)
            if directory.exists():
                directory.write_index(begin_index(whole, (), directory, self.command, whole))
        factor = before / price if self.setting.goal == "cost" else 1.0
        self.journal.write("priced", price=price, factor=factor, at=time.time())
        self.watch.told(
            f"the price was {before:g} USD per GPU hour and is {price:g}: costs are worked out"
            " anew, nothing is measured again"
        )

    def _answer_open(self, told: Told) -> None:
        """The search's last question, as far as it has no answer, within what the search has."""
        if told.open is None or told.open.phase != "search" or "finalists" in told.phases:
            return
        self.watch.told("the last question had no answer yet: it is put again")
        self._limit(self._left_s() - self._reserve_s())
        self._learn(self.ground.answer(told.open))

    def _limit(self, left_s: float) -> None:
        """GPU seconds that the next question may take."""
        self.ground.most_s = None if left_s == math.inf else left_s

    def _show_baseline(self) -> None:
        """Make the directory a study at once, so that it can be reported on from the start."""
        directory = StudyDirectory(self.folder)
        if directory.exists():
            return
        plan = self._duel(()).plan(1)
        directory.write_index(begin_index(plan, plan_runs(plan), directory, self.command, plan))
        if self.study_text is not None:
            directory.write_study_text(self.study_text)

    def _lost_s(self, told: Told) -> float:
        """GPU seconds of the process before: from the last line that accounts for all time up to it
        to its last beat. In a folder from before there were beats: to the last file that it wrote.
        """
        until = self.journal.beat.last
        if until is None:
            until = told.last_at
            for path in self.folder.rglob("*"):
                with contextlib.suppress(OSError):
                    until = max(until, path.stat().st_mtime)
        gpus = max(self.setting.gpus_for(), told.held_gpus)
        held_s = told.held_s + (until - told.last_at) * gpus
        return max(held_s - told.unbooked_s, 0.0)

    def _reserve_s(self) -> float:
        """GPU seconds that are kept from the search, for the gate, the duel and the soak."""
        start_s = self.ground.slowest_start_s
        return budgeting.reserve_of(self.setting, self.limits, start_s).total_s

    def _left_s(self) -> float:
        return budgeting.left_s(self.limits, self.journal.told())

    def _search(self) -> str:
        """Ask and measure until nothing more is worth it; returns why it ended."""
        while not self.watch.stop_asked():
            told = self.journal.told()
            if "finalists" in told.phases:
                return str(told.phases["finalists"]["ended"])
            total_s = budgeting.left_s(self.limits, told)
            left_s = total_s - self._reserve_s()
            count = budgeting.left_trials(self.limits, told)
            self.watch.left(None if total_s == math.inf else total_s, count)
            if count is not None and count <= 0:
                return TRIALS_USED
            self._limit(left_s)
            asked = self._asked(told.history, left_s, count)
            if asked is None:
                more = left_s == math.inf or self._asked(told.history, math.inf, count) is None
                return "nothing more is worth its time" if more else BUDGET_USED
            found = self.ground.put(asked)
            self._learn(found)
            self._judge_leaders(found)
            if not found and not self.watch.stop_asked():
                return BUDGET_USED
        return "stopped by the user"

    def _asked(self, history: History, left_s: float, count: int | None) -> Asked | None:
        """The policy's next question; the time it takes is paid for while engines are up."""
        begun = time.monotonic()
        ask = self.policy.ask(history, left_s)
        thought_s = time.monotonic() - begun
        up = not self.setting.simulated and bool(history.trials)
        if up and thought_s > THINKING_S:
            gpu_s = thought_s * self.setting.gpus_for()
            self.journal.write("spent", gpu_s=gpu_s, what="thinking", at=time.time())
        if ask is None:
            return None
        chosen = list(zip(ask.candidates, ask.why, strict=True))
        if (
            count is not None
        ):  # where trials are scarce and starts are not, none is spent on repeats
            chosen = list({c.key: (c, why) for c, why in reversed(chosen)}.values())[::-1][:count]
        first = max((t.number for t in self.journal.told().trials), default=0) + 1
        candidates, why = zip(*chosen, strict=True)
        return Asked(first, candidates, ask.window_s, why, "search", time.time())

    def _learn(self, trials: Sequence[Trial]) -> None:
        """Hold the twin against what was measured; a demotion is said once."""
        tokens: dict[int, float] = {}
        runs = self.folder / TRIALS
        for trial in trials:
            if trial.run is None or trial.value is None or not is_finished(runs / trial.run):
                continue
            summary = read_run(runs / trial.run).summary
            rate = None if summary is None else summary.throughput.output_tokens_per_s
            if rate:
                tokens[trial.number] = rate
        self.oracle.learn(trials, runs, tokens)
        known = self.journal.told().notes
        for text in (*self.oracle.notes, *filter(None, (self.oracle.demoted,))):
            if text not in known and not text.startswith(tuple(n[:22] for n in known)):
                self.journal.write("note", text=text)
                self.watch.told(text)

    def _judge_leaders(self, trials: Sequence[Trial]) -> None:
        """Judge what leads and is not exact while its engine is up: no more goes to what fails."""
        good = [
            t for t in self.journal.told().history.trials
            if t.value and t.state in ("feasible", "unsure") and not self.gate.barred(t.candidate)
        ]  # fmt: skip
        best = max((t.value or 0.0 for t in good if not self.gate.due(t.candidate)), default=0.0)
        numbers = {t.number for t in trials}
        for trial in sorted(good, key=lambda t: -(t.value or 0.0)):
            if trial.number not in numbers or (trial.value or 0.0) <= best:
                continue
            left_s = self._judging_s()
            if self.watch.stop_asked() or not self.gate.due(trial.candidate):
                continue
            if self.gate.expected_s(trial.candidate) <= left_s:
                self.gate.judge(trial.candidate, left_s)

    def _judging_s(self) -> float:
        """GPU seconds that judging may take."""
        reserve = budgeting.reserve_of(self.setting, self.limits, self.ground.slowest_start_s)
        return self._left_s() - reserve.without_gate_s

    def _finalists(self, ended: str) -> tuple[tuple[Candidate, ...], dict[str, float]] | None:
        """The best that were measured and may win, chosen once: a resumed duel has the same
        contenders. None when the user stopped.
        """
        told = self.journal.told()
        kept = told.phases.get("finalists")
        if kept is None:
            measured = [
                (c, value)
                for c, value in self.standings(told.history)
                if c.change and _may_win(told.history.of(c))
            ]
            twin = self.oracle.expect([c for c, _ in measured]) if self.oracle.known else ()
            groups = groups_of(measured, {e.candidate.key: e for e in twin})
            ranked = self.gate.qualify(
                [(g.candidate, g.value) for g in groups],
                self.setting.spec.finalists, self._judging_s,
            )  # fmt: skip
            if ranked is None:
                return None
            start_s = self.ground.slowest_start_s
            known = known_of(told.history.trials)
            held = budgeting.finalists_held(self.setting, self._left_s(), start_s, known)
            if held < len(ranked):
                self.watch.told(
                    f"{held} of {len(ranked)} finalists go on: with more of them the rounds"
                    " that the budget still holds would tell less"
                )
                ranked = ranked[:held]
            self._tell_groups(groups, {c.key for c, _ in ranked})
            self.journal.write(
                "finalists",
                changes=[dict(c.change) for c, _ in ranked],
                estimates={c.words: value for c, value in ranked},
                ended=ended,
                budget={"gpu_s": self.limits.gpu_s, "trials": self.limits.trials},
                at=time.time(),
            )
            kept = self.journal.told().phases["finalists"]
        return changes_of(kept), dict(kept["estimates"])

    def _tell_groups(self, groups: Sequence[Group], named: Collection[object]) -> None:
        """Whom each finalist stands for."""
        for one in groups:
            if one.of and one.candidate.key in named:
                text = (
                    f"{one.candidate.words} stands for {len(one.of)} more in the duel, which change"
                    f" more and do not differ from it in what was seen: {'; '.join(one.of)}"
                )
                self.journal.write("note", text=text)
                self.watch.told(text)

    def _without_finalists(self, told: Told) -> str:
        trials = told.history.trials
        if not trials:
            return "nothing was measured"
        if all(t.state in ("void", "crashed", "refused") for t in trials):
            first = next(t for t in trials if t.reason)
            return f"no trial has a figure that counts; the first is {first.state}: {first.reason}"
        tried = [t for t in trials if t.candidate.change]
        if not tried:
            return "nothing but the baseline was measured"
        if any(t.state in ("feasible", "unsure") for t in tried):
            if any(not j.may_win for j in told.judged):
                return "no change of the baseline that may win is in the lead"
            return "no change of the baseline is in the lead"
        return "no configuration that was tried meets the targets"

    def _duel(self, finalists: tuple[Candidate, ...]) -> Duel:
        return Duel(
            self.setting, self.folder, self.engines, self.journal, self.watch,
            (Candidate(), *finalists), self.command, self.study_text, self.calibrate,
            self.ground.start_s,
        )  # fmt: skip

    def _soaker(self) -> Soak:
        return Soak(
            self.setting, self.folder, self.engines, self.journal, self.watch, self.command,
            self.ground.start_s,
        )  # fmt: skip

    def _with_winner(self, found: Found, duel: Duel) -> Found:
        """The best that is better than the baseline and survives its worst case."""
        soaked: list[Soaked] = []
        out: set[str] = set()
        for _ in range(len(found.finalists) + 1):
            choice = choose(duel, out)
            winner = choice.winner
            if not winner.change:
                break
            result = self._soaker().run(winner, self._left_s())
            if result is None:
                told = self.journal.told()
                return replace(found, told=told, complete=False, soak=tuple(soaked))
            soaked.append(result)
            if result.passed:
                self._tell_equal(choice)
                break
            if result.state == NOT_SOAKED:
                return self._not_soaked(found, choice, soaked)
            self.watch.told(f"{winner.words}: {result.reason}")
            out.add(winner.words)
        told = self.journal.told()
        runs = bool(winner.change or duel.value(winner) or _baseline_runs(told))
        return replace(
            found, told=told, winner=winner, clear=choice.clear, why=choice.why,
            soak=tuple(soaked), recommended=choice.recommended and runs,
        )  # fmt: skip

    def _tell_equal(self, choice: Choice) -> None:
        """Say who could have been named as well."""
        if not choice.instead:
            return
        text = (
            f"{choice.winner.words} is named, which changes least: the duel sees no difference of"
            f" more than {PLAN.tie:.0%} to {'; '.join(choice.instead)}"
        )
        if text not in self.journal.told().notes:
            self.journal.write("note", text=text)
            self.watch.told(text)

    def _not_soaked(self, found: Found, choice: Choice, soaked: Sequence[Soaked]) -> Found:
        """It leads, and nothing is recommended that was never loaded with its worst case."""
        why = f"{choice.winner.words} leads the duel ({choice.why}) and is {soaked[-1].reason}"
        return replace(
            found, told=self.journal.told(), winner=choice.winner, clear=choice.clear, why=why,
            soak=tuple(soaked), recommended=False,
        )  # fmt: skip


def changes_of(finalists: Mapping[str, Any]) -> tuple[Candidate, ...]:
    """The finalists as the journal keeps them; JSON has no tuples."""
    return tuple(
        Candidate({n: tuple(v) if isinstance(v, list) else v for n, v in change.items()})
        for change in finalists["changes"]
    )


def _may_win(trials: Sequence[Trial]) -> bool:
    """Whether a candidate has a figure and never crashed: once in two is once too often."""
    return not any(map(crashed, trials)) and any(t.value is not None for t in trials)


def _baseline_runs(told: Told) -> bool:
    """Whether the baseline was tried in the search and never crashed or was refused."""
    trials = told.history.of(Candidate())
    return bool(trials) and not any(t.state == "refused" or crashed(t) for t in trials)


def crashed(trial: Trial) -> bool:
    """A start that a budget ended tells nothing about the engine."""
    return trial.state == "crashed" and GIVEN_UP not in (trial.reason or "")
