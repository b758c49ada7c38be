"""The reported cases of diagnosis (C-DI-..., C-ST-...): input as reported, what must be said."""

import json
from dataclasses import replace

import pytest
from diagnosis_pages import (
    KV,
    MADE,
    PRE,
    PROMPT,
    STEPS,
    R,
    W,
    evidence,
    findings,
    histogram,
    page,
    words,
)  # fmt: skip

from ridgeline.diagnosis.evidence import Known, ProbeResult
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.known import router_signs, with_log
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.telemetry.prometheus import parse_metrics

CAPACITY = 'vllm:num_requests_waiting_by_reason{reason="capacity"}'


# -- C-DI-01


def _slots(running: float, kv: float = 0.22, waiting: float = 200) -> list[str]:
    base = {R: running, W: waiting, CAPACITY: waiting, KV: kv, PRE: 5}
    return [page({**base, STEPS: s, MADE: s * running, PROMPT: 0}) for s in (1000, 2000, 3000)]


@pytest.mark.parametrize("known", [Known(max_num_seqs=64), Known()])
def test_di_01_slots_bind_and_memory_would_not_help(known: Known) -> None:
    found = findings(evidence(*_slots(64), known=known))
    first = next(iter(found.values()))
    assert first.id == "batch-ceiling"
    assert "running = max_num_seqs 64" in first.binds
    assert first.tries[0].knob == "max_num_seqs"
    assert int(first.tries[0].value) > 64
    refused = {w.knob for w in first.will_not_help}
    assert "kv_cache_dtype=fp8" in refused
    assert "gpu_memory_utilization" in refused
    assert (first.confidence == "high") == (known.max_num_seqs is not None)


def test_di_01_one_page_is_enough_to_see_it_with_low_confidence() -> None:
    first = next(iter(findings(evidence(_slots(64)[0])).values()))
    assert (first.id, first.confidence) == ("batch-ceiling", "low")


@pytest.mark.parametrize(
    ("running", "budget", "first"),
    [
        ((4, 2, 4, 3), None, "batch-ceiling"),
        ((4, 2, 4, 3), 2048, "batch-ceiling"),
        ((4, 2, 4, 3), 8, "token-budget"),  # a step of six tokens is most of it
        ((2, 3, 2, 3), None, "token-budget"),  # no reading has all slots taken
    ],
)
def test_slots_that_are_full_between_two_batches_too(
    running: tuple[int, ...], budget: int | None, first: str
) -> None:
    """Pages are rendered when a batch of short requests has just ended, as on the real vLLM."""
    pages = [
        page({R: r, W: 28, KV: 0.01, PRE: 0, STEPS: 600 * i, MADE: 2100 * i, PROMPT: 1500 * i})
        for i, r in enumerate(running)
    ]
    known = Known(max_num_seqs=4, max_num_batched_tokens=budget)
    found = findings(evidence(*pages, apart_s=2.0, known=known))
    assert next(iter(found)) == first


def test_di_01_few_running_and_full_steps_is_the_prefill_budget() -> None:
    def at(steps: float) -> str:
        return page({R: 20, W: 200, KV: 0.22, PRE: 0, STEPS: steps, MADE: steps * 20,
                     PROMPT: steps * 8000})  # fmt: skip

    known = Known(max_num_seqs=64, max_num_batched_tokens=8192)
    first = next(iter(findings(evidence(at(100), at(400), known=known)).values()))
    assert (first.id, first.binds, first.confidence) == ("token-budget", "prefill budget", "high")
    assert "8020 tokens a step of max_num_batched_tokens 8192" in words(first)


# -- C-DI-02


def _streams(minute: float, running: float, kv: float, waiting: float, pre: float) -> str:
    tpot = 0.114 if running < 8 else 0.440
    done = 60 / (200 * tpot) * running * minute
    lengths = histogram("vllm:request_prompt_tokens", {2000: done}, 1500 * done)
    answers = histogram("vllm:request_generation_tokens", {200: done}, 200 * done)
    return page({
        R: running, W: waiting, KV: kv, PRE: 100 + pre * minute, MADE: 200 * done,
        PROMPT: 1500 * done, STEPS: 60 / tpot * minute,
        'vllm:request_success_total{finished_reason="length"}': done, **lengths, **answers,
    })  # fmt: skip


