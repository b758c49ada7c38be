"""Where a warm-up ends, on series with a known answer."""

import numpy as np
import pytest

from ridgeline.domain.steadystate import BATCH, BIN_S, Onset, drifts, plateau, truncation
from support.series import ar1

NOISE = np.random.default_rng(4).uniform(-10, 10, 60)
SETTLING = np.concatenate(([400, 700, 900, 990], 1000 + NOISE))  # tokens of each second
RISING = 1000 * (1 + 0.01 * np.arange(64))
RAMP = np.concatenate((np.arange(50, 1000, 100), np.full(20, 1000), np.arange(950, 0, -100)))


def brute_force(values: np.ndarray) -> int:
    """MSER-5 written out: the d with the smallest squared standard error of the rest's mean."""
    means = [
        float(np.mean(values[i : i + BATCH])) for i in range(0, len(values) - BATCH + 1, BATCH)
    ]
    marginal = [np.var(means[d:]) / (len(means) - d) for d in range(len(means) * 3 // 4)]
    return int(np.argmin(marginal)) * BATCH


def test_a_start_that_settles_ends_between_four_and_six_seconds() -> None:
    assert truncation(SETTLING) == 5
    rest = SETTLING[5:]
    half = 1.96 * rest.std(ddof=1) / np.sqrt(len(rest))
    assert half / rest.mean() < 0.01


def test_a_series_that_rises_to_its_end_is_not_steady() -> None:
    assert truncation(RISING) is None
    assert plateau(RISING) is None
    assert drifts(RISING)


def test_a_ramp_up_and_down_is_left_out() -> None:
    """0 to 1000 tokens/s in 10 s, 20 s of it, and down again: a mean of the whole gives 750."""
    assert RAMP.mean() == pytest.approx(750)
    assert plateau(RAMP) == (10, 30)
    fine = np.repeat(RAMP, 5) * (1 + 0.03 * np.random.default_rng(1).standard_normal(200))
    found = plateau(fine)
    assert found is not None
    start, end = found[0] / 5, found[1] / 5
    assert 9 <= start <= 12
    assert 28 <= end <= 31
    assert fine[found[0] : found[1]].mean() == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_mser_is_what_its_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 5 * int(rng.integers(12, 60))
    values = 100 * (1 - rng.random() * np.exp(-np.arange(n) / 20)) + 5 * ar1(rng, n, 1.0, 3.0)
    expected = brute_force(values)
    assert truncation(values) == (expected if expected <= n // 5 // 2 * 5 else None)


def test_too_little_tells_nothing() -> None:
    assert truncation(np.ones(29)) is None
    assert truncation(np.ones(30)) == 0
    assert truncation(np.zeros(0)) is None
    assert plateau(np.ones(29)) is None


def opened(values: np.ndarray, onset: Onset) -> float | None:
    """When an Onset says that chunks coming in at these rates (per BIN_S) are steady (s)."""
    for i, total in enumerate(np.cumsum(values)):
        if onset.look(int(total), 10):
            return (i + 1) * BIN_S
    return None


def watching(least_s: float = 6.0, *, users: int | None = None, stay_s: float = 1.0) -> Onset:
    onset = Onset(users, least_s=least_s)
    for _ in range(users or 10):
        onset.ended(stay_s)
    return onset


def test_a_run_that_is_steady_at_once_waits_for_the_least_only() -> None:
    leads = []
    for seed in range(40):
        values = 1000 * (1 + 0.05 * ar1(np.random.default_rng(seed), 300, BIN_S, 1.0))
        leads.append(opened(values, watching()) or 60.0)
    assert min(leads) == 6.0
    assert np.median(leads) <= 7.0


@pytest.mark.parametrize("constant_s", [2.0, 5.0, 10.0])
def test_it_leans_far_less_than_a_fixed_warm_up(constant_s: float) -> None:
    """Throughput that rises to its level from 40 % of it: the lean of a window of 30 s."""
    ours, fixed = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        truth = 1000 * (1 - 0.6 * np.exp(-np.arange(450) * BIN_S / constant_s))
        lead = opened(truth * (1 + 0.02 * ar1(rng, 450, BIN_S, 0.5)), watching(10.0)) or 60.0
        assert lead >= 10.0
        place = round(lead / BIN_S)
        ours.append(1 - truth[place : place + 150].mean() / 1000)
        fixed.append(1 - truth[50:200].mean() / 1000)
    assert max(ours) <= np.mean(fixed)
    assert np.mean(ours) < 0.005


def test_the_first_wave_is_waited_for() -> None:
    """Even rates mean nothing before every user has had a reply, and two stays have passed."""
    assert opened(np.full(300, 100.0), watching(0.0, stay_s=20.0)) == pytest.approx(40.0)
    early = Onset(users=8)
    for _ in range(7):
        early.ended(1.0)
    assert opened(np.full(300, 100.0), early) is None


def test_requests_that_pile_up_are_not_steady() -> None:
    onset = watching(0.0)
    seen = [onset.look(100 * (i + 1), 10 + i) for i in range(300)]
    assert not any(seen)
