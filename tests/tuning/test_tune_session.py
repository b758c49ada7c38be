"""A tuning from end to end on an engine of arithmetic: states, resume after a kill, duel, soak."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.domain.errors import BadInput, StoreError
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.journal import TuneJournal, read_journal
from ridgeline.tuning.outcome import read_result, write_result
from ridgeline.tuning.session import Found
from ridgeline.tuning.trial import Candidate
from ridgeline.tuning.watching import SilentTuneWatch
from support.tunedengine import TEN, Listed, TunedEngine, best_first, session, setting

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "support" / "tunedengine.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *arguments],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def tuned(folder: Path, candidates: list[Candidate], **more: object) -> Found:
    with session(folder, Listed(candidates), TunedEngine(), **more) as begun:  # type: ignore[arg-type]
        return begun.run()


def seqs(*numbers: int) -> list[Candidate]:
    return [Candidate(), *(Candidate({"max_num_seqs": n}) for n in numbers)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The tuning that nobody kills: its folder, and what is said when it is begun again."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert run(folder).returncode == 0
    return folder, run(folder).stdout


@pytest.mark.parametrize("kill_at", [1, 4, 12, 22])  # in the search, and in the duel
def test_killed_anywhere_and_begun_again_it_is_the_same_tuning(
    tmp_path: Path, whole: tuple[Path, str], kill_at: int
) -> None:
    """C-TU-08: nothing is measured twice, nothing is lost, the journal is readable after it."""
    killed = tmp_path / "killed"
    assert run(killed, str(kill_at)).returncode == -9
    told = read_journal(killed / "tune.jsonl")
    files = {t.run: killed / "trials" / str(t.run) / "run.json" for t in told.trials}
    before = {name: file.read_bytes() for name, file in files.items()}
    searched = sum(t.candidate.key != TEN[4].key for t in told.trials)
    if kill_at <= 9:
        assert searched == kill_at - 1, "the runs before it, and not the one that was killed"
    again = run(killed)
    assert again.returncode == 0, again.stderr

    ours, theirs = (read_journal(f / "tune.jsonl") for f in (whole[0], killed))
    assert [t.number for t in theirs.trials] == list(range(1, len(TEN) + 1))
    same = [replace(t, gpu_s=0.0) for t in ours.trials]
    assert [replace(t, gpu_s=0.0) for t in theirs.trials] == same
    assert again.stdout == whole[1], "and the same result"
    for name, body in before.items():
        assert files[name].read_bytes() == body, "measured twice"
    runs = StudyDirectory(killed / "trials").index().runs
    assert len(runs) == len(TEN)
    assert not any(e.outdated for e in runs.values())


def test_a_crash_is_a_state_and_never_a_score(tmp_path: Path) -> None:
    """C-TU-09: the crashed one is kept with its class and its words, and is no finalist."""
    found = tuned(tmp_path, seqs(13, 110))
    crashed = found.told.trials[1]
    assert (crashed.state, crashed.value) == ("crashed", None)
    assert "CUDA out of memory" in (crashed.reason or "")
    assert Candidate({"max_num_seqs": 13}).key not in {c.key for c in found.finalists}


def test_what_misses_the_targets_does_not_win_however_fast_it_is(tmp_path: Path) -> None:
    """C-TU-07: with targets that only the slower ones miss here, and then with impossible ones."""
    found = tuned(tmp_path / "a", seqs(40, 150), the_setting=setting("ttft_p95_ms=150"))
    assert found.told.trials[1].state == "infeasible"
    assert found.winner.change == {"max_num_seqs": 150}
    with session(
        tmp_path / "b", Listed(seqs(40, 150)), TunedEngine(), setting("ttft_p95_ms=20")
    ) as begun:
        none = begun.run()
        result = conclude(begun, none)
    assert none.winner.change == {}
    assert none.finalists == ()
    assert result.nearest_miss == "max_num_seqs=150"
    assert "no configuration that was tried meets the targets" in result.verdict


def test_a_clear_winner_is_confirmed_with_fresh_seeds_and_soaked(tmp_path: Path) -> None:
    with session(tmp_path, Listed(TEN), TunedEngine()) as begun:
        found = begun.run()
        result = conclude(begun, found)
    assert found.clear
    assert found.winner.change == {"max_num_seqs": 160}
    assert found.duel is not None
    searched = {t.seed for t in found.told.trials}
    index = StudyDirectory(tmp_path).index()
    duelled = {e.seed for e in index.runs.values()}
    assert not searched & duelled
    assert index.baseline == "baseline"
    (soaked,) = found.soak
    assert soaked.passed
    assert "160 requests at a time, each of 30 prompt and 45 output tokens" in soaked.load
    assert result.duel is not None
    assert result.winner.measured == "duel"
    assert result.winner.value == pytest.approx(1.6 * (result.baseline.value or 0), rel=0.05)
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result


def test_twenty_equal_ones_have_no_winner(tmp_path: Path) -> None:
    """C-TU-10: the best of twenty draws is told at its confirmed value, and nothing wins."""
    equal = [Candidate(), *(Candidate({"max_num_active_seqs": n}) for n in range(1, 20))]
    with session(tmp_path, Listed(equal), TunedEngine(noise=0.045)) as begun:
        found = begun.run()
        result = conclude(begun, found)
    assert found.winner.change == {}
    assert "no clear winner" in result.verdict
    assert result.duel is not None
    true = result.baseline.value or 0
    for one in result.duel.duelists[1:]:
        assert one.verdict == "no clear difference"
        assert one.value == pytest.approx(true, rel=0.06)


def test_what_starts_and_dies_under_load_is_not_recommended(tmp_path: Path) -> None:
    """C-ST-03: it is the fastest of the duel, and falls in the soak; the next one wins."""
    with session(tmp_path, Listed(seqs(950, 600)), TunedEngine()) as begun:
        found = begun.run()
    dead, alive = found.soak
    assert dead.words == "max_num_seqs=950"
    assert "starts, dies under load: oom_under_load" in (dead.reason or "")
    assert alive.passed
    assert found.winner.change == {"max_num_seqs": 600}


def test_a_budget_in_trials_holds_and_a_second_start_goes_on(tmp_path: Path) -> None:
    found = tuned(tmp_path, TEN, limits=Limits(trials=3))
    assert len(found.told.history.trials) == 3
    assert found.ended == "the trials of its budget are used"
    assert {c.words for c in found.finalists} == {"max_num_seqs=80", "max_num_seqs=120"}


def test_another_baseline_is_refused_in_the_same_folder(tmp_path: Path) -> None:
    tuned(tmp_path, seqs(110))
    with pytest.raises(BadInput, match=r"another question: baseline\.max_num_seqs: 100 -> 90"):
        tuned(tmp_path, seqs(110), the_setting=setting(seqs=90))


def test_two_at_a_time_are_refused_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    tuned(tmp_path, seqs(110))
    with (tmp_path / "tune.jsonl").open("ab") as file:
        file.write(b'{"kind": "trial", "numb')
    with TuneJournal(tmp_path) as journal:
        assert len(journal.told().trials) == 2
        with pytest.raises(StoreError, match="another Ridgeline is tuning"):
            TuneJournal(tmp_path)
    lines = (tmp_path / "tune.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines)


class StopsAt(SilentTuneWatch):
    def __init__(self, trials: int) -> None:
        self.seen, self.trials = 0, trials

    def ended(self, name: str, trial: object, run: object) -> None:
        self.seen += trial is not None

    def stop_asked(self) -> bool:
        return self.seen >= self.trials


def test_the_users_stop_keeps_what_was_measured(tmp_path: Path) -> None:
    found = tuned(tmp_path, TEN, watch=StopsAt(3))
    assert not found.complete
    assert len(found.told.trials) == 3
    assert tuned(tmp_path, TEN).complete
    assert best_first(read_journal(tmp_path / "tune.jsonl").history)