def test_di_02_seven_streams_are_fine_and_eight_thrash() -> None:
    seven = [_streams(m, 7, 0.93, 0, 0) for m in (0, 1, 2)]
    assert "kv-memory" not in findings(evidence(*seven, apart_s=60))
    eight = [_streams(m, 7.4, 1.0, 3, 35) for m in (0, 1, 2)]
    found = findings(evidence(*eight, apart_s=60))
    first = next(iter(found.values()))
    assert first.id == "kv-memory"
    assert "preemption and recompute above 7" in first.title
    cap = next(t for t in first.tries if t.knob == "max_num_seqs")
    assert cap.change == {"max_num_seqs": 7}
    again = next(f for f in first.evidence if f.name == "recomputed_share")
    assert isinstance(again.value, float)
    assert 0.3 < again.value < 1
    assert "35 a minute" in words(first)


# -- C-DI-03


def test_di_03_some_ranks_wait_and_the_others_have_room() -> None:
    waiting = [51, 0, 0, 117, 0, 0, 33, 0]
    kv = [0.98, 0.3, 0.2, 0.99, 0.2, 0.3, 0.97, 0.2]
    running = [120, 40, 25, 122, 25, 40, 118, 25]
    text = page({R: running, W: waiting, KV: kv, PRE: [9.0] * 8})
    found = findings(evidence(text, text))
    first = next(iter(found.values()))
    assert first.id == "imbalance"
    assert "loaded: 0, 3, 6" in words(first)
    index = next(f for f in first.evidence if f.name == "imbalance_index")
    assert index.value == pytest.approx((122 + 117) / ((sum(running) + sum(waiting)) / 8))
    assert "51, 0, 0, 117, 0, 0, 33, 0" in words(first)
    assert not {"kv-memory", "batch-ceiling", "token-budget"} & set(found), "it is no overload"
    assert "not the capacity" in first.binds


# -- C-DI-04


def test_di_04_a_long_prompt_stalls_everyone() -> None:
    # 64K tokens at 2400 tokens/s with 10 answers running: 8 gaps of 3.4 s for each of them, and
    # in the rest of a minute 3,300 gaps of 10 ms
    def at(full: float) -> str:
        gaps = {0.01: 3300 * full, 2.5: 0, 5.0: 80 * full}
        return page({
            R: 11, W: 0, KV: 0.4, PRE: 0, STEPS: 338 * full, MADE: 3381 * full,
            PROMPT: 65536 * full,
            **histogram("vllm:inter_token_latency_seconds", gaps, (33 + 80 * 3.41) * full),
            **histogram("vllm:request_prompt_tokens", {50000: 0, 100000: full}, 65536 * full),
            **histogram("vllm:request_prefill_time_seconds", {40: full}, 65536 / 2400 * full),
        })  # fmt: skip

    known = Known(max_num_batched_tokens=8192, max_num_seqs=256)
    found = findings(evidence(at(0), at(1), known=known))
    first = next(iter(found.values()))
    assert first.id == "prefill-stalls"
    worst = next(f for f in first.evidence if f.name == "worst_itl_s")
    assert worst.value == pytest.approx(3.4, abs=0.05)
    tries = {t.knob: t for t in first.tries}
    assert int(tries["max_num_batched_tokens"].value) < 8192
    for knob in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        assert "worst gap about" in tries[knob].expect
        assert "TTFT of a prompt" in tries[knob].expect
    assert "0.33" in tries["prefill_schedule_interval"].value
    assert "a pool of its own for long prompts" in tries
    refused = {w.knob: w.why for w in first.will_not_help}
    assert "0.21" in refused["max_num_partial_prefills"]


# -- C-DI-05


def test_di_05_a_front_end_that_is_bound_by_its_cpu() -> None:
    def at(full: float) -> str:
        n = 10 * full
        return page({
            R: 8, W: 0, KV: 0.1, PRE: 0, STEPS: 1800 * full, MADE: 14400 * full, PROMPT: 900 * n,
            **histogram("vllm:time_to_first_token_seconds", {0.25: n}, 0.24 * n),
            **histogram("vllm:request_queue_time_seconds", {0.3: n}, 0.01 * n),
            **histogram("vllm:request_prefill_time_seconds", {0.3: n}, 0.05 * n),
            **histogram("vllm:request_decode_time_seconds", {1.5: n}, 1.2 * n),
            **histogram("vllm:e2e_request_latency_seconds", {1.5: n}, 1.5 * n),
        })  # fmt: skip

    found = evidence(at(0), at(1), known=Known(max_num_seqs=256))
    for seen in (found, replace(found, cores={"engine core": 1.0, "api server": 0.5})):
        first = diagnose(seen)[0]
        assert first.id == "api-server-cpu"
        assert "CPU-bound front end" in first.title
        assert "TTFT is 180 ms longer than queue and prefill" in words(first)
        knobs = [t.knob for t in first.tries]
        assert knobs[:2] == ["api_server_count", "stream_interval"]
        assert "one for each GPU" in words(first)
        assert "no scheduler flag" in words(first)


