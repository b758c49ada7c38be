"""The engine loop's time line and the API server's, worked by hand with round numbers."""

import heapq
from dataclasses import replace

import pytest
from helpers import knobs, request

from ridgeline.domain.records import FULL_GRAPH
from ridgeline.twin.constants import Constants
from ridgeline.twin.frontend import ApiServer
from ridgeline.twin.replica import STEP_FIELDS, Replica
from ridgeline.twin.scheduler import Scheduler

ROUND = Constants(
    prompt_step_ns=0,
    schedule_ns=1,
    schedule_ns_per_request=0,
    update_ns=2,
    update_ns_per_request=0,
    launch_tail_ns=0,
)


class FakeCost:
    """Every step takes the GPU 10 ns; launching takes 3 ns, or what `launches` says next."""

    def __init__(self, launches=()):
        self.constants = ROUND
        self._launches = list(launches)

    def graph(self, tokens, uniform):
        return FULL_GRAPH, tokens

    def launch_ns(self, mode):
        return self._launches.pop(0) if self._launches else 3

    def gpu_ns(self, step, padded):
        return 10


def timeline(asynchronous, launches=(), outputs=3):
    """(times at which steps are handed over, start and end of each step) of one request."""
    replica = Replica(0, Scheduler(knobs(async_scheduling=asynchronous), 100), FakeCost(launches))
    replica.inbox.append(request(0, 4, outputs))
    handed, now = [], 0
    while now is not None:
        if replica.ended is not None:
            handed.append(now)
        now = replica.turn(now)
    rows = [dict(zip(STEP_FIELDS, row, strict=True)) for row in replica.rows]
    return handed, [(r["start"], r["end"], r["cpu"]) for r in rows]


def test_two_steps_in_flight_hide_the_cpu():
    handed, steps = timeline(asynchronous=True)
    # The first waits for its scheduling (1); the others follow on the GPU without a gap.
    assert steps == [(0, 11, 1), (11, 21, 0), (21, 31, 0)]
    assert handed == [13, 23, 33]


def test_one_step_at_a_time_leaves_gaps():
    handed, steps = timeline(asynchronous=False)
    # Between steps the GPU waits for the update (2) and the scheduling (1).
    assert steps == [(0, 11, 1), (11, 24, 3), (24, 37, 3)]
    assert handed == [13, 26, 39]


def test_a_long_launch_delays_the_delivery_of_the_step_before_it():
    handed, steps = timeline(asynchronous=True, launches=[3, 30])
    # Step 1 is launched from 5 to 35: step 0 was done at 11 but is handed over after that.
    assert steps[:2] == [(0, 11, 1), (11, 35, 0)]
    assert handed[0] == 37


def test_a_step_with_prompts_costs_the_host_more():
    """As the first, with 7 ns more before the step that carries the prompt, and only there."""
    replica = Replica(0, Scheduler(knobs(), 100), FakeCost())
    replica._prompt_ns = 7
    replica.inbox.append(request(0, 4, 3))
    now = 0
    while now is not None:
        now = replica.turn(now)
    ends = [row[STEP_FIELDS.index("end")] for row in replica.rows]
    assert ends == [18, 28, 38]


def test_an_idle_replica_does_not_count_the_wait_for_work_as_a_step():
    replica = Replica(0, Scheduler(knobs(), 100), FakeCost())
    replica.inbox.append(request(0, 4, 1))
    now = 0
    while now is not None:
        now = replica.turn(now)
    assert replica.idle
    replica.inbox.append(request(1, 4, 1))
    replica.turn(1000)
    assert replica.rows[1][0] == 1000


class Clock:
    """An event queue as the fleet has one."""

    def __init__(self):
        self.events = []
        self.order = 0

    def at(self, time, call):
        self.order += 1
        heapq.heappush(self.events, (time, self.order, call))

    def run(self):
        while self.events:
            time, _, call = heapq.heappop(self.events)
            call(time)


@pytest.fixture
def api():
    clock, seen = Clock(), []
    constants = replace(
        ROUND, receive_ns=100, receive_ns_per_token=1, send_step_ns=10,
        detokenise_ns_per_chunk=2, send_ns_per_chunk=6, network_ns=1,
    )  # fmt: skip
    server = ApiServer(constants, clock.at, lambda r, now: seen.append((r.number, now)))
    return clock, server, seen


def test_requests_that_come_while_one_is_read_are_read_together(api):
    clock, server, seen = api
    for number, (at, prompt) in enumerate([(0, 50), (20, 10), (140, 30), (200, 5)]):
        r = request(number, prompt, 1)
        clock.at(at, lambda now, r=r: server.receive(now, r))
    clock.run()
    # 0: 100 + 50. Then 1 and 2 together: 2 * 100 + 40. Then 3: 105.
    assert seen == [(0, 150), (1, 390), (2, 390), (3, 495)]
    assert server.busy_ns == 495


def test_outputs_queue_behind_what_is_being_read(api):
    clock, server, _ = api
    clock.at(0, lambda now: server.receive(now, request(0, 50, 1)))
    times = []
    clock.at(50, lambda now: times.append(server.send(now, 4)))
    clock.run()
    # Read until 150, then 10 + 4 * 2 for detokenising and 4 * 6 for sending, the mean of which
    # is half-way; 1 on the wire.
    assert times == [150 + 18 + 12 + 1]


def test_packing_the_steps_of_a_long_run_changes_nothing(monkeypatch):
    """The same run with steps packed by sevens and not at all leaves the same table."""
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.domain.records import MemorySink  # noqa: PLC0415
    from ridgeline.domain.run import SilentWatch  # noqa: PLC0415
    from ridgeline.domain.workload import (  # noqa: PLC0415
        Arrivals,
        Lengths,
        Outputs,
        Prompts,
        Workload,
    )
    from ridgeline.engines.base import DrivePlan  # noqa: PLC0415
    from ridgeline.engines.twin import TwinEngine  # noqa: PLC0415
    from ridgeline.workload.schedule import draw_schedule  # noqa: PLC0415

    load = Workload(
        Arrivals(users=12), Prompts(Lengths(64, 0.5)), Outputs(Lengths(16)),
        duration_s=1.0, warmup_s=0.5,
    )  # fmt: skip
    host = Configuration("Qwen3-4B", Knobs(max_num_seqs=4, data_parallel_size=2), gpu="H100-SXM")
    tables = []
    for packed in (7, 10**9):
        monkeypatch.setattr("ridgeline.twin.replica.PACKED_STEPS", packed)
        sink = MemorySink()
        with TwinEngine().start(host) as endpoint:
            endpoint.drive(DrivePlan(draw_schedule(load), "p"), sink, SilentWatch())
        tables.append(sink.step_table)
    first, second = tables
    assert len(first) == len(second) > 100
    for name in ("start_ns", "end_ns", "delivered_ns", "decode_tokens", "flops", "replica"):
        assert (getattr(first, name) == getattr(second, name)).all()
