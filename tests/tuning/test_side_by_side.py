"""Several GPUs of one host measure the candidates of a question side by side, one process each."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ridgeline.domain.run import Watch
from ridgeline.store.run_directory import StoredRun
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.budgeting import Limits, spent_s
from ridgeline.tuning.journal import read_journal
from ridgeline.tuning.session import Found
from ridgeline.tuning.sidebyside import SideBySide
from ridgeline.tuning.trial import Candidate, Trial
from ridgeline.tuning.watching import SilentTuneWatch
from support.sideengine import (
    DIES,
    HANGS,
    LOG,
    MEET,
    SIX,
    VOID,
    WAITS,
    SideEngine,
    on_gpus,
    ran,
    roomy,
    side_engine,
)
from support.tunedengine import Listed, session

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "support" / "sideengine.py"


def tuned(
    folder: Path,
    candidates: Sequence[Candidate],
    *,
    side: bool = True,
    at_once: int = 4,
    **more: Any,
) -> Found:
    made = on_gpus()
    by = SideBySide(roomy(made), side_engine, rest_s=0.0) if side else None
    listed = Listed(candidates, at_once=at_once)
    with session(folder, listed, SideEngine(), made, side=by, **more) as begun:
        return begun.run()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "log"
    folder.mkdir()
    monkeypatch.setenv(LOG, str(folder))
    return folder


def together(runs: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs that were up at the same time."""
    return [
        (a, b) for a, b in itertools.combinations(runs, 2)
        if a["up"] < b["down"] and b["up"] < a["down"]
    ]  # fmt: skip