# -- C-DI-06

ROUTER_LOG = """\
INFO router starting with policy: least_request
WARN failed to get load from http://10.0.0.1:8000/get_load: status 404 Not Found
WARN failed to get load from http://10.0.0.1:8000/get_load: status 404 Not Found
WARN failed to get load from http://10.0.0.2:8000/get_load: status 404 Not Found
"""


def test_di_06_a_router_without_a_load_signal() -> None:
    loads = ([40, 2, 38, 1], [1, 39, 2, 41], [41, 1, 40, 2])
    pages = [page({R: row, W: [0] * 4, KV: [0.1] * 4, PRE: [0] * 4}) for row in loads]
    found = replace(evidence(*pages, apart_s=5), router=router_signs(ROUTER_LOG))
    first = diagnose(found)[0]
    assert first.id == "router-blind"
    assert "http://10.0.0.1:8000/get_load" in first.title
    assert "least_request" in words(first)
    assert "herding" in words(first)
    assert "0: 1 to 41" in words(first)


def test_di_06_an_engines_log_is_no_routers() -> None:
    assert router_signs('INFO: "GET /metrics HTTP/1.1" 200 OK\nLoading weights took 3 s\n') is None


# -- C-DI-07


def test_di_07_one_replica_overloaded_and_its_peer_idle() -> None:
    text = page({R: [448, 0], W: [0, 0], KV: [0.6, 0.0], PRE: [0, 0]})
    known = Known(routing="prefix-aware")
    first = next(iter(findings(evidence(text, text, known=known)).values()))
    assert first.id == "imbalance"
    assert "policy (prefix-aware)" in first.binds
    assert "448, 0" in words(first)
    assert "load term" in words(first)


# -- C-DI-08


def test_di_08_fcfs_ignores_priority() -> None:
    known = Known(max_num_seqs=32, scheduling_policy="fcfs", priorities=True)
    found = findings(evidence(*_slots(32), known=known))
    assert "fcfs ignores priority" in found["priority"].title
    assert found["priority"].tries[0].change == {"scheduling_policy": "priority"}
    assert "priority" not in findings(evidence(*_slots(32), known=replace(known, priorities=None)))


def test_di_08_priority_takes_no_slot() -> None:
    known = Known(max_num_seqs=32, scheduling_policy="priority", priorities=True)
    found = findings(evidence(*_slots(32), known=known))
    assert "cannot take a slot" in found["priority"].title
    assert "separate pools" in words(found["priority"])
    assert "measure at the client" in found["priority"].tries[0].why_no_gain


# -- C-DI-10, C-DI-15


def _dcgm(**fields: float) -> str:
    label = 'gpu="0",modelName="NVIDIA H100 80GB HBM3",Hostname="a"'
    return "".join(f"DCGM_FI_{n}{{{label}}} {v}\n" for n, v in fields.items())


IDLE = [page({R: 8, W: 0, KV: 0.1, PRE: 0, STEPS: s, MADE: 8 * s, PROMPT: 0}) for s in (0, 900)]


def test_di_10_profiling_fields_of_zero_beside_a_busy_gpu_are_unknown_not_idle() -> None:
    gpu = _dcgm(DEV_GPU_UTIL=100, PROF_PIPE_TENSOR_ACTIVE=0.0, PROF_DRAM_ACTIVE=0.0,
                PROF_SM_ACTIVE=0.0, DEV_POWER_USAGE=480)  # fmt: skip
    found = findings(evidence(*IDLE, gpu=gpu))
    assert "telemetry broken" in found["gpu-telemetry"].title
    assert "not idle" in found["gpu-telemetry"].title
    assert not {"low-load", "engine-core-cpu", "eager"} & set(found)


def test_di_15_a_page_without_profiling_fields() -> None:
    found = findings(evidence(*IDLE, gpu=_dcgm(DEV_GPU_UTIL=75, DEV_POWER_USAGE=300)))
    assert "hardware truth not available" in found["gpu-telemetry"].title
    assert len(found) > 1, "the diagnosis goes on from the engine's metrics"


