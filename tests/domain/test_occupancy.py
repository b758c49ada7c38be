"""Little's law on runs that can be added up by hand."""

import numpy as np
import pytest

from ridgeline.domain.occupancy import occupancy
from ridgeline.domain.records import RequestRecord, records_from_requests
from ridgeline.domain.run import Window

SECOND = 1_000_000_000


def request(index: int, sent_s: float, first_s: float, last_s: float) -> RequestRecord:
    first, last = round(first_s * SECOND), round(last_s * SECOND)
    return RequestRecord(
        index=index, user=None, intended_ns=round(sent_s * SECOND), sent_ns=round(sent_s * SECOND),
        first_ns=first, last_ns=last, end_ns=last, planned_prompt_tokens=1,
        planned_output_tokens=2, prompt_tokens=1, output_tokens=2, finish_reason="length",
        chunk_ns=np.array([first, last], dtype=np.int64),
    )  # fmt: skip


def test_a_steady_stream_closes_exactly() -> None:
    """One a second from -5 s on, 0.5 s to the first chunk, 2.5 s of stream: 3 in flight."""
    requests = [request(i, i - 5, i - 4.5, i - 2) for i in range(25)]
    held = occupancy(records_from_requests(requests), Window(0, 10 * SECOND))
    assert held is not None
    assert held.in_flight == pytest.approx(3.0)
    assert held.until_first == pytest.approx(0.5)
    assert held.streaming == pytest.approx(2.5)
    assert held.closure_error == pytest.approx(0.0)


def test_requests_that_overlap_an_edge_count_for_their_part_inside() -> None:
    requests = [request(0, -1, 1, 3), request(1, 8, 9, 14)]
    held = occupancy(records_from_requests(requests), Window(0, 10 * SECOND))
    assert held is not None
    assert held.until_first == pytest.approx((1 + 1) / 10)
    assert held.streaming == pytest.approx((2 + 1) / 10)
    # by the middles: both waits (2 + 1 s) and the first stream (2 s); the second's lies outside
    assert held.closure_error == pytest.approx((2 + 1 + 2) / 5 - 1)


def test_a_window_in_which_requests_pile_up_does_not_close() -> None:
    """Each stays longer than the one before: the rate of passing no longer makes up the level."""
    requests = [request(i, i * 0.5, i * 0.5 + 0.1, i * 0.5 + 0.1 + i) for i in range(20)]
    held = occupancy(records_from_requests(requests), Window(0, 10 * SECOND))
    assert held is not None
    assert abs(held.closure_error) > 0.1


def test_nothing_in_flight_is_no_account() -> None:
    records = records_from_requests([request(0, 0, 1, 2)])
    assert occupancy(records, Window(5 * SECOND, 9 * SECOND)) is None
