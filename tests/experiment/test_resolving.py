"""What late reads leave open, judged by the requests that a figure or a target is made of."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.parts import with_parts
from ridgeline.domain.records import RequestRecord, records_from_requests
from ridgeline.domain.resolvable import read_errors
from ridgeline.domain.run import ClientCheck, RunFacts, Verdict, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, LoadStep, TrafficClass, Workload
from ridgeline.experiment.resolving import resolved
from ridgeline.experiment.verdict import Evidence, judge

MS = 1_000_000
WINDOW = Window(0, 20_000 * MS)
CLIENT = ClientCheck(
    "kernel",
    stamp_error_p95_s=1e-9,
    stamp_error_p99_s=1e-9,
    stamp_error_p999_s=0.0005,
    stamp_error_max_s=0.03,
    first_error_p95_s=1e-9,
    first_error_p99_s=1e-9,
    first_error_max_s=0.03,
    cpu_share=0.3,
)


def row(
    index: int, *, late_ms: float = 0, name: str | None = None, gap_ms: float = 9
) -> RequestRecord:
    """TTFT 4 ms, two gaps; the first chunk looks late_ms late, by the client's doing."""
    sent = index * 10 * MS
    chunks = sent + np.array([4 * MS, (4 + gap_ms) * MS, (4 + 2 * gap_ms) * MS], dtype=np.int64)
    late = round(late_ms * MS)
    chunks[0] += late
    return RequestRecord(
        index=index, user=index % 10, intended_ns=sent, sent_ns=sent, first_ns=int(chunks[0]),
        last_ns=int(chunks[-1]), end_ns=int(chunks[-1]), planned_prompt_tokens=32,
        planned_output_tokens=3, prompt_tokens=32, output_tokens=3, finish_reason="length",
        http_status=200, traffic_class=name, first_error_ns=late, chunk_error_ns=late,
        chunk_ns=chunks, chunk_shared=np.zeros(3, dtype=np.bool_),
    )  # fmt: skip


def told(rows: list[RequestRecord], slo: str = "", **workload: object) -> tuple[Summary, Verdict]:
    records, facts = records_from_requests(rows), RunFacts("measured", WINDOW, CLIENT)
    arrivals = workload.pop("arrivals", Arrivals(users=10))
    load = Workload(arrivals, duration_s=20.0, **workload)  # type: ignore[arg-type]
    conf, limits = Configuration("m", Knobs()), parse_slo(slo)
    summary = summarise(records, WINDOW, facts=facts, configuration=conf, slo=limits)
    summary = with_parts(summary, records, WINDOW, load, 1)
    summary = resolved(summary, records, facts, workload=load, slo=limits)
    return summary, judge(Evidence(records, facts, summary, load, limits))


SLO = "ttft_p95_ms=6,attainment=0.98"


def test_an_attainment_made_of_late_times_is_not_judged() -> None:
    """3 % of the first chunks look 4 ms late: 97 % as read, 100 % in truth."""
    rows = [row(i, late_ms=4 if i % 33 == 0 else 0) for i in range(1980)]
    summary, verdict = told(rows, SLO)
    (result,) = [r for r in summary.slo if r.limit.startswith("attainment")]
    assert (result.value, result.met) == (None, None)
    assert summary.goodput.attainment is None
    reason = summary.intervals["goodput.attainment"].reason
    assert reason is not None
    assert "between 96.97% and 100.00%" in reason
    (void,) = [r for r in verdict.reasons if "attainment" in r]
    assert "attainment=0.98 is not decided" in void


def test_an_attainment_that_is_missed_at_the_best_is_missed() -> None:
    rows = [row(i, late_ms=0 if i % 20 else 1e-3) for i in range(1980)]
    slow = [row(i, late_ms=4) if i % 10 else replace(row(i), first_error_ns=0) for i in range(1980)]
    slow = [replace(r, first_error_ns=0, chunk_error_ns=0) for r in slow]
    summary, verdict = told(slow, SLO)
    (result,) = [r for r in summary.slo if r.limit.startswith("attainment")]
    assert result.met is False
    assert result.value == pytest.approx(0.1)
    assert not any("attainment" in r for r in verdict.reasons)
    summary, _ = told(rows, SLO)
    assert all(r.met for r in summary.slo)
    assert summary.goodput.attainment == 1.0


@pytest.mark.parametrize(("limit_ms", "between"), [(8.5, True), (9.5, True), (20, False)])
def test_gaps_may_be_larger_or_smaller_than_they_look(limit_ms: float, between: bool) -> None:
    """Gaps of 9 ms in chunks that may be 1.2 ms late each: 7.8 to 10.2 ms."""
    rows = [replace(row(i), chunk_error_ns=round(1.2 * MS)) for i in range(1980)]
    summary, _ = told(rows, f"itl_p95_ms={limit_ms},attainment=0.9")
    (result,) = [r for r in summary.slo if r.limit.startswith("attainment")]
    assert (result.met is None) is between


CLASSES = (
    TrafficClass("chat", 0.04, slo=parse_slo("ttft_p95_ms=10")),
    TrafficClass("batch", 0.96),
)


def test_a_rare_class_is_judged_by_its_own_lateness() -> None:
    """4 % of all requests are chat, and all of those are late: no p95 of all shows it."""
    rows = [
        row(i, late_ms=5 if i % 25 == 0 else 0, name="chat" if i % 25 == 0 else "batch")
        for i in range(2000)
    ]
    summary, verdict = told(rows, classes=CLASSES)
    assert summary.classes["chat"].ttft_s.p50 is None
    assert summary.classes["batch"].ttft_s.p50 == pytest.approx(0.004)
    assert summary.ttft_s.p50 == pytest.approx(0.004)
    (result,) = [r for r in summary.slo if r.traffic_class == "chat"]
    assert result.met is None
    (void,) = [r for r in verdict.reasons if "first chunks of class chat" in r]
    assert "up to 5 ms too late at p95" in void


def test_a_step_is_judged_by_its_own_lateness() -> None:
    """The first twentieth of the run is late."""
    steps = (LoadStep(1.0, users=5), LoadStep(19.0, users=10))
    rows = [row(i, late_ms=5 if i < 100 else 0) for i in range(2000)]
    summary, _ = told(rows, arrivals=Arrivals(users=None, steps=steps))
    first, second = (step.figures.ttft_s for step in summary.load_steps)
    assert first.p90 is None
    assert second.p90 == pytest.approx(0.004)


def test_without_the_column_the_lateness_is_the_runs() -> None:
    """As in runs of an earlier version."""
    rows = [replace(row(i), first_error_ns=None, chunk_error_ns=None) for i in range(1000)]
    records = records_from_requests(rows)
    found = read_errors(replace(CLIENT, first_error_p95_s=0.02), records, WINDOW)
    assert found is not None
    assert (found.first_p95_s, found.first_most_s) == (0.02, 0.03)
