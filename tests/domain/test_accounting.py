"""Step accounting against a run small enough to add up by hand."""

import dataclasses

import numpy as np
import pytest

from ridgeline.domain.accounting import Bounds, account, binding_limit
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import (
    FULL_GRAPH,
    NO_GRAPH,
    PIECEWISE_GRAPH,
    STEP_PARTS,
    RequestRecord,
    RunRecords,
    StepRuns,
    StepTable,
    records_from_requests,
)
from ridgeline.domain.run import ClientCheck, RunFacts, Window
from ridgeline.domain.slo import Slo

MS = 1_000_000


def table() -> StepTable:
    """Two replicas. Replica 0: a step of 20 ms with 40 prompt tokens, two of 5 ms, then 10 ms of
    nothing and one of 10 ms. Replica 1: one step of 50 ms. Chunks arrive 2 ms after a step's end.
    """
    start = np.array([10, 30, 35, 50, 0], dtype=np.int64) * MS
    end = np.array([30, 35, 40, 60, 50], dtype=np.int64) * MS
    n = len(start)
    parts = {name: np.zeros(n, dtype=np.float32) for name in STEP_PARTS}
    parts["launch"] = np.array([15, 1, 1, 2, 0], dtype=np.float32) * MS
    parts["weights"] = np.array([5, 4, 4, 8, 50], dtype=np.float32) * MS
    return StepTable(
        replica=np.array([0, 0, 0, 0, 1], dtype=np.int16),
        start_ns=start,
        end_ns=end,
        delivered_ns=end + 2 * MS,
        prefill_tokens=np.array([40, 0, 0, 0, 0], dtype=np.int32),
        decode_tokens=np.array([0, 2, 2, 1, 3], dtype=np.int32),
        padded_tokens=np.array([40, 2, 2, 1, 3], dtype=np.int32),
        context_tokens=np.array([0, 42, 44, 23, 9], dtype=np.int64),
        mode=np.array(
            [NO_GRAPH, FULL_GRAPH, FULL_GRAPH, PIECEWISE_GRAPH, FULL_GRAPH], dtype=np.int8
        ),
        running=np.array([2, 2, 2, 1, 3], dtype=np.int32),
        waiting=np.array([0, 0, 0, 0, 5], dtype=np.int32),
        kv_used_blocks=np.array([4, 4, 4, 2, 10], dtype=np.int32),
        flops=np.array([400.0, 20.0, 20.0, 10.0, 30.0]),
        bytes_read=np.array([100.0, 10.0, 10.0, 10.0, 10.0]),
        parts=parts,
        kv_total_blocks=10,
    )


