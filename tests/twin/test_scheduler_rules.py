"""More step traces worked by hand: policies, valves and intervals, and where releases differ."""

import pytest
from helpers import engine, knobs, request, step, traces

from ridgeline.twin.scheduler import Scheduler


def test_priority_decides_the_order_of_admission_and_arrival_breaks_ties():
    s = engine(scheduling_policy="priority", max_num_seqs=1)
    for number, priority in ((0, 5), (1, 1), (2, 1), (3, 0)):
        s.add(request(number, 4, 1, priority=priority, sent_ns=number))
    assert [list(t) for t in traces(s, 4)] == [[3], [1], [2], [0]]


def test_under_fcfs_the_priority_is_ignored():
    s = engine(max_num_seqs=1)
    for number, priority in ((0, 5), (1, 1)):
        s.add(request(number, 4, 1, priority=priority))
    assert [list(t) for t in traces(s, 2)] == [[0], [1]]


def test_under_priorities_who_ranks_last_gives_way_and_not_the_tail():
    """Four blocks of four tokens; at step 5 both need a third block. The elder ranks lower."""
    s = engine(blocks=4, block_size=4, scheduling_policy="priority", max_num_seqs=8)
    low, high = request(0, 4, 10, priority=9), request(1, 4, 10, priority=0)
    s.add(low)
    s.add(high)
    # The queue is ranked, so the high one is admitted first and stands first in the list.
    assert traces(s, 1) == [{1: 4, 0: 4}]
    assert traces(s, 4) == [{0: 1, 1: 1}] * 4
    fifth = step(s)
    assert fifth.trace == {1: 1}
    assert fifth.preempted == [low]


@pytest.mark.parametrize("version", ["0.21", "0.33"])
def test_tokens_already_granted_to_a_victim_return_to_the_budget(version):
    """Blocks of four. The elder decodes (and was granted its token) when the younger needs room."""
    s = engine(
        blocks=5, block_size=4, scheduling_policy="priority", max_num_seqs=8, version=version
    )
    low, high = request(0, 9, 9, priority=9, sent_ns=0), request(1, 7, 9, priority=0, sent_ns=1)
    s.add(low)
    assert traces(s, 1) == [{0: 9}]  # three blocks
    s.add(high)
    assert traces(s, 1) == [{0: 1, 1: 7}]  # two more: all are taken
    assert traces(s, 1) == [{0: 1, 1: 1}]  # 11 and 8 tokens
    # Low has its twelfth token granted when high, behind it, asks for a third block.
    decision = step(s)
    assert decision.trace == {1: 1}
    assert (decision.decodes, decision.context, decision.preempted) == (1, 9, [low])
    assert (low.computed, low.produced, low.preemptions) == (0, 3, 1)
    assert s.pool.used == 3
    # 12 tokens of low need three blocks, two are free: it waits for high's ninth token (step 9)
    # and computes its prompt and three outputs again for the fourth.
    assert traces(s, 6) == [{1: 1}] * 6
    assert traces(s, 2) == [{0: 12}, {0: 1}]
    traces(s, 30)
    assert (low.produced, high.produced, s.pool.used) == (9, 9, 0)


@pytest.mark.parametrize(("version", "others"), [("0.21", None), ("0.33", {1: 1})])
def test_who_gives_way_itself_ends_the_loop_only_in_021(version, others):
    """Four blocks of four: the lowest in rank stands first in the list and asks for a fifth."""
    s = engine(
        blocks=4, block_size=4, scheduling_policy="priority", version=version, max_num_seqs=8
    )
    low = request(0, 7, 9, priority=9)
    s.add(low)
    assert traces(s, 1) == [{0: 7}]
    s.add(request(1, 5, 9, priority=0, sent_ns=1))
    assert traces(s, 1) == [{0: 1, 1: 5}]
    decision = s.schedule()
    assert (decision.trace if decision else None) == others
    assert (list(s.waiting), low.preemptions) == ([low], 1)
    if decision:
        s.update(decision)
    assert traces(s, 1) == [{1: 1}]


def test_prompts_wait_three_steps_after_the_last_one_while_others_decode():
    s = engine(version="0.33", prefill_schedule_interval=3, max_num_seqs=8)
    s.add(request(0, 10, 9))
    assert traces(s, 2) == [{0: 10}, {0: 1}]  # steps 0 and 1
    s.add(request(1, 10, 2))
    # Two steps after the last prompt it waits although there is room. Step 3 takes it.
    assert traces(s, 3) == [{0: 1}, {0: 1, 1: 10}, {0: 1, 1: 1}]


