"""What is claimed only where it is known: GPUs of a node, worst gaps, gains, advice, waiting."""

from collections.abc import Mapping
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

from ridgeline.diagnosis.asking import with_gains
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.known import router_signs, with_configuration
from ridgeline.diagnosis.live import Price, figures
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload

ITL, LENGTHS = "vllm:inter_token_latency_seconds", "vllm:request_prompt_tokens"
ANSWERS, PREFILL = "vllm:request_generation_tokens", "vllm:request_prefill_time_seconds"


def _known(workload: Workload | None = None, **knobs: object) -> Known:
    found = Configuration("Qwen/Qwen3-4B", Knobs().with_changes(knobs), gpu="H100-SXM")
    return with_configuration(Known(), found, workload, "study")


def _page(running: float, waiting: float, kv: float, counts: tuple[float, float, float, float],
          more: Mapping[str, float] | None = None) -> str:  # fmt: skip
    steps, made, prompt, preempted = counts
    return page({R: running, W: waiting, KV: kv, STEPS: steps, MADE: made, PROMPT: prompt,
                 PRE: preempted, **(more or {})})  # fmt: skip


def _busy(i: int, running: float = 20, waiting: float = 0, **more: float) -> str:
    """1500 steps of 19.8 ms in half a minute."""
    gaps = histogram(ITL, {0.025: 1000 + 30_000 * i}, 0.0198 * (1000 + 30_000 * i))
    counts = (1000 + 1500 * i, 50_000 + 30_000 * i, 90_000 + 9000 * i, 0)
    return _page(running, waiting, 0.3, counts, {**gaps, **more})


# -- a node's GPUs


def _node(gpus: int, util: float, active: float) -> str:
    """GPU 0 at work, the others idle."""
    fields = {"DEV_GPU_UTIL": util, "PROF_SM_ACTIVE": active, "PROF_PIPE_TENSOR_ACTIVE": active / 3,
              "PROF_DRAM_ACTIVE": 0.6 * active, "DEV_POWER_USAGE": 600}  # fmt: skip
    return "".join(
        f'DCGM_FI_{name}{{gpu="{g}"}} {0 if g else value}\n'
        for g in range(gpus) for name, value in fields.items()
    )  # fmt: skip


def test_seven_idle_neighbours_do_not_make_a_busy_gpu_wait() -> None:
    unknown = evidence(_busy(0), _busy(1), gpu=_node(8, 100, 0.95))
    assert "engine-core-cpu" not in findings(unknown)
    assert "cannot be told" in findings(unknown)["gpu-telemetry"].title
    known = evidence(_busy(0), _busy(1), gpu=_node(8, 100, 0.95), known=_known())
    assert known.gpu_mean("sm_active") == pytest.approx(0.95)
    two = evidence(
        _busy(0), _busy(1), gpu=_node(8, 100, 0.95), known=_known(tensor_parallel_size=2)
    )
    assert two.gpu_mean("sm_active") is None


def test_one_percent_of_utilisation_is_not_a_hundred() -> None:
    idle = _page(0, 0, 0.0, (100, 100, 100, 0))
    seen = evidence(idle, idle, gpu=_node(1, 1, 0.0))
    assert seen.gpus[0].utilisation == pytest.approx(0.01)


# -- logs of others


@pytest.mark.parametrize("log", [
    "WARNING Failed to load adapter config: 404 Client Error: Not Found for url:"
    " https://huggingface.co/Qwen/Qwen3-4B/resolve/main/adapter_config.json\n",
    "INFO router starting\nGET /v1/load_lora_adapter 404 Not Found\n",
    "INFO Initializing a V1 LLM engine, scheduling_policy='fcfs', load_format=auto\n",
])  # fmt: skip
def test_another_404_is_no_missing_load_signal(log: str) -> None:
    signs = router_signs(log)
    assert signs is None or not signs.failed


