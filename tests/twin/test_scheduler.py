"""Step traces worked by hand from the engine's published rules."""

import pytest
from helpers import engine, request, step, traces

TEN = dict.fromkeys(range(10), 1)


def test_a_long_prompt_fills_what_ten_decodes_leave():
    s = engine(max_num_batched_tokens=2048, max_num_seqs=64)
    for n in range(10):
        s.add(request(n, 10, 50))
    assert traces(s, 1) == [dict.fromkeys(range(10), 10)]
    s.add(request(99, 5000, 5))
    first, second, third, fourth = (step(s) for _ in range(4))
    assert first.trace == {**TEN, 99: 2038}
    assert second.trace == {**TEN, 99: 2038}
    assert third.trace == {**TEN, 99: 924}
    assert [len(d.firsts) for d in (first, second, third)] == [0, 0, 1]
    assert fourth.trace == {**TEN, 99: 1}
    assert (third.decodes, third.prefill_tokens, third.sampled) == (10, 924, 11)
    assert third.chunk_context == 4076
    assert third.pairs == 924 * (4076 + 462)


def test_eight_prompts_share_one_step():
    s = engine(max_num_batched_tokens=8192, max_num_seqs=64)
    for n in range(8):
        s.add(request(n, 512, 10))
    decision = step(s)
    assert decision.tokens == 4096
    assert len(decision.firsts) == 8


def test_eight_prompts_under_a_small_budget():
    s = engine(max_num_batched_tokens=2048, max_num_seqs=64)
    for n in range(8):
        s.add(request(n, 512, 10))
    one, two, three = traces(s, 3)
    assert one == {0: 512, 1: 512, 2: 512, 3: 512}
    assert two == {0: 1, 1: 1, 2: 1, 3: 1, 4: 512, 5: 512, 6: 512, 7: 508}
    assert three == {**dict.fromkeys(range(7), 1), 7: 4}


def test_a_request_gets_each_token_once_and_then_leaves():
    s = engine()
    r = request(0, 5, 3)
    s.add(r)
    assert traces(s, 9) == [{0: 5}, {0: 1}, {0: 1}]
    assert (r.produced, r.runs, s.pool.used, len(s.running)) == (3, [(0, 3)], 0, 0)


def test_the_batch_ceiling_holds():
    s = engine(max_num_seqs=2)
    for n in range(3):
        s.add(request(n, 5, 2 + n))
    assert traces(s, 4) == [{0: 5, 1: 5}, {0: 1, 1: 1}, {1: 1, 2: 5}, {2: 1}]


def test_with_steps_in_flight_a_finished_request_keeps_its_slot_for_one_step():
    s = engine(max_num_seqs=1)
    s.add(request(0, 5, 1))
    s.add(request(1, 5, 1))
    first = s.schedule()
    assert first.trace == {0: 5}
    assert s.schedule() is None  # step 0 has not come back: its request still holds the slot
    s.update(first)
    assert s.schedule().trace == {1: 5}


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_it():
    s = engine(enable_chunked_prefill=False, max_model_len=2048, max_num_batched_tokens=2048)
    for n in range(3):
        s.add(request(n, 900, 2))
    assert traces(s, 2) == [{0: 900, 1: 900}, {0: 1, 1: 1, 2: 900}]
    # With chunking the third would have had 248 tokens of the first step.


def test_the_cap_on_long_prompts_lets_later_ones_pass():
    s = engine(long_prefill_token_threshold=100, max_num_batched_tokens=512, max_num_seqs=64)
    s.add(request(0, 250, 5))
    s.add(request(1, 30, 5))
    assert traces(s, 4) == [{0: 100, 1: 30}, {0: 100, 1: 1}, {0: 50, 1: 1}, {0: 1, 1: 1}]


def test_the_cap_on_a_lone_prompt_by_release():
    for version, expected in (("0.21", [100, 100, 50]), ("0.33", [250])):
        s = engine(version=version, long_prefill_token_threshold=100)
        s.add(request(0, 250, 1))
        assert [t[0] for t in traces(s, 5)] == expected, version


