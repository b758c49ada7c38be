"""The window of an automatic warm-up: while a run goes on, over the whole run, and judged again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiment_builders import SECOND, evidence, request

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink, records_from_requests
from ridgeline.domain.run import RunFacts, SilentWatch, Warmup, Window
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs
from ridgeline.experiment.protocol import carry_out, judge_again
from ridgeline.experiment.statistics import merge
from ridgeline.experiment.verdict import judge
from ridgeline.experiment.windowing import place_window
from ridgeline.store.run_directory import read_run
from ridgeline.workload.schedule import draw_schedule

TWIN = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=32), engine="twin", gpu="H100-SXM", gpus=1)
AUTO = Workload(
    Arrivals(users=100),
    Prompts(Lengths(256, 0.5)),
    Outputs(Lengths(96, 0.5)),
    duration_s=30.0,
    warmup_s=60.0,
    warmup_auto=True,
    seed=3,
)


def drive(workload: Workload) -> tuple[RunFacts, MemorySink]:
    sink = MemorySink()
    with TwinEngine().start(TWIN) as endpoint:
        facts = endpoint.drive(DrivePlan(draw_schedule(workload), "s"), sink, SilentWatch())
    return facts, sink


def test_the_twin_opens_its_window_when_it_is_steady() -> None:
    facts, sink = drive(AUTO)
    assert facts.warmup is not None
    assert facts.warmup.found
    assert AUTO.least_warmup_s == 6.0
    assert 6.0 <= facts.window.start_ns / 1e9 < 20
    assert facts.window.seconds == pytest.approx(30.0)
    # the traffic went on without draining, and stopped with the window
    sent = np.array([r.sent_ns for r in sink.requests])
    inside = (sent >= facts.window.start_ns - SECOND) & (sent < facts.window.start_ns + SECOND)
    assert np.count_nonzero(inside) > 10
    assert sent.max() < facts.window.end_ns


def test_a_rate_above_the_capacity_is_never_steady() -> None:
    limit = replace(AUTO, arrivals=Arrivals(rate_per_s=500.0), warmup_s=12.0, duration_s=20.0)
    facts, sink = drive(limit)
    assert facts.warmup is not None
    assert not facts.warmup.found
    assert facts.window.start_ns == 12 * SECOND
    placed = place_window(sink.records(), facts, limit)
    assert placed.warmup is not None
    assert "no steady state within the 12 s" in placed.warmup.reason


def test_a_run_is_stored_with_why_and_judged_again_alike(tmp_path: Path) -> None:
    plan = Plan("s", "study", None, (PlannedExperiment("a", TWIN, AUTO),))
    (run,) = plan_runs(plan)
    stored = carry_out(run, tmp_path / run.run_id, TwinEngine(), SilentWatch())
    assert stored.summary is not None
    assert stored.summary.warmup is not None
    assert stored.summary.warmup.reason.startswith("steady after ")
    assert stored.facts is not None
    again = judge_again(judge_again(stored))
    assert again == stored


def test_a_copy_without_its_chunks_is_not_judged_again() -> None:
    """Results in a repository leave most chunks out: it would seem that no answer came."""
    folder = Path(__file__).parents[2] / "results" / "h200" / "knobs" / "seqs-32-r2"
    stored = read_run(folder)
    assert stored.trimmed
    assert stored.valid
    assert judge_again(stored) == stored == read_run(folder)
    whole = read_run(folder.parent / "seqs-32-r1")
    assert not whole.trimmed


def late_start(slow_until_s: float) -> list:
    """100 tokens/s at last; half of it until `slow_until_s`."""
    return [
        request(i, at, gap_s=0.02 if at < slow_until_s else 0.01)
        for i, at in enumerate(
            np.concatenate((np.arange(0, slow_until_s, 0.2), np.arange(slow_until_s, 44, 0.1)))
        )
    ]


def test_the_whole_run_may_move_the_window_but_never_to_an_earlier_start() -> None:
    records = records_from_requests(late_start(12.0))
    offered = Window(6 * SECOND, 36 * SECOND)
    facts = replace(
        evidence([request(0, 1.0)]).facts, window=offered, warmup=Warmup(offered, 60.0, found=True)
    )
    placed = place_window(records, facts, Workload(Arrivals(users=4)))
    assert 12.0 <= placed.window.start_ns / 1e9 <= 14.0
    assert placed.window.end_ns == offered.end_ns
    assert placed.warmup is not None
    assert "moved to" in placed.warmup.reason
    measured = f"{placed.window.seconds:.1f} s of the {placed.warmup.offered.seconds:.1f} s after"
    assert measured in placed.warmup.reason
    assert place_window(records, placed, Workload(Arrivals(users=4))) == placed
    # a number of requests was asked for: the window keeps them all and says what was seen
    counted = place_window(records, facts, Workload(Arrivals(users=4), requests=300))
    assert counted.window == offered
    assert counted.warmup is not None
    assert "had settled only after" in counted.warmup.reason
    quiet = place_window(records_from_requests(late_start(0.0)), facts, AUTO)
    assert quiet.window == offered


def test_a_fixed_warm_up_that_was_too_short_is_told() -> None:
    told = judge(evidence(late_start(6.0), seconds=40.0)).warnings
    assert any("the warm-up ended only" in line and "--warmup auto" in line for line in told)
    silent = judge(evidence(late_start(0.0), seconds=40.0)).warnings
    assert not any("warm-up" in line for line in silent)


def test_merged_repeats_tell_of_one_that_was_never_steady() -> None:
    summary = evidence(late_start(0.0), seconds=40.0).summary
    window = Window(6 * SECOND, 36 * SECOND)
    good, bad = (replace(summary, warmup=Warmup(window, 60.0, found)) for found in (True, False))
    assert merge([good, good]).warmup == good.warmup
    assert merge([good, bad]).warmup == bad.warmup