def test_it_ends_as_one_at_a_time_does_and_no_gpu_is_given_twice(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same to the last digit: seeds and folders are of a trial's number, not of its end.

    The second question is two on two GPUs and one on one: five GPUs' worth on four.
    """
    alone = tuned(tmp_path / "alone", SIX, side=False, at_once=3)
    for file in log.glob("*.json"):
        file.unlink()
    monkeypatch.setenv(MEET, "3")
    beside = tuned(tmp_path / "beside", SIX, at_once=3)
    plain = [replace(t, gpu_s=0.0, beside=0) for t in beside.told.trials]
    assert plain == [replace(t, gpu_s=0.0) for t in alone.told.trials]
    assert (beside.finalists, beside.winner) == (alone.finalists, alone.winner)
    assert [t.beside for t in beside.told.trials][:3] == [2, 2, 2]
    index = StudyDirectory(tmp_path / "beside" / "trials").index()
    assert [e.state for e in index.runs.values()] == ["done"] * 6
    own = [r for r in ran(log) if r["pid"] != os.getpid()]
    assert [r["tensor"] for r in own] == [1, 1, 1, 2, 2, 1], "the largest first"
    assert all(len(r["gpus"].split(",")) == r["tensor"] for r in own)
    pairs = together(own)
    assert len(pairs) >= 3
    for a, b in pairs:
        assert not set(a["gpus"].split(",")) & set(b["gpus"].split(",")), (a, b)
    duelled = [r for r in ran(log) if r["pid"] == os.getpid()]
    assert duelled
    assert not together(duelled), "the duel is one at a time"


def test_a_process_that_dies_costs_its_own_trial_only(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEET, "3")
    monkeypatch.setenv(DIES, "140")
    found = tuned(tmp_path / "out", SIX[:3])
    states = {t.candidate.change.get("max_num_seqs"): t.state for t in found.told.trials}
    assert states == {None: "feasible", 120: "feasible", 140: "crashed"}
    (dead,) = [t for t in found.told.trials if t.state == "crashed"]
    assert "was ended by SIGKILL" in (dead.reason or "")
    entry = StudyDirectory(tmp_path / "out" / "trials").index().runs[f"{dead.run}"]
    assert (entry.state, entry.reason) == ("interrupted", dead.reason)
    assert Candidate({"max_num_seqs": 140}) not in found.finalists
    assert [t.number for t in found.told.trials] == [1, 2, 3]


class SlowWatch(SilentTuneWatch):
    """Takes its time, as a terminal may, while the processes go on."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def ended(self, name: str, trial: Trial | None, run: StoredRun) -> None:
        self.states.append(run.state)

    def started(self, name: str, what: str) -> Watch:
        time.sleep(0.5)
        return super().started(name, what)


def test_a_void_run_is_measured_once_more_in_its_process(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is read before the second one moves it aside."""
    monkeypatch.setenv(MEET, "2")
    monkeypatch.setenv(VOID, "120")
    watch = SlowWatch()
    found = tuned(tmp_path / "out", SIX[:2], at_once=2, watch=watch)
    assert sorted(watch.states[:3]) == ["done", "done", "void"]
    assert [t.state for t in found.told.trials] == ["feasible", "feasible"]
    runs = StudyDirectory(tmp_path / "out" / "trials").index().runs
    assert [e.tries for e in runs.values()] == [1, 2]


class StopsAtFirst(SilentTuneWatch):
    """The user stops when the first trial has ended; one hangs then and hears of it."""

    seen = False

    def ended(self, name: str, trial: Trial | None, run: StoredRun) -> None:
        self.seen = True

    def stop_asked(self) -> bool:
        return self.seen


def test_the_users_stop_reaches_every_process_and_what_was_measured_stays(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEET, "2")
    monkeypatch.setenv(WAITS, "120")
    found = tuned(tmp_path / "out", SIX, at_once=2, watch=StopsAtFirst())
    assert not found.complete
    assert [t.number for t in found.told.trials] == [1], "the second one was stopped in its run"
    monkeypatch.delenv(WAITS)
    again = tuned(tmp_path / "out", SIX[:2], at_once=2)
    assert [t.number for t in again.told.trials] == [1, 2]
    assert again.told.trials[0] == replace(found.told.trials[0], gpu_s=again.told.trials[0].gpu_s)


def test_gpu_seconds_are_those_of_the_gpus_in_use(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each its own process's time, and two GPUs count twice; idle ones are not charged."""
    monkeypatch.setenv(MEET, "2")
    found = tuned(tmp_path / "out", [SIX[0], SIX[3]], at_once=2)
    runs = {r["tensor"]: r for r in ran(log) if r["pid"] != os.getpid()}
    lines = [json.loads(x) for x in (tmp_path / "out" / "tune.jsonl").read_text().splitlines()]
    (booked,) = [x["gpu_s"] for x in lines if x["kind"] == "booked"]
    assert sum(booked.values()) == pytest.approx(sum(t.gpu_s for t in found.told.trials))
    for number, tensor in (("1", 1), ("2", 2)):
        up_s = (runs[tensor]["down"] - runs[tensor]["up"]) * tensor
        assert up_s < booked[number]
    held = [x["gpus"] for x in lines if x["kind"] == "held"]
    assert max(held) == 3
    assert held[-1] == 1, "the baseline's, which the next question has"


def test_a_question_that_the_budget_does_not_hold_is_not_begun(tmp_path: Path, log: Path) -> None:
    found = tuned(tmp_path / "out", SIX[:2], limits=Limits(gpu_s=20))
    assert found.told.trials == ()
    assert not ran(log)


def test_killed_with_three_at_once_and_begun_again(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes end with it, what was open is measured, and the time up to the last beat is
    charged for every GPU that was held.
    """
    out = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(TESTS), MEET: "3", HANGS: "120"}
    with subprocess.Popen([sys.executable, str(SCRIPT), str(out)], env=environment) as process:
        until = time.monotonic() + 60
        while not all_but_one(out, log) and time.monotonic() < until:
            time.sleep(0.05)
        assert all_but_one(out, log), "two measured, one in its run"
        time.sleep(1.2)  # beats
        children = psutil.Process(process.pid).children(recursive=True)
        assert int((log / "hangs").read_text()) in {c.pid for c in children}
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, "no process outlives its Ridgeline"
    told = read_journal(out / "tune.jsonl")
    assert [t.number for t in told.trials] == [1, 3]
    kept = {t.run: (out / "trials" / str(t.run) / "run.json").read_bytes() for t in told.trials}
    assert told.held_s > 0
    assert told.held_gpus == 1, "one was still in use"

    found = tuned(out, SIX[:3])
    told = read_journal(out / "tune.jsonl")
    assert [t.number for t in told.trials] == [1, 2, 3]
    for run, body in kept.items():
        assert (out / "trials" / str(run) / "run.json").read_bytes() == body, "measured twice"
    lines = [json.loads(x) for x in (out / "tune.jsonl").read_text().splitlines()]
    (lost,) = [x["gpu_s"] for x in lines if x["kind"] == "lost"]
    first = lines[: [x["kind"] for x in lines].index("lost")]
    used_s = [x["used_s"] for x in first if x["kind"] == "held"][-1]
    unbooked_s = sum(x["gpu_s"] for x in first if x["kind"] == "trial")
    assert lost >= used_s - unbooked_s + 0.6, "and the second in which one hung"
    assert spent_s(told) > lost
    assert found.complete


def all_but_one(out: Path, log: Path) -> bool:
    journal = out / "tune.jsonl"
    if not journal.exists() or not (log / "hangs").exists():
        return False
    kinds = [json.loads(x) for x in journal.read_text().splitlines()]
    held = [x["gpus"] for x in kinds if x["kind"] == "held"]
    return sum(x["kind"] == "trial" for x in kinds) == 2 and held[-1] == 1
