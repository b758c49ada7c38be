"""Differences and intervals: known coverage, known values, no false claims."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from ridgeline.domain.summary import (
    ClientFigures,
    Cost,
    Goodput,
    Percentiles,
    RequestCounts,
    Roofline,
    SloResult,
    Summary,
    Throughput,
    VerdictFigures,
)
from ridgeline.experiment.statistics import (
    compare,
    detectable,
    figure,
    merge,
    newcombe,
    t_interval,
    t_quantile,
)


def summary(
    rate: float = 1000.0,
    ttft_p95: float | None = 0.5,
    failed: int = 0,
    sent: int = 100,
    source: Literal["twin", "measured"] = "measured",
) -> Summary:
    latency = Percentiles(mean=0.1, p50=0.1, p90=0.2, p95=ttft_p95, p99=None, n=200)
    return Summary(
        source=source,
        window_s=60.0,
        requests=RequestCounts(sent, sent - failed, failed, failed / sent, {"connect": failed}),
        ttft_s=latency,
        ttft_intent_s=latency,
        itl_s=latency,
        tpot_s=latency,
        e2e_s=latency,
        worst_stall_s=latency,
        throughput=Throughput(output_tokens_per_s=rate),
        cost=Cost(usd_per_million_output_tokens=1e3 / rate),
        roofline=Roofline(),
        goodput=Goodput(),
        slo=(SloResult("ttft_p95_ms=600", None if ttft_p95 is None else ttft_p95 * 1e3, True),),
        intervals={},
        client=ClientFigures(loop_lag_p99_s=0.001),
        verdict=VerdictFigures(True, (), ("short",)),
        steps={"mean_step_s": 0.01},
    )


RATE = "throughput.output_tokens_per_s"


def test_student_t_is_the_one_of_the_tables() -> None:
    assert t_quantile(1) == pytest.approx(12.706, abs=0.001)
    assert t_quantile(2) == pytest.approx(4.303, abs=0.001)
    assert t_quantile(30) == pytest.approx(2.042, abs=0.001)


def test_interval_of_a_textbook_sample() -> None:
    # n = 4, mean 5, s = 2.582, t(3) = 3.182: half width 4.108
    low, mean, high = t_interval([2.0, 4.0, 6.0, 8.0])
    assert (low, mean, high) == (
        pytest.approx(0.892, abs=1e-3),
        5.0,
        pytest.approx(9.108, abs=1e-3),
    )


@pytest.mark.parametrize("repeats", [3, 5])
def test_equal_configurations_are_covered_and_a_planted_gain_is_found(repeats: int) -> None:
    """400 studies of equal configurations with 5 % noise on each run and 20 % shared in a pair."""
    rng = np.random.default_rng(5)
    covered = clear = found = 0
    for _ in range(400):
        shared = rng.normal(0, 0.2, repeats)

        def drawn(gain: float, shared: np.ndarray = shared) -> dict[int, Summary]:
            noise = shared + rng.normal(0, 0.05, repeats)
            return {r: summary(1000 * gain * math.exp(noise[r])) for r in range(repeats)}

        same = compare(drawn(1.0), drawn(1.0), 0.0)[RATE]
        assert same.low is not None
        assert same.high is not None
        covered += same.low <= 0 <= same.high
        clear += same.verdict != "no clear difference"
        found += compare(drawn(1.0), drawn(1.5))[RATE].verdict == "clearly better"
    assert 0.90 <= covered / 400 <= 0.99
    assert clear == 400 - covered
    assert found / 400 > 0.85


def test_direction_is_that_of_the_metric() -> None:
    slow = {1: summary(100, 0.50), 2: summary(101, 0.52), 3: summary(99, 0.51)}
    fast = {1: summary(200, 0.30), 2: summary(203, 0.31), 3: summary(198, 0.31)}
    better = compare(slow, fast)
    assert better[RATE].verdict == "clearly better"
    assert better["ttft_s.p95"].verdict == "clearly better"
    assert better["cost.usd_per_million_output_tokens"].delta == pytest.approx(-0.5, rel=0.01)
    worse = compare(fast, slow)
    assert {worse[m].verdict for m in (RATE, "ttft_s.p95")} == {"clearly worse"}


def test_two_measured_pairs_make_nothing_clear() -> None:
    """They may agree by chance, as two of results/h200/two-gpus do, whose third lies 31 % away."""
    slow = {1: summary(100, 0.50), 2: summary(101, 0.52)}
    fast = {1: summary(200, 0.30), 2: summary(202.1, 0.31)}
    got = compare(slow, fast)[RATE]
    assert got.low is not None
    assert got.low > 0.9  # an interval that would say "twice as much, and nothing else"
    assert (got.verdict, got.pairs) == ("no clear difference", 2)
    assert "two pairs do not show how large the noise is" in (got.reason or "")


def test_a_pair_is_the_same_repeat_and_only_that() -> None:
    """Repeats differ tenfold, experiments by exactly 10 %: pairing sees only the 10 %."""
    base = {r: summary(v, source="twin") for r, v in ((1, 100), (2, 1000), (3, 10_000))}
    other = {r: summary(v, source="twin") for r, v in ((3, 11_000), (1, 110), (7, 5))}
    got = compare(base, other)[RATE]
    assert got.pairs == 2
    assert got.delta == pytest.approx(0.1)
    assert (got.low, got.high) == (pytest.approx(0.1), pytest.approx(0.1))


def test_identical_twins_have_no_clear_difference() -> None:
    base = {r: summary(1000.0 + r, source="twin") for r in range(3)}
    nudged = {r: summary((1000.0 + r) * (1 + 1e-13), source="twin") for r in range(3)}
    for other in (base, nudged):
        assert compare(base, other, equal_within=0.0)[RATE].verdict == "no clear difference"


def runs(values: Sequence[float], source: Literal["twin", "measured"]) -> dict[int, Summary]:
    """Summaries that differ in p95 TTFT only."""
    return {r: summary(1000 + r, v, source=source) for r, v in enumerate(values)}


def test_exact_repetition_is_certain_in_a_twin_only() -> None:
    """A clock that tells whole milliseconds gives measured pairs the very same difference."""
    before, after = (0.100, 0.100), (0.103, 0.103)
    twin = compare(runs(before, "twin"), runs(after, "twin"))["ttft_s.p95"]
    assert (twin.verdict, twin.low) == ("clearly worse", pytest.approx(0.03))
    measured = compare(runs(before, "measured"), runs(after, "measured"))["ttft_s.p95"]
    assert (measured.verdict, measured.low, measured.high) == ("no clear difference", None, None)
    assert measured.delta == pytest.approx(0.03)
    assert "too coarse" in (measured.reason or "")
    assert merge(list(runs(before, "measured").values())).intervals["ttft_s.p95"].low is None


@pytest.mark.parametrize(
    ("after", "within", "verdict", "equal"),
    [
        ((1.0010, 1.0012, 1.0011), 0.005, "no clear difference", True),
        ((1.0010, 1.0012, 1.0011), 0.0, "clearly worse", False),
        ((1.0100, 1.0102, 1.0101), 0.005, "clearly worse", False),
        ((1.0100, 1.0102, 1.0101), 0.02, "no clear difference", True),
        ((0.9990, 1.0300, 1.0011), 0.005, "no clear difference", False),  # not known well enough
    ],
)
def test_a_difference_too_small_to_matter_says_equal(
    after: tuple[float, ...], within: float, verdict: str, equal: bool
) -> None:
    got = compare(runs((1.0, 1.0, 1.0), "measured"), runs(after, "measured"), within)["ttft_s.p95"]
    assert got.verdict == verdict
    assert (got.reason == f"equal within {100 * within:g} %") == equal
    assert got.low is not None


def test_one_failed_request_in_each_of_two_runs_is_no_clear_difference() -> None:
    """0 of 1000 against 1 of 1000, twice: the pairs agree to the last digit, the counts do not."""
    clean = {r: summary(1000 + r, sent=1000) for r in range(2)}
    once = {r: summary(1000 + r, sent=1000, failed=1) for r in range(2)}
    got = compare(clean, once)["requests.error_rate"]
    assert got.verdict == "no clear difference"
    assert got.delta == pytest.approx(0.001)
    assert got.low is not None
    assert got.high is not None
    assert got.low < 0 < got.delta < got.high
    merged = merge(list(clean.values())).intervals["requests.error_rate"]
    # no event in 2000: Wilson's upper end is z^2 / (n + z^2)
    assert (merged.low, merged.high) == (0.0, pytest.approx(3.8415 / 2003.8415, rel=1e-3))


def test_failures_that_come_in_bursts_are_not_narrowed_by_their_number() -> None:
    """30 % of one run, none of the other two: thousands of requests, but three runs."""
    clean = {r: summary(1000 + r, sent=5000) for r in range(3)}
    burst = {r: summary(1000 + r, sent=5000, failed=1500 * (r == 0)) for r in range(3)}
    assert compare(clean, burst)["requests.error_rate"].verdict == "no clear difference"


def test_newcombes_interval_is_the_published_one() -> None:
    # Newcombe 1998, table II, (a) and (g), method 10, the first share minus the second
    assert newcombe((48, 80), (56, 70)) == (
        pytest.approx(0.0524, abs=1e-4),
        pytest.approx(0.3339, abs=1e-4),
    )
    assert newcombe((0, 10), (10, 10)) == (
        pytest.approx(0.6075, abs=1e-4),
        pytest.approx(1.0, abs=1e-4),
    )


@pytest.mark.parametrize(
    ("base", "other", "why"),
    [
        ([0.5, None], [0.4, 0.4], "not measured"),
        ([0.5, 0.5], [math.inf, 0.4], "infinite"),
        ([0.5], [0.4], "one pair"),
        ([0.0, 0.5], [0.4, 0.4], "zero"),
    ],
)
def test_what_cannot_be_compared_says_why(
    base: list[float | None], other: list[float | None], why: str
) -> None:
    got = compare(
        {i: summary(ttft_p95=v) for i, v in enumerate(base)},
        {i: summary(ttft_p95=v) for i, v in enumerate(other)},
    )["ttft_s.p95"]
    assert got.verdict == "no clear difference"
    assert got.low is None
    assert got.reason is not None
    assert why in got.reason


def test_error_rates_differ_by_points_so_that_zero_can_be_compared() -> None:
    clean = {r: summary() for r in range(3)}
    dirty = {r: summary(failed=10 + r) for r in range(3)}
    got = compare(clean, dirty)["requests.error_rate"]
    assert got.delta == pytest.approx(0.11)
    assert got.verdict == "clearly worse"


class TestMerge:
    def test_figures_are_means_counts_are_sums(self) -> None:
        merged = merge([summary(900, 0.4, failed=0), summary(1100, 0.6, failed=50)])
        assert merged.throughput.output_tokens_per_s == 1000
        assert merged.ttft_s.p95 == 0.5
        assert merged.ttft_s.n == 400
        assert merged.requests == RequestCounts(200, 150, 50, 0.25, {"connect": 50})
        assert merged.steps == {"mean_step_s": 0.01}
        assert merged.verdict.warnings == ("short",)
        assert "mean over 2 repeats" in merged.notes[-1]

    @pytest.mark.parametrize(
        ("values", "worst", "met"),
        [
            ((0.3, 0.3, 0.9), 900, False),  # their mean of 500 is inside 600
            ((0.3, 0.3, 0.59), 590, True),
            ((0.9, None, 0.3), 900, False),  # one that misses decides
            ((0.3, None, 0.3), None, None),
            ((math.inf, 0.3, 0.3), math.inf, False),
        ],
    )
    def test_a_limit_is_judged_by_its_worst_repeat(
        self, values: tuple[float | None, ...], worst: float | None, met: bool | None
    ) -> None:
        found = merge([summary(ttft_p95=v) for v in values]).slo[0]
        assert found.value == (None if worst is None else pytest.approx(worst))
        assert found.met is met

    def test_one_binding_limit_is_said_and_how_many_differ(self) -> None:
        limits = ("weights", "launches", "weights")
        merged = merge([replace(summary(), binding_limit=text) for text in limits])
        assert merged.binding_limit == "weights (2 of 3 repeats, the others differ)"
        assert merge([replace(summary(), binding_limit="weights")] * 3).binding_limit == "weights"

    def test_limits_that_differ_in_their_numbers_are_one_kind(self) -> None:
        limits = ("ceiling: 32 is full with 68 waiting", "ceiling: 32 is full with 67 waiting")
        merged = merge([replace(summary(), binding_limit=text) for text in limits])
        assert merged.binding_limit == limits[0]

    def test_errors_of_the_account_do_not_cancel(self) -> None:
        merged = merge([replace(summary(), steps={"closure_error": e, "mean_step_s": 0.01})
                        for e in (0.03, -0.04)])  # fmt: skip
        assert merged.steps == {"closure_error": -0.04, "mean_step_s": 0.01}

    def test_what_one_repeat_lacks_the_whole_lacks(self) -> None:
        merged = merge([summary(ttft_p95=0.5), summary(ttft_p95=None)])
        assert merged.ttft_s.p95 is None
        assert merged.slo[0].met is None

    def test_infinite_stays_infinite(self) -> None:
        assert merge([summary(ttft_p95=math.inf), summary()]).ttft_s.p95 == math.inf

    def test_the_interval_is_over_repeats(self) -> None:
        merged = merge([summary(1000), summary(1000), summary(1331)])
        found = merged.intervals[RATE]
        # logs 6.9078, 6.9078, 7.1937: mean 7.0031, s = 0.16507, half = 4.303 s / sqrt 3 = 0.41008
        assert found.low == pytest.approx(730.0, rel=2e-3)
        assert found.high == pytest.approx(1658.0, rel=2e-3)
        assert found.n == 3

    def test_one_repeat_comes_back_as_it_is(self) -> None:
        only = summary()
        assert merge([only]) is only


def test_a_figure_that_is_not_there_is_none() -> None:
    assert figure(summary(), "throughput.chunks_per_s") is None
    assert figure(summary(), "nowhere.at_all") is None
    assert figure(replace(summary(), steps={"a": 2.0}), "steps.a") == 2.0


def test_what_would_be_found_is_that_of_the_tables() -> None:
    """Five pairs, sd 0.1: (2.776 + 0.941) x 0.1 / sqrt(5) = 0.1662 on the log scale."""
    steps = [-0.1, -0.1, 0.0, 0.1, 0.1]
    assert float(np.std(steps, ddof=1)) == pytest.approx(0.1)
    assert detectable(steps) == pytest.approx(math.expm1(0.1662), abs=2e-4)
    base = {r: summary(1000.0) for r in range(1, 6)}
    other = {r: summary(1000.0 * math.exp(s)) for r, s in enumerate(steps, 1)}
    found = compare(base, other)[RATE]
    assert found.verdict == "no clear difference"
    assert found.detectable == pytest.approx(math.expm1(0.1662), abs=2e-4)


def test_a_test_with_that_difference_has_that_power() -> None:
    """The approximation against drawing: pairs of sd 0.1 around the difference that is told."""
    rng = np.random.default_rng(3)
    for n in (3, 5, 10):
        factor = (t_quantile(n - 1) + t_quantile(n - 1, 0.8)) / math.sqrt(n)
        drawn = rng.normal(factor * 0.1, 0.1, size=(20_000, n))
        lows = drawn.mean(1) - t_quantile(n - 1) * drawn.std(1, ddof=1) / math.sqrt(n)
        assert float(np.mean(lows > 0)) == pytest.approx(0.8, abs=0.05)
