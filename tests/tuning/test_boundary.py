"""What failed starts teach about configurations that were not started."""

from itertools import product

import numpy as np

from ridgeline.tuning.boundary import LEAVE, suspicion

GRID = np.array(list(product((0.0, 0.5, 1.0), (0.0, 0.5, 1.0), (0.0, 1.0))))


def row(*values: float) -> int:
    return int(np.flatnonzero((values == GRID).all(axis=1))[0])


def test_nothing_is_under_suspicion_without_a_crash() -> None:
    assert not suspicion(GRID, [], [0, 1]).any()


def test_a_crash_speaks_against_what_lies_beyond_it_more_than_against_what_ran() -> None:
    found = suspicion(GRID, [row(0.5, 0.5, 1.0)], [row(0.0, 0.0, 0.0)])
    assert found[row(0.5, 0.5, 1.0)] == 1.0
    assert found[row(0.0, 0.0, 0.0)] == 0.0
    assert found[row(1.0, 1.0, 1.0)] > found[row(1.0, 0.0, 0.0)] > 0.0


def test_two_crashes_with_one_cause_put_its_whole_region_out_and_nothing_else() -> None:
    crashed = [row(1.0, 0.0, 0.0), row(1.0, 1.0, 1.0)]
    ran = [row(0.0, 0.0, 0.0), row(0.5, 1.0, 1.0)]
    found = suspicion(GRID, crashed, ran)
    beyond = GRID[:, 0] == 1.0
    assert (found[beyond] >= LEAVE).all()
    assert (found[~beyond] < LEAVE).all()


def test_a_run_in_the_middle_clears_the_causes_that_hold_it() -> None:
    crashed = [row(1.0, 1.0, 0.0)]
    alone = suspicion(GRID, crashed, [row(0.0, 0.0, 0.0)])
    cleared = suspicion(GRID, crashed, [row(0.0, 0.0, 0.0), row(1.0, 0.0, 0.0)])
    assert cleared[row(1.0, 0.5, 0.0)] < alone[row(1.0, 0.5, 0.0)]
