"""Whole simulated runs: records, accounting, physics, and the direction of the known effects."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain import roofline
from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.model import shape
from ridgeline.domain.records import FULL_GRAPH, NO_GRAPH, MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    Outputs,
    Prompts,
    SharedPrefix,
    Workload,
)
from ridgeline.engines.base import DrivePlan, Engine, Timeouts
from ridgeline.engines.twin import TwinEngine
from ridgeline.twin.constants import Constants, priors_for
from ridgeline.workload.schedule import Schedule, draw_schedule


class Run:
    """One simulated run and its figures inside the window."""

    def __init__(self, facts, sink):
        self.facts = facts
        self.sink = sink
        self.records = sink.records()
        self.steps = sink.step_table
        lo, hi = facts.window.start_ns, facts.window.end_ns
        r = self.records
        inside = (r.chunk_ns >= lo) & (r.chunk_ns < hi)
        first = np.zeros(len(r.chunk_ns), dtype=bool)
        first[r.chunk_start[:-1][np.diff(r.chunk_start) > 0]] = True
        self.tokens_per_s = inside.sum() / (hi - lo) * 1e9
        self.gaps_ms = np.diff(r.chunk_ns)[(~first & inside)[1:]] / 1e6
        self.sent_inside = (r.sent_ns >= lo) & (r.sent_ns < hi)
        self.ttft_ms = (r.first_ns - r.sent_ns)[self.sent_inside] / 1e6

    @property
    def ttft_p95_ms(self):
        return float(np.nanquantile(self.ttft_ms, 0.95))


def workload(**changes):
    base = Workload(
        Arrivals(users=100),
        Prompts(Lengths(256, 0.5)),
        Outputs(Lengths(96, 0.5)),
        duration_s=20.0,
        warmup_s=4.0,
        seed=11,
    )
    return replace(base, **changes)


def run(
    load=None, *, on="H200", watch=None, timeouts=None, constants=None, model="Qwen3-4B",
    engine_version=None, **knobs,
):  # fmt: skip
    given = {"max_model_len": 4096, "enable_prefix_caching": False, **knobs}
    sink = MemorySink()
    engine = TwinEngine() if constants is None else TwinEngine(constants)
    load = load if isinstance(load, Schedule) else draw_schedule(load or workload())
    configuration = Configuration(model, Knobs(**given), gpu=on, engine_version=engine_version)
    with engine.start(configuration) as endpoint:
        plan = DrivePlan(load, "salt", timeouts=timeouts or Timeouts())
        facts = endpoint.drive(plan, sink, watch or SilentWatch())
    return Run(facts, sink)


@pytest.fixture(scope="module")
def base():
    """100 users, 64 sequences, one H200: graphs are captured to 128 tokens."""
    return run(max_num_seqs=64)


def test_it_is_an_engine():
    engine: Engine = TwinEngine()
    assert engine.name == "twin"


def test_every_request_that_was_sent_is_recorded_and_ended(base):
    r, facts = base.records, base.facts
    assert facts.source == "twin"
    assert facts.client.receive_clock == "simulated"
    assert not facts.interrupted
    assert (facts.window.start_ns, facts.window.end_ns) == (4_000_000_000, 24_000_000_000)
    assert r.ok.all()
    assert list(r.index) == list(range(len(r)))
    assert (r.sent_ns < facts.window.end_ns).all()
    assert (r.sent_ns < facts.window.start_ns).any()
    assert r.last_ns.max() > facts.window.end_ns  # followed to their end
    np.testing.assert_array_equal(r.output_tokens, r.planned_output_tokens)
    chunks = np.diff(r.chunk_start)  # a late API server merges some tokens
    assert (chunks <= r.output_tokens).all()
    assert (chunks >= 0.7 * r.output_tokens).all()
    np.testing.assert_array_equal(r.chunk_ns[r.chunk_start[:-1]], r.first_ns)
    np.testing.assert_array_equal(r.chunk_ns[r.chunk_start[1:] - 1], r.last_ns)
    for stamps in (r.sent_ns, r.arrived_ns, r.scheduled_ns, r.first_ns, r.last_ns):
        assert np.isfinite(stamps).all()
    assert (r.arrived_ns > r.sent_ns).all()
    assert (r.scheduled_ns >= r.arrived_ns).all()
    assert (r.first_ns > r.scheduled_ns).all()


def test_the_engines_counters_agree_with_the_records(base):
    counters, r = base.facts.counters, base.records
    assert counters.requests_ok == len(r)
    assert counters.prompt_tokens == r.prompt_tokens.sum()
    assert counters.generation_tokens == len(r.chunk_ns)
    assert counters.prefix_cache_queries is None  # off
    assert counters.preemptions == 0


def test_steps_account_for_every_token(base):
    t, r = base.steps, base.records
    assert t.prefill_tokens.sum() == r.prompt_tokens.sum()
    # The first token of a request comes out of its prefill, the others out of decodes.
    assert t.decode_tokens.sum() == r.output_tokens.sum() - len(r)
    assert t.running.max() <= 64
    assert (t.padded_tokens >= t.prefill_tokens + t.decode_tokens).all()
    assert (t.start_ns[1:] >= t.end_ns[:-1]).all()
    assert (t.delivered_ns >= t.end_ns).all()
    assert (np.diff(t.delivered_ns) >= 0).all()
    assert t.kv_used_blocks.max() <= t.kv_total_blocks


def test_the_parts_of_a_step_add_up_to_its_time(base):
    t = base.steps
    total = sum(part.astype(np.float64) for part in t.parts.values())
    np.testing.assert_allclose(total, t.end_ns - t.start_ns, rtol=1e-6, atol=10)
    for name, part in t.parts.items():
        assert (part >= 0).all(), name
    # In pure decode launches hide behind the GPU: the columns' formula is the engine loop's.
    decode = t.mode == FULL_GRAPH
    usual = np.median(t.parts["launch"][decode])
    c = priors_for("H200-SXM")
    assert usual == pytest.approx(36 * c.small_kernels_ns_per_layer + c.step_gap_ns, abs=50)


@pytest.mark.parametrize(
    ("knobs", "precision"),
    [({}, "bf16"), ({"quantization": "fp8"}, "fp8"), ({"enforce_eager": True}, "bf16")],
)
def test_no_step_beats_the_roofline(knobs, precision):
    found = run(workload(duration_s=4.0), **knobs)
    t, h200 = found.steps, gpu("H200")
    floor_s = np.maximum(t.flops / h200.flops[precision], t.bytes_read / 4.8e12)
    assert ((t.end_ns - t.start_ns) / 1e9 >= floor_s).all()
    decode = t.prefill_tokens == 0
    model_bytes = 8.045e9 if precision == "bf16" else 8.045e9 - 3.633e9
    assert t.bytes_read[decode].min() >= model_bytes * 0.999


def test_a_hundred_prompts_at_once_take_the_time_their_flops_need():
    """51 200 prompt tokens are 372 TFLOP: 376 ms at the dense peak of 989 TFLOP/s."""
    load = workload(
        arrivals=Arrivals(users=100), prompts=Prompts(Lengths(512)), outputs=Outputs(Lengths(96)),
        warmup_s=0.0, requests=100,
    )  # fmt: skip
    schedule = replace(draw_schedule(load), user_start_ns=np.zeros(100, dtype=np.int64))
    found = run(schedule)
    assert len(found.records) == 100
    assert (found.records.first_ns - found.records.sent_ns).max() >= 376e6
    t = found.steps
    assert t.flops.sum() >= 372e12
    assert (t.end_ns - t.start_ns).min() >= 1.68e6


def test_littles_law_closes(base):
    """100 users are always in the system: rate x residence = 100."""
    r, w = base.records, base.facts.window
    lo = np.maximum(r.sent_ns, w.start_ns)
    hi = np.minimum(r.last_ns, w.end_ns)
    in_system = np.maximum(hi - lo, 0).sum() / (w.end_ns - w.start_ns)
    assert in_system == pytest.approx(100, rel=0.001)
    ended = (r.last_ns >= w.start_ns) & (r.last_ns < w.end_ns)
    rate = ended.sum() / w.seconds
    residence = ((r.last_ns - r.sent_ns)[ended] / 1e9).mean()
    assert rate * residence == pytest.approx(100, rel=0.05)


def test_one_server_with_fixed_service_is_an_m_d_1_queue():
    """Pollaczek-Khinchine: mean wait = rho * S / (2 * (1 - rho)), S from back-to-back requests."""
    free = Constants(receive_ns=0, receive_ns_per_token=0, network_ns=0)
    shape_of_load = {"prompts": Prompts(Lengths(64)), "outputs": Outputs(Lengths(2))}
    knobs = {"max_num_seqs": 1, "async_scheduling": False, "constants": free}
    busy = run(workload(arrivals=Arrivals(users=4), **shape_of_load), **knobs)
    started = np.sort(busy.records.scheduled_ns[busy.sent_inside])
    service_s = float(np.median(np.diff(started))) / 1e9
    rho = 0.6
    load = workload(
        arrivals=Arrivals(rate_per_s=rho / service_s), warmup_s=20.0,
        duration_s=12_000 * service_s / rho, **shape_of_load,
    )  # fmt: skip
    found = run(load, **knobs)
    wait_s = (found.records.scheduled_ns - found.records.arrived_ns)[found.sent_inside] / 1e9
    assert wait_s.mean() == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.08)


def test_the_same_seed_gives_the_same_bytes():
    one, two = (run(workload(duration_s=3.0), data_parallel_size=3) for _ in range(2))
    for name in ("start_ns", "end_ns", "delivered_ns", "flops"):
        assert getattr(one.steps, name).tobytes() == getattr(two.steps, name).tobytes()
    assert one.records.chunk_ns.tobytes() == two.records.chunk_ns.tobytes()
    other = run(workload(duration_s=3.0, seed=12), data_parallel_size=3)
    assert one.records.chunk_ns.tobytes() != other.records.chunk_ns.tobytes()


# -- directions that were seen on real machines -------------------------------------------------


def test_eager_is_far_slower_than_graphs(base):
    eager = run(max_num_seqs=64, enforce_eager=True)
    assert np.median(eager.gaps_ms) > 3 * np.median(base.gaps_ms)
    assert (eager.steps.mode == NO_GRAPH).all()
    # Launch-bound: the GPU waits for most of the step.
    assert eager.steps.parts["launch"].sum() > 0.5 * sum(
        p.sum() for p in eager.steps.parts.values()
    )


def test_a_higher_batch_ceiling_helps_while_requests_queue(base):
    narrow = run(max_num_seqs=32)
    assert base.tokens_per_s > 1.2 * narrow.tokens_per_s
    assert base.ttft_p95_ms < narrow.ttft_p95_ms


def test_capturing_larger_graphs_frees_mixed_steps(base):
    """Seen on an H200 with 64 sequences: +66 % throughput and half the p95 gap and TTFT."""
    wide = run(max_num_seqs=64, max_cudagraph_capture_size=1024)
    assert wide.tokens_per_s > 1.3 * base.tokens_per_s
    assert np.quantile(wide.gaps_ms, 0.95) < 0.7 * np.quantile(base.gaps_ms, 0.95)
    assert wide.ttft_p95_ms < base.ttft_p95_ms


def test_fp8_shortens_the_gaps(base):
    fp8 = run(max_num_seqs=64, quantization="fp8")
    assert np.median(fp8.gaps_ms) < np.median(base.gaps_ms)
    # Half of the stock steps wait for launches; with all of them in graphs FP8 gives tokens too.
    wide = {"max_num_seqs": 64, "max_cudagraph_capture_size": 1024}
    assert run(quantization="fp8", **wide).tokens_per_s > run(**wide).tokens_per_s


def test_two_replicas_carry_more_and_take_turns(base):
    two = run(max_num_seqs=64, data_parallel_size=2)
    assert two.tokens_per_s > base.tokens_per_s
    r = two.records
    assert list(r.target[np.argsort(r.sent_ns, kind="stable")][:6]) == [0, 1, 0, 1, 0, 1]
    assert abs((r.target == 0).sum() - (r.target == 1).sum()) <= 1


def test_without_chunking_no_prompt_is_cut():
    found = run(
        workload(prompts=Prompts(Lengths(600, 0.3)), duration_s=5.0),
        enable_chunked_prefill=False, max_model_len=1024, max_num_batched_tokens=1024,
    )  # fmt: skip
    cut = run(
        workload(prompts=Prompts(Lengths(600, 0.3)), duration_s=5.0),
        max_model_len=1024, max_num_batched_tokens=1024,
    )  # fmt: skip
    assert found.steps.prefill_tokens.max() <= 1024
    # Chunked: budget is filled to the brim under load; unchunked: no step ends in a cut prompt.
    full = (cut.steps.prefill_tokens + cut.steps.decode_tokens == 1024).mean()
    assert full > 0.05
    assert (found.steps.prefill_tokens + found.steps.decode_tokens == 1024).mean() < 0.01
    for record in found.sink.requests[:50]:
        row = record.steps.first[0]
        assert found.steps.prefill_tokens[row] >= record.prompt_tokens


def test_prefix_caching_does_nothing_for_unique_prompts(base):
    cached = run(max_num_seqs=64, enable_prefix_caching=True)
    assert cached.facts.counters.prefix_cache_hits == 0
    assert cached.facts.counters.prefix_cache_queries == cached.records.prompt_tokens.sum()
    assert cached.tokens_per_s == pytest.approx(base.tokens_per_s, rel=0.001)


def test_shared_prefixes_hit_and_are_not_computed_again():
    load = workload(prompts=Prompts(Lengths(64, 0.5), SharedPrefix(1024, 4)), duration_s=5.0)
    cold, warm = (run(load, max_num_seqs=64, enable_prefix_caching=c) for c in (False, True))
    hits = warm.facts.counters.prefix_cache_hits
    assert hits == warm.records.cached_tokens.sum()
    assert hits / warm.facts.counters.prefix_cache_queries > 0.85
    assert set(np.unique(warm.records.cached_tokens)) <= {0.0, 1024.0}
    assert warm.steps.prefill_tokens.sum() == warm.records.prompt_tokens.sum() - hits
    assert warm.tokens_per_s > 1.5 * cold.tokens_per_s


def test_few_blocks_cause_preemption_and_nothing_is_lost():
    found = run(
        workload(duration_s=5.0), num_gpu_blocks_override=400, max_num_seqs=64,
        scheduler_reserve_full_isl=False,
    )  # fmt: skip
    r = found.records
    assert found.facts.counters.preemptions == r.preemptions.sum() > 0
    chunks = np.diff(r.chunk_start)  # a late API server merges some tokens
    assert (chunks <= r.output_tokens).all()
    assert (chunks >= 0.7 * r.output_tokens).all()
    np.testing.assert_array_equal(r.chunk_ns[r.chunk_start[1:] - 1], r.last_ns)
    assert found.steps.prefill_tokens.sum() > r.prompt_tokens.sum()


# -- loads, limits, errors ----------------------------------------------------------------------


def test_open_loop_sends_when_it_was_meant_to():
    load = draw_schedule(workload(arrivals=Arrivals(rate_per_s=40.0)))
    found = run(load)
    np.testing.assert_array_equal(found.records.sent_ns, load.intended_ns)
    np.testing.assert_array_equal(found.records.intended_ns, load.intended_ns)
    assert np.isnan(found.records.user).all()


def test_think_time_separates_a_users_requests():
    load = workload(arrivals=Arrivals(users=3, think_time_s=0.25), duration_s=4.0)
    r = run(load).records
    mine = r.user == 1
    np.testing.assert_array_equal(r.sent_ns[mine][1:] - r.last_ns[mine][:-1], 250_000_000)
    np.testing.assert_array_equal(r.intended_ns, r.sent_ns)


def test_a_number_of_requests_ends_the_window():
    found = run(workload(requests=150))
    assert found.sent_inside.sum() == 150
    assert found.facts.window.end_ns == found.records.sent_ns.max() + 1


def test_stopping_early_keeps_what_was_measured():
    class Impatient(SilentWatch):
        seen = 0

        def live(self, figures):
            self.seen += 1
            assert figures.in_flight <= 100

        def stop_asked(self):
            return self.seen >= 2

    found = run(watch=Impatient())
    assert found.facts.interrupted
    assert 9_000_000_000 < found.facts.window.end_ns <= 10_000_000_000
    assert found.records.ok.all()


def test_a_request_longer_than_the_model_is_refused_as_the_server_does():
    load = workload(prompts=Prompts(Lengths(300, 0.9)), duration_s=2.0)
    found = run(load, max_model_len=512)
    refused = found.records.http_status == 400
    assert 0 < refused.sum() < len(found.records)
    lengths = found.records.planned_prompt_tokens + found.records.planned_output_tokens
    np.testing.assert_array_equal(refused, lengths > 512)
    assert set(np.array(found.records.text["failure"])[refused]) == {"http_status"}


def test_live_figures_count_the_refused_ones_so_far():
    class Seen(SilentWatch):
        def __init__(self):
            self.figures = []

        def live(self, figures):
            self.figures.append((figures.elapsed_s, figures.failed))

    watch = Seen()
    load = workload(prompts=Prompts(Lengths(300, 0.9)), duration_s=12.0)
    records = run(load, max_model_len=512, watch=watch).records
    ends = records.end_ns[records.http_status == 400] / 1e9
    assert len(watch.figures) == 4
    assert [n for _, n in watch.figures] == [(ends < at).sum() for at, _ in watch.figures]
    assert 0 < watch.figures[0][1] < watch.figures[-1][1]


def test_a_clients_limits_turn_late_requests_into_failures():
    found = run(max_num_seqs=8, timeouts=Timeouts(first_s=1.0, grace_s=0.5))
    failures = found.records.text["failure"]
    assert {"timeout_first", None} <= set(failures)
    late = [f == "timeout_first" for f in failures]
    assert np.isnan(found.records.first_ns[late]).all()
    assert "did not hang up" in found.facts.notes[0]


def test_what_is_still_open_after_the_grace_time_is_cancelled():
    found = run(max_num_seqs=8, timeouts=Timeouts(first_s=None, grace_s=0.5))
    failures = np.array(found.records.text["failure"])
    late = failures == "cancelled"
    assert set(failures) == {"cancelled", None}
    end = found.facts.window.end_ns + 500_000_000
    assert (found.records.end_ns[late] == end).all()
    assert found.records.chunk_ns.max() <= end
    assert found.records.end_ns[~late].max() <= end
    # Some had begun to get tokens, most still waited for a slot.
    assert np.isfinite(found.records.first_ns[late]).any()
    assert np.isnan(found.records.first_ns[late]).any()


def test_an_answer_that_takes_too_long_is_cut_at_the_clients_limit():
    found = run(max_num_seqs=64, timeouts=Timeouts(total_s=1.5))
    failures = np.array(found.records.text["failure"])
    late = failures == "timeout_total"
    assert 0 < late.sum() < len(late)
    r = found.records
    np.testing.assert_array_equal((r.end_ns - r.sent_ns)[late], 1_500_000_000)
    assert ((r.end_ns - r.sent_ns)[~late] <= 1_500_000_000).all()
    assert ((r.last_ns - r.sent_ns)[late] <= 1_500_000_000).all()
    assert (np.diff(r.chunk_start)[late] < r.planned_output_tokens[late]).all()


def test_users_that_end_in_one_step_do_not_pass_the_number_of_requests():
    load = workload(prompts=Prompts(Lengths(64)), outputs=Outputs(Lengths(20)), warmup_s=0.0)
    for n in range(101, 140, 3):
        found = run(replace(load, requests=n))
        assert len(found.records) == n


def test_requests_that_can_never_fit_wait_for_ever_and_that_is_told():
    """16 blocks hold 256 tokens, but one is the engine's own: 245 + 5 tokens need 16."""
    found = run(
        workload(arrivals=Arrivals(users=2), prompts=Prompts(Lengths(245)),
                 outputs=Outputs(Lengths(5)), duration_s=2.0),
        num_gpu_blocks_override=16, max_model_len=256,
    )  # fmt: skip
    assert found.records.text["failure"] == ["timeout_first"] * 2
    [event] = found.sink.events
    assert event.kind == "stalled"
    assert "request 0 (245 prompt + 5 output tokens)" in event.text
    assert "needs 16 blocks of 16 tokens, requests can have 15" in event.text
    assert event.text.endswith("2 wait for ever")
    assert event.text in found.facts.notes
    assert len(found.steps) == 0


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("version", ["0.21", "0.33"])
def test_a_request_that_outgrows_the_pool_ends_the_simulation(caching, version):
    """Without full reservation it runs until the 256th block, which the engine keeps."""
    load = workload(arrivals=Arrivals(users=1), prompts=Prompts(Lengths(4000)),
                    outputs=Outputs(Lengths(96)), duration_s=10.0, warmup_s=0.0)  # fmt: skip
    found = run(
        load, num_gpu_blocks_override=256, max_num_batched_tokens=2048,
        scheduler_reserve_full_isl=False, enable_prefix_caching=caching, engine_version=version,
    )  # fmt: skip
    [event] = found.sink.events
    assert event.kind == "stalled"
    assert "request 0 (4000 prompt + 96 output tokens)" in event.text
    assert "needs 256 blocks of 16 tokens, requests can have 255" in event.text
    # 255 blocks hold 4080 tokens: the first answer token and one for each of those 80 slots.
    assert len(found.records.chunk_ns) == 81
    assert found.records.preemptions.tolist() == [1]
    # One block more, and one token less, are enough.
    for blocks, tokens in ((257, 96), (256, 81)):
        fits = run(
            replace(load, outputs=Outputs(Lengths(tokens)), requests=2),
            num_gpu_blocks_override=blocks, max_num_batched_tokens=2048,
            scheduler_reserve_full_isl=False, enable_prefix_caching=caching,
            engine_version=version,
        )  # fmt: skip
        assert fits.records.ok.all()
        assert not fits.sink.events