def test_a_prompt_under_way_is_held_back_as_well():
    s = engine(
        version="0.33", prefill_schedule_interval=2, max_num_seqs=8, max_num_batched_tokens=16
    )
    s.add(request(0, 4, 9))
    assert traces(s, 2) == [{0: 4}, {0: 1}]
    s.add(request(1, 40, 2))
    # Step 2 is on the beat: 15 tokens. The queue is empty then, so step 3 holds the rest back.
    assert traces(s, 4) == [{0: 1, 1: 15}, {0: 1}, {0: 1, 1: 15}, {0: 1}]


def test_prompts_that_pile_up_suspend_the_interval():
    s = engine(
        version="0.33", prefill_schedule_interval=4, max_num_seqs=8, max_num_batched_tokens=12
    )
    s.add(request(0, 4, 20))
    traces(s, 4)
    for number in (1, 2):
        s.add(request(number, 11, 20))
    # Step 4 is on the beat and leaves request 2 waiting: the next steps go on admitting.
    assert traces(s, 2) == [{0: 1, 1: 11}, {0: 1, 1: 1, 2: 10}]
    # Now nobody waits, so the rest of request 2's prompt is due four steps after the last, at 9.
    assert traces(s, 4) == [{0: 1, 1: 1}] * 3 + [{0: 1, 1: 1, 2: 1}]


@pytest.mark.parametrize(("prompt", "computed"), [(64, 16), (70, 6)])
def test_a_fully_cached_prompt_computes_its_last_block_again(prompt, computed):
    s = engine(enable_prefix_caching=True, max_num_seqs=8)
    s.add(request(0, prompt, 1, group=0, shared_tokens=prompt))
    s.add(later := request(1, prompt, 1, group=0, shared_tokens=prompt))
    # The blocks are found in the same step, before they are computed.
    assert traces(s, 1) == [{0: prompt, 1: computed}]
    assert later.cached == prompt - computed
    assert (s.queried_tokens, s.hit_tokens) == (2 * prompt, prompt - computed)


def test_a_request_without_tokens_is_passed_over_and_later_ones_go_on():
    """Cap 4, budget 5: the second prompt gets one token, the third none; then they advance."""
    s = engine(
        long_prefill_token_threshold=4, max_num_batched_tokens=5, max_num_seqs=5, max_model_len=64
    )
    for number in range(3):
        s.add(request(number, 8, 1))
    assert traces(s, 5) == [{0: 4, 1: 1}, {0: 4, 1: 1}, {1: 4, 2: 1}, {1: 2, 2: 3}, {2: 4}]


def test_hit_blocks_that_lie_free_count_as_used_up():
    """A pool of six: four hold a finished prefix. Its reader needs those four and two more."""
    for length, fits in ((96, True), (97, False)):
        s = engine(blocks=6, enable_prefix_caching=True, max_num_seqs=8)
        s.add(request(0, 64, 1, group=0, shared_tokens=64))
        traces(s, 1)
        assert s.pool.free == 6
        s.add(request(1, length, 1, group=0, shared_tokens=64))
        assert bool(traces(s, 1)) is fits, length


@pytest.mark.parametrize(("version", "cached"), [("0.21", 48), ("0.33", 64)])
def test_which_blocks_are_reused_first(version, cached):
    """Of six blocks four keep a prefix. Three short requests use one block each, one by one.

    Release 0.21 takes what was freed first: the two others, then the prefix's tail. Release 0.33
    takes the block without a hash again and again.
    """
    s = engine(blocks=6, version=version, enable_prefix_caching=True, max_num_seqs=8)
    s.add(request(0, 65, 1, group=0, shared_tokens=65))  # 4 full blocks and a part of a fifth
    traces(s, 1)
    for number in (1, 2, 3):
        s.add(request(number, 10, 1))
        assert traces(s, 1) == [{number: 10}]
    s.add(reader := request(4, 70, 1, group=0, shared_tokens=65))
    assert traces(s, 1) == [{4: 70 - cached}]
    assert reader.cached == cached


def test_at_depth_two_the_next_step_is_decided_before_the_last_one_ends():
    """A finishing request keeps its blocks for one step more, so a newcomer has to wait."""
    s = Scheduler(knobs(max_num_seqs=8), 4, trace=True)
    s.add(request(0, 48, 2))
    first = s.schedule()
    assert first.trace == {0: 48}
    second = s.schedule()
    assert second.trace == {0: 1}  # its last token; the fourth block
    s.update(first)
    s.add(request(1, 20, 1))
    assert s.schedule() is None  # all blocks are still held
    s.update(second)
    assert s.schedule().trace == {1: 20}
