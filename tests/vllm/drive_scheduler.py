"""Run vLLM's own scheduler class on scenarios, without a model. usage: drive_scheduler.py MODEL IN

Runs inside a vLLM environment and needs nothing of Ridgeline but scripts/vllm_step_log.py on the
path, which writes the log named by RIDGELINE_STEP_LOG. IN is a JSON list of scenarios: knobs, and
requests with the number of the `schedule` call before which each arrives. The loop is that of the
engine core: with asynchronous scheduling two steps are in flight, and the outputs of a step are
processed only when the next one has been scheduled.
"""

import json
import sys
from collections import deque
from itertools import count
from pathlib import Path

import torch
import vllm_step_log
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MOST_CALLS = 20_000


def make_scheduler(model, knobs):
    """A logging scheduler with these knobs and as many blocks as they say."""
    knobs = dict(knobs)
    blocks, block_size = knobs.pop("num_gpu_blocks"), knobs.pop("block_size")
    caching = knobs.pop("enable_prefix_caching")
    length = knobs.pop("max_model_len")
    kind = vllm_step_log.AsyncStepLogScheduler
    if not knobs["async_scheduling"]:
        kind = vllm_step_log.StepLogScheduler
    policy = knobs.pop("scheduling_policy", "fcfs")
    scheduler = SchedulerConfig(
        max_model_len=length, is_encoder_decoder=False, policy=policy, **knobs
    )
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=length),
        cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=caching),
        scheduler_config=scheduler,
    )
    # What a platform hook or a default may have changed since: the scenario's word counts.
    config.scheduler_config.async_scheduling = knobs["async_scheduling"]
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = block_size
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    pool = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return kind(
        vllm_config=config,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )


def make_request(number, plan, hasher):
    """A request whose tokens are its own, but for the prefix that its group shares."""
    shared = plan.get("shared", 0)
    own = 1_000_000 * (number + 1)
    prefix = [900_000_000 + 1_000_000 * plan.get("group", 0) + i for i in range(shared)]
    prompt = prefix + [own + i for i in range(plan["prompt"] - shared)]
    params = SamplingParams(max_tokens=plan["output"], ignore_eos=True)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling_params=params,
        pooling_params=None,
        arrival_time=float(number),
        priority=plan.get("priority", 0),
        block_hasher=hasher,
    )


def output_of(step, scheduler, tokens):
    """One new token for every request whose computed tokens reach the end of what it has."""
    ids = list(step.num_scheduled_tokens)
    sampled = []
    for name in ids:
        request = scheduler.requests.get(name)
        chunk = request is not None and name in step.partial
        sampled.append([] if request is None or chunk else [next(tokens)])
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={r: i for i, r in enumerate(ids)},
        sampled_token_ids=sampled,
    )


def drive(model, scenario):
    """The engine core's loop over one scenario."""
    scheduler = make_scheduler(model, scenario["knobs"])
    depth = 2 if scenario["knobs"]["async_scheduling"] else 1
    hasher = None
    if scenario["knobs"]["enable_prefix_caching"]:
        hasher = get_request_block_hasher(scenario["knobs"]["block_size"], sha256)
    plans = deque(sorted(enumerate(scenario["requests"]), key=lambda p: (p[1]["at"], p[0])))
    tokens = count(2_000_000_000)
    flights = deque()
    turn = 0
    for turn in range(MOST_CALLS):
        while plans and plans[0][1]["at"] <= turn:
            number, plan = plans.popleft()
            scheduler.add_request(make_request(number, plan, hasher))
        if not scheduler.has_requests() and not flights:
            if not plans:
                return
            continue
        ran = False
        if scheduler.has_requests():
            step = scheduler.schedule()
            ran = step.total_num_scheduled_tokens > 0
            if ran:
                step.partial = {
                    r for r in step.num_scheduled_tokens if scheduler.requests[r].is_prefill_chunk
                }
                flights.append(step)
            if ran and len(flights) < depth:
                continue
        if flights:
            step = flights.popleft()
            scheduler.update_from_output(step, output_of(step, scheduler, tokens))
    raise SystemExit(f"{scenario['name']}: not done after {turn} turns")


def main(model, path):
    """All scenarios, one after another, into one log."""
    init_none_hash(sha256)
    for scenario in json.loads(Path(path).read_text()):
        drive(model, scenario)


if __name__ == "__main__":
    main(*sys.argv[1:])
