"""A trial that cannot meet its targets is ended early, one that may is not (C-TU-12)."""

from collections.abc import Callable

import pytest

from ridgeline.domain.records import RunEvent
from ridgeline.domain.run import LiveFigures, SilentWatch
from ridgeline.domain.slo import parse_slo
from ridgeline.tuning.futility import Futility, FutilityWatch

SLO = parse_slo("ttft_p95_ms=500,itl_p95_ms=20")
RATE = 20.0  # requests that end per second


class Remembers(SilentWatch):
    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def event(self, event: RunEvent) -> None:
        self.events.append(event)


def drive(
    waiting: Callable[[float], float],
    *,
    kv: float = 1.0,
    running: float = 30.0,
    until_s: float = 300,
) -> tuple[float | None, Remembers]:
    """When the run of 300 s after 4 s of warm-up was stopped (None: it was not)."""
    told = Remembers()
    watch = FutilityWatch(told, Futility(SLO, 300.0))
    at = 0.0
    while at < until_s:
        queue = waiting(at)
        ended = int(RATE * at)
        in_flight = int(queue + running)
        watch.live(
            LiveFigures(
                at, 304.0, "warm-up" if at < 4 else "measuring", 1000.0, 0.1, ended + in_flight, 0,
                in_flight, 1, waiting=queue, kv_use=kv,
            )
        )  # fmt: skip
        if watch.stop_asked():
            return at, told
        at += 0.5
    return None, told


def test_a_queue_that_grows_without_end_is_stopped_by_20_s_and_the_bound_is_told() -> None:
    at, told = drive(lambda t: max(0.0, 5 * (t - 5)))
    assert at is not None
    assert at <= 20.0
    (event,) = told.events
    assert event.kind == "stopped"
    assert "ttft_p95_ms=500 cannot be met" in event.text
    assert "KV 100%" in event.text


def rises_and_falls(t: float) -> float:
    return max(0.0, 5 * (t - 5)) if t < 15 else max(0.0, 50 - 5 * (t - 15))


@pytest.mark.parametrize(
    "waiting",
    [
        rises_and_falls,
        lambda t: 40.0 + 8 * (int(t) % 3 - 1),  # long, and not growing: other bounds judge it
        lambda t: 5 * min(t, 6.0),  # users that come in, then no more
    ],
)
def test_a_queue_that_does_not_go_on_growing_is_not(waiting: Callable[[float], float]) -> None:
    assert drive(waiting)[0] is None


def test_an_engine_that_takes_ever_more_is_not_full() -> None:
    told = FutilityWatch(SilentWatch(), Futility(SLO, 300.0))
    for n in range(60):
        at, in_flight = n / 2, 10 + 5 * n
        told.live(
            LiveFigures(at, 304.0, "measuring", 1.0, 0.1, in_flight + 9 * n, 0, in_flight, 1,
                        waiting=float(n), kv_use=0.3)
        )  # fmt: skip
    assert not told.stop_asked()


def median(share: float, p50_s: float, *, seen: int = 200, phase: str = "measuring") -> str | None:
    found = Futility(SLO, 10.0)
    found.look(
        LiveFigures(4 + 10 * share, 14.0, phase, 1.0, 2.0, 500, 0, 50, 1,
                    ttft_p50_s=p50_s, ttft_seen=seen)
    )  # fmt: skip
    return found.bound


def test_a_median_above_the_target_of_a_high_percentile_is_enough_early() -> None:
    assert "median TTFT 1700 ms after 30% of the window" in (median(0.3, 1.7) or "")
    assert median(0.3, 0.4) is None, "below the target"
    assert median(0.05, 1.7) is None, "the rest may still dilute it"
    assert median(0.3, 1.7, seen=10) is None
    assert median(0.3, 1.7, phase="warm-up") is None


def test_without_a_target_on_waiting_nothing_is_stopped() -> None:
    found = Futility(parse_slo("itl_p95_ms=12"), 10.0)
    found.look(LiveFigures(13, 14, "measuring", 1, 9, 500, 0, 50, 1, ttft_p50_s=9, ttft_seen=99))
    assert found.bound is None