def test_decoders_behind_capped_prompts_get_their_token():
    """Two capped prompts share budget 4; who was admitted into the rest goes on beside them."""
    s = engine(
        long_prefill_token_threshold=2, max_num_batched_tokens=4, max_num_seqs=4, max_model_len=64
    )
    for n, prompt in enumerate((6, 6, 1)):
        s.add(request(n, prompt, 2 if n < 2 else 3))
    assert traces(s, 6) == [
        {0: 2, 1: 2},
        {0: 2, 1: 2},
        {0: 2, 1: 2},
        {0: 1, 1: 1, 2: 1},
        {2: 1},
        {2: 1},
    ]
    s = engine(
        long_prefill_token_threshold=3, max_num_batched_tokens=4, max_num_seqs=4, max_model_len=64
    )
    s.add(request(0, 9, 2))
    s.add(short := request(2, 1, 3))
    s.add(request(1, 9, 2))
    # Request 2 overtakes 0; then 0 (3 tokens) and 2 (1) fill every step; 1 has to wait.
    assert traces(s, 4) == [{0: 3, 2: 1}, {0: 3, 2: 1}, {0: 3, 2: 1}, {0: 1, 1: 3}]
    assert short.runs == [(0, 3)]


def test_preemption_worked_by_hand():
    """Four blocks of four tokens, two requests of 4 + 10: at step 5 the younger one has to go."""
    s = engine(blocks=4, block_size=4, max_num_seqs=8)
    a, b = request(0, 4, 10), request(1, 4, 10)
    s.add(a)
    s.add(b)
    assert traces(s, 1) == [{0: 4, 1: 4}]
    assert traces(s, 4) == [{0: 1, 1: 1}] * 4
    assert s.pool.free == 0
    fifth = step(s)
    assert fifth.trace == {0: 1}
    assert fifth.preempted == [b]
    assert (b.computed, b.produced, b.preemptions, list(s.waiting)) == (0, 5, 1, [b])
    # 9 tokens need 3 blocks, 1 is free: b waits until a is done (its tenth token, step 9).
    assert traces(s, 4) == [{0: 1}] * 4
    assert a.produced == 10
    # Prompt and five outputs are computed again and give the sixth.
    assert traces(s, 9) == [{1: 9}, {1: 1}, {1: 1}, {1: 1}, {1: 1}]
    assert b.produced == 10
    assert b.runs == [(0, 5), (10, 5)]
    assert s.pool.used == 0


def test_a_preempted_request_finds_its_own_blocks_again():
    """As above with prefix caching; a ends at step 5 and has reused b's tail block only."""
    s = engine(blocks=4, block_size=4, max_num_seqs=8, enable_prefix_caching=True)
    s.add(request(0, 4, 6))
    s.add(b := request(1, 4, 10))
    traces(s, 6)
    assert b.preemptions == 1
    assert traces(s, 1) == [{1: 5}]  # 9 tokens, of which the first block was still there


def test_nobody_is_admitted_in_a_step_that_preempts():
    s = engine(blocks=4, block_size=4, max_num_seqs=8)
    s.add(request(0, 4, 10))
    s.add(request(1, 4, 10))
    traces(s, 5)
    s.add(request(2, 1, 1))  # one block would be free
    assert traces(s, 1) == [{0: 1}]
    # And then the preempted one is first in the queue and stops those behind it.
    assert traces(s, 1) == [{0: 1}]


def test_the_first_that_does_not_fit_stops_the_queue():
    s = engine(blocks=10, block_size=16, max_num_seqs=8)
    s.add(request(0, 100, 4))  # 7 blocks
    s.add(request(1, 64, 4))  # 4 blocks: does not fit
    s.add(request(2, 16, 4))  # would fit
    assert traces(s, 1) == [{0: 100}]
    assert len(s.waiting) == 2


@pytest.mark.parametrize(("reserve", "expected"), [(True, {0: 1}), (False, {0: 1, 1: 99})])
def test_room_for_the_whole_prompt_is_asked_for_before_the_first_chunk(reserve, expected):
    s = engine(
        blocks=12,
        max_num_batched_tokens=100,
        max_num_seqs=8,
        scheduler_reserve_full_isl=reserve,
    )
    s.add(request(0, 30, 50))
    traces(s, 1)
    s.add(request(1, 180, 5))  # 12 blocks in all, 10 are free; its first chunk needs 7
    assert traces(s, 1) == [expected]


def test_the_watermark_applies_while_something_runs():
    s = engine(blocks=10, version="0.33", watermark=0.5, max_num_seqs=8)
    s.add(request(0, 96, 3))  # alone: 6 of 10 blocks, watermark or not
    s.add(request(1, 16, 3))  # 1 of the 4 left, but 5 are to be kept
    assert traces(s, 4)[:3] == [{0: 96}, {0: 1}, {0: 1}]
    assert traces(s, 1) == [{1: 1}]


def test_active_sequences_may_be_fewer_than_the_ceiling():
    s = engine(version="0.33", max_num_active_seqs=1, max_num_seqs=8)
    s.add(request(0, 5, 2))
    s.add(request(1, 5, 2))
    assert traces(s, 2) == [{0: 5}, {0: 1}]
    assert s.knobs.max_capture_size == 16
