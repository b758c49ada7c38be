"""Steps that the API server merged are one chunk a request: in memory and as read from disk."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.domain.records import (
    RequestRecord,
    StepRuns,
    StepTable,
    records_from_requests,
    step_chunk_ns,
)
from ridgeline.store.tables import read_tables, write_tables

from .conftest import step_table, twin_request


def table_of(*delivered: list[int]) -> StepTable:
    """Steps of so many replicas that reach the client at such times."""
    table = step_table(np.random.default_rng(0), tuple(len(times) for times in delivered))
    at = np.concatenate([np.array(times, dtype=np.int64) for times in delivered])
    return replace(table, delivered_ns=at)


def request_of(index: int, replica: int, *runs: tuple[int, int]) -> RequestRecord:
    """A request whose chunks left with such (first step, steps)."""
    first, count = (np.array(column, dtype=np.int64) for column in zip(*runs, strict=True))
    blank = twin_request(index, table_of([0, 1, 2, 3]), np.random.default_rng(0))
    return replace(blank, steps=StepRuns(replica, first, count))


TABLE = table_of([10, 20, 20, 20, 30, 40, 40], [10, 20, 25])


@pytest.mark.parametrize(
    ("replica", "runs", "chunks"),
    [
        (0, [(0, 7)], [10, 20, 30, 40]),
        (0, [(1, 3)], [20]),  # all of them one chunk
        (0, [(2, 1)], [20]),  # a part of what was merged
        # Preempted, and back in a step that was merged with the last one it had: one chunk too.
        (0, [(1, 1), (3, 2)], [20, 30]),
        (0, [(0, 1), (4, 1), (6, 1)], [10, 30, 40]),
        (1, [(0, 3)], [10, 20, 25]),  # the other replica's steps of the same times are others
    ],
)
def test_by_hand(replica: int, runs: list[tuple[int, int]], chunks: list[int]) -> None:
    request = request_of(0, replica, *runs)
    assert request.steps is not None
    assert step_chunk_ns(request.steps, TABLE).tolist() == chunks
    with TemporaryDirectory() as folder:
        write_tables(Path(folder), [request], TABLE)
        found = read_tables(Path(folder))
    assert found.chunk_ns.tolist() == chunks
    assert found.chunk_start.tolist() == [0, len(chunks)]


def test_chunks_of_two_requests_at_one_time_stay_two(tmp_path: Path) -> None:
    requests = [request_of(0, 0, (1, 2)), request_of(1, 0, (2, 2)), request_of(2, 1, (1, 1))]
    write_tables(tmp_path, requests, TABLE)
    for found in (read_tables(tmp_path), records_from_requests(requests, TABLE)):
        assert found.chunk_ns.tolist() == [20, 20, 20]
        assert found.chunk_start.tolist() == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_say_the_same_of_any_steps(data: st.DataObject) -> None:
    gaps = st.lists(st.integers(0, 2), min_size=4, max_size=30)
    table = table_of(*(np.cumsum(data.draw(gaps)).tolist() for _ in range(2)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    requests = [twin_request(n, table, rng) for n in range(8)]
    derived = records_from_requests(requests, table)
    with TemporaryDirectory() as folder:
        write_tables(Path(folder), requests, table)
        read = read_tables(Path(folder))
    np.testing.assert_array_equal(read.chunk_ns, derived.chunk_ns)
    np.testing.assert_array_equal(read.chunk_start, derived.chunk_start)
    for n, request in enumerate(requests):
        assert request.steps is not None
        own = derived.chunk_ns[derived.chunk_start[n] : derived.chunk_start[n + 1]]
        steps = [
            range(f, f + c) for f, c in zip(request.steps.first, request.steps.count, strict=True)
        ]
        times = table.delivered_ns[table.replica == request.steps.replica]
        assert own.tolist() == sorted({int(times[s]) for run in steps for s in run})
