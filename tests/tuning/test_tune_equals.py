"""Finalists that a duel cannot tell apart: the one that changes least is named."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeline.tuning.choosing import groups_of
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.port import Expected
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
    said = "stands for 1 more" if order[0] == SIMPLE else "changes least"
    assert any(IDLE.words in note and said in note for note in notes)


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


def test_the_best_and_its_simplest_part_are_in_the_duel_and_no_more_of_the_same(
    tmp_path: Path,
) -> None:
    """With three finalists the three best draws would meet, each with a setting that does nothing;
    the one other configuration that there is has the place that is left.
    """
    idle = [Candidate({"max_num_seqs": 160, "api_server_count": n}) for n in (2, 4, 8)]
    other = Candidate({"max_num_seqs": 130})
    listed = Listed([Candidate(), *idle, SIMPLE, other])
    with session(tmp_path, listed, TunedEngine(), setting(finalists=3)) as begun:
        found = begun.run()
        best = max(
            (t for t in found.told.history.trials if t.candidate.change), key=lambda t: t.value or 0
        )
    assert best.candidate != SIMPLE, "else this shows nothing"
    assert found.finalists == (best.candidate, SIMPLE, other)
    left = [c.words for c in idle if c != best.candidate]
    (note,) = [n for n in found.told.notes if "stands for" in n]
    assert note.startswith(f"{SIMPLE.words} stands for 2 more")
    assert all(words in note for words in left)


def test_the_leader_is_a_finalist_whatever_its_parts_gave() -> None:
    one, two, three = (
        {"max_num_seqs": 128},
        {"max_num_batched_tokens": 512},
        {"enforce_eager": True},
    )
    whole, part = Candidate({**one, **two, **three}), Candidate(one)
    ranked = [(whole, 1.0), (Candidate({**one, **two}), 0.965), (Candidate({**one, **three}), 0.96),
              (part, 0.955)]  # fmt: skip
    assert [g.candidate for g in groups_of(ranked, {})][:2] == [whole, part]


def test_what_the_twin_and_the_measurements_see_as_one_has_one_place() -> None:
    """Options that change nothing beside 128 slots, and one other that is a little worse."""
    seqs = {"max_num_seqs": 128}
    same = [Candidate({**seqs, "api_server_count": n}) for n in (2, 3, 4)]
    part, wide, other = (
        Candidate(seqs), Candidate({"max_num_seqs": 256}), Candidate({"max_num_seqs": 64})
    )  # fmt: skip
    ranked = [*((c, 1.0) for c in same), (wide, 0.99), (part, 0.98), (other, 0.97)]
    twin = {c.key: Expected(c, 50.0, limits={"ttft_p95_ms": 80.0}) for c, _ in ranked}
    twin[other.key] = Expected(other, 49.8, limits={"ttft_p95_ms": 95.0})
    groups = groups_of(ranked, twin)
    assert [g.candidate for g in groups] == [wide, other], "of equally many changes the better one"
    assert groups[0].of == (*(c.words for c in same), part.words)
    slower = {**twin, wide.key: Expected(wide, 55.0, limits={"ttft_p95_ms": 80.0})}
    assert [g.candidate for g in groups_of(ranked, slower)] == [part, wide, other]
    assert len(groups_of([(same[0], 1.0), (part, 0.9)], twin)) == 2, "the measurements part them"
