"""Stamps against a paced server's own, at load: right to a millisecond, or void and saying why."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import records_from_requests
from ridgeline.domain.resolvable import read_errors, withhold
from ridgeline.domain.run import RunFacts, Verdict
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.experiment.verdict import Evidence, judge
from ridgeline.workload.schedule import Schedule

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
from support.driving import Outcome, closed, drive  # noqa: E402
from support.mock_server import MockProcess, Served, plain_stream  # noqa: E402

pytestmark = pytest.mark.acceptance
MS = 1_000_000
NO_TARGET = parse_slo("")  # p99 is printed whether one is asked for or not
SPIN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


def told_of(outcome: Outcome, schedule: Schedule) -> tuple[Verdict, Summary]:
    """What Ridgeline itself says of the run, and the figures that it would print."""
    result, records = outcome.result, records_from_requests(outcome.records)
    facts = RunFacts("measured", result.window, result.client, server_faults=result.faults)
    summary = summarise(
        records,
        result.window,
        facts=facts,
        configuration=Configuration("m", Knobs()),
        slo=NO_TARGET,
    )
    late = read_errors(facts.client, records, facts.window)
    summary = withhold(summary, late, open_loop=False)
    return judge(Evidence(records, facts, summary, schedule.workload, NO_TARGET)), summary


def errors_ms(outcome: Outcome, served: list[Served], users: int) -> tuple[np.ndarray, np.ndarray]:
    """How far the client's times lie outside what the server's writes allow: TTFT, gaps.

    A chunk left in its write, between the stamp before it and the stamp after it.
    """
    truth = {s.identity: s for s in served}
    zero, first, gaps = outcome.result.zero_ns, [], []
    for identity, record in outcome.of_identity(users).items():
        if record.failure is not None or record.chunk_ns is None:
            continue
        got = truth[identity]
        n = len(record.chunk_ns)
        at = record.chunk_ns + zero
        low, high = np.array(got.sent_ns[1 : n + 1]), np.array(got.done_ns[1 : n + 1])
        first.append(max(low[0] - at[0], at[0] - high[0], 0))
        gap = np.diff(at)
        over, under = gap - (high[1:] - low[:-1]), (low[1:] - high[:-1]) - gap
        gaps.append(np.maximum(np.maximum(over, under), 0))
    return np.array(first) / MS, np.concatenate(gaps) / MS


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy loop on the client's core"])
@pytest.mark.parametrize(
    ("streams", "gap_ms", "chunks"),
    [(1000, 50, 20), (200, 10, 100)],
    ids=["1000x20/s", "200x100/s"],
)
def test_never_wrong_and_valid(streams: int, gap_ms: int, chunks: int, busy: bool) -> None:
    """30 s of 20 000 chunks/s. The client is pinned to one core, the server to another."""
    seconds = float(os.environ.get("TRUTH_SECONDS", "30"))
    starts = [int(i * chunks * gap_ms * MS / streams) for i in range(streams)]
    load = closed(streams, duration_s=seconds, warmup_s=2.0, start_ns=starts, output_tokens=chunks)
    cores = sorted(os.sched_getaffinity(0))
    spinner = None
    script = plain_stream(chunks, first_ms=gap_ms, gap_ms=gap_ms)
    try:
        with MockProcess([script]) as mock:
            os.sched_setaffinity(mock._process.pid, {cores[-1]})
            os.sched_setaffinity(0, {cores[0]})
            if busy:
                spinner = subprocess.Popen([sys.executable, "-c", SPIN % cores[0]])
            outcome = drive(mock.url, load, grace_s=30.0)
            mock.stop()
    finally:
        os.sched_setaffinity(0, set(cores))
        if spinner is not None:
            spinner.kill()
            spinner.wait()
    verdict, summary = told_of(outcome, load)
    ttft, itl = errors_ms(outcome, mock.served, streams)
    p99 = [float(np.quantile(values, 0.99)) for values in (ttft, itl)]
    said = "valid" if verdict.valid else f"void: {'; '.join(verdict.reasons)}"
    errors = f"p99 error TTFT {p99[0]:.3f} ms, ITL {p99[1]:.3f} ms"
    shown = [summary.ttft_s.p99 is not None, summary.itl_s.p99 is not None]
    print(f"\n{len(itl) + len(ttft)} chunks, {errors}; {said}; p99 of TTFT, ITL shown: {shown}")
    assert len(ttft) > streams
    if verdict.valid:
        for error, is_shown, figure_ms in zip(p99, shown, (gap_ms, gap_ms), strict=True):
            assert not is_shown or error <= max(1.0, 0.05 * figure_ms)
    else:
        assert any(reason.startswith("client limit") for reason in verdict.reasons), said
