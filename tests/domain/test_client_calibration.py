"""What a calibration says about a load: literal levels, worked out by hand."""

import math
from dataclasses import replace

import pytest

from ridgeline.domain.calibration import ClientCalibration, ClientLevel

US = 1e-6


def level(kind: str, rate: float, *, cpu: float = 0.3, **more: object) -> ClientLevel:
    """A level that is true unless `more` says otherwise; chunk levels have ten chunks a reply."""
    requests = rate if kind == "requests" else rate / 10
    made = ClientLevel(
        kind=kind, asked_per_s=rate, requests_per_s=requests, chunks_per_s=rate, compared=500,
        failed=0, ttft_error_p50_s=0.0, ttft_error_p99_s=20 * US, itl_error_p50_s=0.0,
        itl_error_p99_s=None if kind == "requests" else 5 * US, send_lateness_p50_s=80 * US,
        send_lateness_p99_s=0.03, loop_lag_p99_s=0.02, cpu_share=cpu, server_lateness_p50_s=US,
        server_was_the_limit=False,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def able(*levels: ClientLevel) -> ClientCalibration:
    return ClientCalibration(100, 1, 1.0, levels)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttft_error_p99_s": 1.1e-3},
        {"itl_error_p99_s": 1.1e-3},
        {"send_lateness_p50_s": 1.1e-3},
        {"failed": 1},
        {"ttft_error_p99_s": None},  # nothing was compared
        {"itl_error_p99_s": None},
        {"send_lateness_p50_s": None},
    ],
)
def test_a_level_is_true_when_all_of_it_is(wrong: dict[str, object]) -> None:
    assert level("chunks", 1000).true
    assert not level("chunks", 1000, **wrong).true


def test_a_failure_with_a_full_core_is_the_clients_own_and_one_without_is_a_disturbance() -> None:
    late = {"send_lateness_p50_s": 0.02}
    assert level("requests", 9000, cpu=0.5, **late).disturbed
    assert not level("requests", 9000, cpu=0.9, **late).disturbed
    assert not level("requests", 9000, cpu=0.5).disturbed


def test_the_highest_true_rate_counts_and_what_it_costs() -> None:
    found = able(
        level("requests", 4000, cpu=0.4),
        level("requests", 8000, cpu=0.8),
        level("requests", 9500, cpu=0.97, send_lateness_p50_s=0.04),
        level("chunks", 20_000, cpu=0.5),
    )
    assert found.most_per_s("requests") == 8000
    assert found.cost_s("requests") == pytest.approx(100 * US)
    assert found.bounded("requests")
    assert found.most_per_s("chunks") == 20_000
    assert found.cost_s("chunks") == pytest.approx(25 * US)
    assert not found.bounded("chunks"), "the client had half of its core left"


def test_a_disturbed_calibration_bounds_nothing() -> None:
    late = {"send_lateness_p50_s": 0.02}
    found = able(level("requests", 2000, cpu=0.9), level("requests", 4000, cpu=0.3, **late))
    assert found.most_per_s("requests") == 2000
    assert not found.bounded("requests")


def test_what_was_never_true_and_what_was_never_tried() -> None:
    late = {"send_lateness_p50_s": 0.02}
    found = able(level("requests", 4000, cpu=0.9, **late))
    assert found.most_per_s("requests") == 0
    assert found.cost_s("requests") is None
    assert found.most_per_s("chunks") is None
    assert found.share_used(1, 1) == math.inf


def test_a_load_is_the_sum_of_its_requests_and_of_their_further_chunks() -> None:
    found = able(level("requests", 8000, cpu=0.9), level("chunks", 40_000, cpu=0.9))
    assert found.share_used(4000, 4000) == pytest.approx(0.5)
    assert found.share_used(1000, 21_000) == pytest.approx(0.125 + 0.5)
    assert found.share_used(0, 0) == 0
    assert found.share_used(4000, 44_000, bounded=True) == pytest.approx(1.5)
    unbounded = able(level("requests", 8000, cpu=0.9), level("chunks", 40_000, cpu=0.5))
    assert unbounded.share_used(4000, 44_000) == pytest.approx(1.5)
    assert unbounded.share_used(4000, 44_000, bounded=True) == pytest.approx(0.5)
