"""Where a tuning's budget goes: the duel has its rounds whatever the search would like to use."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.tuning.assembling import budget_words
from ridgeline.tuning.budgeting import Limits, reserve_of, spent_s
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.dueling import FRESH_SEEDS, PLAN
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.journal import Asked, TuneJournal, read_journal
from ridgeline.tuning.outcome import NOT_SOAKED
from ridgeline.tuning.setting import Setting, setting_of
from ridgeline.tuning.trial import Candidate
from ridgeline.workload.studyfile import load_study
from support.clockedengine import ClockedStarter, Greedy, clocked
from support.tunedengine import Listed, TunedEngine, session, setting

TESTS = Path(__file__).parents[1]
STUDY = TESTS.parent / "studies" / "h200-tune-32.yaml"
MINUTES_25 = 25 * 60.0


def h200(resident: int | None = 4) -> Setting:
    """The study on an engine of arithmetic: its load, targets, launch and finalists."""
    made = setting_of(load_study(STUDY))
    base = made.configuration
    assert base.launch is not None
    launch = replace(base.launch, resident=resident)
    configuration = replace(base, engine="fake", launch=launch, gpu=None, gpu_figures=None)
    return replace(made, configuration=configuration)


@pytest.mark.parametrize("resident", [4, 1])
def test_the_duel_has_three_rounds_in_25_minutes_of_60_second_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: int
) -> None:
    """A search that takes all it may; and what is booked is what the clock says."""
    clock = clocked(monkeypatch)
    starter, policy, begun_at = ClockedStarter(clock), Greedy(), clock.now
    limits = Limits(gpu_s=MINUTES_25)
    with session(tmp_path, policy, starter.resident(), h200(resident), limits) as begun:  # type: ignore[arg-type]
        policy.ground = begun.ground
        found = begun.run()
        used_s = clock.now - begun_at
        result = conclude(begun, found)
    assert found.ended == "its budget is used"
    # On one place each round starts engines anew: one finalist that is decided, not three.
    assert len(found.finalists) == (3 if resident == 4 else 1)
    assert found.rounds >= 3
    assert found.winner.change
    assert found.soak[-1].passed
    assert used_s <= MINUTES_25
    assert result.gpu_s == pytest.approx(used_s, abs=1.0), "all of it is booked, once"
    starts = [n for word, n in starter.events if word == "start"]
    searched = len(found.told.trials)
    assert searched >= 8
    duel_starts = len(starts) - searched
    print(f"{searched} trials, {found.rounds} rounds, {duel_starts} starts after the search")
    if resident == 4:
        assert duel_starts <= len(found.finalists), "who is up is not started again"


def test_the_plan_names_what_is_kept_before_anything_is_spent() -> None:
    """By hand: the starts side by side 120 s; four contenders, each 4 s for its first load and
    4 x 15.5 s; the soak 35.5 s. Together 419.5 s of 1500.
    """
    whole = setting_of(load_study(STUDY))
    reserve = reserve_of(whole, Limits(gpu_s=MINUTES_25), 120.0)
    assert reserve.starts_s == 120.0
    assert reserve.rounds_s == 4 * (4 + 4 * 15.5)
    assert reserve.soak_s == 35.5
    assert reserve.total_s == 419.5
    (line,) = budget_words(whole, Limits(gpu_s=MINUTES_25), 120.0)
    assert (
        "25 GPU minutes, of them 7.0 kept from the search (2.0 for the starts of the duel's 4"
        in line
    )
    assert "4.4 for 4 rounds of it, 0.6 for the soak" in line
    assert (
        "a duel of 3 rounds with one finalist" in budget_words(whole, Limits(gpu_s=300.0), 120.0)[1]
    )


def test_wall_minutes_and_gpu_minutes_have_one_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four GPUs are held also while a candidate uses one of them."""
    clock = clocked(monkeypatch)
    one = setting()
    knobs = replace(one.configuration.knobs, data_parallel_size=4)
    four = replace(one, configuration=replace(one.configuration, knobs=knobs, gpus=4))
    listed = [Candidate(), Candidate({"data_parallel_size": 1, "max_num_seqs": 160})]
    begun_at = clock.now
    with session(tmp_path, Listed(listed), ClockedStarter(clock).resident(), four) as begun:  # type: ignore[arg-type]
        found = begun.run()
        result = conclude(begun, found)
    assert result.gpu_s == pytest.approx(4 * (clock.now - begun_at), abs=4.0)


