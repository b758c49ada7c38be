"""Whose figures they are: this host's or another's, one server's or two's, this engine's flags."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from diagnosis_pages import MADE, PROMPT, STEPS, R, W, evidence, findings, histogram, page

from ridgeline.diagnosis import watching
from ridgeline.diagnosis.enginewords import in_words_of
from ridgeline.diagnosis.finding import Finding, Try, Wont
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.probing import probe
from ridgeline.load.address import parse_address
from ridgeline.telemetry.prometheus import merged, parse_metrics
from support.mock_server import MockServer, plain_stream
from support.mock_server import page as reply

ITL = "vllm:inter_token_latency_seconds"
FORWARDER = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'vllm:num_requests_running{engine="0"} 1\\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), H)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def forwarder() -> Iterator[str]:
    """A process that listens here and is no engine, as `ssh -L` is one."""
    process = subprocess.Popen([sys.executable, "-c", FORWARDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    process.stdout.close()


def test_behind_a_forwarder_this_hosts_cpu_is_not_the_servers(forwarder: str) -> None:
    seen = watching.watch([parse_address(forwarder)], {}, 1.0)
    assert seen.snapshots[-1].page is not None
    assert (seen.cores, seen.host_idle) == ({}, None)


def _light(t: int, running: int) -> str:
    """A fifth of the time at work: 20 steps of 10 ms a second."""
    return page({R: running, W: 0, STEPS: 20.0 * t, MADE: 20.0 * t, PROMPT: 100.0 * t,
                 'vllm:request_success_total{finished_reason="stop"}': 0.2 * t,
                 **histogram(ITL, {0.025: 20 * t}, 0.2 * t),
                 "process_start_time_seconds": 1.7e9})  # fmt: skip


def test_two_idle_replicas_are_as_idle_as_one() -> None:
    one = evidence(*(_light(t, t % 2) for t in range(31)), apart_s=1.0)
    pages = [[parse_metrics(_light(t, r)) for r in (t % 2, 1 - t % 2)] for t in range(31)]
    two = gather([Snapshot(t, merged(both)) for t, both in enumerate(pages)])
    assert (one.api_servers, two.api_servers) == (1, 1)
    for e in (one, two):
        low = findings(e)["low-load"]
        assert low.share == pytest.approx(0.8, abs=0.01)
    ranks = gather([Snapshot(t, parse_metrics(_light(t, 1) + page({R: [0, 1]}))) for t in range(3)])
    assert ranks.replicas == 2
    assert ranks.api_servers is None, "ranks of one server: any number of front ends"


def test_two_knobs_that_are_one_flag_are_advised_once_and_never_against_each_other() -> None:
    tries = (Try("max_num_batched_tokens", "2048"), Try("long_prefill_token_threshold", "1024"))
    wont = (Wont("max_num_seqs, kv_cache_dtype=fp8, max_num_batched_tokens down", "y"),)
    said = in_words_of("sglang", Finding("x", "", "limit", 0.5, tries=tries, will_not_help=wont))
    assert [(t.knob, t.value) for t in said.tries] == [("--chunked-prefill-size", "2048")]
    assert said.will_not_help[0].knob == (
        "--max-running-requests, --kv-cache-dtype=fp8, --chunked-prefill-size down")  # fmt: skip


def test_setting_up_a_connection_is_no_part_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def far(*args: object, **more: object) -> socket.socket:
        time.sleep(0.15)
        return connect(*args, **more)  # type: ignore[arg-type]

    models = reply(200, "application/json", b'{"data": [{"id": "m", "object": "model"}]}')
    with MockServer([plain_stream(8)], {"/v1/models": models}) as server:
        address = parse_address(server.url)
        monkeypatch.setattr(socket, "create_connection", far)
        told = probe(address, {})
    assert told.ok == told.sent == 5
    assert told.client_e2e_s is not None
    assert told.client_e2e_s < 0.1, replace(told)
