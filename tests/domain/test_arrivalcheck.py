"""Figures of an arrival process, against processes whose figures are known."""

import numpy as np
import pytest

from ridgeline.domain.arrivalcheck import (
    arrival_figures,
    autocorrelation,
    burst_skew_s,
    dispersion,
)
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.run import Window
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.load.traffic import Share
from ridgeline.workload.schedule import draw_schedule

S = 1_000_000_000


def sent_at(times_ns: np.ndarray, intended_ns: np.ndarray | None = None) -> RunRecords:
    meant = times_ns if intended_ns is None else intended_ns
    return records_from_requests(
        [
            RequestRecord(i, None, int(due), int(at), int(at), int(at), int(at), 1, 1,
                          chunk_ns=np.array([int(at)]))
            for i, (at, due) in enumerate(zip(times_ns, meant, strict=True))
        ]
    )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 4, 10])
def test_a_poisson_schedule_stays_one_when_it_is_dealt_out(workers: int) -> None:
    """20 000 arrivals: dispersion 1, gaps without memory, the very same list for 1, 4 and 10."""
    load = Workload(Arrivals(rate_per_s=100.0), duration_s=200.0, warmup_s=0.0, seed=3)
    schedule = draw_schedule(load)
    times = schedule.intended_ns
    assert times is not None
    parts = [times[list(Share(i, workers).rows(len(times)))] for i in range(workers)]
    together = np.sort(np.concatenate(parts))
    assert (together == times).all()
    found = arrival_figures(sent_at(together), Window(0, 200 * S))
    assert found is not None
    assert len(times) > 19_000
    assert found.achieved_per_s == found.asked_per_s == pytest.approx(100, rel=0.03)
    assert found.gap_cv == pytest.approx(1.0, abs=0.03)
    assert found.dispersion is not None
    assert 0.9 <= found.dispersion <= 1.1
    assert max(map(abs, found.autocorrelation)) < 0.03
    assert len(found.autocorrelation) == 5


def test_regular_arrivals_do_not_vary() -> None:
    found = arrival_figures(sent_at(np.arange(2000) * (S // 20)), Window(0, 100 * S))
    assert found is not None
    assert found.gap_cv == pytest.approx(0.0, abs=1e-9)
    assert found.dispersion is not None
    assert found.dispersion < 0.05
    assert found.burst_skew_max_s is None


def test_four_poisson_workers_that_each_send_in_bursts_of_all() -> None:
    """Batches of four at a Poisson process's times: counts vary four times as much."""
    rng = np.random.default_rng(5)
    times = np.repeat(np.cumsum(rng.exponential(0.04, 5000)), 4) * 1e9
    window = Window(0, 190 * S)
    inside = times[times < window.end_ns]
    assert dispersion(inside, window, 1000) == pytest.approx(4.0, rel=0.25)


def test_autocorrelation_of_an_alternating_series() -> None:
    values = np.tile([1.0, 3.0], 500)
    assert autocorrelation(values, 1) == pytest.approx(-1.0, abs=0.01)
    assert autocorrelation(values, 2) == pytest.approx(1.0, abs=0.01)


def test_burst_skew_is_from_the_first_sending_to_the_last_of_one_moment() -> None:
    """Five at 0, spread over 4 ms; three at 1 s, over 9 ms; a single late one is no burst."""
    meant = np.array([0, 0, 0, 0, 0, S, S, S, 2 * S], dtype=float)
    sent = meant + np.array([1, 5, 2, 3, 4, 10, 1, 5, 500]) * 1e6
    assert burst_skew_s(meant, sent) == pytest.approx(0.009)
    assert burst_skew_s(meant[-1:], sent[-1:]) is None
    never = np.where(np.arange(9) == 5, np.nan, sent)
    assert burst_skew_s(meant, never) == pytest.approx(0.004)


def test_too_few_say_only_how_many() -> None:
    found = arrival_figures(sent_at(np.arange(10) * S), Window(0, 10 * S))
    assert found is not None
    assert found.achieved_per_s == 1.0
    assert found.gap_cv is None
    assert found.dispersion is None
    assert arrival_figures(sent_at(np.empty(0)), Window(0, S)) is None
