"""llama.cpp's own server, measured: it says keep-alive and then closes what it has answered.

No request may be lost over that, and none may be done twice. The server's counters and its log
are the independent witnesses.
"""

import http.client
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.workload.schedule import Schedule, draw_schedule
from support.llamacpp import MODEL_NAME, LlamaCounts, LlamaServer, serve, write_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="xllamacpp is installed on Linux")

TOKENS = 16
DONE_LINE = "stop processing"  # one line of the server's log for each request that it has done


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    folder = tmp_path_factory.mktemp("llamacpp")
    with serve(write_model(folder / "tiny.gguf"), slots=8) as running:
        yield running


@dataclass(frozen=True)
class Measured:
    """One drive, and what the server counted and logged meanwhile."""

    records: list[RequestRecord]
    facts: RunFacts
    counts: LlamaCounts
    logged: int

    @property
    def retries(self) -> int:
        return sum(record.retries or 0 for record in self.records)


def measure(server: LlamaServer, schedule: Schedule, endpoint: str = "chat") -> Measured:
    before, done = server.counts(), server.log.read_text().count(DONE_LINE)
    sink = MemorySink()
    plan = DrivePlan(schedule, "salt", endpoint)
    facts = HttpEndpoint(server.url).drive(plan, sink, SilentWatch())
    counts = server.counts().since(before)
    return Measured(sink.requests, facts, counts, server.log.read_text().count(DONE_LINE) - done)


def workload(arrivals: Arrivals, duration_s: float, requests: int | None = None) -> Workload:
    outputs = Outputs(Lengths(TOKENS), ignore_eos=True)
    return Workload(arrivals, Prompts(Lengths(48)), outputs, duration_s, 0.0, requests)


def assert_each_request_was_done_once(run: Measured) -> None:
    facts, records = run.facts, run.records
    failed = [(r.failure, r.failure_detail) for r in records if r.failure is not None]
    assert not failed
    assert sorted(r.index for r in records) == list(range(len(records))), "each has one record"
    assert {r.output_tokens for r in records} == {TOKENS}
    assert {r.finish_reason for r in records} == {"length"}
    assert run.logged == len(records) + facts.extra_requests
    assert run.counts.generation_tokens == len(records) * TOKENS + facts.extra_output_tokens
    prompts = sum(r.prompt_tokens or 0 for r in records) + facts.extra_prompt_tokens
    assert run.counts.prompt_tokens + run.counts.cached_prompt_tokens == prompts


def test_the_server_promises_to_keep_a_connection_and_closes_it(server: LlamaServer) -> None:
    """The control: an ordinary client's second request on that connection finds it closed."""
    address = urlsplit(server.url)
    body = {"model": MODEL_NAME, "prompt": "a b c", "max_tokens": 2, "stream": True}
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    connection.request("POST", "/v1/completions", json.dumps(body))
    sock = connection.sock
    reply = connection.getresponse()
    assert reply.getheader("Keep-Alive") is not None
    assert b"[DONE]" in reply.read()
    assert isinstance(sock, socket.socket)
    assert sock.recv(1) == b"", "closed by the server"
    connection.close()


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_users_lose_nothing_and_repeat_nothing(server: LlamaServer, endpoint: str) -> None:
    """More users than slots: some wait in the server, with their connection open."""
    schedule = draw_schedule(workload(Arrivals(users=12), 60.0, requests=64))
    run = measure(server, schedule, endpoint)
    assert len(run.records) >= 64
    assert_each_request_was_done_once(run)


def test_a_user_who_thinks_finds_the_connection_closed(server: LlamaServer) -> None:
    """By then the close was seen, so a new connection is taken and nothing is sent in vain."""
    schedule = draw_schedule(workload(Arrivals(users=6, think_time_s=0.05), 60.0, requests=36))
    run = measure(server, schedule)
    assert_each_request_was_done_once(run)


def test_an_open_loop_loses_nothing_and_repeats_nothing(server: LlamaServer) -> None:
    schedule = draw_schedule(workload(Arrivals(rate_per_s=40.0), 2.0))
    run = measure(server, schedule)
    assert schedule.intended_ns is not None
    assert len(run.records) == len(schedule.intended_ns)
    assert_each_request_was_done_once(run)


def test_requests_at_the_moment_at_which_idle_connections_are_closed(server: LlamaServer) -> None:
    """It closes connections that were idle for 5 s: users who begin just then meet every order of
    the two, among them a request that is on its way while the connection is being closed.
    """
    users = 60
    load = workload(Arrivals(users=users), 60.0, requests=users)
    rows = np.full(users, 48, dtype=np.int32)
    schedule = Schedule(
        load,
        rows,
        np.full(users, TOKENS, dtype=np.int32),
        np.full(users, -1, dtype=np.int32),
        users=users,
        user_start_ns=(4_900_000_000 + 4_000_000 * np.arange(users)).astype(np.int64),
    )
    run = measure(server, schedule)
    assert_each_request_was_done_once(run)