def test_those_behind_a_request_that_outgrows_the_pool_are_counted():
    load = workload(arrivals=Arrivals(users=3), prompts=Prompts(Lengths(4000)),
                    outputs=Outputs(Lengths(96)), duration_s=10.0, warmup_s=0.0)  # fmt: skip
    found = run(load, num_gpu_blocks_override=256, scheduler_reserve_full_isl=False)
    assert [e.text.endswith("3 wait for ever") for e in found.sink.events] == [True]


def test_a_prompt_that_no_step_may_take_whole_is_told_as_that():
    load = workload(arrivals=Arrivals(users=1), prompts=Prompts(Lengths(3000)),
                    outputs=Outputs(Lengths(5)), duration_s=2.0)  # fmt: skip
    found = run(
        load, enable_chunked_prefill=False, max_num_batched_tokens=4096,
        max_num_scheduled_tokens=2000,
    )  # fmt: skip
    [event] = found.sink.events
    assert "lacks 3000 tokens, a step without chunked prefill takes 2000" in event.text


class StopsAfter(SilentWatch):
    """Asks to stop from its n-th answer on."""

    def __init__(self, answers):
        self.left = answers

    def stop_asked(self):
        self.left -= 1
        return self.left < 0


def test_a_stop_after_the_window_ends_the_simulation_at_the_clients_patience():
    """8 slots for 100 users of one long answer each: the last would end long after the window."""
    load = workload(outputs=Outputs(Lengths(2000)), warmup_s=0.0, duration_s=4.0)
    whole = run(load, max_num_seqs=8)
    # The window is one look at the watch; the second comes with the drain.
    stopped = run(load, max_num_seqs=8, timeouts=Timeouts(grace_s=10.0), watch=StopsAfter(1))
    assert whole.steps.end_ns[-1] > 60e9
    assert stopped.facts.interrupted
    assert not whole.facts.interrupted
    assert stopped.steps.end_ns[-1] < 15e9
    assert "cancelled" in stopped.records.text["failure"]