@pytest.mark.parametrize(("dram", "share"), [(0.8, 0.8), (80.0, 0.8), (1.0, 1.0)])
def test_di_15_both_scales_are_told_apart(dram: float, share: float) -> None:
    gpu = _dcgm(DEV_GPU_UTIL=90, PROF_DRAM_ACTIVE=dram, PROF_SM_ACTIVE=0.5)
    (seen,) = evidence(*IDLE, gpu=gpu).gpus
    assert seen.dram_active == pytest.approx(share)
    assert seen.sm_active == pytest.approx(0.5)
    assert seen.utilisation == pytest.approx(0.9)


# -- C-DI-11


def test_di_11_all_series_are_read() -> None:
    def at(n: float) -> str:
        spec = "vllm:spec_decode_num"
        return page({
            R: [3, 5, 2, 6], W: [0] * 4, f"{spec}_drafts_total": [2 * n] * 4,
            f"{spec}_draft_tokens_total": [10 * n] * 4,
            f"{spec}_accepted_tokens_total": [6 * n] * 4,
        })  # fmt: skip

    found = evidence(at(0), at(1))
    assert found.running is not None
    assert found.running.mean == 16
    assert found.acceptance == pytest.approx(24 / 40)


# -- C-DI-12


def test_di_12_a_renamed_metric_is_found_and_an_absent_one_is_none() -> None:
    old = evidence(page({R: 1, W: 0, "vllm:gpu_cache_usage_perc": 0.42}))
    new = evidence(page({R: 1, W: 0, KV: 0.42}))
    neither = evidence(page({R: 1, W: 0}))
    assert old.kv_use is not None
    assert new.kv_use is not None
    assert (old.kv_use.mean, new.kv_use.mean, neither.kv_use) == (0.42, 0.42, None)
    assert old.aliases == {KV: "vllm:gpu_cache_usage_perc"}
    assert new.aliases == {}
    assert "is called vllm:gpu_cache_usage_perc here" in words(findings(old)["older-names"])


# -- C-DI-13


def test_di_13_no_kv_is_arriving() -> None:
    def at(local: float) -> str:
        source = "vllm:prompt_tokens_by_source_total"
        return page({
            R: 4, W: 0, KV: 0.2, STEPS: local / 50, MADE: local / 10, PROMPT: local,
            f'{source}{{source="local_compute"}}': local,
            f'{source}{{source="local_cache_hit"}}': 0,
            f'{source}{{source="external_kv_transfer"}}': 0,
            "vllm:nixl_bytes_transferred_sum": 7,
        })  # fmt: skip

    first = next(iter(findings(evidence(at(1000), at(101_000))).values()))
    assert first.id == "transfer-absent"
    assert "decoder recomputes the prompts" in first.title
    assert "100\u2009000" in words(first)


# -- C-DI-14


def test_di_14_a_lifetime_total_is_no_finding_and_a_restart_begins_anew() -> None:
    def at(n: float, made: float) -> str:
        return page({R: 3, W: 0, KV: 0.5, PRE: n, MADE: made, STEPS: made, PROMPT: 0})

    calm = evidence(at(37, 100), at(37, 900), apart_s=300)
    assert calm.preemptions == 0
    assert "kv-memory" not in findings(calm)
    again = evidence(at(37, 5000), at(0, 10), at(4, 600), apart_s=300)
    assert (again.restarts, again.preemptions) == (1, 4)
    assert "4 preemptions" in words(findings(again)["restarted"])


# -- C-ST-04


def _standing(running: float, waiting: float, steps: float = 88_100) -> str:
    return page({R: running, W: waiting, KV: 0.5, STEPS: steps, MADE: 10 * steps, PROMPT: 7})


def test_st_04_requests_and_no_step_is_hung_whatever_health_says() -> None:
    found = findings(evidence(_standing(12, 5), _standing(12, 5)))
    first = next(iter(found.values()))
    assert first.id == "hung"
    assert "stalled" in first.title
    assert "/health says 200" in words(first)


def test_st_04_nothing_to_do_is_not_hung_nor_is_a_moving_engine() -> None:
    assert "hung" not in findings(evidence(_standing(0, 0), _standing(0, 0)))
    assert "hung" not in findings(evidence(_standing(12, 5), _standing(12, 5, 88_101)))
    assert "hung" not in findings(evidence(_standing(12, 5), _standing(12, 5), apart_s=19))


# -- C-ST-07

