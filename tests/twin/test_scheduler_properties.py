"""What must hold for any traffic: nothing lost, nothing twice, no block leaked, budgets kept."""

from helpers import knobs, request
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.twin.scheduler import Scheduler

ARRIVAL = st.tuples(
    st.integers(0, 12),  # steps after the one before it
    st.integers(1, 90),  # prompt
    st.integers(1, 40),  # output
    st.one_of(st.none(), st.integers(0, 2)),  # prefix group
    st.integers(0, 2),  # priority
)


@st.composite
def settings_of(draw):
    version = draw(st.sampled_from(["0.21", "0.33"]))
    chunked = draw(st.booleans())
    seqs = draw(st.integers(1, 12))
    tokens = draw(st.integers(seqs, 160)) if chunked else draw(st.integers(160, 300))
    given_knobs = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "enable_chunked_prefill": chunked,
        "max_model_len": 160,
        "block_size": draw(st.sampled_from([4, 16])),
        "enable_prefix_caching": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 7, 30])) if chunked else 0,
    }
    if version == "0.33":
        given_knobs["watermark"] = draw(st.sampled_from([0.0, 0.1]))
        given_knobs["prefill_schedule_interval"] = draw(st.sampled_from([1, 1, 2, 5]))
    given_knobs["scheduling_policy"] = draw(st.sampled_from(["fcfs", "priority"]))
    return knobs(version, **given_knobs)


def play(resolved, blocks, arrivals, depth, *, always_walk):
    """Run all arrivals to their end with `depth` steps in flight; returns the traces."""
    s = Scheduler(resolved, blocks, trace=True, always_walk=always_walk)
    requests, due, tick = [], [], 0
    for number, (gap, prompt, output, group, priority) in enumerate(arrivals):
        tick += gap
        r = request(number, prompt, output, group=group, shared_tokens=40, priority=priority)
        requests.append(r)
        due.append((tick, r))
    found, flights, last = [], [], due[-1][0]
    for now in range(last + 10_000):
        while due and due[0][0] <= now:
            s.add(due.pop(0)[1])
        before = s.preemptions
        decision = s.schedule()
        if decision is not None:
            check(s, decision)
            flights.append(decision)
            found.append((decision.trace, [r.number for r in decision.preempted]))
        if flights and (decision is None or len(flights) == depth):
            s.update(flights.pop(0))
            s.pool.check()
        elif decision is None and not due and now >= last and s.preemptions == before:
            break  # a call that only preempted is no end: what is left may run in the next one
    return s, requests, found


def check(s, decision):
    resolved = s.knobs
    assert sum(decision.trace.values()) == decision.tokens <= resolved.max_num_scheduled_tokens
    assert decision.running <= resolved.max_num_seqs
    assert decision.used_blocks + s.pool.free == s.pool.capacity
    # Nobody is admitted in a step that preempts.
    assert not (decision.preempted and decision.admitted)
    # What running requests hold is what their tokens need; prefix blocks may be shared.
    if not resolved.prefix_caching:
        held = 0
        for r in s.running:
            computed = r.computed
            if r.decoding:
                computed = r.base_computed + s.step - r.base_step
            held += s.pool.blocks_for(computed)
        assert held == s.pool.used


@settings(max_examples=150, deadline=None)
@given(settings_of(), st.lists(ARRIVAL, min_size=1, max_size=25), st.integers(0, 60),
       st.sampled_from([1, 2]))  # fmt: skip
def test_any_traffic(resolved, arrivals, spare, depth):
    # Enough blocks for any one request, so that everything ends; few enough for preemption.
    blocks = -(-131 // resolved.block_size) + spare + int(0.2 * spare)
    s, requests, found = play(resolved, blocks, arrivals, depth, always_walk=False)

    for r in requests:
        assert r.produced == r.output
        assert sum(count for _, count in r.runs) == r.output
        # Prompt and outputs but the last are computed once, and once more for each preemption.
        computed = sum(trace.get(r.number, 0) for trace, _ in found)
        if not r.preemptions:
            assert computed + r.cached == r.prompt + r.output - 1
        elif not resolved.prefix_caching:  # with it, what came back as hits is not computed again
            assert computed >= r.prompt + r.output - 1
    assert s.pool.used == 0
    assert not s.running
    assert not s.waiting
    assert s.preemptions == sum(r.preemptions for r in requests)

    # The counted way and the request-by-request way decide the same.
    _, _, walked = play(resolved, blocks, arrivals, depth, always_walk=True)
    assert walked == found


@settings(max_examples=30, deadline=None)
@given(st.lists(ARRIVAL, min_size=2, max_size=20))
def test_first_come_first_served(arrivals):
    """Without shortage of blocks, first tokens come in the order of arrival."""
    resolved = knobs(max_num_seqs=3, max_num_batched_tokens=64, max_model_len=160)
    _, requests, _ = play(resolved, 1000, arrivals, 1, always_walk=False)
    firsts = [r.runs[0][0] for r in requests]
    assert firsts == sorted(firsts)