def test_one_budget_for_all_groups_of_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four candidates, one at a time, 60 + 23.5 s and as much for the cold load each."""
    clock = clocked(monkeypatch)
    asked = [Candidate({"max_num_seqs": n}) for n in (110, 120, 130, 140)]
    with session(tmp_path, Listed([]), ClockedStarter(clock).resident()) as begun:  # type: ignore[arg-type]
        begun.ground.most_s, begun_at = 250.0, clock.now
        found = begun.ground.put(Asked(1, tuple(asked), 20.0, ("why",) * 4, "search", time.time()))
    assert len(found) == 2
    assert clock.now - begun_at <= 250.0


def test_an_open_question_is_answered_within_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clocked(monkeypatch)
    asked = tuple(Candidate({"max_num_seqs": n}) for n in (110, 120, 130, 140))
    with session(tmp_path, Listed([]), ClockedStarter(clock).resident()) as begun:  # type: ignore[arg-type]
        begun._begin()
        begun.journal.asked(Asked(1, asked, 20.0, ("why",) * 4, "search", time.time()))
    begun_at, limits = clock.now, Limits(gpu_s=600.0)
    with session(tmp_path, Listed([]), ClockedStarter(clock).resident(), limits=limits) as again:  # type: ignore[arg-type]
        again._begin()
        kept = reserve_of(again.setting, limits, again.ground.slowest_start_s).total_s
    assert 0 < len(read_journal(tmp_path / "tune.jsonl").trials) < 4
    assert clock.now - begun_at <= 600.0 - kept


def process(folder: Path, *arguments: str, late_s: float = 0.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TESTS / "support" / "tunedengine.py"), str(folder), *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS), "LATE_S": str(late_s)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kill_at", ["4", "12", "soak"])  # in the search, the duel, the soak
def test_the_gpu_time_of_a_killed_process_is_charged(tmp_path: Path, kill_at: str) -> None:
    """It held its GPU for two seconds of a run, of which no line tells."""
    assert process(tmp_path, kill_at, late_s=2.0).returncode == -9
    before = read_journal(tmp_path / "tune.jsonl")
    time.sleep(1.0)  # nobody holds it meanwhile
    assert process(tmp_path).returncode == 0
    after = read_journal(tmp_path / "tune.jsonl")
    beat = float((tmp_path / "tune.beat").read_text())
    assert beat > before.last_at
    assert after.lost_s - before.lost_s >= 1.0
    lines = [json.loads(x) for x in (tmp_path / "tune.jsonl").read_text().splitlines()]
    (lost,) = [x for x in lines if x["kind"] == "lost"]
    assert lost["gpu_s"] + before.unbooked_s <= lost["at"] - before.last_at - 1.0


@pytest.mark.parametrize("then", ["reserve", "twin"])
def test_a_twin_keeps_to_its_budget_from_the_first_round_on(tmp_path: Path, then: str) -> None:
    made = setting()
    twin = replace(made, configuration=replace(made.configuration, engine="twin"))
    listed = Listed([Candidate(), Candidate({"max_num_seqs": 160})])
    limits = Limits(gpu_s=120.0 if then == "twin" else 500.0)
    with session(tmp_path, listed, TunedEngine(name="twin"), twin, limits) as begun:
        found = begun.run()
    assert spent_s(found.told) <= (limits.gpu_s or 0.0)
    assert (found.rounds >= PLAN.least) == (then == "reserve")


def overrun(seed: int) -> float:
    """The duel's third round takes ten minutes longer than anybody foresaw."""
    return 600.0 if seed == setting().workload.seed + FRESH_SEEDS + 2 else 0.0


def test_a_winner_that_no_budget_could_soak_is_not_recommended_and_can_be_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clocked(monkeypatch)
    listed = Listed([Candidate(), Candidate({"max_num_seqs": 160})])
    starter = ClockedStarter(clock, longer=overrun)
    limits = Limits(gpu_s=1500.0)
    with session(tmp_path, listed, starter.resident(), limits=limits) as begun:  # type: ignore[arg-type]
        found = begun.run()
        result = conclude(begun, found)
    assert found.complete
    assert [s.state for s in found.soak] == [NOT_SOAKED]
    assert not found.recommended
    assert result.verdict.startswith("No recommendation yet: max_num_seqs=160 leads the duel")
    assert "not soaked: budget" in result.verdict
    again = ClockedStarter(clock)
    more = Limits(gpu_s=9000.0)
    with session(tmp_path, listed, again.resident(), limits=more) as begun:  # type: ignore[arg-type]
        found = begun.run()
        result = conclude(begun, found)
    assert [s.state for s in found.soak] == ["passed"]
    assert found.recommended
    assert again.events[0] == ("start", 160), "nothing but the soak was left to do"
    assert result.verdict.startswith("Serve with max_num_seqs=160")


