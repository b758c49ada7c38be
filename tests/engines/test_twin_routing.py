"""What a router changes in the twin: prefix hits, and the wait behind unequal requests."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.schedule import draw_schedule

FOUR = Configuration(
    "Qwen3-4B",
    Knobs(max_num_seqs=16, max_model_len=8192, data_parallel_size=4, num_gpu_blocks_override=1200),
    gpu="H100-SXM",
    gpus=4,
)
GROUPS = Workload(
    Arrivals(rate_per_s=20),
    Prompts(Lengths(64), SharedPrefix(2048, groups=24)),
    Outputs(Lengths(32)),
    duration_s=30.0,
    warmup_s=10.0,
    seed=5,
)


def drive(load: Workload, routing: str) -> tuple[MemorySink, RunFacts]:
    sink = MemorySink()
    with TwinEngine().start(FOUR) as endpoint:
        plan = DrivePlan(draw_schedule(load), "x", routing=routing)
        return sink, endpoint.drive(plan, sink, SilentWatch())


def hit_rate(facts: RunFacts) -> float:
    assert facts.counters is not None
    assert facts.counters.prefix_cache_hits is not None
    assert facts.counters.prefix_cache_queries
    return facts.counters.prefix_cache_hits / facts.counters.prefix_cache_queries


def test_prefix_aware_routing_keeps_groups_where_their_blocks_are() -> None:
    # A replica has room for about nine of the 24 prefixes (128 blocks each of 1200), and serves
    # six of them when they stay apart; in turns each of the four sees all 24.
    turns, apart = (hit_rate(drive(GROUPS, rule)[1]) for rule in ("round-robin", "prefix-aware"))
    assert turns < 0.65
    assert apart > 0.85
    assert drive(GROUPS, "prefix-aware")[1].server["routing"] == "prefix-aware"


def test_least_loaded_routing_shortens_the_wait_behind_unequal_requests() -> None:
    # Taking turns is blind for the luck of the draw: some replica queues while another idles.
    load = replace(
        GROUPS,
        arrivals=Arrivals(rate_per_s=52),
        prompts=Prompts(Lengths(200, 0.9)),
        outputs=Outputs(Lengths(200, 0.95)),
    )
    waits = {}
    for rule in ("round-robin", "least-loaded"):
        records = drive(load, rule)[0].records()
        waits[rule] = float(np.quantile(records.scheduled_ns - records.arrived_ns, 0.95)) / 1e9
    assert waits["least-loaded"] < 0.75 * waits["round-robin"]


@pytest.mark.parametrize("rule", ["round-robin", "least-loaded", "prefix-aware"])
def test_every_request_comes_back_once(rule: str) -> None:
    sink, facts = drive(GROUPS, rule)
    assert facts.counters is not None
    assert facts.counters.requests_ok == len(sink.requests) == len({r.index for r in sink.requests})
    assert {r.target for r in sink.requests} == {0, 1, 2, 3}
