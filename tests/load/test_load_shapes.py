"""The load client under a cap, a stepped load and sessions, against a mock that stamps."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.parts import with_parts
from ridgeline.domain.records import RequestRecord
from ridgeline.domain.run import RunFacts
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, LoadStep, Workload
from ridgeline.report.numbers import duration
from ridgeline.report.statistics import statistics_lines
from ridgeline.workload.schedule import Schedule, draw_schedule
from support.driving import Outcome, drive, opened
from support.mock_server import MockServer, plain_stream

MS = 1_000_000


def capped(times_s: list[float], cap: int, *, duration_s: float) -> Schedule:
    schedule = opened(times_s, duration_s=duration_s)
    arrivals = replace(schedule.workload.arrivals, max_concurrency=cap)
    return replace(schedule, workload=replace(schedule.workload, arrivals=arrivals))


def e2e_ms(records: list[RequestRecord]) -> list[float]:
    return [((r.last_ns or 0) - (r.sent_ns or 0)) / MS for r in records]


def intent_ms(records: list[RequestRecord]) -> list[float]:
    return [((r.last_ns or 0) - r.intended_ns) / MS for r in records]


def test_the_wait_for_a_slot_is_in_every_figure_from_intent() -> None:
    """Ten requests at once, 100 ms each, one at a time: 100 ms from sending, 100 .. 1000 meant."""
    schedule = capped([0.0] * 10, 1, duration_s=0.5)
    with MockServer([plain_stream(1, first_ms=100)]) as mock:
        outcome = drive(mock.url, schedule)
        assert mock.peak_busy == 1
    records = outcome.records
    assert len(records) == 10
    assert all(r.failure is None for r in records)
    # those that got their slot after the window's end were meant for it: they belong to it
    assert sum((r.sent_ns or 0) > 500 * MS for r in records) >= 4
    # 100 ms and 550 ms on a quiet machine; on a busy one each of the ten in turn comes later
    assert 99 <= np.median(e2e_ms(records)) < 200
    assert 545 <= np.mean(intent_ms(records)) < 1100
    assert np.mean(intent_ms(records)) > 4 * np.mean(e2e_ms(records))
    waits = [(r.cap_wait_ns or 0) / MS for r in records]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] >= 895
    ends = np.array([(r.end_ns or 0) for r in records])
    sends = np.array([(r.sent_ns or 0) for r in records])
    assert (sends[1:] >= ends[:-1]).all()  # the slot was given when the one before had ended
    # the client was not late: it waited because it was told to
    late = outcome.result.client.send_lateness_max_s
    assert late is not None
    assert late < 0.3
    figures = summary_of(outcome, schedule)
    assert figures.requests.sent == 10
    assert figures.cap_wait_s is not None
    assert figures.cap_wait_s.n == 10
    # the smallest wait that half of them do not exceed
    assert figures.cap_wait_s.p50 == pytest.approx(sorted(waits)[4] / 1e3)
    assert figures.e2e_intent_s is not None
    assert figures.e2e_intent_s.mean == pytest.approx(np.mean(intent_ms(records)) / 1e3)
    assert figures.e2e_s.mean == pytest.approx(np.mean(e2e_ms(records)) / 1e3)
    # console and page show all three
    shown = {line.name: line.values for line in statistics_lines(figures)}
    assert shown["E2E"][0] == duration(figures.e2e_s.mean)
    assert shown["E2E from intent"][0] == duration(figures.e2e_intent_s.mean)
    assert shown["wait for a slot"][1] == duration(figures.cap_wait_s.p50)


def summary_of(outcome: Outcome, schedule: Schedule) -> Summary:
    facts = RunFacts("measured", outcome.result.window, outcome.result.client)
    configuration = Configuration("m", Knobs(), "endpoint")
    found = summarise(
        outcome.sink.records(), facts.window, facts=facts, configuration=configuration, slo=Slo(),
        open_loop=True,
    )  # fmt: skip
    return with_parts(found, outcome.sink.records(), facts.window, schedule.workload, 1)


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    with MockServer([plain_stream(1, first_ms=5)]) as mock:
        outcome = drive(mock.url, capped([0.05 * i for i in range(8)], 50, duration_s=0.4))
    assert [r.cap_wait_ns for r in outcome.records] == [0] * 8


def test_what_still_waits_at_the_end_of_the_grace_time_counts_as_given_up() -> None:
    schedule = capped([0.0] * 5, 1, duration_s=0.2)
    with MockServer([plain_stream(1, first_ms=300)]) as mock:
        outcome = drive(mock.url, schedule, grace_s=0.4)
    failures = [r.failure for r in outcome.records]
    assert len(failures) == 5
    assert failures[0] is None
    assert failures[-2:] == ["cancelled", "cancelled"]
    assert outcome.records[-1].sent_ns is None
    assert outcome.records[-1].first_ns is None


def test_a_server_that_stops_answering_ends_its_step_and_the_rest_is_not_begun() -> None:
    """5, 20, 20/s for 2 s each; from the middle of the second step on nothing comes back."""
    arrivals = Arrivals(
        process="constant",
        steps=(LoadStep(2, rate_per_s=5), LoadStep(2, rate_per_s=20), LoadStep(2, rate_per_s=20)),
    )
    schedule = draw_schedule(Workload(arrivals, duration_s=6, warmup_s=0))
    scripts = [*[plain_stream(2, first_ms=5)] * 15, plain_stream(2, first_ms=60_000)]
    with MockServer(scripts) as mock:
        outcome = drive(mock.url, schedule)
    (fault,) = outcome.result.faults
    assert "the server stalled: nothing came for" in fault
    window = outcome.result.window
    assert 3.2e9 <= window.end_ns < 5.5e9  # after 1 s of silence in the second step
    kept = [r for r in outcome.records if r.failure is None]
    assert len(kept) == 15  # what was measured before is there
    lost = [r for r in outcome.records if r.failure is not None]
    assert {r.failure for r in lost} == {"timeout_total"}
    assert {r.failure_detail for r in lost} == {"the server stalled"}
    assert [e.kind for e in outcome.sink.events] == ["stalled"]


def test_a_slow_server_under_a_stepped_load_is_not_called_stalled() -> None:
    arrivals = Arrivals(steps=(LoadStep(1, users=2), LoadStep(1, users=4)))
    schedule = draw_schedule(Workload(arrivals, duration_s=2, warmup_s=0))
    with MockServer([plain_stream(4, first_ms=300, gap_ms=100)]) as mock:
        outcome = drive(mock.url, schedule)
        assert mock.peak_busy == 4
    assert outcome.result.faults == ()
    early = [r for r in outcome.records if (r.sent_ns or 0) < 1e9]
    assert {r.user for r in early} == {0, 1}
    assert {r.user for r in outcome.records} == {0, 1, 2, 3}
