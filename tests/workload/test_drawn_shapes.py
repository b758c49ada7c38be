"""Stepped loads, classes of requests, random pauses and sessions, as they are drawn."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    LoadStep,
    Outputs,
    Prompts,
    Sessions,
    SharedPrefix,
    TrafficClass,
    Workload,
)
from ridgeline.workload.schedule import Heard, Schedule, Segment, draw_schedule

S = 1_000_000_000


def stepped(process: str, *steps: tuple[float, float], warmup_s: float = 0.0) -> Schedule:
    """(rate, seconds) after each other."""
    arrivals = Arrivals(
        process=process, burstiness=0.25, steps=tuple(LoadStep(s, rate_per_s=r) for r, s in steps)
    )
    total = sum(s for _, s in steps)
    return draw_schedule(Workload(arrivals, duration_s=total, warmup_s=warmup_s, seed=3))


def counts(schedule: Schedule, edges_s: list[float]) -> list[int]:
    assert schedule.intended_ns is not None
    return np.histogram(schedule.intended_ns / 1e9, edges_s)[0].tolist()


def test_constant_steps_send_the_exact_numbers_with_the_exact_gaps() -> None:
    schedule = stepped("constant", (5, 20), (10, 20), (20, 20), warmup_s=10)
    assert counts(schedule, [0, 10, 30, 50, 70]) == [50, 100, 200, 400]
    assert schedule.intended_ns is not None
    at = schedule.intended_ns
    for low, high, gap in ((0, 30, 0.2), (30, 50, 0.1), (50, 70, 0.05)):
        inside = at[(at >= low * S) & (at < high * S)]
        assert np.abs(np.diff(inside) / 1e9 - gap).max() < 1e-8


def test_poisson_steps_are_poisson_in_each_step_and_keep_one_stream() -> None:
    schedule = stepped("poisson", (20, 400), (80, 400), (5, 400))
    assert schedule.intended_ns is not None
    seconds = np.bincount(schedule.intended_ns // S, minlength=1200)
    for number, rate in enumerate((20, 80, 5)):
        part = seconds[400 * number : 400 * (number + 1)]
        assert part.mean() == pytest.approx(rate, rel=4 / (400 * rate) ** 0.5)
        assert part.var() / part.mean() == pytest.approx(1.0, abs=0.2)
        inside = schedule.intended_ns[schedule.intended_ns // (400 * S) == number]
        gaps = np.diff(inside)
        assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / len(gaps) ** 0.5


def test_gamma_steps_keep_the_burstiness() -> None:
    schedule = stepped("gamma", (50, 500), (200, 500))
    assert schedule.intended_ns is not None
    for number in (0, 1):
        gaps = np.diff(schedule.intended_ns[schedule.intended_ns // (500 * S) == number])
        assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.06)


def test_users_of_a_stepped_load_come_and_go() -> None:
    steps = (LoadStep(10, users=2), LoadStep(10, users=5), LoadStep(10, users=1))
    workload = Workload(Arrivals(steps=steps), duration_s=30, warmup_s=4, seed=1)
    schedule = draw_schedule(workload)
    assert schedule.users == 5
    assert schedule.user_start_ns is not None
    starts = schedule.user_start_ns / 1e9
    assert max(starts[:2]) <= 2  # in the first half of the warm-up
    assert min(starts[2:]) >= 14
    assert max(starts[2:]) <= 14 + 2.5  # a quarter of the step
    assert len(set(starts[2:])) == 3
    # ready in the middle of a step: at once; after one's last step: never, or with a later one
    assert schedule.goes_on_ns(1, 13 * S) == 13 * S
    assert schedule.goes_on_ns(4, 20 * S) == 20 * S
    assert schedule.goes_on_ns(4, 24 * S) is None
    assert schedule.goes_on_ns(0, 30 * S) == 30 * S
    back = replace(workload, arrivals=Arrivals(steps=(*steps, LoadStep(8, users=3))), duration_s=38)
    again = draw_schedule(back).goes_on_ns(2, 25 * S)
    assert again is not None
    assert 34 * S <= again <= 36 * S


CHAT = TrafficClass("chat", 0.8, Prompts(Lengths(100, 0.5)), Outputs(Lengths(50)), priority=0)
BATCH = TrafficClass(
    "batch", 0.2, Prompts(Lengths(900), SharedPrefix(1000, 4)), Outputs(Lengths(700)), priority=9
)


def test_classes_have_their_shares_their_lengths_and_their_own_streams() -> None:
    workload = Workload(Arrivals(rate_per_s=200), duration_s=100, warmup_s=0, seed=5,
                        classes=(CHAT, BATCH))  # fmt: skip
    schedule = draw_schedule(workload)
    assert schedule.class_of is not None
    chat, batch = schedule.class_of == 0, schedule.class_of == 1
    assert chat.mean() == pytest.approx(0.8, abs=0.012)  # four standard errors of 20 000
    assert (schedule.prompt_tokens[chat].min(), schedule.prompt_tokens[chat].max()) == (50, 150)
    assert set(schedule.prompt_tokens[batch]) == {1900}
    assert set(schedule.output_tokens[batch]) == {700}
    assert set(schedule.prefix_group[chat]) == {-1}
    assert set(schedule.prefix_group[batch]) == {0, 1, 2, 3}
    row = int(np.flatnonzero(batch)[0])
    planned = schedule.planned(row)
    assert planned.traffic_class == 1
    assert planned.prefix == (Segment(int(schedule.prefix_group[row]), 1000),)
    # another batch class moves neither arrivals nor classes nor what the chat class asks for
    longer = replace(BATCH, outputs=Outputs(Lengths(10, 0.9)))
    other = draw_schedule(replace(workload, classes=(CHAT, longer)))
    assert np.array_equal(other.intended_ns, schedule.intended_ns)
    assert np.array_equal(other.class_of, schedule.class_of)
    assert np.array_equal(other.prompt_tokens[chat], schedule.prompt_tokens[chat])
    # classes without each other share no prefix
    both = draw_schedule(replace(workload, classes=(BATCH, replace(BATCH, name="b2", share=0.8))))
    assert both.class_of is not None
    first = set(both.prefix_group[both.class_of == 0])
    assert not first & set(both.prefix_group[both.class_of == 1])


def test_random_think_time_has_its_mean_and_law() -> None:
    arrivals = Arrivals(users=10, think_time_s=2.0, think_time="exponential")
    pauses = draw_schedule(Workload(arrivals, seed=2)).pause_ns
    assert pauses is not None
    assert pauses.mean() / 1e9 == pytest.approx(2.0, rel=0.02)
    assert pauses.std() / pauses.mean() == pytest.approx(1.0, abs=0.03)
    constant = draw_schedule(Workload(replace(arrivals, think_time="constant"), seed=2))
    assert constant.planned(5).think_ns == 2 * S


def test_an_explicit_ramp_spreads_the_users_evenly() -> None:
    schedule = draw_schedule(Workload(Arrivals(users=100, ramp_s=50.0), warmup_s=60))
    assert schedule.user_start_ns is not None
    starts = schedule.user_start_ns / 1e9
    assert np.histogram(starts, [0, 10, 20, 30, 40, 50])[0].tolist() == [20] * 5


def test_a_session_carries_its_past_with_the_lengths_that_the_server_counted() -> None:
    workload = Workload(
        Arrivals(users=2, think_time_s=7.0), Prompts(Lengths(10), SharedPrefix(100)),
        Outputs(Lengths(40)), sessions=Sessions(Lengths(3), think_time_s=2.0), seed=4,
    )  # fmt: skip
    schedule = draw_schedule(workload)
    first = schedule.closed(1, 0)
    assert (first.prompt_tokens, first.past, first.turn, first.think_ns) == (110, (), 0, 2 * S)
    planned = schedule.follow(first, 17)
    assert planned is not None
    assert planned.prompt_tokens == 110 + 40 + 10
    counted = schedule.follow(first, 17, Heard("so it is", 118, 33))
    assert counted is not None
    assert counted.prompt_tokens == 118 + 33 + 10
    assert (counted.own_tokens, counted.past_tokens) == (10, 151)
    assert [t.reply for t in counted.past] == ["so it is"]
    last = schedule.follow(counted, 18, Heard("yes", 161, 2))
    assert last is not None
    assert (last.turn, last.prompt_tokens) == (2, 161 + 2 + 10)
    assert [t.identity for t in last.past] == [17, 18]
    assert last.think_ns == 7 * S  # between sessions
    assert schedule.follow(last, 19) is None
    assert schedule.longest == 110 + 10 + 10 + 3 * 40


def test_sessions_differ_in_turns_and_identities_never_meet() -> None:
    workload = Workload(Arrivals(rate_per_s=50), duration_s=100, warmup_s=0, seed=6,
                        sessions=Sessions(Lengths(4, 0.5)), classes=(CHAT, BATCH))  # fmt: skip
    schedule = draw_schedule(workload)
    assert schedule.sessions is not None
    turns = schedule.sessions.turns
    assert (turns.min(), turns.max()) == (2, 6)
    identities = {schedule.identity(n, t) for n in range(len(turns)) for t in range(turns[n])}
    assert len(identities) == turns.sum() == len(schedule.prompt_tokens)
    assert schedule.class_of is not None
    for first, n in zip(schedule.sessions.first[:200], turns[:200], strict=True):
        assert len(set(schedule.class_of[first : first + n])) == 1
        own = schedule.prompt_tokens[first : first + n]
        if schedule.class_of[first] == 1:  # the shared prefix is in the first turn alone
            assert own.tolist() == [1900, *[900] * (n - 1)]
