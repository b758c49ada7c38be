"""Windows in which the level changed, as two real H200 runs had them (tokens of each second)."""

import numpy as np
import pytest
from experiment_builders import evidence, request

from ridgeline.experiment.steady import level_shift, not_steady

FELL = [3167, 3161, 3415, 3443, 3383, 3666, 3571, 2966, 3449, 2774, 2092, 2275, 2467, 2558, 2276]
STEPPED = [8046, 8867, 8668, 8363, 7784, 6776, 6523, 6657, 6893, 6958, 6731, 6899, 6777, 6882]


@pytest.mark.parametrize(("series", "change"), [(FELL, -0.33), (STEPPED, -0.23)])
def test_a_level_that_changed_is_found(series: list[int], change: float) -> None:
    assert level_shift(np.array(series, dtype=float)) == pytest.approx(change, abs=0.01)


def test_a_steady_level_is_left_alone() -> None:
    """Waves of a closed loop and noise of 5 %, 2000 windows of 15 s: at most 1 % false alarms."""
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(2000):
        wave = 0.1 * np.sin(2 * np.pi * (np.arange(15) / 2.7 + rng.random()))
        alarms += level_shift(1000 * (1 + wave + 0.05 * rng.standard_normal(15))) is not None
    assert alarms <= 20


@pytest.mark.parametrize(
    ("half", "least"),
    [((40, 60), 40), ((42, 60), 36), ((45, 60), 20), ((0, 15), 16), ((0, 20), 40)],
)
def test_a_load_that_goes_at_half_for_a_part_is_found(half: tuple[int, int], least: int) -> None:
    """Thirty short answers a second, and a server that answers every second one for a part of the
    window; also where the step lies within a third. Of 40 windows each.
    """
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(40):
        tokens = 32.0 * rng.poisson(30, 60)
        tokens[slice(*half)] /= 2
        found += level_shift(tokens) is not None
    assert found >= least


def test_too_few_seconds_tell_nothing() -> None:
    assert level_shift(np.array([1.0] * 5 + [9.0] * 6)) is None
    assert level_shift(np.zeros(30)) is None


def test_what_fell_fell_by_no_more_than_all() -> None:
    """A server killed after 14 of 60 s: of its throughput nothing is left, and not less."""
    rows = [request(i, 0.1 * i) for i in range(140)]
    rows += [request(140 + i, 14 + 0.1 * i, failure="connection") for i in range(460)]
    told = [d.text for d in not_steady(evidence(rows, seconds=60.0))]
    assert "not steady: throughput changed by -100% over the window" in told


def test_a_late_start_rose_from_nothing() -> None:
    rows = [request(i, 40 + 0.1 * i) for i in range(200)]
    told = [d.text for d in not_steady(evidence(rows, seconds=60.0))]
    assert any(t.startswith("not steady: throughput rose from 0 to 99.5 tokens") for t in told)
