"""The tuner's space: its ranges follow from the hardware, the model, the load and the release."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo, slo_from_mapping
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix, Workload
from ridgeline.engines.knobs import Catalogue, Option
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.capacity import memory_of
from ridgeline.tuning.ranges import Seen, space_of, start_estimate
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.space import LAYOUT
from ridgeline.tuning.trial import Candidate
from ridgeline.workload.study import Span

H200 = Configuration("Qwen/Qwen3-4B", Knobs(), gpu="H200-SXM")
CHAT = Workload(Arrivals(users=100), Prompts(Lengths(256, 0.5)), Outputs(Lengths(96, 0.5)))


def pool_of(tokens: int, **knobs: Any) -> Configuration:
    return replace(H200, knobs=Knobs(num_gpu_blocks_override=tokens // 16 + 1, max_model_len=4096, **knobs))  # fmt: skip  # noqa: E501


def values(space: Any, name: str) -> Any:
    return next(d.values for d in space.dimensions if d.name == name)


def test_the_start_estimate_is_the_pool_over_a_request_half_way_through_its_answer() -> None:
    load = Workload(Arrivals(users=500), Prompts(Lengths(1024)), Outputs(Lengths(512)))
    memory = memory_of(twin_of(pool_of(400_000)), load)
    assert start_estimate(memory) == 312  # C-TU-01


def test_fp8_kv_is_not_proposed_where_kv_does_not_bind_and_is_where_it_does() -> None:
    idle = space_of(H200, CHAT, seen=Seen(kv_use_max=0.35))  # C-TU-02
    assert "KV is not binding (its highest use was 35%)" in idle.left_out["kv_cache_dtype"]
    full = space_of(H200, CHAT, seen=Seen(kv_use_max=0.98, preemptions_per_s=8))
    assert values(full, "kv_cache_dtype") == ("auto", "fp8")
    assert full.risk(Candidate({"kv_cache_dtype": "fp8"})) == Risk.NUMERICS


def test_without_runs_the_arithmetic_says_whether_kv_binds() -> None:
    long = replace(CHAT, prompts=Prompts(Lengths(3000)), arrivals=Arrivals(users=60))
    assert "kv_cache_dtype" not in space_of(pool_of(72 * 3096), CHAT).names
    assert "kv_cache_dtype" in space_of(pool_of(30 * 3096), long).names


def test_the_a100_has_small_defaults_and_both_budgets_are_to_be_measured() -> None:
    a100 = replace(H200, gpu="A100-SXM-80GB")  # C-TU-05
    space = space_of(a100, CHAT)
    assert space.own["max_num_batched_tokens"] == 2048
    assert {2048, 8192} <= set(values(space, "max_num_batched_tokens"))


def test_a_ceiling_that_the_pool_does_not_hold_is_refused_with_the_arithmetic() -> None:
    load = Workload(Arrivals(users=256), Prompts(Lengths(900)), Outputs(Lengths(100)))  # C-TU-06
    space = space_of(pool_of(72_000, max_num_seqs=64), load)
    assert max(values(space, "max_num_seqs")) in range(72, 81)
    why = space.refused(Candidate({"max_num_seqs": 256}))
    assert why is not None
    assert (
        "max_num_seqs 256 x 950 tokens are 243\u2009200, the KV pool holds 72\u2009000: 76 requests"
        in why
    )


def test_an_open_loop_and_shared_prefixes_are_not_refused_by_that_arithmetic() -> None:
    load = Workload(Arrivals(rate_per_s=2.0), Prompts(Lengths(900)), Outputs(Lengths(100)))
    assert space_of(pool_of(72_000), load).refused(Candidate({"max_num_seqs": 256})) is None
    shared = Workload(Arrivals(users=256), Prompts(Lengths(100), SharedPrefix(800)), load.outputs)
    assert space_of(pool_of(72_000), shared).refused(Candidate({"max_num_seqs": 256})) is None


def test_a_watermark_is_proposed_where_the_release_has_it_and_kv_is_full() -> None:
    seen = Seen(0.99, 8.0)  # C-TU-11
    new = space_of(replace(H200, engine_version="0.33.0"), CHAT, seen=seen)
    assert values(new, "watermark") == (0.0, 0.02, 0.05)
    old = space_of(H200, CHAT, seen=seen)
    assert old.left_out["watermark"] == "release 0.21 has no --watermark"


def test_utilisation_stops_below_what_starts_and_dies_under_load() -> None:
    assert max(values(space_of(H200, CHAT, seen=Seen(0.97)), "gpu_memory_utilization")) == 0.95


def test_a_flag_that_the_engines_own_catalogue_lacks_is_left_out() -> None:
    flags = ("--max-num-seqs", "--max-num-batched-tokens")
    known = Catalogue("0.99.1", "/x", tuple(Option((f,), f[2:], "int") for f in flags))
    space = space_of(H200, CHAT, known=known)
    assert set(space.names) == {"max_num_seqs", "max_num_batched_tokens"}
    assert space.left_out["quantization"] == "vLLM 0.99.1 has no --quantization"


def test_layouts_divide_the_heads_and_fit_the_host() -> None:
    space = space_of(replace(H200, gpus=4), CHAT)
    assert set(values(space, LAYOUT)) == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    assert space.candidate(space.point(Candidate({"tensor_parallel_size": 2}))).change == {
        "tensor_parallel_size": 2, "data_parallel_size": 1,
    }  # fmt: skip
    why = space.refused(Candidate({"tensor_parallel_size": 3}))
    assert why is not None
    assert "32 attention heads" in why
    assert "layout" not in space_of(H200, CHAT).names


def test_the_engines_own_rules_are_refusals_in_words() -> None:
    space = space_of(H200, CHAT)
    why = space.refused(Candidate({"max_num_seqs": 1024, "max_num_batched_tokens": 512}))
    assert why is not None
    assert "must be greater than or equal to max_num_seqs (1024)" in why
    large = space_of(replace(H200, model="meta-llama/Llama-3.1-70B", gpus=4,
                             knobs=Knobs(tensor_parallel_size=4)), CHAT)  # fmt: skip
    assert large.refused(Candidate({"tensor_parallel_size": 1})) is not None


def test_users_narrow_widen_and_take_out() -> None:
    wanted = {
        "max_num_seqs": (48, 200), "quantization": None, "block_size": (16, 32),
        "max_num_batched_tokens": Span(1000, 5000),
    }  # fmt: skip
    space = space_of(H200, CHAT, wanted=wanted)
    assert values(space, "max_num_seqs") == (48, 200, 1024)  # and the baseline's own
    assert space.left_out["quantization"] == "fixed in the study file"
    assert values(space, "block_size") == (None, 16, 32)
    assert values(space, "max_num_batched_tokens") == (1000, 2000, 4000, 5000, 8192)
    assert set(space_of(H200, CHAT, wanted=wanted, only=True).names) == {
        "max_num_seqs", "block_size", "max_num_batched_tokens",
    }  # fmt: skip


@pytest.mark.parametrize("bad", [{"max_num_seq": (1,)}, {"routing": ("x",)}])
def test_a_bad_choice_is_one_clear_line(bad: Any) -> None:
    with pytest.raises(BadInput, match=r"max_num_seqs|unknown rule"):
        space_of(H200, CHAT, wanted=bad)


def test_a_coarser_stream_needs_a_limit_that_guards_it() -> None:
    assert "stream_interval" in space_of(H200, CHAT).left_out
    guarded = space_of(H200, CHAT, slo_from_mapping({"itl_p95_ms": 20}))
    assert values(guarded, "stream_interval") == (1, 2, 4)


def test_speculation_needs_real_text_and_priorities_need_classes() -> None:
    left = space_of(H200, CHAT).left_out
    assert "real text" in left["speculative_config"]
    assert "no priorities" in left["scheduling_policy"]


def test_points_and_candidates_are_each_others_inverse() -> None:
    space = space_of(replace(H200, gpus=2), CHAT, Slo())
    random = np.random.default_rng(5)
    for _ in range(200):
        point = space.draw(random)
        assert space.point(space.candidate(point)) == point
    assert space.candidate(space.point(Candidate())).change == {}


def test_settings_that_come_to_the_same_are_one_place() -> None:
    space = space_of(H200, CHAT)
    one = Candidate({"max_num_seqs": 64})  # its graphs go to 128 by the engine's own rule
    other = Candidate({"max_num_seqs": 64, "max_cudagraph_capture_size": 128})
    assert space.resolved(one).identity == space.resolved(other).identity
    places = space.places([one, other, Candidate({"max_num_seqs": 32})])
    assert (places[0] == places[1]).all()
    assert (places[0] != places[2]).any()


def test_what_a_restart_costs_goes_by_the_compile_hash() -> None:
    space = space_of(replace(H200, gpus=2), CHAT)
    base = Candidate()
    assert space.restart(base, base) == "live"
    assert space.restart(base, Candidate({"routing": "least-loaded"})) == "live"
    assert space.restart(base, Candidate({"enable_prefix_caching": False})) == "cached"
    assert space.restart(base, Candidate({"max_num_batched_tokens": 2048})) == "compile"


def test_neighbours_are_one_step_away() -> None:
    space = space_of(H200, CHAT)
    at = space.names.index("max_num_batched_tokens")
    point = space.point(Candidate({"max_num_batched_tokens": 2048}))
    near = {p[at] for p in space.neighbours(point) if p[at] != 2048}
    assert near == {1024, 4096}
