"""Loads for schedulers: some by hand, one for each rule that a trace can show, and random ones."""

import random
from typing import Any

Scenario = dict[str, Any]
BASE = {
    "max_num_batched_tokens": 64, "max_num_seqs": 8, "enable_chunked_prefill": True,
    "async_scheduling": False, "block_size": 16, "num_gpu_blocks": 200,
    "enable_prefix_caching": False, "max_model_len": 512,
}  # fmt: skip


def scenario(name: str, requests: list[dict[str, int]], **knobs: object) -> Scenario:
    """Requests default to arriving before the first step."""
    return {
        "name": name,
        "knobs": {**BASE, **knobs},
        "requests": [{"at": 0, **r} for r in requests],
    }


def of(prompt: int, output: int, **more: int) -> dict[str, int]:
    return {"prompt": prompt, "output": output, **more}


def by_hand() -> list[Scenario]:
    """Each exercises one rule of the scheduler."""
    mixed = [of(p, o) for p, o in ((100, 4), (30, 6), (7, 9), (150, 3), (64, 5), (1, 2))]
    return [
        scenario("mixed lengths under a small budget", mixed),
        scenario("mixed lengths, two steps in flight", mixed, async_scheduling=True),
        scenario("the batch ceiling", [of(10, 5 + n) for n in range(9)], max_num_seqs=3),
        scenario(
            "prefix hits",
            [of(100, 3, shared=80, at=2 * n) for n in range(4)] + [of(64, 2, shared=64, at=9)] * 2,
            enable_prefix_caching=True,
        ),
        scenario(
            "preemption with few blocks",
            [of(40, 40) for _ in range(6)],
            num_gpu_blocks=18, max_num_batched_tokens=128, max_model_len=256,
        ),
        scenario(
            "preemption and prefix caching",
            [of(40, 40, shared=32) for _ in range(6)],
            num_gpu_blocks=18, max_num_batched_tokens=128, max_model_len=256,
            enable_prefix_caching=True,
        ),
        scenario(
            "priority",
            [of(40, 20, priority=n % 3, at=n) for n in range(9)],
            scheduling_policy="priority", max_num_seqs=3,
        ),
        scenario(
            "priority and preemption",
            [of(40, 30, priority=(5 - n) % 4, at=n) for n in range(6)],
            scheduling_policy="priority", num_gpu_blocks=14, max_model_len=128,
        ),
        scenario(
            "a cap on long prompts",
            [of(300, 3), of(20, 3), of(200, 3), of(5, 9)],
            long_prefill_token_threshold=24,
        ),
        scenario("a cap and a lone prompt", [of(200, 3)], long_prefill_token_threshold=24),
        scenario(
            "no chunked prefill",
            [of(150, 3) for _ in range(7)],
            enable_chunked_prefill=False, max_num_batched_tokens=512, max_num_seqs=16,
        ),
        scenario(
            "room for the whole prompt",
            [of(60, 60), of(180, 5, at=1)],
            num_gpu_blocks=14, max_model_len=200,
        ),
    ]  # fmt: skip


def at_random(seed: int, release: str = "0.32") -> Scenario:
    """A small engine with whatever knobs the seed draws, and bursts of requests."""
    draw = random.Random(seed)
    budget = draw.choice([16, 32, 64, 128])
    blocks = draw.choice([12, 16, 24, 40, 200])
    block = draw.choice([4, 16])
    longest = min(200, (blocks - 2) * block)
    knobs: dict[str, object] = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw.choice([1, 2, 4, 8, 16]),
        "block_size": block,
        "num_gpu_blocks": blocks,
        "max_model_len": longest,
        "async_scheduling": draw.random() < 0.5,
        "enable_prefix_caching": draw.random() < 0.6,
        "scheduling_policy": draw.choice(["fcfs", "fcfs", "priority"]),
    }
    if draw.random() < 0.3:
        knobs["long_prefill_token_threshold"] = draw.choice([5, 12, 20])
    if draw.random() < 0.2:
        knobs["scheduler_reserve_full_isl"] = False
    if draw.random() < 0.15:
        knobs["enable_chunked_prefill"] = False
        knobs["max_num_batched_tokens"] = max(budget, longest)
    if release != "0.21":
        if draw.random() < 0.15:
            knobs["watermark"] = draw.choice([0.05, 0.2])
        if draw.random() < 0.15:
            knobs["max_num_active_seqs"] = draw.randint(1, int(str(knobs["max_num_seqs"])))
        if draw.random() < 0.15:
            knobs["prefill_schedule_interval"] = draw.choice([2, 3, 8])
    requests = []
    at = 0
    for _ in range(draw.randint(3, 25)):
        at += draw.choice([0, 0, 0, 1, 2, 7])
        prompt = draw.randint(1, max(1, longest * 2 // 3))
        request = of(prompt, draw.randint(1, longest - prompt), at=at)
        request["priority"] = draw.randint(0, 3)
        if draw.random() < 0.6:
            request |= {"group": draw.randint(0, 1), "shared": min(prompt, draw.choice([16, 40]))}
        requests.append(request)
    return scenario(f"random {seed}", requests, **knobs)
