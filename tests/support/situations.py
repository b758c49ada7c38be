"""Situations with a known limit, staged by construction; and healthy ones over the load range.

What binds is set by what is done to the system (slots taken away, memory taken away, graphs turned
off, a host made slow, a load made uneven), not by what a rule would compute from the pages.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.domain.workload import Lengths, Outputs, Prompts, TrafficClass
from support.staging import Staged, load, serving, stage

Q4, Q8, L8, L70 = ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B",
                   "meta-llama/Llama-3.1-70B")  # fmt: skip
TUNED = {"max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 256}


@dataclass(frozen=True)
class Situation:
    """`expected`: ids, any of which is the right first one."""

    name: str
    expected: tuple[str, ...]
    make: Callable[[int], Staged]
    knobs: bool = True  # the configuration is known
    gpu: bool = True  # GPU counters are known


def _of(configuration: Any, workload: Any, **constants: Any) -> Callable[[int], Staged]:
    return lambda seed: stage(configuration, replace(workload, seed=seed), noise=seed, **constants)


def _mixed(long_share: float, prompt: float, output: float) -> list[TrafficClass]:
    return [
        TrafficClass("chat", 1 - long_share, Prompts(Lengths(200, 0.5)),
                     Outputs(Lengths(100, 0.5))),
        TrafficClass("long", long_share, Prompts(Lengths(prompt, 0.1)),
                     Outputs(Lengths(output, 0.2))),
    ]  # fmt: skip


SITUATIONS = (
    # slots taken away
    Situation("16 slots, 128 users", ("batch-ceiling",),
              _of(serving(max_num_seqs=16), load(users=128, prompt=256))),
    Situation("32 slots in each of 4, 400 users", ("batch-ceiling",),
              _of(serving(max_num_seqs=32, data_parallel_size=4, max_cudagraph_capture_size=1024),
                  load(users=400, prompt=256, output=96))),
    Situation("8 slots on an A100, a rate that is too high", ("batch-ceiling",),
              _of(serving(Q8, "A100-SXM-80GB", max_num_seqs=8), load(rate=8, prompt=256))),
    Situation("48 slots, nothing known of the configuration", ("batch-ceiling",),
              _of(serving(Q8, max_num_seqs=48), load(users=160, prompt=200, output=200)),
              knobs=False, gpu=False),
    # memory taken away
    Situation("blocks for 20 long answers, 60 users", ("kv-memory",),
              _of(serving(num_gpu_blocks_override=1200, max_num_seqs=128, max_model_len=8192),
                  load(users=60, prompt=200, output=900))),
    Situation("blocks for 10 long prompts, 40 users", ("kv-memory",),
              _of(serving(num_gpu_blocks_override=2600, max_num_seqs=128, max_model_len=8192,
                          enable_prefix_caching=False),
                  load(users=40, prompt=4000, output=60))),
    Situation("blocks on an L40S, a rate, nothing known", ("kv-memory",),
              _of(serving(L8, "L40S", num_gpu_blocks_override=1000, max_model_len=4096),
                  load(rate=5, prompt=400, output=600)), knobs=False, gpu=False),
    Situation("70 B on four H100 with few blocks", ("kv-memory",),
              _of(serving(L70, tensor_parallel_size=4, num_gpu_blocks_override=3000,
                          max_model_len=8192), load(users=128, prompt=1000, output=500))),
    # a small token budget
    Situation("budget 256, long prompts", ("token-budget",),
              _of(serving(max_num_batched_tokens=256, max_num_seqs=256),
                  load(users=160, prompt=3000, output=20, spread=0.2))),
    Situation("budget 128 for 8 B", ("token-budget",),
              _of(serving(Q8, max_num_batched_tokens=128, max_num_seqs=128),
                  load(rate=12, prompt=1500, output=20, spread=0.2))),
    # prompts that stall the others
    Situation("one prompt in 50 of 30,000 tokens, budget 16,384", ("prefill-stalls",),
              _of(serving(Q8, "A100-SXM-80GB", max_num_batched_tokens=16384,
                          max_model_len=40960, enable_prefix_caching=False),
                  load(rate=6, duration=60.0, classes=_mixed(0.02, 30000, 20)))),
    Situation("one prompt in 8 of 16,000 tokens on an L40S", ("prefill-stalls",),
              _of(serving(L8, "L40S", max_num_batched_tokens=8192, max_model_len=32768,
                          enable_prefix_caching=False),
                  load(rate=1.6, classes=_mixed(0.12, 16000, 20)))),
    # launches
    Situation("graphs up to 64 only, 48 slots, prompts of 300", ("above-graphs",),
              _of(serving(max_cudagraph_capture_size=64, max_num_seqs=256),
                  load(users=48, prompt=300, output=40))),
    Situation("default graphs of 64 slots, 60 users", ("above-graphs",),
              _of(serving(max_num_seqs=64), load(users=60, prompt=256, output=48))),
    Situation("eager, 24 users", ("eager",),
              _of(serving(enforce_eager=True), load(users=24, prompt=256, output=200))),
    Situation("eager, a rate", ("eager",),
              _of(serving(Q8, enforce_eager=True), load(rate=5, prompt=256, output=200))),
    Situation("eager on an A100, no GPU counters", ("eager",),
              _of(serving(Q4, "A100-SXM-80GB", enforce_eager=True), load(users=40, prompt=128)),
              gpu=False),
    # a slow host
    Situation("an engine core 40 times as slow", ("engine-core-cpu",),
              _of(serving(**TUNED), load(users=32, prompt=64, output=300),
                  schedule_ns=40, update_ns=40)),
    Situation("an engine core slow for each request", ("engine-core-cpu",),
              _of(serving(**TUNED), load(users=128, prompt=64, output=300),
                  schedule_ns_per_request=60, update_ns_per_request=20)),
    Situation("one API server for 4 replicas of a small model", ("api-server-cpu",),
              _of(serving("Qwen/Qwen3-0.6B", data_parallel_size=4, api_server_count=1, **TUNED),
                  load(users=512, prompt=128, output=200))),
    Situation("a slow API server", ("api-server-cpu",),
              _of(serving(Q4, **TUNED), load(users=64, prompt=128, output=150),
                  send_ns_per_chunk=12, detokenise_ns_per_chunk=12)),
    # the GPU's own bounds
    Situation("70 B on four H100, 32 users", ("gpu-bandwidth",),
              _of(serving(L70, tensor_parallel_size=4, **TUNED),
                  load(users=32, prompt=128, output=400))),
    Situation("8 B on an L40S, 16 users", ("gpu-bandwidth",),
              _of(serving(L8, "L40S", **TUNED), load(users=16, prompt=128, output=300))),
    Situation("prompts only, on an A100", ("gpu-compute",),
              _of(serving(L8, "A100-SXM-80GB", max_num_batched_tokens=8192,
                          enable_prefix_caching=False),
                  load(users=24, prompt=2500, output=4))),
    Situation("more long prompts than an A100 can compute, at a rate", ("gpu-compute",),
              _of(serving(Q8, "A100-SXM-80GB", max_num_batched_tokens=2048),
                  load(rate=9, prompt=3000, output=40, spread=0.2))),
    # nobody asks
    Situation("a request every two seconds", ("low-load",),
              _of(serving(**TUNED), load(rate=0.5, prompt=256, output=100))),
    # uneven
    Situation("4 replicas, a router that sends 7 of 10 to one", ("imbalance",),
              _of(serving(data_parallel_size=4, **TUNED), load(users=80, prompt=128, output=150),
                  weights=(7, 1, 1, 1))),
    Situation("8 replicas of 16 slots, most on three of them", ("imbalance",),
              _of(serving(Q8, data_parallel_size=8, **{**TUNED, "max_num_seqs": 16}),
                  load(users=160, prompt=128, output=150), weights=(9, 1, 1, 9, 1, 1, 9, 1))),
    Situation("4 ranks, one takes nearly all, and its blocks run out", ("imbalance",),
              _of(serving(Q8, data_parallel_size=4, num_gpu_blocks_override=600,
                          max_model_len=4096, max_num_seqs=128),
                  load(users=60, prompt=200, output=300), weights=(1, 1, 9, 1))),
    # drafts that are not worth it
    Situation("5 drafts of which few are right, 128 users", ("speculation",),
              _of(serving(Q8, "A100-SXM-80GB", max_num_seqs=256, max_num_batched_tokens=4096,
                          max_cudagraph_capture_size=2048,
                          speculative_config={"method": "ngram", "num_speculative_tokens": 5}),
                  load(users=200, prompt=64, output=300), draft_acceptance=0.1)),
)  # fmt: skip


def _at(configuration: Any, prompt: float, output: float, share: float) -> Callable[[int], Staged]:
    """At a share of what this very system, with the constants drawn for it, can carry.

    But for its API server, which is the prior's: one that is drawn twice as slow is full at 60 %,
    delays every first token, and is rightly named.
    """

    def make(seed: int) -> Staged:
        full = load(users=256, prompt=prompt, output=output, seed=seed, duration=10.0)
        most = (
            stage(configuration, full, noise=seed, front=False).figures["output_tokens_per_s"]
            / output
        )
        calm = load(rate=share * most, prompt=prompt, output=output, seed=seed)
        return stage(configuration, calm, noise=seed, front=False)

    return make


def _healthy() -> tuple[Situation, ...]:
    """Well-set servers at a rate from a twentieth to four fifths of what they can carry."""
    systems = (
        (serving(Q4, **TUNED), 256, 128),
        (serving(L8, "A100-SXM-80GB", **TUNED), 400, 150),
        (serving(L8, "L40S", **TUNED), 300, 150),
        (serving(L70, tensor_parallel_size=4, **TUNED), 300, 200),
    )
    return tuple(
        Situation(f"{c.model} on {c.gpu} at {share:.0%}", (), _at(c, prompt, output, share))
        for c, prompt, output in systems
        for share in (0.05, 0.2, 0.4, 0.6, 0.8)
    )


HEALTHY = _healthy()
