"""Arrivals must follow the law that was asked for; the schedule must repeat exactly."""

import dataclasses

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix, Workload
from ridgeline.workload.schedule import Schedule, draw_schedule, stream


def open_loop(rate: float, seconds: float, process: str = "poisson", **more: float) -> Schedule:
    """A schedule without warm-up, so that the window is the whole of it."""
    seed = int(more.pop("seed", 1))
    arrivals = Arrivals(rate_per_s=rate, process=process, **more)
    return draw_schedule(Workload(arrivals, duration_s=seconds, warmup_s=0.0, seed=seed))


def gaps_s(schedule: Schedule) -> np.ndarray:
    assert schedule.intended_ns is not None
    return np.diff(schedule.intended_ns) / 1e9


def counts_per_second(schedule: Schedule, seconds: int) -> np.ndarray:
    assert schedule.intended_ns is not None
    return np.bincount(schedule.intended_ns // 1_000_000_000, minlength=seconds)[:seconds]


def test_constant_arrivals_have_no_jitter() -> None:
    schedule = open_loop(20, 60, "constant")
    assert schedule.intended_ns is not None
    assert len(schedule.intended_ns) == 1200
    assert schedule.intended_ns[0] == 0
    assert np.all(np.abs(gaps_s(schedule) - 0.05) < 1e-8)


@pytest.mark.parametrize(("rate", "expected"), [(0.2, 12), (2.0, 120), (0.1, 6), (3.0, 180)])
def test_low_constant_rates_send_the_exact_number(rate: float, expected: int) -> None:
    schedule = open_loop(rate, 60, "constant")
    assert schedule.intended_ns is not None
    assert len(schedule.intended_ns) == expected


def test_poisson_arrivals_are_poisson() -> None:
    schedule = open_loop(20, 1000, seed=1)
    gaps = gaps_s(schedule)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)
    counts = counts_per_second(schedule, 1000)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)
    assert len(gaps) / 1000 == pytest.approx(20, rel=0.02)


def test_poisson_gaps_do_not_repeat_or_correlate() -> None:
    schedule = open_loop(50, 400, seed=1)
    gaps = gaps_s(schedule)
    assert len(gaps) > 19_000
    for lag in range(1, 6):
        assert abs(np.corrcoef(gaps[:-lag], gaps[lag:])[0, 1]) < 0.03
    counts = counts_per_second(schedule, 400)
    assert 0.8 < counts.var() / counts.mean() < 1.2
    assert len(np.unique(schedule.intended_ns)) > 0.999 * len(gaps)


@pytest.mark.parametrize(("burstiness", "cv"), [(0.25, 2.0), (4.0, 0.5)])
def test_gamma_keeps_the_rate_and_sets_the_variation(burstiness: float, cv: float) -> None:
    gaps = gaps_s(open_loop(50, 1000, "gamma", burstiness=burstiness))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_the_process_runs_on_from_warm_up_into_the_window() -> None:
    arrivals = Arrivals(rate_per_s=40.0)
    long = draw_schedule(Workload(arrivals, warmup_s=10, duration_s=100, seed=3)).intended_ns
    short = draw_schedule(Workload(arrivals, warmup_s=10, duration_s=20, seed=3)).intended_ns
    assert long is not None
    assert short is not None
    assert np.array_equal(long[: len(short)], short)
    assert short[-1] < 30e9 <= long[len(short)]
    assert np.all(np.diff(long) >= 0)


def test_same_seed_same_schedule_and_streams_are_independent() -> None:
    base = Workload(Arrivals(rate_per_s=30), duration_s=30, warmup_s=5, seed=9)
    first, again = draw_schedule(base), draw_schedule(base)
    other = draw_schedule(dataclasses.replace(base, seed=10))
    assert np.array_equal(first.intended_ns, again.intended_ns)
    assert np.array_equal(first.prompt_tokens, again.prompt_tokens)
    assert not np.array_equal(first.intended_ns, other.intended_ns)
    # Another length distribution must not move the arrivals: a pair shares them.
    longer = dataclasses.replace(base, outputs=Outputs(Lengths(500, 0.5)))
    assert np.array_equal(draw_schedule(longer).intended_ns, first.intended_ns)


