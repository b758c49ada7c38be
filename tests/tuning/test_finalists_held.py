"""A budget with few rounds has fewer finalists, so that what it has is decided."""

import pytest

from ridgeline.tuning import budgeting
from ridgeline.tuning.budgeting import finalists_held
from support.tunedengine import setting

START_S = 60.0


@pytest.mark.parametrize(("left_s", "most"), [(1e9, 3), (0.0, 1)])
def test_at_the_ends(left_s: float, most: int) -> None:
    assert finalists_held(setting(), left_s, START_S) == most


def test_less_time_never_means_more_finalists_and_two_come_between() -> None:
    held = [finalists_held(setting(), s, START_S) for s in range(200, 1500, 10)]
    assert held == sorted(held)
    assert set(held) == {1, 2, 3}


def test_three_rounds_of_four_are_held_where_the_budget_has_no_more_and_fewer_rounds_are_not() -> (
    None
):
    """They tell 38 % when the whole error is spent on them (67 % when looks to come kept most)."""
    made = setting()
    three = budgeting._reserve(made, START_S, 3, 3)
    left_s = three.needed_s - three.gate_s
    assert finalists_held(made, left_s + 1.0, START_S) == 3
    assert finalists_held(made, left_s - 1.0, START_S) < 3