def test_a_routers_url_is_quoted_without_its_secrets() -> None:
    log = (
        "router: policy=least_load\n"
        "GET http://admin:s3cretpw@10.0.0.1:8000/get_load?api_key=abcdefgh 404 Not Found\n"
    )
    found = replace(evidence(_busy(0), _busy(1)), router=router_signs(log))
    first = diagnose(found)[0]
    assert first.id == "router-blind"
    text = str(first.to_json())
    assert "http://10.0.0.1:8000/get_load" in text
    assert "s3cretpw" not in text
    assert "abcdefgh" not in text


# -- the worst gap


def _stalls(known: Known) -> Evidence:
    """Ten prompts of 10,000 tokens side by side, 6 s each; no gap beyond half a second."""
    gaps = {0.02: 20_000, 0.2: 0, 0.5: 300}
    after = {
        **histogram(PREFILL, {10: 60}, 360), **histogram(LENGTHS, {20_000: 60}, 600_000),
        **histogram(ITL, gaps, 320),
    }  # fmt: skip
    before = dict.fromkeys(after, 0.0)
    return evidence(_page(40, 0, 0.5, (0, 0, 0, 0), before),
                    _page(40, 0, 0.5, (2000, 20_000, 600_000, 0), after), known=known)  # fmt: skip


def test_the_worst_gap_is_one_that_the_server_had() -> None:
    finding = findings(_stalls(Known(max_num_batched_tokens=8192)))["prefill-stalls"]
    worst = next(f for f in finding.evidence if f.name == "worst_itl_s")
    assert isinstance(worst.value, float)
    assert worst.value <= 0.5
    smaller = next(t for t in finding.tries if t.knob == "max_num_batched_tokens")
    assert "worst gap about 1" in smaller.expect, "2048 of 8192 in a quarter of half a second"


def test_no_budget_is_proposed_where_the_present_one_is_not_known() -> None:
    finding = findings(_stalls(Known()))["prefill-stalls"]
    asked = next(t for t in finding.tries if t.knob == "max_num_batched_tokens")
    assert asked.change is None
    assert not any(c.isdigit() for c in asked.value)


# -- advice that does nothing


def _thrash(i: int) -> str:
    n = 160.0 * i
    more = {**histogram(LENGTHS, {2000: n}, 1500 * n), **histogram(ANSWERS, {500: n}, 300 * n),
            'vllm:request_success_total{finished_reason="stop"}': n}  # fmt: skip
    return _page(60, 30, 1.0, (1000 * i, 50_000 * i, 250_000 * i, 40 * i), more)


@pytest.mark.parametrize(("now", "told"), [(0.97, False), (0.95, False), (0.90, True)])
def test_memory_is_never_lowered_to_get_more(now: float, *, told: bool) -> None:
    seen = evidence(*map(_thrash, range(4)), known=_known(gpu_memory_utilization=now))
    first = diagnose(seen)[0]
    assert first.id == "kv-memory"
    assert ("gpu_memory_utilization" in {t.knob for t in first.tries}) == told
    assert "ridgeline quality" in words(first), "fp8 changes answers"


def _fast(i: int) -> str:
    n = 60_000.0 * i
    more = {**histogram(LENGTHS, {200: 40 * i}, 4000 * i), **histogram(ANSWERS, {900: 40 * i}, n),
            **histogram(ITL, {0.005: n}, 0.0018 * n)}  # fmt: skip
    return _page(4, 0, 0.1, (30 / 0.0018 * i, 4 * 30 / 0.0018 * i, 4000 * i, 0), more)


def test_weights_that_are_fp8_are_not_advised_to_become_it() -> None:
    found = findings(evidence(*map(_fast, range(4)), known=_known(quantization="fp8")))
    assert "quantization" not in {t.knob for f in found.values() for t in f.tries}


@pytest.mark.parametrize(("knobs", "told"), [({"quantization": "awq"}, False), ({}, True)])
def test_nor_are_weights_of_a_kind_that_the_twin_does_not_know(
    knobs: dict[str, object], *, told: bool
) -> None:
    gpu = 'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0"} 0.9\nDCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"} 0.1\n'
    found = findings(evidence(*map(_fast, range(4)), gpu=gpu, known=_known(**knobs)))
    assert ("quantization" in {t.knob for t in found["gpu-bandwidth"].tries}) == told


