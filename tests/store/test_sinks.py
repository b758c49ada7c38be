"""One contract for every RecordSink: what goes in comes out, whatever carried it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.domain.records import (
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    MemorySink,
    RecordSink,
    RequestRecord,
    RunEvent,
    RunRecords,
    StepRuns,
    StepTable,
    records_from_requests,
)
from ridgeline.store.journal import Journal, read_journal
from ridgeline.store.tables import read_tables, write_tables

from .conftest import failed_request, measured_request, step_table, twin_request

Carry = Callable[[Callable[[RecordSink], None]], MemorySink]


def assert_same_steps(a: StepTable | None, b: StepTable | None) -> None:
    assert (a is None) == (b is None)
    if a is None or b is None:
        return
    for name in StepTable.__dataclass_fields__:
        if name not in ("parts", "kv_total_blocks"):
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, err_msg=name)
    assert list(a.parts) == list(b.parts)
    for name, values in a.parts.items():
        assert b.parts[name].dtype == np.float32
        np.testing.assert_array_equal(values, b.parts[name])
    assert a.kv_total_blocks == b.kv_total_blocks


def assert_same(a: RunRecords, b: RunRecords) -> None:
    np.testing.assert_array_equal(a.index, b.index)
    for name in NUMBER_COLUMNS:
        np.testing.assert_array_equal(a.numbers[name], b.numbers[name], err_msg=name)
    for name in TEXT_COLUMNS:
        assert a.text[name] == b.text[name], name
    np.testing.assert_array_equal(a.chunk_start, b.chunk_start)
    np.testing.assert_array_equal(a.chunk_ns, b.chunk_ns)
    np.testing.assert_array_equal(a.chunk_shared, b.chunk_shared)
    assert_same_steps(a.steps, b.steps)


def through_memory(fill: Callable[[RecordSink], None]) -> MemorySink:
    sink = MemorySink()
    fill(sink)
    return sink


def through_journal(folder: Path) -> Carry:
    def carry(fill: Callable[[RecordSink], None]) -> MemorySink:
        path = folder / "journal"
        path.unlink(missing_ok=True)
        with Journal(path, {"run_id": "x"}) as journal:
            fill(journal)
        found = read_journal(path)
        assert found.cut_bytes == 0
        assert found.head == {"run_id": "x"}
        return MemorySink(found.requests, found.events, found.steps)

    return carry


@pytest.fixture(params=["memory", "journal"])
def carry(request: pytest.FixtureRequest, tmp_path: Path) -> Carry:
    return through_memory if request.param == "memory" else through_journal(tmp_path)


class TestSinkContract:
    def test_measured_requests_come_back_in_order_of_index(self, carry: Carry) -> None:
        rng = np.random.default_rng(1)
        requests = [measured_request(i, rng) for i in (3, 0, 2)] + [failed_request(1)]

        def fill(sink: RecordSink) -> None:
            for request in requests:
                sink.request(request)

        got = carry(fill).records()
        assert got.index.tolist() == [0, 1, 2, 3]
        assert got.text["failure"] == [None, "http_status", None, None]
        assert np.isnan(got.first_ns[1])
        assert_same(got, records_from_requests(requests))

    def test_a_twin_s_steps_give_the_chunk_times(self, carry: Carry) -> None:
        rng = np.random.default_rng(2)
        table = step_table(rng)
        requests = [twin_request(i, table, rng) for i in range(30)]

        def fill(sink: RecordSink) -> None:
            for request in requests:
                sink.request(request)
            sink.steps(table)

        assert_same(carry(fill).records(), records_from_requests(requests, table))

    def test_events_keep_their_order(self, carry: Carry) -> None:
        events = [RunEvent(5, "stalled", "no bytes for 30 s"), RunEvent(1, "compile", "é \n")]

        def fill(sink: RecordSink) -> None:
            for event in events:
                sink.event(event)

        assert carry(fill).events == events

    def test_nothing_went_in(self, carry: Carry) -> None:
        assert len(carry(lambda sink: None).records()) == 0


def test_a_recorded_chunk_time_is_the_delivery_of_its_step() -> None:
    """Literal values, so that both sides of the tests above cannot be wrong alike."""
    table = step_table(np.random.default_rng(3), per_replica=(4, 3))
    table.delivered_ns[:] = [10, 20, 30, 40, 11, 21, 31]
    request = twin_request(0, table, np.random.default_rng(0))
    runs = StepRuns(1, np.array([0, 2]), np.array([1, 1]))
    got = records_from_requests([replace(request, steps=runs)], table)
    assert got.chunk_ns.tolist() == [11, 31]


class TestTables:
    @pytest.mark.parametrize("n", [0, 1, 200])
    def test_measured_records_read_back_identical(self, tmp_path: Path, n: int) -> None:
        rng = np.random.default_rng(n)
        requests = [failed_request(i) if i % 5 == 4 else measured_request(i, rng) for i in range(n)]
        write_tables(tmp_path, requests, None)
        assert_same(read_tables(tmp_path), records_from_requests(requests))

    def test_twin_records_read_back_identical(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(11)
        table = step_table(rng, per_replica=(300, 0, 17))
        requests = [twin_request(i, table, rng) for i in range(120)]
        write_tables(tmp_path, requests, table)
        assert_same(read_tables(tmp_path), records_from_requests(requests, table))
        assert not (tmp_path / "chunks.parquet").exists()

    def test_literal_values(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        stamps = np.array([100, 250, 900], np.int64)
        first = measured_request(
            0, rng, chunk_ns=stamps, chunk_shared=np.array([False, True, False]), cached_tokens=16
        )
        write_tables(tmp_path, [failed_request(4), first], None)
        got = read_tables(tmp_path)
        assert got.index.tolist() == [0, 4]
        assert got.chunk_start.tolist() == [0, 3, 3]
        assert got.chunk_ns.tolist() == [100, 250, 900]
        assert got.chunk_shared.tolist() == [False, True, False]
        assert got.cached_tokens[0] == 16
        assert np.isnan(got.cached_tokens[1])


optional_ns = st.none() | st.integers(0, 2**53)
texts = st.none() | st.text(max_size=30)


@st.composite
def any_request(draw: st.DrawFn, index: int) -> RequestRecord:
    stamps = sorted(draw(st.lists(st.integers(0, 2**62), max_size=5)))
    shared = draw(st.none() | st.lists(st.booleans(), min_size=len(stamps), max_size=len(stamps)))
    return RequestRecord(
        index=index,
        user=draw(st.none() | st.integers(0, 10**6)),
        intended_ns=draw(st.integers(0, 2**53)),
        sent_ns=draw(optional_ns),
        first_ns=draw(optional_ns),
        last_ns=draw(optional_ns),
        end_ns=draw(optional_ns),
        planned_prompt_tokens=draw(st.integers(0, 2**31)),
        planned_output_tokens=draw(st.integers(0, 2**31)),
        cached_tokens=draw(st.none() | st.integers(0, 2**31)),
        failure=draw(texts),
        failure_detail=draw(texts),
        finish_reason=draw(texts),
        chunk_ns=np.array(stamps, np.int64),
        chunk_shared=None if shared is None else np.array(shared, np.bool_),
    )


@given(data=st.data(), indices=st.sets(st.integers(0, 2**40), max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_records_survive_journal_and_tables(
    data: st.DataObject, indices: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    requests = [data.draw(any_request(i)) for i in indices]
    folder = tmp_path_factory.mktemp("run")
    with Journal(folder / "journal", {}) as journal:
        for request in requests:
            journal.request(request)
    write_tables(folder, read_journal(folder / "journal").requests, None)
    assert_same(read_tables(folder), records_from_requests(requests))
