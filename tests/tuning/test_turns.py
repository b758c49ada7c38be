"""A duel whose engines do not all stay up side by side: turns, their price, and old blocks.

`python test_turns.py FOLDER KILLED`: a duel of three into FOLDER, on one place; the process dies by
SIGKILL in the middle of that run, counted from 1.
"""

import contextlib
import math
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.engines.base import DrivePlan
from ridgeline.experiment.engines import BLOCKS_NOTE, TURNS_NOTE
from ridgeline.experiment.runner import run_plan
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning import dueling
from ridgeline.tuning.assembling import budget_words
from ridgeline.tuning.budgeting import Limits, needed_s, reserve_of
from ridgeline.tuning.choosing import choose
from ridgeline.tuning.duel import DuelPlan, stand
from ridgeline.tuning.dueling import BLOCKS_WORDS, PLAN, Duel
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from support.clockedengine import Clock, ClockedEndpoint, ClockedStarter, clocked
from support.tunedengine import Listed, TunedEngine, session, setting

START_S = 60.0
RUN_S = 23.5  # 2 s of warm-up, 20 s, and what is around them
TESTS = Path(__file__).parents[1]
Drive = tuple[int, int, float]  # max_num_seqs, seed, its middle on the clock in seconds


@dataclass
class NotedEndpoint(ClockedEndpoint):
    drives: list[Drive] = field(default_factory=list)

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        begun = self.clock.now
        found = super().drive(plan, sink, watch)
        seqs = self.configuration.knobs.max_num_seqs or 0
        self.drives.append((seqs, plan.schedule.workload.seed, (begun + self.clock.now) / 2))
        return found


@dataclass
class Noted(ClockedStarter):
    drives: list[Drive] = field(default_factory=list)

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Any]:
        with super().start(configuration):
            yield NotedEndpoint(self.engine, configuration, clock=self.clock, drives=self.drives)


def with_places(places: int, slo: str = "ttft_p95_ms=500") -> Setting:
    made = setting(slo)
    base = made.configuration
    return replace(made, configuration=replace(
        base, launch=Launch(resident=places, cold_s=0.0),
        knobs=base.knobs.with_changes({"kv_cache_memory_bytes": 2**30}),
    ))  # fmt: skip


def rivals(contenders: int) -> tuple[Candidate, ...]:
    return tuple(Candidate({"max_num_seqs": 100 + i}) for i in range(1, contenders))


@contextlib.contextmanager
def dueled(
    folder: Path, starter: ClockedStarter, places: int, finalists: Sequence[Candidate],
    slo: str = "ttft_p95_ms=500",
) -> Iterator[Duel]:  # fmt: skip
    asked = with_places(places, slo)
    with session(folder, Listed([Candidate()]), starter.resident(), asked) as s:  # type: ignore[arg-type]
        duel = s.duel_of(tuple(finalists))
        duel.start_s = START_S
        yield duel


def drives_of(folder: Path, monkeypatch: pytest.MonkeyPatch, contenders: int) -> list[Drive]:
    """Three rounds of a duel on one place, as its runs came."""
    starter = Noted(clocked(monkeypatch), START_S)
    with dueled(folder, starter, 1, rivals(contenders)) as duel:
        assert duel.fight(duel.rounds_s(3, first=True)) == 3
    return starter.drives


def test_on_one_place_who_ends_a_round_begins_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drives_of(tmp_path, monkeypatch, 3)
    assert [seqs for seqs, _, _ in found] == [100, 101, 102, 102, 101, 100, 100, 101, 102]
    first = found[0][1]
    assert [seed - first for _, seed, _ in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert TURNS_NOTE in StudyDirectory(tmp_path).index().notes


@pytest.mark.parametrize("contenders", [2, 4])
@pytest.mark.parametrize("walk", [0.03, 0.11])
def test_equals_on_a_drifting_host_are_called_different_in_at_most_five_of_a_hundred_duels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contenders: int, walk: float
) -> None:
    """The host's speed is a random walk of so much in a minute (on an H200 runs that lay 5 min
    apart were 20 to 30 % apart: 0.11), a run's own noise is 3 %. Contenders in blocks are called
    different in 14 to 65 %.
    """
    found = drives_of(tmp_path, monkeypatch, contenders)
    gaps_min = np.diff([at for _, _, at in found], prepend=found[0][2]) / 60
    seeds = sorted({seed for _, seed, _ in found})
    rng, wrong, many = np.random.default_rng(13), 0, 800
    for _ in range(many):
        level = np.cumsum(walk * np.sqrt(gaps_min) * rng.standard_normal(len(found)))
        values = np.exp(level + 0.03 * rng.standard_normal(len(found)))
        rounds: list[dict[int, float | None]] = [{} for _ in seeds]
        for (seqs, seed, _), value in zip(found, values, strict=True):
            rounds[seeds.index(seed)][seqs - 100] = float(value)
        pairs = stand(rounds, DuelPlan(contenders, aim=3)).pairs
        wrong += any(pair.word.startswith("clearly") for pair in pairs)
    sampling = math.sqrt(0.05 * 0.95 / many)
    assert wrong / many <= 0.05 + 2 * sampling


