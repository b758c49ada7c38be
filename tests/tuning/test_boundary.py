"""What failed starts teach about configurations that were not started."""

from itertools import product

import numpy as np

from ridgeline.tuning.boundary import LEAVE, left, suspicion

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


def test_two_crashes_of_one_setting_put_out_what_is_nearer_to_them_than_to_what_ran() -> None:
    """Values 0 to 1 in tenths: 1.0 and 0.8 crashed, 0.2 ran; from 0.5 on nothing is started, until
    0.6 was seen to run (by another way): then the edge is sought above it.
    """
    line = np.array([[n / 10, side] for n in range(11) for side in (0.0, 1.0)])

    def at(value: float, side: float) -> int:
        return round(20 * value) + int(side)

    crashed, ran = [at(1.0, 0), at(0.8, 1)], [at(0.2, 0), at(0.2, 1)]
    gone = left(line, crashed, ran)
    assert set(line[gone][:, 0]) == {0.5, 0.6, 0.7, 0.8, 0.9, 1.0}
    gone = left(line, crashed, [*ran, at(0.6, 0)])
    assert set(line[gone][:, 0]) == {0.7, 0.8, 0.9, 1.0}
    assert not left(line, crashed[:1], ran)[at(0.6, 1)], "one crash alone may be chance"
