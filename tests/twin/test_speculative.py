"""Speculative decoding: step traces by hand, conservation, and what it does to time."""

import random

import numpy as np
import pytest
from helpers import knobs, request, step, traces

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import FULL_GRAPH, MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.twin.speculative import SpeculativeScheduler, accepted_drafts
from ridgeline.workload.schedule import draw_schedule

ALWAYS, NEVER = 1 - 1e-12, 0.0


def engine(acceptance, k=3, method="ngram", blocks=1000, version="0.21", **given):
    speculative = {"method": method, "num_speculative_tokens": k}
    resolved = knobs(version, speculative_config=speculative, **given)
    return SpeculativeScheduler(resolved, blocks, acceptance, trace=True)


def test_the_share_of_accepted_drafts_is_that_of_the_law():
    """Position i is right with p when all before it were: p + p^2 + p^3 on average."""
    found = [accepted_drafts(n, t, 3, 0.6) for n in range(200) for t in range(100)]
    assert np.mean(found) == pytest.approx(0.6 + 0.36 + 0.216, rel=0.02)
    assert np.mean(np.array(found) == 3) == pytest.approx(0.216, rel=0.03)
    assert accepted_drafts(7, 7, 3, NEVER) == 0


def test_nothing_accepted_costs_four_tokens_for_one():
    s = engine(NEVER)
    s.add(r := request(0, 5, 4))
    assert traces(s, 9) == [{0: 5}, {0: 4}, {0: 4}, {0: 4}]
    assert (r.produced, r.runs, s.pool.used) == (4, [(0, 4)], 0)
    assert (s.drafted, s.accepted) == (9, 0)


def test_everything_accepted_gives_four_tokens_a_step_and_stops_at_the_end():
    s = engine(ALWAYS)
    s.add(r := request(0, 5, 11))
    assert traces(s, 9) == [{0: 5}, {0: 4}, {0: 4}, {0: 4}]  # 1, 5, 9 and 11 tokens
    assert (r.produced, r.runs) == (11, [(0, 4)])


def test_drafts_count_against_the_budget():
    s = engine(ALWAYS, max_num_batched_tokens=10, max_num_seqs=4)
    for number in range(3):
        s.add(request(number, 3, 9))
    assert traces(s, 2) == [{0: 3, 1: 3, 2: 3}, {0: 4, 1: 4, 2: 2}]
    decision = step(s)
    # 1, 5 and 1, 5 and 1, 3 tokens so far; the last four of 0 and 1 leave 2 tokens for 2.
    assert decision.trace == {0: 4, 1: 4, 2: 2}
    assert (decision.decodes, decision.drafts, decision.tokens) == (3, 7, 10)
    assert [r.number for r in decision.finished] == [0, 1]


def test_rejected_drafts_hold_no_blocks_for_long():
    """Blocks of four, prompt 4, k 3: room for 4 + 1 + 3 tokens is two blocks, all the time."""
    s = engine(NEVER, block_size=4, blocks=20)
    s.add(request(0, 4, 4))
    used = []
    while (decision := step(s)) is not None:
        used.append(decision.used_blocks)
    assert used == [1, 2, 3, 3]  # 4, then up to 8, 9 and 10 tokens
    assert s.pool.used == 0


def test_a_drafter_with_kv_of_its_own_needs_room_ahead():
    s = engine(NEVER, method="eagle3", block_size=4, blocks=20)
    s.add(request(0, 4, 2))
    assert [step(s).used_blocks for _ in range(2)] == [1, 3]  # 4 + 4 + 3 ahead


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("caching", [False, True])
def test_nothing_is_lost_when_blocks_run_out(policy, caching):
    for seed in range(30):
        rng = random.Random(seed)
        s = engine(
            0.6, k=rng.choice((1, 3, 5)), blocks=rng.randint(40, 60), block_size=4,
            version=rng.choice(("0.21", "0.33")), scheduling_policy=policy, max_model_len=160,
            max_num_seqs=8, max_num_batched_tokens=rng.choice((16, 64)),
            enable_prefix_caching=caching,
        )  # fmt: skip
        requests = [
            request(n, rng.randint(1, 60), rng.randint(1, 60), priority=rng.randint(0, 2))
            for n in range(12)
        ]
        for r in requests:
            s.add(r)
        for _ in range(3000):
            decision = step(s)
            if decision is not None:
                assert decision.tokens <= s.knobs.max_num_scheduled_tokens
                assert sum(decision.trace.values()) == decision.tokens
            if not s.has_work:
                break
        assert all(r.produced == r.output for r in requests), seed
        assert s.pool.used == 0


def run(users, **given):
    load = Workload(
        Arrivals(users=users), Prompts(Lengths(64, 0.5)), Outputs(Lengths(96, 0.5)),
        duration_s=4.0, warmup_s=1.0, seed=5,
    )  # fmt: skip
    settings = Knobs(max_model_len=4096, max_num_seqs=256, enable_prefix_caching=False)
    sink = MemorySink()
    configuration = Configuration("Qwen3-4B", settings.with_changes(given), gpu="H200")
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(load), "s"), sink, SilentWatch())
    tokens = sum(r.output_tokens or 0 for r in sink.requests)
    return tokens / 5.0, sink


def test_it_pays_for_one_user_and_less_in_a_full_batch():
    drafting = {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}
    (one, _), (one_more, sink) = run(1), run(1, **drafting)
    (many, _), (many_more, _) = run(192), run(192, **drafting)
    # 2.5 tokens a step at the prior's acceptance of 0.7, less the drafter's passes.
    assert 1.3 < one_more / one < 2.5
    assert many_more / many < one_more / one
    table = sink.step_table
    assert table is not None
    decode = table.prefill_tokens == 0
    assert (table.padded_tokens[decode] == 4).all()  # one request: 1 + 3 rows, in a full graph
    assert (table.mode[decode] == FULL_GRAPH).all()
    parts = sum(p.astype(np.float64) for p in table.parts.values())
    np.testing.assert_allclose(parts, table.end_ns - table.start_ns, rtol=1e-6, atol=10)
    chunks = sink.records()
    assert len(chunks.chunk_ns) < sum(r.output_tokens for r in sink.requests)


def test_what_is_resolved():
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    assert knobs("0.21", speculative_config=ngram).async_depth == 1
    assert knobs("0.33", speculative_config=ngram).async_depth == 2
    eagle = knobs("0.21", speculative_config={**ngram, "method": "eagle"}, max_num_seqs=16)
    assert (eagle.async_depth, eagle.lookahead) == (2, 4)
    assert eagle.max_capture_size == 160  # 2 x 16 x 5
    assert {5, 35, 75, 80} <= set(eagle.capture_sizes)
