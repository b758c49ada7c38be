"""Figures of the parts of a run: of each class of its requests, of each step of its load.

Each is defined as the figure of a whole run is, on the part's own requests or its own time. What
waits for a slot under a cap on the requests in flight is told here too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.domain.attainment import attained, judge
from ridgeline.domain.metrics import (
    LATENCIES,
    Sample,
    count_requests,
    inter_token,
    take_sample,
    throughput,
)
from ridgeline.domain.percentile import percentiles
from ridgeline.domain.records import Bools, RunRecords
from ridgeline.domain.run import Window
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Goodput, LoadStepFigures, PartFigures, SloResult, Summary
from ridgeline.domain.workload import LoadStep, Workload

SETTLE_SHARE, SETTLE_MOST_S = 0.2, 10.0  # of a step: what its own figures leave out


def with_parts(
    summary: Summary, records: RunRecords, window: Window, workload: Workload, gpus: int
) -> Summary:
    """The summary with the figures of its classes and load steps, and the waits under a cap."""
    open_loop = not workload.arrivals.closed_loop
    classes = {}
    for kind in workload.classes:
        own = select(records, named(records, kind.name))
        classes[kind.name] = part_figures(own, window, kind.slo, gpus, open_loop=open_loop)
    slo = [
        SloResult(found.limit, found.value, found.met, name)
        for name, part in classes.items()
        for found in part.slo
    ]
    summary = replace(summary, classes=classes, slo=(*summary.slo, *slo))
    if summary.goodput.attainment is None:
        summary = replace(summary, goodput=_goodput_of(list(classes.values())))
    if workload.arrivals.steps:
        summary = replace(summary, load_steps=_load_steps(records, window, workload, gpus))
    if workload.arrivals.max_concurrency is not None:
        sample = take_sample(records, window)
        waits = records.cap_wait_ns[sample.rows] / 1e9
        ends = (records.last_ns - records.intended_ns)[sample.rows][sample.ok] / 1e9
        summary = replace(
            summary,
            cap_wait_s=percentiles(waits[~np.isnan(waits)]),
            e2e_intent_s=percentiles(ends[~np.isnan(ends)]),
        )
    return summary


def named(records: RunRecords, name: str) -> Bools:
    """Which requests are of the class."""
    return np.array([found == name for found in records.text["traffic_class"]], dtype=np.bool_)


def select(records: RunRecords, mask: Bools) -> RunRecords:
    """The records of some requests alone."""
    rows = np.flatnonzero(mask)
    counts = np.diff(records.chunk_start)
    kept = np.repeat(mask, counts)
    start = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts[rows], out=start[1:])
    return RunRecords(
        index=records.index[rows],
        numbers={name: column[rows] for name, column in records.numbers.items()},
        text={name: [column[i] for i in rows] for name, column in records.text.items()},
        chunk_start=start,
        chunk_ns=records.chunk_ns[kept],
        chunk_shared=records.chunk_shared[kept],
        steps=records.steps,
    )


def part_figures(
    records: RunRecords, window: Window, slo: Slo, gpus: int, *, open_loop: bool
) -> PartFigures:
    """The figures of these records in this window, judged by these limits."""
    sample = take_sample(records, window)
    views = {name: sample.percentiles(name) for name in LATENCIES}
    worst = {name: sample.percentiles(name, failures=True) for name in LATENCIES}
    for view in (views, worst):
        view["itl_s"] = inter_token(sample, view["itl_s"])[0]
    counts = count_requests(records, sample)
    goodput = _goodput(records, sample, slo, open_loop=open_loop)
    return PartFigures(
        requests=counts,
        ttft_s=views["ttft_s"],
        ttft_intent_s=views["ttft_intent_s"],
        itl_s=views["itl_s"],
        tpot_s=views["tpot_s"],
        e2e_s=views["e2e_s"],
        worst_stall_s=views["worst_stall_s"],
        throughput=throughput(records, sample, gpus),
        goodput=goodput,
        slo=judge(slo, worst, counts, goodput, open_loop=open_loop),
        failures_as_infinite=worst,
    )


def _goodput(records: RunRecords, sample: Sample, slo: Slo, *, open_loop: bool) -> Goodput:
    meets = attained(records, sample.rows, sample.values, sample.ok, slo, open_loop=open_loop)
    if meets is None or not len(meets) or sample.window.seconds <= 0:
        return Goodput()
    return Goodput(float(meets.mean()), float(meets.sum()) / sample.window.seconds)


def _goodput_of(parts: Sequence[PartFigures]) -> Goodput:
    """Of all classes that have limits, each request held against its own."""
    judged = [p for p in parts if p.goodput.attainment is not None]
    sent = sum(p.requests.sent for p in judged)
    if not sent:
        return Goodput()
    met = sum((p.goodput.attainment or 0.0) * p.requests.sent for p in judged)
    return Goodput(met / sent, sum(p.goodput.requests_per_s or 0.0 for p in judged))


def step_windows(steps: Sequence[LoadStep], window: Window) -> list[tuple[LoadStep, Window]]:
    """Each step that was begun, with the time that its figures are of (its beginning left out)."""
    found, at = [], window.start_ns
    for step in steps:
        settle_s = min(SETTLE_SHARE * step.for_s, SETTLE_MOST_S)
        end = min(at + round(step.for_s * 1e9), window.end_ns)
        start = at + round(settle_s * 1e9)
        if start < end:
            found.append((step, Window(start, end)))
        at += round(step.for_s * 1e9)
    return found


def load_text(step: LoadStep) -> str:
    """What a step offers, in words."""
    if step.users is not None:
        return f"{step.users} user" + ("s" if step.users != 1 else "")
    return f"{step.rate_per_s:g} requests/s"


def _load_steps(
    records: RunRecords, window: Window, workload: Workload, gpus: int
) -> tuple[LoadStepFigures, ...]:
    open_loop = not workload.arrivals.closed_loop
    return tuple(
        LoadStepFigures(
            load_text(step),
            part.start_ns / 1e9,
            part.end_ns / 1e9,
            part_figures(records, part, Slo(), gpus, open_loop=open_loop),
        )
        for step, part in step_windows(workload.arrivals.steps, window)
    )
