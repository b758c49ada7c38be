"""A tuning from its first question to its answer: search, duel, soak, what each knob bought.

Everything that is decided is in the journal before it is acted upon, and every run is in the store:
a session that was killed is begun again with the same arguments and goes on where it was.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.experiment.protocol import Calibrate
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.tuning import budgeting
from ridgeline.tuning.beginning import begin
from ridgeline.tuning.blocks import known_of
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.choosing import Choice, Group, choose, groups_of
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.finalists import (
    Ranked,
    baseline_stays,
    changes_of,
    contenders,
    why_none,
)
from ridgeline.tuning.gate import Gate
from ridgeline.tuning.goingon import (
    BUDGET_USED,
    TRIALS_USED,
    cannot_go_on,
    fallen_words,
    leave_behind,
)
from ridgeline.tuning.journal import Asked, Told, TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.measuring import TRIALS, StudyGround
from ridgeline.tuning.outcome import NOT_SOAKED, Soaked
from ridgeline.tuning.port import Policy
from ridgeline.tuning.room import Room
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.soaking import Soak
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History, Trial
from ridgeline.tuning.watching import TuneWatch

# The finalists by a history, the best first, with what the search estimates of each.
Standings = Callable[[History], Sequence[Ranked]]
THINKING_S = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """What a session came to; `complete` False: the user stopped it. recommended False: nothing
    is, not even the baseline (it does not run, nothing was measured, or nothing was shown to meet
    the targets). before: earlier duels, which the search went on after; rest: why it did not
    go on after one in which every finalist fell, "" where nothing asked for it.
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
    before: tuple[Duel, ...] = ()
    rest: str = ""

    def duel_with(self, candidate: Candidate) -> Duel | None:
        """The last duel that has valid runs of it; None without one."""
        duels = (*self.before, *(() if self.duel is None else (self.duel,)))
        return next(
            (d for d in reversed(duels) if candidate in d.candidates and d.summaries(candidate)),
            None,
        )


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
        while True:
            ended = self._search()
            if self.watch.stop_asked():
                return Found(self.journal.told(), False, ended)
            chosen = self._finalists(ended)
            if chosen is None:
                return Found(self.journal.told(), False, ended)
            duel, estimates = self.duel_of(chosen[0]), chosen[1]
            rounds = self._fight(duel) if chosen[0] else 0
            found = Found(self.journal.told(), True, ended, chosen[0], estimates, duel, rounds)
            if self.watch.stop_asked():
                return replace(found, complete=False)
            rest = self._goes_on(duel, estimates)
            if rest is not None:
                break
        return self._with_winner(self._of_last_duel(replace(found, rest=rest)))

    def _begin(self) -> None:
        """Begin, or take up what is in the folder; the last question is put again."""
        self._answer_open(begin(self))

    def _fight(self, duel: Duel) -> int:
        """The duel within what the soak leaves; returns its rounds."""
        start_s = self.ground.slowest_start_s
        return duel.fight(
            self._left_s() - budgeting.soak_s(self.setting, start_s, len(duel.candidates) - 1)
        )

    def _goes_on(self, duel: Duel, estimates: Mapping[str, float]) -> str | None:
        """None where the search is open again: every finalist fell, and the budget holds what
        follows. Else why it is not, "" where nothing asks for it.
        """
        if not duel.fallen:
            return ""
        told, out = self.journal.told(), {c.key for c in duel.candidates}
        others = [c for c, _ in self._measured(told) if c.key not in out]
        start_s = self.ground.slowest_start_s
        rest = cannot_go_on(self.setting, self.limits, told, start_s, others=bool(others))
        if rest is not None:
            return rest
        trials = leave_behind(self.journal, duel, estimates)
        self.watch.told(f"{fallen_words(duel)}: the search goes on")
        self._learn(trials, self.folder)
        return None

    def _of_last_duel(self, found: Found) -> Found:
        """With the duels before it; the last of them stands where none followed."""
        told = self.journal.told()
        before = []
        for i, line in enumerate(told.before):
            duel = self.duel_of(changes_of(line), told.before[:i])
            duel.most = line["rounds"]
            duel.read_begun()
            before.append(duel)
        if (found.duel is not None and found.duel.held) or not before:
            held = found.duel if found.finalists else None
            return replace(found, told=told, duel=held, before=tuple(before))
        last, line = before[-1], told.before[-1]
        return replace(
            found, told=told, duel=last, rounds=last.held, before=tuple(before[:-1]),
            finalists=last.candidates[1:], estimates=dict(line["estimates"]),
        )  # fmt: skip

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

    def _reserve_s(self) -> float:
        """GPU seconds that are kept from the search, for the gate, the duel and the soak."""
        start_s = self.ground.slowest_start_s
        return self._reserve(start_s).total_s

    def _reserve(self, start_s: float) -> budgeting.Reserve:
        if self.journal.told().fallen:
            return budgeting.again_of(self.setting, start_s)
        return budgeting.reserve_of(self.setting, self.limits, start_s)

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
            asked = self._asked(told.known, left_s, count)
            if asked is None:
                more = left_s == math.inf or self._asked(told.known, math.inf, count) is None
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
        if history.trials:
            self._book_thinking(time.monotonic() - begun)
        if ask is None:
            return None
        chosen = list(zip(ask.candidates, ask.why, strict=True))
        if (
            count is not None
        ):  # where trials are scarce and starts are not, none is spent on repeats
            chosen = list({c.key: (c, why) for c, why in reversed(chosen)}.values())[::-1][:count]
        told = self.journal.told()
        if told.fallen and self.setting.places > 1:  # the baseline stays up for the next duel
            places = list(dict.fromkeys(c.key for c, _ in chosen))[: self.setting.places - 1]
            chosen = [(c, why) for c, why in chosen if c.key in places]
        first = max((t.number for t in (*told.trials, *told.dueled)), default=0) + 1
        candidates, why = zip(*chosen, strict=True)
        return Asked(first, candidates, ask.window_s, why, "search", time.time())

    def _book_thinking(self, thought_s: float) -> None:
        """GPUs that are held while the search thinks or the twin is fitted are paid for."""
        if not self.setting.simulated and thought_s > THINKING_S:
            gpu_s = thought_s * self.setting.gpus_for()
            self.journal.write("spent", gpu_s=gpu_s, what="thinking", at=time.time())

    def _learn(self, trials: Sequence[Trial], folder: Path | None = None) -> None:
        """Hold the twin against what was measured; a demotion is said once. folder: of its runs."""
        tokens: dict[int, float] = {}
        runs = self.folder / TRIALS if folder is None else folder
        for trial in trials:
            if trial.run is None or trial.value is None or not is_finished(runs / trial.run):
                continue
            summary = read_run(runs / trial.run).summary
            rate = None if summary is None else summary.throughput.output_tokens_per_s
            if rate:
                tokens[trial.number] = rate
        begun = time.monotonic()
        self.oracle.learn(trials, runs, tokens)
        if trials:
            self._book_thinking(time.monotonic() - begun)
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
        return self._left_s() - self._reserve(self.ground.slowest_start_s).without_gate_s

    def _finalists(self, ended: str) -> tuple[tuple[Candidate, ...], dict[str, float]] | None:
        """The best that were measured and may win, chosen once: a resumed duel has the same
        contenders. None when the user stopped.
        """
        told = self.journal.told()
        kept = told.phases.get("finalists")
        if kept is None:
            measured = self._measured(told)
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

    def _measured(self, told: Told) -> list[Ranked]:
        """Who may go into a duel, the best first."""
        fallen = {c.key for line in told.fallen for c in changes_of(line)}
        return contenders(self.standings(told.known), told.known, fallen)

    def duel_of(
        self, finalists: tuple[Candidate, ...], after: Sequence[Mapping[str, Any]] | None = None
    ) -> Duel:
        """The duel of these; `after`: the lines of those that the search went on after, by itself
        all that there were.
        """
        lines = self.journal.told().before if after is None else after
        return Duel(
            self.setting, self.folder, self.engines, self.journal, self.watch,
            (Candidate(), *finalists), self.command, self.study_text, self.calibrate,
            self.ground.start_s, 1 + sum(line["rounds"] for line in lines),
            tuple(c for line in lines for c in changes_of(line)),
        )  # fmt: skip

    def _soaker(self) -> Soak:
        return Soak(
            self.setting, self.folder, self.engines, self.journal, self.watch, self.command,
            self.ground.start_s,
        )  # fmt: skip

    def _with_winner(self, found: Found) -> Found:
        """The best that is better than the baseline and survives its worst case."""
        duel = found.duel
        if duel is None:
            told = self.journal.told()
            return replace(found, why=why_none(told), recommended=baseline_stays(told, None))
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
        runs = bool(winner.change) or baseline_stays(told, duel)
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
