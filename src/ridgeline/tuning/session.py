"""A tuning from its first question to its answer: search, duel, soak, what each knob bought.

Everything that is decided is in the journal before it is acted upon, and every run is in the store:
a session that was killed is begun again with the same arguments and goes on where it was.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.errors import GIVEN_UP, StoreError
from ridgeline.experiment.ledger import begin_index
from ridgeline.experiment.plan import plan_runs
from ridgeline.experiment.protocol import Calibrate
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning import budgeting
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.choosing import choose
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.gate import Gate
from ridgeline.tuning.journal import SCHEMA, Asked, Told, TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.measuring import TRIALS, StudyGround
from ridgeline.tuning.outcome import Soaked
from ridgeline.tuning.port import Policy
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.soaking import Soak
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History, Trial
from ridgeline.tuning.watching import TuneWatch

# The finalists by a history, the best first, with what the search estimates of each.
Standings = Callable[[History], Sequence[tuple[Candidate, float]]]
THINKING_S = 0.5


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

    def run(self) -> Found:
        """All of it; raises StoreError where the folder holds another tuning."""
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
        rounds = duel.fight(self._left_s() - self._soak_s(finalists))
        found = replace(base, duel=duel, rounds=rounds)
        if self.watch.stop_asked():
            return replace(found, told=self.journal.told(), complete=False)
        return self._with_winner(found, duel)

    def _begin(self) -> None:
        told, own = self.journal.told(), self.setting.fingerprint
        if told.fingerprint not in (None, own):
            raise StoreError(
                "holds the tuning of another baseline, load or target",
                where=str(self.journal.path),
                fix="choose another folder with --out",
            )
        self._show_baseline()
        if told.fingerprint is None:
            self.journal.write("begin", schema=SCHEMA, fingerprint=own, at=time.time())
            return
        lost_s = self._lost_s(told)
        if lost_s > 0:
            self.journal.write("lost", gpu_s=lost_s, at=time.time())
        if told.open is not None:
            self.watch.told("the last question had no answer yet: it is put again")
            self._learn(self.ground.answer(told.open))

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
        """GPU seconds of a killed process: from its last line to the last file that it wrote."""
        if self.setting.simulated or told.open is None:
            return 0.0
        newest = told.last_at
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                newest = max(newest, path.stat().st_mtime)
        done = sum(t.gpu_s for t in told.trials if t.number >= told.open.first)
        seconds = (newest - told.last_at) * self.setting.configuration.gpus - done
        return max(seconds, 0.0)

    def _left_s(self) -> float:
        return budgeting.left_s(self.limits, self.journal.told())

    def _search(self) -> str:
        """Ask and measure until nothing more is worth it; returns why it ended."""
        while not self.watch.stop_asked():
            told = self.journal.told()
            if "finalists" in told.phases:
                return str(told.phases["finalists"]["ended"])
            total_s = budgeting.left_s(self.limits, told)
            left_s = total_s - budgeting.reserve_s(
                self.setting, self.limits, self.ground.expected_start_s
            )
            count = budgeting.left_trials(self.limits, told)
            self.watch.left(None if total_s == math.inf else total_s, count)
            if count is not None and count <= 0:
                return "the trials of its budget are used"
            self.ground.most_s = None if total_s == math.inf else total_s
            asked = self._asked(told.history, left_s, count)
            if asked is None:
                more = left_s == math.inf or self._asked(told.history, math.inf, count) is None
                return "nothing more is worth its time" if more else "its budget is used"
            found = self.ground.put(asked)
            self._learn(found)
            self._judge_leaders(found)
            if not found and not self.watch.stop_asked():
                return "its budget is used"
        return "stopped by the user"

    def _asked(self, history: History, left_s: float, count: int | None) -> Asked | None:
        """The policy's next question; the time it takes is paid for while engines are up."""
        begun = time.monotonic()
        ask = self.policy.ask(history, left_s)
        thought_s = time.monotonic() - begun
        up = not self.setting.simulated and bool(history.trials)
        if up and thought_s > THINKING_S:
            gpu_s = thought_s * self.setting.configuration.gpus
            self.journal.write("spent", gpu_s=gpu_s, what="thinking", at=time.time())
        if ask is None:
            return None
        most = len(ask.candidates) if count is None else count
        first = max((t.number for t in self.journal.told().trials), default=0) + 1
        candidates = ask.candidates[:most]
        return Asked(first, candidates, ask.window_s, ask.why[:most], "search", time.time())

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
        start_s = self.ground.expected_start_s
        return self._left_s() - budgeting.duel_share_s(self.setting, self.limits, start_s)

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
            ranked = self.gate.qualify(measured, self.setting.spec.finalists, self._judging_s)
            if ranked is None:
                return None
            start_s = self.ground.expected_start_s
            held = budgeting.finalists_held(self.setting, self._left_s(), start_s)
            if held < len(ranked):
                self.watch.told(
                    f"{held} of {len(ranked)} finalists go on: the budget that is left holds no"
                    f" {PLAN.least} rounds of more"
                )
                ranked = ranked[:held]
            self.journal.write(
                "finalists",
                changes=[dict(c.change) for c, _ in ranked],
                estimates={c.words: value for c, value in ranked},
                ended=ended,
                at=time.time(),
            )
            kept = self.journal.told().phases["finalists"]
        found = tuple(
            Candidate({n: tuple(v) if isinstance(v, list) else v for n, v in change.items()})
            for change in kept["changes"]
        )
        return found, dict(kept["estimates"])

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

    def _soak_s(self, finalists: tuple[Candidate, ...]) -> float:
        if self.limits.gpu_s is None:
            return 0.0
        soak = self._soaker()
        return max(soak.expected_s(c) for c in finalists)

    def _with_winner(self, found: Found, duel: Duel) -> Found:
        """The best that is better than the baseline and survives its worst case."""
        soaked: list[Soaked] = []
        out: set[str] = set()
        for _ in range(len(found.finalists) + 1):
            choice = choose(duel, out)
            winner = choice.winner
            if not winner.change:
                break
            result = self._soaker().run(winner, max(self._left_s(), 60.0))
            if result is None:
                told = self.journal.told()
                return replace(found, told=told, complete=False, soak=tuple(soaked))
            soaked.append(result)
            if result.passed:
                break
            self.watch.told(f"{winner.words}: {result.reason}")
            out.add(winner.words)
        told = self.journal.told()
        runs = bool(winner.change or duel.value(winner) or _baseline_runs(told))
        return replace(
            found, told=told, winner=winner, clear=choice.clear, why=choice.why,
            soak=tuple(soaked), recommended=choice.recommended and runs,
        )  # fmt: skip


def _may_win(trials: Sequence[Trial]) -> bool:
    """Whether a candidate has a figure and never crashed: once in two is once too often."""
    return not any(map(_crashed, trials)) and any(t.value is not None for t in trials)


def _baseline_runs(told: Told) -> bool:
    """Whether the baseline was tried in the search and never crashed or was refused."""
    trials = told.history.of(Candidate())
    return bool(trials) and not any(t.state == "refused" or _crashed(t) for t in trials)


def _crashed(trial: Trial) -> bool:
    """A start that a budget ended tells nothing about the engine."""
    return trial.state == "crashed" and GIVEN_UP not in (trial.reason or "")