@pytest.mark.parametrize(
    ("places", "contenders", "starts", "waits"),
    [
        (1, 2, 2 + 2 * 1, 4),  # A B, A, B
        (1, 4, 4 + 2 * 3, 10),
        (2, 4, 4 + 2 * 2, 7),  # A B together, C, D; C, B; C, D
        (3, 4, 4 + 1 + 2, 4),  # A B C together, D; B C together; D
        (4, 4, 4, 1),
    ],
)
def test_three_rounds_take_the_starts_and_the_seconds_that_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    places: int, contenders: int, starts: int, waits: int,
) -> None:  # fmt: skip
    clock = clocked(monkeypatch)
    starter = ClockedStarter(clock, START_S)
    with dueled(tmp_path, starter, places, rivals(contenders)) as duel:
        counted_s, begun = duel.rounds_s(3, first=True), clock.now
        assert duel.fight(counted_s) == 3
        used_s = clock.now - begun
        assert used_s == waits * START_S + 3 * contenders * RUN_S
        assert used_s <= counted_s <= used_s + START_S
        assert [word for word, _ in starter.events].count("start") == starts
        assert starts <= duel.setting.starts(contenders, 3) <= starts + 1


def test_a_round_whose_starts_the_budget_does_not_hold_is_not_begun_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = ClockedStarter(clocked(monkeypatch), START_S)
    with dueled(tmp_path, starter, 1, [Candidate({"max_num_seqs": 200})]) as duel:
        assert duel.fight(duel.rounds_s(3, first=True) - 1.0) == 2
        found = choose(duel, ())
        assert not found.clear
        assert not found.winner.change
        assert "2 rounds only, at least 3 tell" in found.why


def test_the_reserve_holds_the_starts_of_every_round() -> None:
    """By hand: four contenders and four rounds on one place are 4 + 3 x 3 starts of 60 s, their
    16 runs 23.5 s each.
    """
    one = reserve_of(with_places(1), Limits(), START_S)
    assert (one.starts, one.starts_s, one.rounds_s) == (13, 13 * START_S, 16 * RUN_S)
    all_up = reserve_of(with_places(4), Limits(), START_S)
    assert (all_up.starts, all_up.starts_s) == (4, START_S)
    soak_s = one.soak_s
    assert needed_s(with_places(1), START_S) == 4 * START_S + 6 * RUN_S + soak_s
    (line,) = budget_words(with_places(1), Limits(gpu_s=7200.0), START_S)
    assert "13.0 for 13 starts of the duel's 4 engines, which take turns in every round" in line


@pytest.mark.parametrize("kill_at", [2, 4, 5])
def test_a_duel_that_was_killed_within_its_turns_goes_on_with_them(
    tmp_path: Path, kill_at: int
) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "killed"), str(kill_at)],
        env={"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    starter, whole = Noted(Clock(), 0.0), Noted(Clock(), 0.0)
    with dueled(tmp_path / "killed", starter, 1, rivals(3)) as duel:
        duel.fight(duel.rounds_s(3, first=True))
        gone_on = duel.rounds[:3]
        assert not duel.in_blocks
    with dueled(tmp_path / "whole", whole, 1, rivals(3)) as duel:
        duel.fight(duel.rounds_s(3, first=True))
        assert gone_on == duel.rounds[:3]
    order = [(seqs, seed) for seqs, seed, _ in whole.drives][kill_at - 1 : 9]
    assert [(seqs, seed) for seqs, seed, _ in starter.drives][: len(order)] == order


def in_blocks(plan: Any, *given: Any, **named: Any) -> Any:
    """The runs of a duel as they were once done."""
    return run_plan(replace(plan, turns=False), *given, **named)


@pytest.mark.parametrize("slo", ["ttft_p95_ms=500", "ttft_p95_ms=80"])
def test_what_was_done_in_blocks_calls_nothing_clear_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slo: str
) -> None:
    """Twice as fast; with the lower limit the baseline misses what the finalist meets."""
    finalists = [Candidate({"max_num_seqs": 200})]
    monkeypatch.setattr(dueling, "run_plan", in_blocks)
    starter = ClockedStarter(clocked(monkeypatch), START_S)
    with dueled(tmp_path, starter, 1, finalists, slo) as duel:
        duel.fight(duel.rounds_s(3, first=True))
        run = duel.runs()[0][1]
        assert run.facts is not None
        assert BLOCKS_NOTE in run.facts.notes
        claim = duel.claim(finalists[0])
        assert claim is not None
        assert claim.ratio == pytest.approx(2.0, rel=0.2)
        assert (claim.low, claim.high, claim.verdict) == (None, None, "no clear difference")
        found = choose(duel, ())
        assert not found.clear
        assert BLOCKS_WORDS in found.why


def test_the_same_in_turns_is_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = ClockedStarter(clocked(monkeypatch), START_S)
    with dueled(tmp_path, starter, 1, [Candidate({"max_num_seqs": 200})]) as duel:
        duel.fight(duel.rounds_s(PLAN.least, first=True))
        found = choose(duel, ())
        assert found.clear
        assert found.winner.change == {"max_num_seqs": 200}


if __name__ == "__main__":
    killed = ClockedStarter(Clock(), 0.0, engine=TunedEngine(kill_at=int(sys.argv[2])))
    with dueled(Path(sys.argv[1]), killed, 1, rivals(3)) as begun:
        begun.fight(begun.rounds_s(3, first=True))
