"""The estimate of a winner is not the winner's curse (by simulation and by cases)."""

import numpy as np
import pytest

from ridgeline.tuning.duel import DuelPlan, Round, stand
from ridgeline.tuning.shrink import shrink


def finals(
    means: np.ndarray, random: np.random.Generator, rounds: int, noise: float, common: float
) -> list[Round]:
    return [
        {
            c: float(np.exp(m + level + noise * random.standard_normal()))
            for c, m in enumerate(means)
        }
        for level in common * random.standard_normal(rounds)
    ]


def bias(spread: float, finalists: int, rounds: int, noise: float = 0.06) -> tuple[float, float]:
    """Mean log error of the winner's raw and shrunk estimate over 1500 studies."""
    random = np.random.default_rng([finalists, rounds])
    raw, value = [], []
    for _ in range(1500):
        means = spread * random.standard_normal(finalists)
        found = shrink(finals(means, random, rounds, noise, 0.05), range(finalists))
        best = max(found, key=lambda c: found[c].raw)
        raw.append(np.log(found[best].raw) - means[best])
        value.append(np.log(found[best].value) - means[best])
    return float(np.mean(raw)), float(np.mean(value))


@pytest.mark.parametrize("finalists", [3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.05, 0.2])
def test_the_winners_estimate_is_within_one_per_cent_on_average(
    spread: float, finalists: int
) -> None:
    raw, value = bias(spread, finalists, rounds=5)
    assert abs(value) < 0.01
    if spread <= 0.02:
        assert raw > 0.015  # what it is good for


def test_twenty_equals_are_told_their_common_value() -> None:
    random = np.random.default_rng(3)  # C-TU-10: true mean 550, sd 25, one run each
    runs = 550 + 25 * random.standard_normal(20)
    chosen = np.argsort(runs)[-3:]
    assert runs[chosen[-1]] > 585
    rounds: list[Round] = [
        {c: float(550 + 25 * random.standard_normal()) for c in range(3)} for _ in range(8)
    ]
    state = stand(rounds, DuelPlan(3))
    assert not state.best
    assert "no clear difference" in state.reason
    assert state.leader is not None
    found = shrink(rounds, range(3))[state.leader]
    assert 535 < found.value < 565
    assert found.low is not None
    assert found.high is not None
    assert found.low < 550 < found.high


def test_a_lead_far_above_the_noise_is_kept() -> None:
    random = np.random.default_rng(4)
    found = shrink(finals(np.log([100.0, 200.0, 400.0]), random, 5, 0.02, 0.05), range(3))
    assert found[2].kept > 0.99
    assert found[2].value == pytest.approx(400, rel=0.08)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    random, held = np.random.default_rng(6), []
    for _ in range(600):
        means = 0.05 * random.standard_normal(4)
        found = shrink(finals(means, random, 5, 0.05, 0.06), range(4))
        best = max(found, key=lambda c: found[c].raw)
        low, high = found[best].low, found[best].high
        assert low is not None
        assert high is not None
        held.append(low <= np.exp(means[best]) <= high)
    assert 0.9 < np.mean(held) <= 1.0


def test_one_round_has_no_interval_and_those_who_left_keep_their_figure() -> None:
    single = shrink([{0: 10.0, 1: 12.0}], (0, 1))
    assert single[1].low is None
    left: list[Round] = [{0: 10.0, 1: 12.0, 2: 5.0}, {0: 11.0, 1: 13.0}, {0: 9.0, 1: 11.5}]
    found = shrink(left, (0, 1, 2))
    assert found[2].rounds == 1
    assert found[2].raw < found[0].raw < found[1].raw
    assert shrink([], (0, 1)) == {}
    assert set(shrink([{0: 10.0, 1: None}], (0, 1))) == {0}
