"""The twin under classes, steps, caps and sessions: what an engine does, seen in its figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink, RunRecords
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    LoadStep,
    Outputs,
    Prompts,
    Sessions,
    TrafficClass,
    Workload,
)
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs
from ridgeline.experiment.protocol import carry_out
from ridgeline.workload.schedule import draw_schedule

MODEL = "Qwen/Qwen3-4B"


def configuration(**knobs: object) -> Configuration:
    return Configuration(MODEL, Knobs(**knobs), "twin", gpu="H100-SXM")  # type: ignore[arg-type]


def simulate(workload: Workload, **knobs: object) -> RunRecords:
    sink = MemorySink()
    with TwinEngine().start(configuration(**knobs)) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(workload), "s"), sink, SilentWatch())
    return sink.records()


def summary(workload: Workload, folder: Path, **knobs: object) -> Summary:
    plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration(**knobs), workload),))
    (run,) = plan_runs(plan)
    found = carry_out(run, folder, TwinEngine(), SilentWatch()).summary
    assert found is not None
    return found


CHAT = TrafficClass(
    "chat", 0.5, Prompts(Lengths(200)), Outputs(Lengths(60)), parse_slo("e2e_p95_ms=4000"), 0
)
BATCH = TrafficClass("batch", 0.5, Prompts(Lengths(200)), Outputs(Lengths(60)), priority=10)


def test_classes_have_their_own_figures_and_limits(tmp_path: Path) -> None:
    long = replace(BATCH, outputs=Outputs(Lengths(600)), slo=parse_slo("e2e_p95_ms=1"))
    workload = Workload(Arrivals(users=40), duration_s=40, warmup_s=5, classes=(CHAT, long))
    found = summary(workload, tmp_path / "r")
    chat, batch = found.classes["chat"], found.classes["batch"]
    assert chat.requests.sent + batch.requests.sent == found.requests.sent
    assert chat.requests.sent == pytest.approx(batch.requests.sent, rel=0.25)
    assert chat.e2e_s.p50 is not None
    assert batch.e2e_s.p50 is not None
    assert batch.e2e_s.p50 > 7 * chat.e2e_s.p50
    both = chat.throughput.output_tokens_per_s, batch.throughput.output_tokens_per_s
    assert sum(x or 0 for x in both) == pytest.approx(found.throughput.output_tokens_per_s)
    assert [(r.traffic_class, r.limit, r.met) for r in found.slo] == [
        ("chat", "e2e_p95_ms=4000", True), ("batch", "e2e_p95_ms=1", False),
    ]  # fmt: skip
    assert chat.goodput.attainment == 1.0
    assert batch.goodput.attainment == 0.0
    share = chat.requests.sent / found.requests.sent
    assert found.goodput.attainment == pytest.approx(share)


def test_priority_classes_matter_with_the_priority_policy_and_only_then() -> None:
    workload = Workload(Arrivals(users=120), duration_s=30, warmup_s=5, classes=(CHAT, BATCH))

    def median_ttft(**knobs: object) -> dict[str, float]:
        records = simulate(workload, max_num_seqs=16, **knobs)
        names = np.array(records.text["traffic_class"])
        waits = records.first_ns - records.sent_ns
        return {n: float(np.nanmedian(waits[names == n])) for n in ("chat", "batch")}

    fair = median_ttft()
    assert fair["chat"] == pytest.approx(fair["batch"], rel=0.1)
    ranked = median_ttft(scheduling_policy="priority")
    assert ranked["chat"] < 0.3 * ranked["batch"]


def test_steps_are_judged_one_by_one(tmp_path: Path) -> None:
    steps = (LoadStep(30, rate_per_s=2), LoadStep(30, rate_per_s=8))
    workload = Workload(
        Arrivals(steps=steps, process="constant"), Prompts(Lengths(200)), Outputs(Lengths(50)),
        duration_s=60, warmup_s=10,
    )  # fmt: skip
    found = summary(workload, tmp_path / "r")
    assert found.verdict.valid, found.verdict.reasons
    low, high = found.load_steps
    assert (low.load, high.load) == ("2 requests/s", "8 requests/s")
    assert (low.from_s, low.to_s, high.from_s, high.to_s) == (16, 40, 46, 70)
    assert (low.figures.requests.sent, high.figures.requests.sent) == (48, 192)
    assert low.figures.throughput.output_tokens_per_s == pytest.approx(100, rel=0.03)
    assert high.figures.throughput.output_tokens_per_s == pytest.approx(400, rel=0.03)
    assert low.notes == high.notes == ()


def test_a_step_above_the_capacity_says_so_and_voids_nothing(tmp_path: Path) -> None:
    steps = (LoadStep(30, rate_per_s=2), LoadStep(30, rate_per_s=20))
    workload = Workload(
        Arrivals(steps=steps), Prompts(Lengths(500)), Outputs(Lengths(200)), duration_s=60
    )
    found = summary(workload, tmp_path / "r", max_num_seqs=8)
    assert found.load_steps[0].notes == ()
    assert any("the queue grew" in note for note in found.load_steps[1].notes)
    assert not any("not steady" in reason for reason in found.verdict.reasons)


def test_the_cap_makes_arrivals_wait_and_shows_it(tmp_path: Path) -> None:
    workload = Workload(
        Arrivals(rate_per_s=30, max_concurrency=4), Prompts(Lengths(100)), Outputs(Lengths(100)),
        duration_s=20, warmup_s=0,
    )  # fmt: skip
    records = simulate(workload)
    order = np.sort(records.sent_ns)
    ends = np.sort(records.last_ns)
    in_flight = np.arange(1, len(order) + 1) - np.searchsorted(ends, order, side="right")
    assert in_flight.max() == 4
    waits = records.sent_ns - records.intended_ns
    assert np.array_equal(waits, records.cap_wait_ns)
    assert waits.max() > 1e9
    found = summary(workload, tmp_path / "r")
    assert found.cap_wait_s is not None
    assert found.cap_wait_s.p50 is not None
    assert found.ttft_intent_s.p50 == pytest.approx(
        found.cap_wait_s.p50 + (found.ttft_s.p50 or 0), rel=0.1
    )
    # everything that was meant for the window is in its figures, also what was sent after it
    assert found.requests.sent == len(records)


def test_a_sessions_next_turn_finds_its_past_in_the_prefix_cache() -> None:
    workload = Workload(
        Arrivals(users=4), Prompts(Lengths(320)), Outputs(Lengths(160)), duration_s=30, warmup_s=0,
        sessions=Sessions(Lengths(4), think_time_s=0.5),
    )  # fmt: skip
    records = simulate(workload)
    cached, prompt = records.cached_tokens, records.prompt_tokens
    turn = records.turn
    assert set(turn) == {0, 1, 2, 3}
    assert set(prompt[turn == 0]) == {320}
    assert set(prompt[turn == 3]) == {4 * 320 + 3 * 160}
    assert not cached[turn == 0].any()
    # all full blocks of 16 of prompt and reply, but for the last sampled token's
    for k in (1, 2, 3):
        past = k * (320 + 160)
        assert set(cached[turn == k]) <= {past, past - 16}
    without = simulate(workload, enable_prefix_caching=False)
    assert not np.nan_to_num(without.cached_tokens).any()
    waits = [float(np.nanmedian((r.first_ns - r.sent_ns)[r.turn == 3])) for r in (records, without)]
    assert waits[0] < waits[1]


def test_sessions_give_their_blocks_up_when_memory_is_short() -> None:
    workload = Workload(
        Arrivals(users=30), Prompts(Lengths(320)), Outputs(Lengths(160)), duration_s=20, warmup_s=0,
        sessions=Sessions(Lengths(5), think_time_s=1.0),
    )  # fmt: skip
    tight = simulate(workload, num_gpu_blocks_override=600, max_model_len=4096)
    roomy = simulate(workload)
    later = tight.turn > 0
    rate = np.nansum(tight.cached_tokens[later]) / np.nansum(tight.prompt_tokens[later])
    later = roomy.turn > 0
    best = np.nansum(roomy.cached_tokens[later]) / np.nansum(roomy.prompt_tokens[later])
    assert rate < 0.6 * best
    assert best > 0.55