def test_who_fails_in_the_soak_is_never_named(tmp_path: Path) -> None:
    listed = Listed([Candidate(), *(Candidate({"max_num_seqs": n}) for n in (950, 910))])
    with session(tmp_path, listed, TunedEngine()) as begun:
        found = begun.run()
        result = conclude(begun, found)
    assert [s.state for s in found.soak] == ["failed", "failed"]
    assert found.winner.change == {}
    assert not found.clear
    assert result.verdict.startswith("The baseline stays: no clear winner")


SEQS = [Candidate(), *(Candidate({"max_num_seqs": n}) for n in (160, 120))]


def finished(folder: Path, of: Setting | None = None, limits: Limits | None = None) -> TunedEngine:
    engine = TunedEngine()
    with session(folder, Listed(SEQS), engine, of, limits) as begun:
        begun.run()
    return engine


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (setting("ttft_p95_ms=400"), "slo.ttft_p95_ms: 500 -> 400"),
        (setting(seqs=90), "baseline.max_num_seqs: 100 -> 90"),
        (setting(risk="numerics"), "tune.risk: exact -> numerics"),
        (
            replace(setting(), spec=replace(setting().spec, space={"max_num_seqs": (100, 160)})),
            "tune.space.max_num_seqs: none -> [100, 160]",
        ),
        (
            replace(setting(), workload=replace(setting().workload, duration_s=25.0)),
            "workload.duration_s: 20 -> 25",
        ),
    ],
)
def test_another_question_is_refused_by_its_difference(
    tmp_path: Path, changed: Setting, named: str
) -> None:
    finished(tmp_path)
    before = (tmp_path / "tune.jsonl").read_bytes()
    with pytest.raises(BadInput) as refused:
        finished(tmp_path, changed)
    assert named in str(refused.value)
    assert "--out" in str(refused.value)
    assert (tmp_path / "tune.jsonl").read_bytes() == before


def test_another_price_is_worked_in_and_measures_nothing(tmp_path: Path) -> None:
    finished(tmp_path)
    with session(tmp_path, Listed(SEQS), TunedEngine()) as begun:
        was = conclude(begun, begun.run())
    dear = replace(
        setting(), configuration=replace(setting().configuration, price_per_gpu_hour=8.0)
    )
    engine = TunedEngine()
    with session(tmp_path, Listed(SEQS), engine, dear) as begun:
        now = conclude(begun, begun.run())
    assert engine.drives == 0
    assert now.winner.words == was.winner.words
    for new, old in ((now.winner, was.winner), (now.baseline, was.baseline)):
        assert new.value == pytest.approx((old.value or 0) / 4)
        assert new.usd_per_million_output_tokens == pytest.approx(
            4 * (old.usd_per_million_output_tokens or 0)
        )
    assert [t.value for t in now.trials] == pytest.approx([(t.value or 0) / 4 for t in was.trials])
    assert now.duel is not None
    assert was.duel is not None
    assert [d.searched for d in now.duel.duelists[1:]] == pytest.approx(
        [(d.searched or 0) / 4 for d in was.duel.duelists[1:]]
    )


def test_a_larger_budget_goes_on_with_the_search(tmp_path: Path) -> None:
    finished(tmp_path, limits=Limits(trials=2))
    assert len(read_journal(tmp_path / "tune.jsonl").trials) == 2
    assert finished(tmp_path, limits=Limits(trials=2)).drives == 0, "as large as before"
    more = finished(tmp_path, limits=Limits(trials=3))
    told = read_journal(tmp_path / "tune.jsonl")
    assert more.drives > 1, "the third trial, and the duel with it"
    assert [t.candidate.change.get("max_num_seqs") for t in told.trials] == [None, 160, 120]
    assert len(told.phases["finalists"]["changes"]) == 2


def test_a_beat_is_at_most_a_second_old(tmp_path: Path) -> None:
    with TuneJournal(tmp_path) as journal:
        assert journal.beat.last is None
        journal.beat.begin()
        for _ in range(4):
            time.sleep(0.4)
            assert time.time() - float((tmp_path / "tune.beat").read_text() or 0) < 1.0
    with TuneJournal(tmp_path) as journal:
        assert journal.beat.last == pytest.approx(time.time(), abs=2.0)


def test_the_wait_for_the_first_fit_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines are up while the twin is fitted: a GPU that waits is not free."""
    learn, waited_s = Oracle.learn, 1.0

    def slowly(self: Oracle, *told: object) -> None:
        time.sleep(waited_s)
        learn(self, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(Oracle, "learn", slowly)
    with session(tmp_path, Listed([Candidate()]), TunedEngine(), limits=Limits(trials=1)) as begun:
        begun.run()
    lines = map(json.loads, (tmp_path / "tune.jsonl").read_text().splitlines())
    spent = [one["gpu_s"] for one in lines if one.get("what") == "thinking"]
    assert len(spent) == 1
    assert waited_s <= spent[0] < waited_s + 2
