"""Where other simulators were found wrong: physics that a step cannot beat, block counts."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import request

from ridgeline.domain import roofline
from ridgeline.domain.defaults import resolve
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.model import shape
from ridgeline.engines.twin import server_facts, twin_of
from ridgeline.twin.constants import priors_for
from ridgeline.twin.fleet import Fleet, build_twin
from ridgeline.twin.results import step_table
from ridgeline.twin.steptime import StepCost

MODEL, CARD = shape("Qwen3-4B"), gpu("H200")
WEIGHTS_GB = 8.04  # with the head, bf16
KV_BYTES = 147_456  # per token: 36 layers, 8 heads of 128, keys and values, 2 bytes


def step(decodes, context, prompt):
    """What the step-time model looks at: decodes of some context each, one prompt beside them."""
    r = request(0, max(prompt, 1), 2)
    return SimpleNamespace(
        decodes=decodes, drafts=0, context=decodes * context,
        prefills=[(r, 0, prompt)] if prompt else [], prefill_tokens=prompt,
        pairs=prompt * prompt / 2, chunk_context=0, firsts=[r] if prompt else [],
    )  # fmt: skip


def test_a_mixed_step_costs_no_more_than_its_parts_and_no_less_than_the_longer_one():
    """64 decodes of context 600 and a prompt of 448 tokens in one step (others charge 1.5-3 x)."""
    knobs = resolve(Knobs(max_model_len=4096), CARD, MODEL)
    cost = StepCost(MODEL, CARD, knobs, priors_for(CARD.name))

    def ms(decodes, prompt):
        what = step(decodes, 600, prompt)
        return cost.gpu_ns(what, decodes + prompt) / 1e6

    decode, prefill, mixed = ms(64, 0), ms(0, 448), ms(64, 448)
    assert max(decode, prefill) <= mixed <= decode + prefill
    floor = (WEIGHTS_GB * 1e9 + 64 * 600 * KV_BYTES) / 4.8e12 * 1e3
    assert floor == pytest.approx(2.85, abs=0.01)
    assert decode > floor
    assert mixed > floor


class Nobody:
    def delivered(self, replica, decision, at_ns):
        pass

    def finished(self, r):
        pass


def simulated(requests, **knobs):
    resolved = resolve(Knobs(max_model_len=4096, enable_prefix_caching=False, **knobs), CARD, MODEL)
    fleet = Fleet(build_twin(MODEL, CARD, resolved, priors_for(CARD.name)), Nobody())
    for r in requests:
        fleet.submit(r, 0)
    fleet.run_until(None)
    return fleet


def test_no_step_is_faster_than_the_chip():
    """100 prompts of 512 tokens at once: 372 TFLOP at 989 TFLOP/s are 376 ms. Every step is held
    against the bytes it reads and the FLOPs it computes."""
    requests = [request(n, 512, 20) for n in range(100)]
    fleet = simulated(requests)
    assert max(r.first_ns for r in requests) >= 376e6
    steps = step_table(fleet)
    took = (steps.end_ns - steps.start_ns) / 1e9
    assert (took >= steps.bytes_read / 4.8e12).all()
    assert (took >= steps.flops / 989e12).all()
    # 7.26 GFLOP a token in the linear layers, attention on top (2 %), and no more than that.
    prompts = step_table(simulated([request(n, 512, 1) for n in range(100)])).flops.sum()
    assert 372e12 <= prompts <= 372e12 * 1.03


def test_a_step_of_one_user_reads_all_weights():
    fleet = simulated([request(0, 16, 50)])
    steps = step_table(fleet)
    took = (steps.end_ns - steps.start_ns)[1:]
    assert took.min() >= 1.68e6


def test_the_pools_size_says_where_it_comes_from():
    """A count of 2588 blocks is taken at its word; without one the plan's figure is marked."""
    base = Configuration("meta-llama/Llama-3.1-8B", Knobs(max_model_len=4096), gpu="RTX 4090")
    counted = replace(base, knobs=replace(base.knobs, num_gpu_blocks_override=2589))
    facts = server_facts(twin_of(counted))
    assert (facts["kv_tokens"], facts["kv_blocks_from"]) == (41_408, "override")
    assert server_facts(twin_of(base))["kv_blocks_from"] == "memory plan"


def test_head_dim_of_the_config_wins_over_the_quotient(tmp_path):
    assert roofline.kv_bytes_per_token(MODEL, 2.0, 1) == KV_BYTES
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 36, "intermediate_size": 9728, "vocab_size": 151_936,
        "tie_word_embeddings": True, "max_position_embeddings": 40_960,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert roofline.kv_bytes_per_token(shape(str(tmp_path)), 2.0, 1) == KV_BYTES
    del config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert roofline.kv_bytes_per_token(shape(str(tmp_path)), 2.0, 1) == 92_160


def test_a_prediction_has_a_band_around_it():
    """Predicted 884 and measured 192 must not look like certainty: every figure has its error."""
    from ridgeline.domain.records import MemorySink  # noqa: PLC0415
    from ridgeline.domain.run import SilentWatch  # noqa: PLC0415
    from ridgeline.domain.workload import (  # noqa: PLC0415
        Arrivals,
        Lengths,
        Outputs,
        Prompts,
        Workload,
    )
    from ridgeline.engines.base import DrivePlan  # noqa: PLC0415
    from ridgeline.engines.twin import TwinEngine  # noqa: PLC0415
    from ridgeline.workload.schedule import draw_schedule  # noqa: PLC0415

    workload = Workload(
        Arrivals(users=4), Prompts(Lengths(64)), Outputs(Lengths(16)), duration_s=1.0, warmup_s=0.0
    )
    configuration = Configuration("Qwen3-4B", Knobs(max_model_len=4096), gpu="H200")
    with TwinEngine().start(configuration) as endpoint:
        plan = DrivePlan(draw_schedule(workload), "band", bands=True)
        facts = endpoint.drive(plan, MemorySink(), SilentWatch())
    assert facts.errors
    assert all(0.01 < e < 2 for e in facts.errors.values())
    assert np.isfinite(list(facts.errors.values())).all()
