"""A run held against its server's own stamps, and what Ridgeline itself says of it."""

from dataclasses import replace

import numpy as np

from ridgeline.domain.arrivalcheck import arrival_figures
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import records_from_requests
from ridgeline.domain.resolvable import read_errors, withhold
from ridgeline.domain.run import RunFacts, Verdict
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.experiment.verdict import Evidence, judge
from ridgeline.workload.schedule import Schedule
from support.driving import Outcome
from support.mock_server import Served

MS = 1_000_000
NO_TARGET = Slo()  # p99 is printed whether one is asked for or not


def told_of(outcome: Outcome, schedule: Schedule) -> tuple[Verdict, Summary]:
    """The verdict, and the figures that would be printed."""
    result, records = outcome.result, records_from_requests(outcome.records)
    facts = RunFacts("measured", result.window, result.client, server_faults=result.faults)
    open_loop = not schedule.workload.arrivals.closed_loop
    summary = summarise(
        records,
        result.window,
        facts=facts,
        configuration=Configuration("m", Knobs()),
        slo=NO_TARGET,
        open_loop=open_loop,
    )
    late = read_errors(facts.client, records, facts.window)
    summary = withhold(summary, late, open_loop=open_loop)
    if open_loop:
        summary = replace(summary, arrivals=arrival_figures(records, facts.window))
    return judge(Evidence(records, facts, summary, schedule.workload, NO_TARGET)), summary


def errors_ms(outcome: Outcome, served: list[Served], users: int) -> tuple[np.ndarray, np.ndarray]:
    """How far the client's times lie outside what the server's writes allow: TTFT, gaps.

    A chunk left in its write, between the stamp before it and the stamp after it. What counts is
    what figures are made of: requests sent inside the window, gaps that end there.
    """
    truth = {s.identity: s for s in served}
    zero, first, gaps = outcome.result.zero_ns, [], []
    window = outcome.result.window
    for identity, record in outcome.of_identity(users).items():
        if record.failure is not None or record.chunk_ns is None:
            continue
        got = truth[identity]
        n = len(record.chunk_ns)
        at = record.chunk_ns + zero
        low, high = np.array(got.sent_ns[1 : n + 1]), np.array(got.done_ns[1 : n + 1])
        if window.start_ns <= (record.sent_ns or 0) < window.end_ns:
            first.append(max(low[0] - at[0], at[0] - high[0], 0))
        gap = np.diff(at)
        over, under = gap - (high[1:] - low[:-1]), (low[1:] - high[:-1]) - gap
        ends = record.chunk_ns[1:]
        inside = (ends >= window.start_ns) & (ends < window.end_ns)
        gaps.append(np.maximum(np.maximum(over, under), 0)[inside])
    return np.array(first) / MS, np.concatenate(gaps) / MS
