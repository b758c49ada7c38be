"""Load shedding and the streaming interval, worked by hand."""

import numpy as np
import pytest
from helpers import request

from ridgeline.domain.defaults import resolve
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.twin.fleet import Fleet, build_twin
from ridgeline.twin.results import request_record


class Heard:
    def __init__(self):
        self.done = []

    def delivered(self, replica, decision, at_ns):
        pass

    def finished(self, r):
        self.done.append(r)


def fleet(version="0.33", **given):
    model, card = shape("Qwen3-4B"), gpu("H100")
    resolved = resolve(Knobs(**{"max_model_len": 4096, **given}), card, model, version)
    heard = Heard()
    return Fleet(build_twin(model, card, resolved), heard), heard


def offer(f, requests):
    for r in requests:
        f.submit(r, 0)
    f.run_until(None)


def test_requests_above_the_limit_get_503_and_the_others_are_served():
    f, heard = fleet(max_num_queued_reqs=3)
    requests = [request(n, 100, 5) for n in range(5)]
    offer(f, requests)
    assert [r.status for r in requests] == [None, None, None, 503, 503]
    assert [r.number for r in heard.done[:2]] == [3, 4]  # refused at once
    assert (f.shed, f.unfinished, f.servers[0].prefill_tokens) == (2, 0, 0)
    later = request(9, 100, 5)  # everyone has left: there is room again
    f.submit(later, f.now)
    f.run_until(None)
    assert later.status is None
    assert later.produced == 5
    record = request_record(requests[4], f.replicas[0])
    assert (record.failure, record.http_status) == ("http_status", 503)


def test_prompt_tokens_count_in_full_until_the_first_token():
    """The valve looks at what is already there: 900 < 1000 admits the second, 1800 stops it."""
    f, _ = fleet(max_num_queued_tokens=1000)
    requests = [request(n, 900, 5) for n in range(4)]
    offer(f, requests)
    assert [r.status for r in requests] == [None, None, 503, 503]


def test_without_valves_nothing_is_shed():
    f, _ = fleet(version="0.21")
    requests = [request(n, 900, 2) for n in range(200)]
    offer(f, requests)
    assert f.shed == 0
    assert all(r.produced == 2 for r in requests)


@pytest.mark.parametrize(
    ("interval", "output", "tokens"),
    [(1, 4, [1, 2, 3, 4]), (3, 8, [1, 4, 7, 8]), (3, 7, [1, 4, 7]), (50, 5, [1, 5])],
)
def test_chunks_leave_at_the_first_every_nth_and_the_last_token(interval, output, tokens):
    f, _ = fleet(stream_interval=interval)
    r = request(0, 20, output)
    offer(f, [r])
    record = request_record(r, f.replicas[0])
    assert record.output_tokens == output
    runs = record.steps
    steps = np.concatenate(
        [np.arange(a, a + n) for a, n in zip(runs.first, runs.count, strict=True)]
    )
    assert (steps + 1).tolist() == tokens  # one request alone: step n gives token n + 1
    times = [f.replicas[0].delivered[s] for s in steps]
    assert (record.first_ns, record.last_ns) == (times[0], times[-1])


@pytest.mark.parametrize(("interval", "blocks"), [(10, 2000), (3, 2000), (7, 40)])
def test_what_the_api_server_writes_is_what_the_clients_get(interval, blocks):
    """Every chunk of a record was paid for once, also of requests that were preempted (40 blocks).

    A step with one token of ten due was charged a chunk where none was written.
    """
    f, _ = fleet(
        stream_interval=interval,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=False,
        max_model_len=256,
    )
    written = []
    send = f.servers[0].send
    f.servers[0].send = lambda now, outputs: (written.append(outputs.chunks), send(now, outputs))
    requests = [request(n, 60 + 7 * n, 1 + 9 * n % 50) for n in range(20)]
    offer(f, requests)
    assert (f.replicas[0].scheduler.preemptions > 0) == (blocks == 40)
    got = [request_record(r, f.replicas[0]).steps.count.sum() for r in requests]
    assert sum(written) == sum(got)
    # 0, N, 2N, ... and the last one of so many tokens
    assert got == [len({*range(0, r.output, interval), r.output - 1}) for r in requests]