# -- gains


def _slow(i: int) -> str:
    """A step a second: far slower than anything that the twin knows; no ITL is told."""
    n = 60.0 * i
    more = {**histogram(LENGTHS, {2000: n}, 1500 * n), **histogram(ANSWERS, {500: n}, 300 * n),
            'vllm:request_success_total{finished_reason="stop"}': n}  # fmt: skip
    return _page(60, 0, 0.3, (30 * i, 18_000 * i, 90_000 * i, 0), more)


def test_where_no_figure_can_be_held_there_is_no_gain() -> None:
    rate = Workload(Arrivals(rate_per_s=2.0), Prompts(Lengths(1500)), Outputs(Lengths(300)),
                    duration_s=30, warmup_s=5, seed=1)  # fmt: skip
    seen = evidence(*map(_slow, range(4)), known=_known(rate, enforce_eager=True))
    found = with_gains(seen, diagnose(seen))
    tries = [t for f in found for t in f.tries if t.change is not None]
    assert tries
    assert not any(t.gain for t in tries)
    assert any("no figure that the twin could be held against" in str(t.why_no_gain) for t in tries)


# -- speculation of unknown cost, buckets that were dropped


def test_speculation_of_unknown_cost_is_a_note_at_most() -> None:
    def at(n: float) -> str:
        spec = "vllm:spec_decode_num"
        more = {f"{spec}_drafts_total": 5000 * n, f"{spec}_draft_tokens_total": 15_000 * n,
                f"{spec}_accepted_tokens_total": 1000 * n}  # fmt: skip
        return _page(1, 0, 0.01, (1000 + 5000 * n, 1000 + 6000 * n, 1000 + 100 * n, 0), more)

    found = findings(evidence(at(0), at(1)))
    assert found["speculation"].kind == "note"
    assert not any(f.kind == "limit" for f in found.values())


def test_dropped_buckets_prove_nothing() -> None:
    def at(i: int) -> str:
        more = {f"{ITL}_sum": 0.0098 * 12_000 * i, f"{ITL}_count": 12_000.0 * i,
                f"{LENGTHS}_sum": 4000.0 * i, f"{LENGTHS}_count": 40.0 * i,
                "vllm:time_to_first_token_seconds_sum": 4.0 * i,
                "vllm:time_to_first_token_seconds_count": 40.0 * i,
                "vllm:iteration_tokens_total_sum": 16_000.0 * i}  # fmt: skip
        return _page(4, 0, 0.1, (3000 * i, 12_000 * i, 4000 * i, 0), more)

    seen = evidence(*map(at, range(4)), known=_known())
    assert "above-graphs" not in findings(seen)
    assert seen.histograms.itl is not None
    assert seen.histograms.itl.mean == pytest.approx(0.0098)
    row = figures("x", seen, Price(), ttft_limit_s=2.0)
    assert row.attainment is None, "no bucket tells how many are inside"
    assert dict(row.itl_s) == {}


# -- what waits for no room

REASON = "vllm:num_requests_waiting_by_reason"


def test_deferred_requests_wait_for_no_budget() -> None:
    rows = [_busy(i, r, 30, **{f'{REASON}{{reason="deferred"}}': 30}) for i, r in
            enumerate([300, 290, 280])]  # fmt: skip
    first = diagnose(evidence(*rows))[0]
    assert first.id == "deferred"
    assert "not for room" in first.title


def test_taken_adapter_slots_are_named() -> None:
    info = (
        'vllm:lora_requests_info{{max_lora="1",running_lora_adapters="{}",'
        'waiting_lora_adapters="{}"}}'
    )
    rows = [_busy(i, r, 30, **{info.format("a", "b,c"): 1.7e9, info.format("", ""): 1.6e9})
            for i, r in enumerate([300, 290, 280])]  # fmt: skip
    first = diagnose(evidence(*rows))[0]
    assert first.id == "lora-slots"
    assert (first.tries[0].knob, first.tries[0].value) == ("max_loras", "3")