def test_a_stop_at_any_moment_keeps_what_the_client_had_of_open_requests():
    """Short answers on full slots: some end in steps that are still on their way at the cut."""
    load = workload(outputs=Outputs(Lengths(20)), warmup_s=0.0, duration_s=4.0)
    for grace_ms in range(100, 140, 3):
        limits = Timeouts(grace_s=grace_ms / 1e3)
        stopped = run(load, max_num_seqs=64, timeouts=limits, watch=StopsAfter(1))
        failure = np.array(stopped.records.text["failure"], dtype=object)
        first = stopped.records.first_ns[failure == "cancelled"]
        chunks = np.diff(stopped.records.chunk_start)[failure == "cancelled"]
        assert len(first) > 30
        # those in decode had tokens; those that waited had none
        assert np.isfinite(first).any()
        assert ((chunks > 0) == np.isfinite(first)).all()


def test_requests_that_are_counted_close_the_window_for_the_deadline_too():
    """Ten requests, one second of patience: what takes longer is given up by the client."""
    load = replace(
        workload(arrivals=Arrivals(users=10), outputs=Outputs(Lengths(500, 0.5)), duration_s=60.0),
        requests=10,
        warmup_s=0.0,
    )
    found = run(load, timeouts=Timeouts(grace_s=1.0))
    assert found.facts.window.end_ns < 1e9
    failure = found.records.text["failure"]
    assert failure.count("cancelled") >= 8
    ends = found.records.last_ns[[f is None for f in failure]]
    assert (ends <= found.facts.window.end_ns + 1e9).all()