def request(index: int, sent_ms: float, steps: StepRuns, **more: object) -> RequestRecord:
    base = RequestRecord(
        index=index,
        user=index,
        intended_ns=round(sent_ms * MS),
        sent_ns=round(sent_ms * MS),
        first_ns=None,
        last_ns=None,
        end_ns=None,
        planned_prompt_tokens=20,
        planned_output_tokens=3,
        prompt_tokens=20,
        output_tokens=3,
        target=0,
        steps=steps,
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def run() -> RunRecords:
    """Sent at 1 ms, taken in at 4, scheduled at 10; tokens at the ends of steps 0, 1 and 2 (and
    for the second request 0, 1 and 3).
    """
    first = StepRuns(0, np.array([0]), np.array([3]))
    second = StepRuns(0, np.array([0, 3]), np.array([2, 1]))
    stamps = {"arrived_ns": 4 * MS, "scheduled_ns": 10 * MS, "first_ns": 32 * MS}
    rows = [
        request(0, 1, first, **stamps, last_ns=42 * MS, end_ns=42 * MS),
        request(1, 1, second, **stamps, last_ns=62 * MS, end_ns=62 * MS),
    ]
    return records_from_requests(rows, table())


WINDOW = Window(0, 100 * MS)
CONFIGURATION = Configuration("m", Knobs(max_num_seqs=3), gpus=2)


def test_the_seconds_of_a_request_add_up_to_its_mean_time() -> None:
    spent = account(run(), WINDOW, None, CONFIGURATION).seconds
    assert spent == {
        "front_end_in": pytest.approx(0.003),
        "queue": pytest.approx(0.006),
        "prefill": pytest.approx(0.020),
        "decode": pytest.approx((0.010 + 0.030) / 2),
        "front_end_out": pytest.approx(0.002),
    }
    assert sum(spent.values()) == pytest.approx((0.041 + 0.061) / 2)


def test_where_the_steps_spent_their_time() -> None:
    steps = account(run(), WINDOW, None, CONFIGURATION).steps
    assert steps["replicas"] == 2
    assert steps["steps_per_s"] == pytest.approx(25)
    assert steps["mean_step_s"] == pytest.approx(0.018)
    assert steps["mean_decode_batch"] == pytest.approx(8 / 5)
    assert steps["prefill_step_share"] == pytest.approx(1 / 5)
    assert steps["prefill_tokens_per_step"] == 40
    assert steps["no_graph_share"] == pytest.approx(1 / 5)
    assert steps["piecewise_graph_share"] == pytest.approx(1 / 5)
    assert steps["full_graph_share"] == pytest.approx(3 / 5)
    assert steps["no_graph_time_share"] == pytest.approx(20 / 90)
    assert steps["idle_share"] == pytest.approx(1 - 90 / 200)
    assert steps["kv_use_max"] == 1.0
    assert steps["part.launch"] == pytest.approx(19 / 90)
    assert steps["part.weights"] == pytest.approx(71 / 90)
    assert sum(v for k, v in steps.items() if k.startswith("part.")) == pytest.approx(1)


def test_overlapping_steps_are_not_busy_twice() -> None:
    """An asynchronous engine starts a step before the one before has ended."""
    base = table()
    start = base.start_ns.copy()
    start[1] -= 3 * MS
    records = dataclasses.replace(run(), steps=dataclasses.replace(base, start_ns=start))
    steps = account(records, WINDOW, None, CONFIGURATION).steps
    assert steps["idle_share"] == pytest.approx(1 - 90 / 200)


def test_only_steps_that_end_in_the_window_count() -> None:
    steps = account(run(), Window(32 * MS, 52 * MS), None, CONFIGURATION).steps
    assert steps["mean_step_s"] == pytest.approx((0.005 + 0.005 + 0.050) / 3)
    assert "prefill_tokens_per_step" not in steps


def test_roofline_points() -> None:
    """Peak 10 000 FLOP/s and 5 000 B/s a GPU, two GPUs for 0.1 s: 2000 FLOPs and 1000 bytes."""
    found = account(run(), WINDOW, Bounds(10_000.0, 5_000.0), CONFIGURATION).roofline
    assert found.prefill_intensity == pytest.approx(4.0)
    assert found.decode_intensity == pytest.approx(80 / 40)
    assert found.mfu == pytest.approx(480 / 2000)
    assert found.mbu == pytest.approx(140 / 1000)
    # ideal times: 40 ms (compute), then 2, 2, 2 ms and 3 ms, out of 200 ms
    assert found.share_of_bound == pytest.approx((40 + 2 + 2 + 2 + 3) / 200)
    without = account(run(), WINDOW, None, CONFIGURATION).roofline
    assert without.decode_intensity == pytest.approx(2.0)
    assert without.mfu is None


def test_a_run_without_steps_has_no_accounting() -> None:
    plain = records_from_requests(
        [request(0, 1, StepRuns(0, np.array([0]), np.array([3])))], table()
    )
    plain = dataclasses.replace(plain, steps=None)
    found = account(plain, WINDOW, Bounds(1.0, 1.0), CONFIGURATION)
    assert (found.seconds, found.steps, found.binding_limit) == ({}, {}, None)
    assert found.roofline.mfu is None


def test_the_summary_carries_it() -> None:
    found = summarise(
        run(),
        WINDOW,
        facts=RunFacts("twin", WINDOW, ClientCheck("simulated")),
        configuration=CONFIGURATION,
        slo=Slo(),
        bounds=Bounds(10_000.0, 5_000.0),
    )
    assert sum(found.accounting.values()) == pytest.approx(found.e2e_s.mean)
    assert found.roofline.mfu == pytest.approx(0.24)
    assert found.itl_s.mean == pytest.approx((5 + 5 + 5 + 25) / 4 / 1e3)


FIGURES = {
    "mean_running": 32.0,
    "mean_waiting": 60.0,
    "idle_share": 0.0,
    "kv_use_max": 0.2,
    "part.weights": 0.5,
    "part.attention_decode": 0.1,
    "part.launch": 0.3,
    "part.attention_prefill": 0.1,
}


@pytest.mark.parametrize(
    ("changes", "memory_bound", "words"),
    [
        ({}, True, "batch ceiling: max_num_seqs 32 is full with 60 waiting per replica; "
                   "step time bound by memory bandwidth (60 %)"),
        ({}, False, "step time bound by compute (70 %)"),
        ({"part.launch": 0.9, "part.weights": 0.05}, True, "bound by kernel launches (90 %)"),
        ({"mean_running": 26.0, "running_while_waiting": 31.8}, True,
         "batch ceiling: max_num_seqs 32 is full"),
        ({"mean_running": 31.0, "running_while_waiting": 20.0}, True,
         "prompts: admission waits for room in the step"),
        ({"mean_running": 10.0, "kv_use_max": 0.97}, True, "KV memory: 97 % of the blocks"),
        ({"mean_running": 10.0}, True, "prompts: admission waits for room in the step"),
        ({"mean_waiting": 0.0, "idle_share": 0.6}, True, "load: the engine idles 60 %"),
        ({"mean_waiting": 0.0}, True, "step time, bound by memory bandwidth (60 %); nothing"),
    ],
)  # fmt: skip
def test_the_binding_limit_in_words(
    changes: dict[str, float], memory_bound: bool, words: str
) -> None:
    configuration = Configuration("m", Knobs(max_num_seqs=32))
    assert words in binding_limit(FIGURES | changes, configuration, memory_bound)


def test_a_front_end_without_time_left_is_named_before_all_else():
    """One API server for eight replicas' chunks: it writes all the time, the engines idle."""
    from ridgeline.domain.slo import Slo  # noqa: PLC0415
    from ridgeline.domain.workload import (  # noqa: PLC0415
        Arrivals,
        Lengths,
        Outputs,
        Prompts,
        Workload,
    )
    from ridgeline.experiment.predicting import Predictor  # noqa: PLC0415

    load = Workload(
        Arrivals(users=400), Prompts(Lengths(64)), Outputs(Lengths(128)),
        duration_s=4.0, warmup_s=4.0,
    )  # fmt: skip
    knobs = Knobs(max_model_len=4096, max_num_seqs=128, data_parallel_size=8, api_server_count=1)
    one = Configuration("Qwen3-4B", knobs, gpu="H100-SXM", gpus=8)
    found = Predictor(Slo())(one, load, {}).summary
    assert found.binding_limit.startswith("API server: busy")
    assert "api_server_count" in found.binding_limit
    each = dataclasses.replace(one, knobs=dataclasses.replace(knobs, api_server_count=8))
    more = Predictor(Slo())(each, load, {}).summary
    assert "API server" not in more.binding_limit
    # The limit was real: with a server for each replica more comes out.
    assert more.throughput.output_tokens_per_s > 1.3 * found.throughput.output_tokens_per_s


def test_slots_that_are_full_whenever_something_waits_are_the_limit_on_a_load_with_quiet_times():
    """Eight slots under a rate: now and then they are free, and never while a request waits."""
    from ridgeline.experiment.predicting import Predictor  # noqa: PLC0415
    from ridgeline.workload.studyfile import parse_study  # noqa: PLC0415

    text = """\
name: rate
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM}
workload: {arrivals: {rate_per_s: 10}, prompts: {tokens: 150},
           output_tokens: {mean: 128, spread: 0.9}, duration_s: 40, warmup_s: 10}
baseline: {max_num_seqs: 8}
"""
    study = parse_study(text, "s.yaml")
    base = study.baseline
    summary = Predictor(study.slo)(base.configuration, base.workload, {}).summary
    assert summary.steps["mean_running"] < 0.9 * 8 < summary.steps["running_while_waiting"]
    assert summary.binding_limit.startswith("batch ceiling: max_num_seqs 8 is full")
