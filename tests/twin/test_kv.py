"""The block pool: prefix hits, eviction order, conservation."""

import pytest
from helpers import engine, request, traces


@pytest.mark.parametrize(("prompt", "computed"), [(64, 16), (70, 6), (65, 1), (16, 16), (15, 15)])
def test_a_fully_cached_prompt_recomputes_its_last_block(prompt, computed):
    s = engine(enable_prefix_caching=True)
    s.add(request(0, prompt, 1, group=3, shared_tokens=prompt))
    traces(s, 1)
    s.add(again := request(1, prompt, 1, group=3, shared_tokens=prompt))
    assert traces(s, 1) == [{1: computed}]
    assert again.cached == prompt - computed
    assert (s.queried_tokens, s.hit_tokens) == (2 * prompt, prompt - computed)


def test_only_the_groups_full_prefix_blocks_hit():
    s = engine(enable_prefix_caching=True)
    s.add(request(0, 200, 1, group=0, shared_tokens=70))
    s.add(other := request(1, 200, 1, group=1, shared_tokens=70))
    s.add(same := request(2, 150, 1, group=0, shared_tokens=70))
    traces(s, 1)
    # Blocks are findable as soon as they are scheduled: the third hits in the same step.
    assert (other.cached, same.cached) == (0, 64)


def test_unique_prompts_never_hit():
    s = engine(enable_prefix_caching=True)
    for n in range(5):
        s.add(request(n, 160, 4))
    traces(s, 10)
    assert (s.queried_tokens, s.hit_tokens) == (800, 0)


def test_without_caching_nothing_is_looked_up():
    s = engine(enable_prefix_caching=False)
    for n in range(2):
        s.add(request(n, 64, 1, group=0, shared_tokens=64))
        assert traces(s, 1) == [{n: 64}]
    assert s.queried_tokens == 0


def test_the_least_recently_freed_prefix_is_evicted_first():
    s = engine(blocks=8, enable_prefix_caching=True)
    for n, group in enumerate((0, 1)):
        s.add(request(n, 48, 1, group=group, shared_tokens=48))
        traces(s, 1)
    # Free list: two fresh blocks, then group 0's three (tail first), then group 1's.
    s.add(request(2, 64, 1))  # takes the two fresh ones and two of group 0
    traces(s, 1)
    s.add(first := request(3, 48, 1, group=0, shared_tokens=48))
    traces(s, 1)
    s.add(second := request(4, 48, 1, group=1, shared_tokens=48))
    traces(s, 1)
    assert first.cached == 16  # its first block was the last of its group in the queue
    # The two blocks that the first needed anew came from group 1's tail, which was freed before
    # the blocks of request 2.
    assert second.cached == 16


def test_held_prefix_blocks_are_counted_once():
    s = engine(blocks=100, enable_prefix_caching=True)
    for n in range(4):
        s.add(request(n, 80, 50, group=0, shared_tokens=64))
    traces(s, 1)
    assert s.pool.used == 4 + 4 * 1  # four shared, one own each
    traces(s, 60)
    assert s.pool.used == 0
    s.pool.check()


def test_unhashed_blocks_are_reused_first_from_release_033_on():
    """A request's last, partly filled block goes to the front of the free list in 0.33."""
    hits = {}
    for version in ("0.21", "0.33"):
        s = engine(blocks=4, version=version, enable_prefix_caching=True)
        s.add(request(0, 48, 1, group=0, shared_tokens=48))
        traces(s, 1)
        s.add(request(1, 10, 1))  # takes the fourth block, gives it back unhashed
        traces(s, 1)
        s.add(request(2, 16, 1))  # 0.21: evicts the prefix's tail; 0.33: reuses that block
        traces(s, 1)
        s.add(again := request(3, 49, 1, group=0, shared_tokens=48))
        traces(s, 1)
        hits[version] = again.cached
    assert hits == {"0.21": 32, "0.33": 48}