def test_facts_are_plain_values(base):
    server = json.loads(json.dumps(base.facts.server))
    assert server["engine"] == "twin"
    assert server["constants"] == "prior"
    assert server["knobs"]["max_num_seqs"] == 64
    assert server["kv_tokens"] == server["kv_blocks"] * 16
    assert 0 < server["api_server_busy"][0] < 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"gpu": None}, BadInput, "needs a GPU"),
        ({"gpu": "H1000"}, BadInput, "unknown GPU"),
        ({"model": "no/such"}, BadInput, "unknown model"),
        ({"model": "meta-llama/Llama-3.1-70B"}, RunFailed, "not enough GPU memory"),
        ({"engine_version": "0.5"}, BadInput, "releases"),
        ({"knobs": Knobs(pipeline_parallel_size=2)}, BadInput, "pipeline"),
    ],
)
def test_what_cannot_start_says_why(changes, error, message):
    configuration = Configuration("Qwen3-4B", Knobs(), gpu="H100")
    with pytest.raises(error, match=message):
        TwinEngine().start(replace(configuration, **changes)).__enter__()


def test_roofline_columns_match_the_formulas():
    """One user: each decode step reads the weights once and the context so far."""
    load = workload(arrivals=Arrivals(users=1), prompts=Prompts(Lengths(100)),
                    outputs=Outputs(Lengths(10)), duration_s=1.0, warmup_s=0.0)  # fmt: skip
    t = run(load).steps
    model = shape("Qwen3-4B")
    assert list(t.prefill_tokens[:3]) == [100, 0, 0]
    assert t.flops[0] == pytest.approx(roofline.prefill_flops(model, 100))
    assert t.flops[1] == pytest.approx(roofline.decode_flops(model, 1, 101))
    assert t.bytes_read[1] == pytest.approx(roofline.decode_bytes(model, 1, 101))
    assert list(t.context_tokens[1:4]) == [101, 102, 103]
