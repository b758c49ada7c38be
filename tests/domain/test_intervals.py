"""Intervals must cover the truth as often as they say, on runs whose requests share steps."""

import re

import numpy as np
import pytest

from ridgeline.domain.intervals import (
    MOST_BLOCKS,
    blocks,
    correlation_s,
    latency_intervals,
    rate_interval,
    share_interval,
    student_t,
)
from ridgeline.domain.percentile import percentiles
from ridgeline.domain.run import Window
from support.series import ar1

S = 1_000_000_000
WINDOW = Window(10 * S, 70 * S)


def shared_run(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """60 s in which all 100 gaps of a second share that second's pace, as streams of a replica do.

    ln(gap) = ln(5 ms) + pace + own, pace ~ N(0, 0.2), own ~ N(0, 0.1).
    """
    pace = rng.normal(0, 0.2, 60)
    values = 0.005 * np.exp(np.repeat(pace, 100) + rng.normal(0, 0.1, 6000))
    at = WINDOW.start_ns + (np.arange(6000) * S) // 100
    return values, at


TRUE_P95 = 0.005 * np.exp(1.6449 * np.sqrt(0.2**2 + 0.1**2))
TRUE_MEAN = 0.005 * np.exp((0.2**2 + 0.1**2) / 2)


def test_block_intervals_cover_the_truth_where_pooled_order_statistics_do_not() -> None:
    hits_p95 = hits_mean = hits_pooled = 0
    draws = 100
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        values, at = shared_run(rng)
        cut = blocks(WINDOW, 2.0)
        found = latency_intervals(values, at, percentiles(values), cut)
        p95, mean = found["p95"], found["mean"]
        assert p95.low is not None
        assert p95.high is not None
        assert mean.low is not None
        assert mean.high is not None
        hits_p95 += p95.low <= TRUE_P95 <= p95.high
        hits_mean += mean.low <= TRUE_MEAN <= mean.high
        half = 1.96 * np.sqrt(6000 * 0.95 * 0.05)
        pooled = np.sort(values)[[int(5700 - half), int(5700 + half)]]
        hits_pooled += pooled[0] <= TRUE_P95 <= pooled[1]
    # Only 3 of the 60 independent seconds lie above the p95: nominal 95 %, about 91 % in truth.
    assert 0.87 <= hits_p95 / draws <= 0.99
    assert 0.90 <= hits_mean / draws <= 0.99
    assert hits_pooled / draws < 0.5


def test_a_tail_out_of_few_blocks_is_not_to_be_trusted() -> None:
    """60 independent paces hardly ever show their p99: most intervals must say they are blind,
    and none may be narrow for it.
    """
    trusted = missed = 0
    for seed in range(60):
        values, at = shared_run(np.random.default_rng(seed))
        found = latency_intervals(values, at, percentiles(values), blocks(WINDOW, 2.0))
        assert found["p50"].reason is None
        trusted += found["p99"].reason is None
        high = found["p99"].high
        assert high is not None
        missed += high < 0.005 * np.exp(2.3263 * np.sqrt(0.2**2 + 0.1**2))
    assert missed <= 6
    assert trusted <= 15


def test_few_blocks_widen_the_interval() -> None:
    hits, draws = 0, 100
    for seed in range(draws):
        values, at = shared_run(np.random.default_rng(1000 + seed))
        found = latency_intervals(values, at, percentiles(values), blocks(WINDOW, 10.0))["mean"]
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= TRUE_MEAN <= found.high
    assert 0.90 <= hits / draws <= 0.995


def test_rates_cover_too() -> None:
    hits, draws = 0, 100
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        per_second = 100 * np.exp(rng.normal(0, 0.2, 60))
        cut = blocks(WINDOW, 2.0)
        found = rate_interval(per_second.reshape(30, 2).sum(axis=1), 60, cut)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 100 * np.exp(0.02) <= found.high
    assert 0.90 <= hits / draws <= 0.99


@pytest.mark.parametrize(
    ("residence_s", "count"), [(0.1, MOST_BLOCKS), (2.0, 30), (2.1, 28), (12.0, 5), (12.1, 4)]
)
def test_blocks_are_longer_than_a_request_stays(residence_s: float, count: int) -> None:
    cut = blocks(WINDOW, residence_s)
    assert cut.count == count
    assert (cut.reason is None) == (count >= 5)


def test_too_few_blocks_are_a_reason_not_an_interval() -> None:
    values, at = shared_run(np.random.default_rng(0))
    cut = blocks(WINDOW, 25.0)
    found = latency_intervals(values, at, percentiles(values), cut)
    assert found["p95"].low is None
    assert found["p95"].reason == (
        "no interval: 60 s have 2 separate parts of more than 25 s (as long as a request stays),"
        " 5 are needed; measure at least 125 s"
    )
    assert rate_interval(np.ones(2), 2, cut).reason == cut.reason
    assert blocks(WINDOW, None).reason == "no request to take a residence time from"


def test_block_of_a_time() -> None:
    cut = blocks(WINDOW, 6.0)
    times = np.array([10 * S, 16 * S - 1, 16 * S, 70 * S - 1])
    assert cut.of(times).tolist() == [0, 0, 1, 9]


def test_a_constant_has_a_narrow_interval_around_it() -> None:
    at = np.linspace(10 * S, 70 * S - 1, 1000)
    values = np.full(1000, 0.0123)
    found = latency_intervals(values, at, percentiles(values), blocks(WINDOW, 2.0))
    for key in ("mean", "p50", "p95", "p99"):
        low, high = found[key].low, found[key].high
        assert low is not None
        assert high is not None
        assert low <= 0.0123 + 1e-12
        assert high >= 0.0123 - 1e-12
        assert high / low < 1.01


def test_an_unsupported_percentile_has_its_reason() -> None:
    at = np.linspace(10 * S, 70 * S - 1, 60)
    values = np.full(60, 0.1)
    found = latency_intervals(values, at, percentiles(values), blocks(WINDOW, 2.0))
    assert found["p95"].reason == "n too small: 60 of the 100 values that a p95 needs"
    assert found["p50"].low is not None


def test_no_failure_is_not_a_certain_zero() -> None:
    """0 of 1000 failures: at most 0.368 % (exact binomial, two-sided 95 %)."""
    at = np.linspace(10 * S, 70 * S - 1, 1000)
    found = share_interval(np.zeros(1000), at, blocks(WINDOW, 2.0))
    assert (found.low, found.high) == (0.0, pytest.approx(0.003682, abs=1e-6))
    found = share_interval(np.ones(1000), at, blocks(WINDOW, 2.0))
    assert (found.low, found.high) == (pytest.approx(1 - 0.003682, abs=1e-6), 1.0)


def test_failures_in_one_burst_are_less_certain_than_scattered_ones() -> None:
    at = np.linspace(10 * S, 70 * S - 1, 3000)
    burst, scattered = np.zeros(3000), np.zeros(3000)
    burst[1000:1100] = 1
    scattered[::30] = 1
    cut = blocks(WINDOW, 2.0)
    wide, narrow = share_interval(burst, at, cut), share_interval(scattered, at, cut)
    assert wide.high is not None
    assert narrow.high is not None
    assert wide.high - 1 / 30 > 3 * (narrow.high - 1 / 30)


@pytest.mark.parametrize(
    ("degrees", "table"), [(4, 2.7764), (9, 2.2622), (29, 2.0452), (1000, 1.9623)]
)
def test_student_t_against_the_table(degrees: int, table: float) -> None:
    assert student_t(degrees) == pytest.approx(table, rel=0.003)


@pytest.mark.parametrize("constant_s", [0.05, 1.0])
def test_values_that_go_together_are_covered_too(constant_s: float) -> None:
    """AR(1) over 60 s with a residence of 1 s. Blocks of that length alone would cover the mean of
    the slow series in 85 of 100 windows only.
    """
    window, n = Window(0, 60 * S), 600
    at = ((np.arange(n) + 0.5) * 0.1 * S).astype(np.int64)
    hits = {"rate": 0, "mean": 0, "p95": 0}
    draws = 100
    for seed in range(draws):
        x = 0.3 * ar1(np.random.default_rng(seed), n, 0.1, constant_s)
        values, rates = 0.02 * np.exp(x), 100 * (1 + 0.5 * x)
        cut = blocks(window, 1.0, correlation_s(window, at, values))
        found = latency_intervals(values, at, percentiles(values), cut)
        truths = {"mean": 0.02 * np.exp(0.045), "p95": 0.02 * np.exp(0.3 * 1.6449)}
        for key, truth in truths.items():
            low, high = found[key].low, found[key].high
            assert low is not None
            assert high is not None
            hits[key] += low <= truth <= high
        amounts = np.bincount(cut.of(at), rates * 0.1, minlength=cut.count)
        rate = rate_interval(amounts, n, cut)
        assert rate.low is not None
        assert rate.high is not None
        hits["rate"] += rate.low <= 100 <= rate.high
    for key, count in hits.items():
        assert 0.88 <= count / draws <= 0.99, (key, count)


def test_the_correlation_time_is_found() -> None:
    window, n = Window(0, 120 * S), 2400
    at = ((np.arange(n) + 0.5) * 0.05 * S).astype(np.int64)
    found = [
        correlation_s(window, at, 5 + ar1(np.random.default_rng(seed), n, 0.05, 2.0))
        for seed in range(40)
    ]
    assert 1.4 <= np.median(found) <= 3.0
    white = [
        correlation_s(window, at, np.random.default_rng(seed).standard_normal(n))
        for seed in range(40)
    ]
    assert np.median(white) < 1.0
    assert correlation_s(window, at, np.ones(n)) == 0.0


def test_a_window_that_holds_a_few_swings_only_has_no_interval() -> None:
    window, n = Window(0, 60 * S), 600
    at = ((np.arange(n) + 0.5) * 0.1 * S).astype(np.int64)
    values = 1 + 0.3 * np.sin(np.arange(n) * 2 * np.pi / 300)
    cut = blocks(window, 1.0, correlation_s(window, at, values))
    assert cut.reason is not None
    assert re.fullmatch(
        r"no interval: 60 s have \d separate parts of more than [\d.]+ s \(3 times the [\d.]+ s for"
        r" which its values rise and fall together\), 5 are needed; measure at least \d+ s",
        cut.reason,
    )
    asked = float(cut.reason.split()[-2])
    longer = Window(0, round(asked * S))
    together = correlation_s(window, at, values)
    assert blocks(longer, 1.0, together).reason is None
    assert blocks(Window(0, round((asked - 2) * S)), 1.0, together).reason is not None
