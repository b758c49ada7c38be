"""The engine loop's time line and the API server's, worked by hand with round numbers."""

import heapq
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import knobs, request

from ridgeline.domain.records import FULL_GRAPH
from ridgeline.twin.constants import Constants
from ridgeline.twin.frontend import ApiServer, Outputs
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


class Api:
    """An API server on a clock of its own; what it read and delivered, with the times."""

    def __init__(self, **changes):
        self.clock, self.read, self.delivered = Clock(), [], []
        constants = replace(
            ROUND, receive_ns=100, receive_ns_per_token=1, receive_hops=3.0, send_step_ns=10,
            detokenise_ns_per_chunk=2, send_ns_per_chunk=6, network_ns=1, **changes,
        )  # fmt: skip
        self.server = ApiServer(
            constants,
            self.clock.at,
            lambda r, now: self.read.append((r.number, now)),
            lambda outputs, when: self.delivered.append((outputs.chunks, when)),
        )

    def arrives(self, at, number, prompt):
        r = request(number, prompt, 1)
        self.clock.at(at, lambda now: self.server.receive(now, r))

    def outputs(self, at, chunks, ended=0, replica=0, tokens=None):
        step = SimpleNamespace(finished=[None] * ended)
        what = Outputs(replica, step, chunks, chunks if tokens is None else tokens)
        self.clock.at(at, lambda now: self.server.send(now, what))


@pytest.fixture
def api():
    return Api()


def test_requests_that_come_while_one_is_read_are_read_together(api):
    for number, (at, prompt) in enumerate([(0, 50), (20, 10), (140, 30), (200, 5)]):
        api.arrives(at, number, prompt)
    api.clock.run()
    # 0: 100 + 50. Then 1 and 2 together: 2 * 100 + 40. Then 3: 105.
    assert api.read == [(0, 150), (1, 390), (2, 390), (3, 495)]
    assert api.server.busy_ns == 495


def test_outputs_wait_for_a_slice_of_what_is_being_read(api):
    api.arrives(0, 0, 50)
    api.outputs(60, 4)
    api.clock.run()
    # Read in three slices of 50: at 60 the second is under way. From 100 one slice is read and the
    # outputs are written: 10 + 4 * 2 for detokenising, 4 * 6 for sending, whose mean is half-way;
    # 1 on the wire. The request is read by the end of that turn.
    assert api.delivered == [(4, 150 + 18 + 12 + 1)]
    assert api.read == [(0, 150 + 42)]
    assert api.server.busy_ns == 150 + 42


def test_a_busy_loop_delays_what_it_reads_by_as_many_turns(api):
    api.arrives(0, 0, 50)
    for at in range(1, 1000, 20):
        api.outputs(at, 4)
    api.clock.run()
    # The first slice alone until 50; then each turn writes what waits (42 and more) and reads 50.
    ((number, read),) = api.read
    assert number == 0
    assert read > 50 + 2 * (50 + 42)


def test_a_late_loop_writes_what_waits_as_one_chunk_a_request(api):
    api.outputs(0, 4)
    api.outputs(10, 4, ended=1)
    api.outputs(20, 3)
    api.clock.run()
    # The first until 42. The others together: 2 * 10, 7 tokens detokenised, and 4 chunks: three
    # requests have a token of both steps, the one that ended has one.
    assert api.delivered == [(4, 18 + 12 + 1), (4, 42 + 34 + 12 + 1), (3, 42 + 34 + 12 + 1)]
    assert api.server.busy_ns == 42 + 20 + 7 * 2 + 4 * 6


def test_where_every_fourth_token_leaves_all_are_detokenised_and_none_merged(api):
    api.outputs(0, 2, tokens=8)
    api.outputs(1, 2, tokens=8)
    api.outputs(2, 2, tokens=8)
    api.clock.run()
    # alone: 10 + 8 * 2 + 2 * 6; the other two together: 2 * 10 + 16 * 2 + 4 * 6, nothing saved
    assert api.server.busy_ns == 38 + 76
    assert [when for _, when in api.delivered] == [26 + 6 + 1, *[38 + 52 + 12 + 1] * 2]


def test_several_replicas_outputs_are_other_requests(api):
    api.outputs(0, 1)
    api.outputs(1, 4, replica=0)
    api.outputs(2, 4, replica=1)
    api.clock.run()
    assert api.server.busy_ns == 18 + 20 + 8 * 2 + 8 * 6


def test_steps_with_more_outputs_than_are_taken_at_once_are_not_merged(api):
    api.outputs(0, 1)
    for at in (1, 2, 3):
        api.outputs(at, 129)
    api.clock.run()
    one = 10 + 129 * 8
    begun = [18 + n * one for n in range(3)]
    assert [when for _, when in api.delivered[1:]] == [
        b + 10 + 129 * 2 + 129 * 3 + 1 for b in begun
    ]


def test_a_step_without_outputs_keeps_its_place_behind_those_that_wait(api):
    api.outputs(0, 4)
    api.outputs(10, 4)
    api.outputs(11, 0)
    api.outputs(300, 0)
    api.clock.run()
    assert [chunks for chunks, _ in api.delivered] == [4, 4, 0, 0]
    assert api.delivered[-1] == (0, 300)


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
