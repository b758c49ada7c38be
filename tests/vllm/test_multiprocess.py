"""vLLM's own layout (API server, engine core, worker) on a machine that has too few cores for it.

There an ordinary client is not scheduled in time and reads its own delay as TTFT. Ridgeline's must
be the server's own within 3 ms at the median, or its run must be void.
"""

import contextlib
import json
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from real_vllm import RealVllm, ServerCounts, serve

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink, RecordSink
from ridgeline.domain.run import RunFacts, SilentWatch, Source, Watch
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.schedule import draw_schedule

pytestmark = pytest.mark.vllm

BOUND_S = 0.003
RUNS, REQUESTS, SINGLE = 2, 40, 15


@pytest.fixture(scope="module")
def layered(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealVllm]:
    log = tmp_path_factory.mktemp("layered") / "engine.log"
    with serve(vllm_python, tiny_model, log, default_layout=True) as server:
        yield server


def workload(requests: int, seed: int = 0) -> Workload:
    return Workload(
        Arrivals(users=1), Prompts(Lengths(64)), Outputs(Lengths(32), ignore_eos=True),
        duration_s=120.0, warmup_s=0.0, requests=requests, seed=seed,
    )  # fmt: skip


@pytest.fixture(scope="module")
def endpoint(layered: RealVllm) -> HttpEndpoint:
    """Calibrated beforehand, so that the server's counters hold the runs' requests alone."""
    found = HttpEndpoint(layered.url)
    plan = DrivePlan(draw_schedule(workload(1)), "first", "completions")
    found.drive(plan, MemorySink(), SilentWatch())
    return found


def above_the_servers_own_s(
    layered: RealVllm, endpoint: HttpEndpoint, numbers: range
) -> Iterator[float]:
    """How far the TTFT of each lone request lies above the growth of the server's own sum."""
    before = layered.counts()
    for number in numbers:
        schedule, sink = draw_schedule(workload(1, seed=number)), MemorySink()
        plan = DrivePlan(schedule, f"one-{number}", "completions")
        facts = endpoint.drive(plan, sink, SilentWatch())
        now = layered.counts()
        added, before = now.since(before), now
        assert (added.ttft_count, facts.extra_requests) == (1, 0)
        (record,) = sink.requests
        assert record.first_ns is not None
        assert record.sent_ns is not None
        yield (record.first_ns - record.sent_ns) / 1e9 - added.ttft_sum_s


def test_each_ttft_is_the_servers_own_within_3_ms_at_the_median(
    layered: RealVllm, endpoint: HttpEndpoint
) -> None:
    """One request at a time. The best of three groups: vLLM's API process waits for a core too,
    before its own clock starts, and on a busy machine that wait is in every client's TTFT.
    """
    medians_s = []
    for group in range(3):
        numbers = range(group * SINGLE, (group + 1) * SINGLE)
        above_s = list(above_the_servers_own_s(layered, endpoint, numbers))
        print(f"TTFT above the server's own, ms: {[round(s * 1e3, 2) for s in above_s]}")
        assert min(above_s) > -0.0005, "the client cannot see a token before the server has it"
        medians_s.append(statistics.median(above_s))
        if medians_s[-1] < BOUND_S:
            return
    pytest.fail(f"client TTFT is above the server's by {medians_s} s at the median")


@dataclass
class Watched:
    """An engine and its endpoint: the one given, with the server's counts around each run."""

    inner: HttpEndpoint
    server: RealVllm
    added: list[ServerCounts] = field(default_factory=list)
    name: str = "endpoint"
    source: Source = "measured"

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator["Watched"]:
        yield self

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        before = self.server.counts()
        facts = self.inner.drive(plan, sink, watch)
        self.added.append(self.server.counts().since(before))
        return facts


def test_the_median_of_a_run_is_the_servers_own_or_the_run_is_void(
    layered: RealVllm, endpoint: HttpEndpoint, tmp_path: Path
) -> None:
    """Whole runs, with their verdicts, held against the bucket of the server's median."""
    engine = Watched(endpoint, layered)
    configuration = Configuration("tiny", Knobs(), engine="endpoint", url=layered.url)
    experiment = PlannedExperiment("bench", configuration, workload(REQUESTS))
    plan = Plan("bench", "bench", None, (experiment,), Slo(), RUNS, "completions")
    directory = StudyDirectory(tmp_path / "runs")
    outcome = run_plan(plan, directory, lambda _: engine, SilentStudyWatch(), command="test")
    runs = [read_run(directory.run_folder(name)).summary for name in outcome.index.order]
    assert len(runs) == len(engine.added) == RUNS
    for summary, added in zip(runs, engine.added, strict=True):
        assert summary is not None
        assert added.ttft_count == REQUESTS
        low_s, high_s = added.ttft_median_bounds_s()
        print(
            f"Ridgeline: TTFT p50 {in_ms(summary.ttft_s.p50)}, mean {in_ms(summary.ttft_s.mean)};"
            f" server: p50 in {in_ms(low_s)} to {in_ms(high_s)},"
            f" mean {in_ms(added.ttft_sum_s / REQUESTS)}; {word(summary)}"
        )
        if summary.verdict.valid:
            assert summary.ttft_s.p50 is not None
            assert low_s <= summary.ttft_s.p50 <= high_s + BOUND_S


def in_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def word(summary: Summary) -> str:
    return "valid" if summary.verdict.valid else f"void: {summary.verdict.reasons[0]}"


def test_an_ordinary_client_is_shown_beside_them(layered: RealVllm, vllm_python: Path) -> None:
    """No bound on its times: whether it is starved depends on the machine. docs/client.md has it.

    That the server's own figure is not touched by it is what makes that figure the measure.
    """
    script = Path(__file__).with_name("ordinary_client.py")
    before = layered.counts()
    done = subprocess.run(
        [vllm_python, script, layered.url, "1", str(REQUESTS)],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    added = layered.counts().since(before)
    seen_s = json.loads(done.stdout)
    low_s, high_s = added.ttft_median_bounds_s()
    print(
        f"aiohttp: TTFT p50 {in_ms(statistics.median(seen_s))}, mean"
        f" {in_ms(statistics.fmean(seen_s))}; server: p50 in {in_ms(low_s)} to {in_ms(high_s)},"
        f" mean {in_ms(added.ttft_sum_s / REQUESTS)}"
    )
    assert len(seen_s) == added.ttft_count == REQUESTS
    assert statistics.fmean(seen_s) > added.ttft_sum_s / REQUESTS
