"""Clients that leave, or would have: the valves' counts, and the time-out between two tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import request

from ridgeline.domain.defaults import resolve
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.twin.fleet import Fleet, build_twin
from ridgeline.twin.live import abort
from ridgeline.twin.results import ClientLimits, request_record

S = 1_000_000_000


class Nobody:
    def delivered(self, replica, decision, at_ns):
        pass

    def finished(self, r):
        pass


def test_a_client_that_leaves_with_its_first_token_on_the_way_is_counted_out_once():
    """Nineteen blocks for requests of 80 and more + 20 tokens: one is preempted while the step that
    ended its prompt is still in flight, and its client leaves. The valve's count must end at 0.
    """
    model, card = shape("Qwen3-4B"), gpu("H100")
    knobs = resolve(
        Knobs(max_model_len=256, num_gpu_blocks_override=20, enable_prefix_caching=False,
              max_num_batched_tokens=512, max_num_queued_tokens=100_000),
        card, model, "0.33",
    )  # fmt: skip
    fleet = Fleet(build_twin(model, card, knobs), Nobody())
    scheduler, server = fleet.replicas[0].scheduler, fleet.servers[0]
    requests = [request(n, 80 + n, 20) for n in range(40)]
    for n, r in enumerate(requests):
        fleet.submit(r, n * 2_000_000)
    caught = []
    while fleet.next_ns is not None:
        fleet.run_until(fleet.next_ns + 1)
        for r in list(scheduler.waiting):
            if r.preemptions and r.first_ns is None and not r.ending:
                caught.append(r)
                abort(fleet, r)
        assert server.prefill_tokens >= 0
    assert caught
    assert (fleet.unfinished, server.prefill_tokens) == (0, 0)


def record_of(at_s, *, open_request=False, **limits):
    """A request sent at 0 whose tokens reached the client at such seconds, as records keep it."""
    r = request(0, 10, len(at_s))
    r.runs, r.produced = [(0, len(at_s))], len(at_s)
    r.first_ns = round(at_s[0] * S)
    r.last_ns = None if open_request else round(at_s[-1] * S)
    knobs = SimpleNamespace(stream_interval=1)
    replica = SimpleNamespace(
        scheduler=SimpleNamespace(knobs=knobs, step=len(at_s)),
        delivered=[round(t * S) for t in at_s],
    )
    return request_record(r, replica, ClientLimits(**{n: v * S for n, v in limits.items()}))


@pytest.mark.parametrize(
    ("at_s", "limits", "failure", "kept", "end_s"),
    [
        # 61 s of nothing after the second token: the client leaves 60 s after it.
        ([1, 2, 63, 64], {"gap_ns": 60}, "timeout_gap", 2, 62),
        # exactly as long as the limit is not longer
        ([1, 2, 62, 63], {"gap_ns": 60}, None, 4, 63),
        # a long answer without a long gap, and a wait for the first token, which is no gap
        ([1, 50, 100, 150], {"gap_ns": 60}, None, 4, 150),
        ([90, 91, 92], {"gap_ns": 60}, None, 3, 92),
        # whichever limit comes first
        ([1, 2, 63, 64], {"gap_ns": 60, "total_ns": 30}, "timeout_total", 2, 30),
        ([1, 2, 63, 64], {"gap_ns": 60, "total_ns": 63}, "timeout_gap", 2, 62),
        ([1, 2, 63, 64], {"gap_ns": 60, "cancel_ns": 40}, "cancelled", 2, 40),
        ([1, 2, 63, 64], {"gap_ns": None}, None, 4, 64),
    ],
)
def test_a_client_leaves_an_answer_that_stands_still(at_s, limits, failure, kept, end_s):
    given = {n: v for n, v in limits.items() if v is not None}
    found = record_of(at_s, **given)
    assert (found.failure, found.end_ns) == (failure, end_s * S)
    if failure is not None:
        assert found.chunk_ns.tolist() == [t * S for t in at_s[:kept]]
        assert (found.first_ns, found.last_ns) == (at_s[0] * S, at_s[kept - 1] * S)


def test_an_answer_that_stands_still_to_the_end_of_the_run_was_left_too():
    found = record_of([1, 2, 3], open_request=True, gap_ns=60, cancel_ns=500)
    assert (found.failure, found.end_ns) == ("timeout_gap", 63 * S)
    still = record_of([1, 2, 3], open_request=True, gap_ns=60, cancel_ns=50)
    assert (still.failure, still.end_ns) == ("cancelled", 50 * S)
    assert np.array_equal(still.chunk_ns, [1 * S, 2 * S, 3 * S])
