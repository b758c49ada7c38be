"""Finalists that a duel cannot tell apart: the one that changes least is named."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.trial import Candidate
from support.tunedengine import Listed, TunedEngine, session, setting


@dataclass
class Quiet(TunedEngine):
    """No noise at all: equal speeds are equal figures."""

    noise: float = 0.0


SIMPLE = Candidate({"max_num_seqs": 160})
IDLE = Candidate({"max_num_seqs": 160, "api_server_count": 4})  # does nothing here
RISKY = Candidate({"max_num_seqs": 160, "enforce_eager": True})  # the same, and other kernels


def winner_of(folder: Path, *candidates: Candidate) -> tuple[Candidate, tuple[str, ...]]:
    made = setting(finalists=len(candidates))
    with session(folder, Listed([Candidate(), *candidates]), Quiet(), made) as begun:
        found = begun.run()
        result = conclude(begun, found)
    assert found.clear, result.verdict
    return found.winner, result.notes


@pytest.mark.parametrize("order", [(IDLE, SIMPLE), (SIMPLE, IDLE)])
def test_of_two_equal_ones_the_one_with_fewer_changes_is_named(
    tmp_path: Path, order: tuple[Candidate, ...]
) -> None:
    winner, notes = winner_of(tmp_path, *order)
    assert winner == SIMPLE
    assert any(IDLE.words in note and "changes least" in note for note in notes)


def test_of_equally_many_changes_the_lower_risk_is_named(tmp_path: Path) -> None:
    """A scheduling option before other kernels, in whatever order they were found."""
    winner, _ = winner_of(tmp_path, RISKY, IDLE)
    assert winner == IDLE


def test_what_is_more_than_one_percent_faster_is_named_however_much_it_changes(
    tmp_path: Path,
) -> None:
    faster = Candidate({"max_num_seqs": 165, "api_server_count": 4})
    winner, notes = winner_of(tmp_path, SIMPLE, faster)
    assert winner == faster
    assert not any("changes least" in note for note in notes)


def test_within_one_percent_the_better_latency_decides_among_the_equally_simple(
    tmp_path: Path,
) -> None:
    """0.6 % apart, one change each, of one class: the faster one also has the shorter gaps."""
    near = Candidate({"max_num_seqs": 161})
    winner, _ = winner_of(tmp_path, SIMPLE, near)
    assert winner == near


def test_the_simpler_one_is_in_the_duel_though_the_search_saw_three_a_little_better(
    tmp_path: Path,
) -> None:
    """With two finalists the two best draws would meet, each with a setting that does nothing."""
    idle = [Candidate({"max_num_seqs": 160, "api_server_count": n}) for n in (2, 4, 8)]
    listed = Listed([Candidate(), *idle, SIMPLE])
    with session(tmp_path, listed, TunedEngine(), setting(finalists=2)) as begun:
        found = begun.run()
        best = max(
            (t for t in found.told.history.trials if t.candidate.change), key=lambda t: t.value or 0
        )
    assert best.candidate != SIMPLE, "else this shows nothing"
    assert found.finalists[0] == SIMPLE
    assert len(found.finalists) == 2
