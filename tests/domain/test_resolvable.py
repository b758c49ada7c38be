"""What a late client could have made is no number; what it could not have made stays."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.parts import with_parts
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.resolvable import read_errors, withhold
from ridgeline.domain.run import ClientCheck, RunFacts, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, TrafficClass, Workload

MS = 1_000_000
WINDOW = Window(0, 60_000 * MS)
SLO = parse_slo("ttft_p99_ms=500,itl_p99_ms=80,itl_p95_ms=80,error_rate=0.01")


def row(index: int, *, at: int | None = None) -> RequestRecord:
    """TTFT 100 ms, 20 chunks 50 ms apart; at chunk `at` two came in one read, the first late."""
    sent = index * 50 * MS
    chunks = sent + 100 * MS + np.arange(20) * 50 * MS
    shared = np.zeros(20, dtype=np.bool_)
    if at is not None:
        chunks[at - 1] = chunks[at]
        shared[at] = True
    return RequestRecord(
        index=index,
        user=0,
        intended_ns=sent,
        sent_ns=sent,
        first_ns=int(chunks[0]),
        last_ns=int(chunks[-1]),
        end_ns=int(chunks[-1]),
        planned_prompt_tokens=10,
        planned_output_tokens=20,
        prompt_tokens=10,
        output_tokens=20,
        traffic_class="chat",
        chunk_ns=chunks,
        chunk_shared=shared,
    )


def told(client: ClientCheck, rows: list[RequestRecord], *, open_loop: bool = False) -> Summary:
    records: RunRecords = records_from_requests(rows)
    summary = summarise(
        records,
        WINDOW,
        facts=RunFacts("measured", WINDOW, client),
        configuration=Configuration("m", Knobs()),
        slo=SLO,
        open_loop=open_loop,
    )
    arrivals = Arrivals(rate_per_s=20) if open_loop else Arrivals(users=4)
    workload = Workload(arrivals, duration_s=60.0, classes=(TrafficClass("chat", 1.0, slo=SLO),))
    summary = with_parts(summary, records, WINDOW, workload, 1)
    return withhold(summary, read_errors(client, records, WINDOW), open_loop=open_loop)


APART = [row(i) for i in range(600)]
KERNEL = ClientCheck("kernel", None, stamp_error_p95_s=1e-9)
QUIET = replace(KERNEL, stamp_error_p99_s=1e-9, stamp_error_p999_s=0.0005, stamp_error_max_s=0.0009)
LATE = replace(KERNEL, stamp_error_p99_s=0.02, stamp_error_p999_s=0.04, stamp_error_max_s=0.05)


def test_a_quiet_client_tells_every_percentile() -> None:
    summary = told(QUIET, APART)
    assert summary.ttft_s.p99 == pytest.approx(0.1)
    assert summary.itl_s.p99 == pytest.approx(0.05)
    assert summary.worst_stall_s.p99 == pytest.approx(0.05)
    assert all(result.met for result in summary.slo)


@pytest.mark.parametrize("open_loop", [False, True])
def test_p99_within_the_clients_own_error_is_no_number(*, open_loop: bool) -> None:
    """20 ms late at p99: 20 % of a TTFT of 100 ms, 40 % of an ITL of 50 ms, 2 % of an E2E."""
    summary = told(LATE, APART, open_loop=open_loop)
    for found in (summary.ttft_s, summary.ttft_intent_s, summary.itl_s):
        assert found.p99 is None
        assert found.p95 is not None
    assert summary.e2e_s.p99 == pytest.approx(1.05)
    assert summary.tpot_s.p99 == pytest.approx(0.05)  # 20 ms over 19 gaps
    reason = summary.intervals["itl_s.p99"].reason
    assert reason is not None
    assert reason.startswith("not resolvable: the client read late (chunk times up to 20 ms off")
    assert summary.failures_as_infinite["ttft_s"].p99 is None
    assert summary.to_json()["itl_s"]["p99"] is None


def test_a_limit_on_what_is_not_told_is_not_judged() -> None:
    """Of the whole run and of a class of requests; the other limits are."""
    summary = told(LATE, APART)
    met = {(r.limit.partition("=")[0], r.traffic_class): r.met for r in summary.slo}
    for name in (None, "chat"):
        assert met["ttft_p99_ms", name] is None
        assert met["itl_p99_ms", name] is None
        assert met["itl_p95_ms", name] is True
        assert met["error_rate", name] is True
    assert summary.classes["chat"].itl_s.p99 is None


@pytest.mark.parametrize("open_loop", [False, True])
def test_first_chunks_that_are_late_more_often_take_the_ttft_with_them(*, open_loop: bool) -> None:
    """One chunk in 20 is a first one: late by 20 ms in half of the replies, they are 2.5 % of all
    chunks and no p95 of all shows it. TTFT of 100 ms is off by a fifth all the same.
    """
    client = replace(LATE, first_error_p95_s=0.02, first_error_p99_s=0.02, first_error_max_s=0.02)
    summary = told(client, APART, open_loop=open_loop)
    for found in (summary.ttft_s, summary.ttft_intent_s):
        assert (found.p50, found.p90, found.p95, found.p99) == (None, None, None, None)
    assert summary.itl_s.p95 == pytest.approx(0.05)
    fine = replace(client, first_error_p95_s=1e-9, first_error_p99_s=0.004, first_error_max_s=0.05)
    summary = told(fine, APART, open_loop=open_loop)
    assert summary.ttft_s.p99 == pytest.approx(0.1), "late chunks that are no first ones"
    assert summary.itl_s.p99 is None


def test_an_error_that_is_small_for_a_figure_leaves_it() -> None:
    client = replace(LATE, stamp_error_p99_s=0.004)  # 4 % of the TTFT, 8 % of the ITL
    summary = told(client, APART)
    assert summary.ttft_s.p99 is not None
    assert summary.itl_s.p99 is None
    assert told(replace(LATE, stamp_error_p99_s=0.0009), APART).itl_s.p99 is not None


@pytest.mark.parametrize(("error_s", "shown"), [(0.04, True), (0.06, False), (0.4, False)])
def test_a_time_per_token_has_its_share_of_the_first_chunks_error(
    error_s: float, shown: bool
) -> None:
    """Over 19 gaps of 50 ms: 2.1 ms are borne, 3.2 ms are more than 5 % of it."""
    summary = told(replace(LATE, stamp_error_p99_s=error_s, stamp_error_p999_s=0.5), APART)
    assert (summary.tpot_s.p99 is not None) is shown
    assert summary.tpot_s.p95 == pytest.approx(0.05)


class TestWorstStall:
    """One late chunk in a reply is enough to make its worst stall."""

    rare = replace(KERNEL, stamp_error_p99_s=1e-9, stamp_error_p999_s=0.04, stamp_error_max_s=0.05)

    def test_rare_late_reads_take_the_stalls_and_leave_the_gaps(self) -> None:
        rows = [row(i, at=9 if i % 10 == 0 else None) for i in range(600)]
        summary = told(self.rare, rows)
        assert summary.worst_stall_s.p50 is not None
        assert summary.worst_stall_s.p95 is None  # a tenth of the requests may owe theirs to us
        assert summary.worst_stall_s.p99 is None
        assert summary.itl_s.p95 is not None

    def test_stalls_before_a_chunk_that_was_read_alone_are_the_servers(self) -> None:
        assert told(self.rare, APART).worst_stall_s.p99 == pytest.approx(0.05)

    def test_fewer_than_the_tail_leave_the_percentile(self) -> None:
        rows = [row(i, at=9 if i % 200 == 0 else None) for i in range(600)]
        assert told(self.rare, rows).worst_stall_s.p99 is not None

    def test_times_of_reads_are_all_in_doubt(self) -> None:
        client = replace(self.rare, receive_clock="read")
        assert told(client, APART).worst_stall_s.p99 is None


def test_a_twin_has_no_late_reads() -> None:
    assert told(ClientCheck("simulated"), APART).worst_stall_s.p99 is not None
