"""How often 95 % intervals hold the truth, on series whose values go together.

Run by `make acceptance`; its figures stand in docs/acceptance.md. The truths are closed forms. A
window that is too short to tell has no interval and is counted apart, never as a hit.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.intervals import blocks, correlation_s, latency_intervals, rate_interval
from ridgeline.domain.percentile import percentiles
from ridgeline.domain.run import Window
from support.series import ar1, waits

pytestmark = pytest.mark.acceptance
S = 1_000_000_000
DRAWS = 400
RESIDENCE_S = 1.0


@pytest.mark.parametrize(
    ("constant_s", "seconds"), [(0.05, 30), (0.5, 30), (0.05, 60), (1.0, 60), (2.0, 120)]
)
def test_autoregressive_series(constant_s: float, seconds: int) -> None:
    """Gaps exp(0.3 x) and a rate 1 + 0.15 x, x an AR(1) process of that time constant."""
    window, n = Window(0, seconds * S), seconds * 10
    at = ((np.arange(n) + 0.5) * 0.1 * S).astype(np.int64)
    truths = {
        "mean": 0.02 * np.exp(0.045),
        "p50": 0.02,
        "p95": 0.02 * np.exp(0.3 * 1.6449),
        "rate": 100.0,
    }
    hits: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for seed in range(DRAWS):
        x = 0.3 * ar1(np.random.default_rng(seed), n, 0.1, constant_s)
        values, rates = 0.02 * np.exp(x), 100 * (1 + 0.5 * x)
        cut = blocks(window, RESIDENCE_S, correlation_s(window, at, values))
        found = dict(latency_intervals(values, at, percentiles(values), cut))
        found["rate"] = rate_interval(
            np.bincount(cut.of(at), rates * 0.1, minlength=cut.count), n, cut
        )
        for key, truth in truths.items():
            low, high = found[key].low, found[key].high
            if low is None or high is None:
                continue
            told[key] += 1
            hits[key] += low <= truth <= high
    shares = {key: hits[key] / told[key] for key in truths}
    print(
        f"\ntime constant {constant_s:g} s, window {seconds} s:",
        ", ".join(f"{key} {share:.1%} of {told[key]}" for key, share in shares.items()),
    )
    assert min(told.values()) >= 0.8 * DRAWS
    for key, share in shares.items():
        assert 0.90 <= share <= 0.985, key


def test_waiting_times_of_a_queue() -> None:
    """M/M/1 at 60 % load, mean service 20 ms: the mean wait is 30 ms."""
    hits = told = 0
    for seed in range(DRAWS // 2):
        times, found = waits(np.random.default_rng(seed), 3000, 0.6)
        times, found = times[500:] - times[500], found[500:]
        window = Window(0, int(times[-1] * 0.02 * S) + 1)
        at, values = (times * 0.02 * S).astype(np.int64), found * 0.02 + 0.02
        cut = blocks(window, 0.2, correlation_s(window, at, values))
        interval = latency_intervals(values, at, percentiles(values), cut)["mean"]
        if interval.low is None or interval.high is None:
            continue
        told += 1
        hits += interval.low <= 0.02 + 0.03 <= interval.high
    print(f"\nM/M/1 at 60 %: mean {hits / told:.1%} of {told}")
    assert told >= 0.9 * DRAWS // 2
    assert 0.88 <= hits / told <= 0.985