EIGHT_RANKS = """\
(APIServer pid=1) INFO non-default args: {'model': 'm', 'data_parallel_size': 8}
(APIServer_0 pid=9) WARNING AsyncLLM created with api_server_count more than 1; \
disabling stats logging to avoid incomplete stats.
"""


def test_st_07_stat_lines_are_off_by_design() -> None:
    known = with_log(Known(), EIGHT_RANKS)
    found = findings(evidence(*IDLE, known=known))
    assert "stat lines are off because there are 8 API servers" in found["stats-off"].title
    assert "using /metrics" in found["stats-off"].title


# -- C-ST-08


def test_st_08_before_any_traffic_the_limit_is_told() -> None:
    known = Known(kv_tokens=20_000, max_model_len=32_768)
    idle = page({R: 0, W: 0, KV: 0.0})
    finding = findings(evidence(idle, idle, known=known))["kv-below-context"]
    assert "prompts over 20\u2009000 tokens can never run" in finding.title
    assert "concurrency 0.61x" in words(finding)
    assert "max_model_len 20000" in words(finding)


def test_st_08_under_traffic_the_head_of_the_queue_is_named() -> None:
    info = 'vllm:cache_config_info{kv_cache_size_tokens="20000"}'
    stuck = page({R: 0, W: 7, KV: 0.0, info: 1})
    known = Known(max_model_len=32_768)
    first = next(iter(findings(evidence(stuck, stuck, known=known)).values()))
    assert first.id == "kv-below-context"
    assert "at the head of the queue" in first.title


# -- no page, and another one


def test_nothing_that_can_be_read_is_said_so() -> None:
    found = gather([Snapshot(0.0, None, 200), Snapshot(1.0, None, 200)])
    (first,) = diagnose(found)
    assert first.id == "metrics-absent"
    assert "/health says 200" in first.title
    other = gather([Snapshot(0.0, parse_metrics("go_threads 4\n"), None)])
    assert diagnose(other)[0].id == "metrics-absent"


def test_a_percentile_in_the_last_bucket_has_no_upper_end_and_is_valid_json() -> None:
    def at(n: float) -> str:
        beyond = {
            'vllm:time_to_first_token_seconds_bucket{le="1.0"}': 0.0,
            'vllm:time_to_first_token_seconds_bucket{le="+Inf"}': n,
            "vllm:time_to_first_token_seconds_count": n,
            "vllm:time_to_first_token_seconds_sum": 9 * n,
        }
        return page({R: 1, W: 0, KV: 0.1, MADE: 50 * n, STEPS: 50 * n, PROMPT: n, **beyond})

    finding = findings(evidence(at(0), at(9)))["nothing-wrong"]
    text = json.dumps(finding.to_json(), allow_nan=False)
    assert "p95 TTFT above 1\\u2009000 ms" in text  # as JSON writes a thin space


def test_a_probe_without_an_answer_beside_gauges_of_zero_is_a_hung_engine() -> None:
    """An engine core that froze while idle: its gauges go on saying 0."""
    text = page({R: 0, W: 0, KV: 0.0, MADE: 9, STEPS: 9, PROMPT: 1})
    seen = replace(evidence(text, text), probe=ProbeResult(1, 0, silent_s=30.0))
    first = diagnose(seen)[0]
    assert (first.id, first.kind) == ("unanswered", "fault")
    assert "/health says 200" in words(first)
    queue = page({R: 4, W: 60, KV: 0.1, MADE: 9, STEPS: 9, PROMPT: 1})
    busy = replace(evidence(queue, queue, apart_s=5), probe=ProbeResult(1, 0, silent_s=30.0))
    (said,) = [f for f in diagnose(busy) if f.id == "unanswered"]
    assert said.kind == "limit", "behind sixty others it may only wait"


def test_a_queue_that_comes_and_goes_is_attributed_by_the_readings_that_have_one() -> None:
    """As seen on a real vLLM with four slots whose clients were starved half of the time."""
    rows = [(4, 28), (4, 25), (4, 28), (4, 27), (0, 0), (1, 0), (0, 0), (0, 0)]
    pages = [
        page({R: r, W: w, KV: 0.01, PRE: 0, STEPS: 500 * i, MADE: 2000 * i, PROMPT: 99 * i})
        for i, (r, w) in enumerate(rows)
    ]
    first = diagnose(evidence(*pages, apart_s=1, known=Known(max_num_seqs=4)))[0]
    assert (first.id, first.confidence) == ("batch-ceiling", "high")