def test_stream_values_are_pinned() -> None:
    """Seeds are promised to mean the same traffic in every version."""
    assert stream(7, "arrivals").integers(1_000_000, size=3).tolist() == [873284, 605923, 635450]


def test_lengths_cover_their_range_evenly() -> None:
    tokens = Lengths(64, 0.5)
    workload = Workload(Arrivals(users=10), prompts=Prompts(tokens), outputs=Outputs(Lengths(96)))
    schedule = draw_schedule(workload)
    drawn = schedule.prompt_tokens
    assert (drawn.min(), drawn.max()) == (32, 96)
    assert drawn.mean() == pytest.approx(64, rel=0.01)
    assert np.bincount(drawn)[32:].min() > 800  # 65 536 rows over 65 lengths: 1 008 each
    assert set(schedule.output_tokens) == {96}


def test_shared_prefix_is_part_of_the_prompt_and_groups_are_drawn_evenly() -> None:
    prompts = Prompts(Lengths(10), SharedPrefix(tokens=1000, groups=8))
    schedule = draw_schedule(Workload(Arrivals(users=4), prompts=prompts))
    assert set(schedule.prompt_tokens) == {1010}
    shares = np.bincount(schedule.prefix_group, minlength=8) / len(schedule.prefix_group)
    assert np.all(np.abs(shares - 1 / 8) < 0.01)
    assert draw_schedule(Workload(Arrivals(users=4))).planned(0).prefix == ()


def test_users_start_spread_over_the_first_seconds() -> None:
    schedule = draw_schedule(Workload(Arrivals(users=400), warmup_s=20))
    starts = schedule.user_start_ns
    assert starts is not None
    assert schedule.intended_ns is None
    assert len(starts) == 400
    assert 0 <= starts[0] < starts[-1] < 5e9
    assert np.bincount(starts // 500_000_000, minlength=10).tolist() == [40] * 10
    short = draw_schedule(Workload(Arrivals(users=400), warmup_s=4)).user_start_ns
    assert short is not None
    assert short[-1] < 2e9


def test_closed_loop_rows_do_not_depend_on_progress() -> None:
    workload = Workload(Arrivals(users=3), prompts=Prompts(Lengths(100, 0.9)))
    schedule = draw_schedule(workload)
    assert schedule.closed(2, 5).prompt_tokens == schedule.prompt_tokens[2 + 5 * 3]


@pytest.mark.parametrize(
    ("arrivals", "says"),
    [
        (Arrivals(), "either users or a rate"),
        (Arrivals(users=3, rate_per_s=1.0), "either users or a rate"),
        (Arrivals(rate_per_s=0.0), "above 0"),
        (Arrivals(rate_per_s=5.0, process="poison"), "did you mean 'poisson'"),
        (Arrivals(rate_per_s=5.0, process="gamma", burstiness=0.0), "burstiness"),
        (Arrivals(rate_per_s=1e9), "arrivals"),
    ],
)
def test_impossible_arrivals_are_refused(arrivals: Arrivals, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        draw_schedule(Workload(arrivals))


@pytest.mark.parametrize("shape", [1e-9, 0.0, -1.0, float("nan")])
def test_gaps_too_bursty_to_fill_a_run_are_refused_at_once(shape: float) -> None:
    with pytest.raises(BadInput, match=r"burstiness must be at least 0\.01"):
        open_loop(20, 60, "gamma", burstiness=shape)


def test_the_burstiest_law_still_ends_and_keeps_its_rate() -> None:
    schedule = open_loop(1000, 1000, "gamma", burstiness=0.01)
    assert schedule.intended_ns is not None
    assert len(schedule.intended_ns) == pytest.approx(1_000_000, rel=0.05)


def test_a_rate_that_hardly_ever_sends_draws_a_short_schedule() -> None:
    schedule = open_loop(1e-12, 60)
    assert schedule.intended_ns is not None
    assert len(schedule.intended_ns) == 0
