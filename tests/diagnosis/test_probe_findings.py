"""What own requests tell: errors, silence of one server of several, the way in between."""

import http.server
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnosis_pages import MADE, PROMPT, STEPS, R, W, evidence, findings, histogram, page, words

from ridgeline.cli.main import run as ridgeline
from ridgeline.diagnosis.evidence import Evidence, Known, ProbeResult
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.telemetry.prometheus import merged, parse_metrics
from support.serving import serving

DONE = 'vllm:request_success_total{finished_reason="stop"}'
E2E = "vllm:e2e_request_latency_seconds"


def _busy(t: float, running: int = 2, waiting: int = 0) -> str:
    return page({R: running, W: waiting, STEPS: 50.0 * t, MADE: 100.0 * t, PROMPT: 100.0 * t,
                 DONE: 10 * t, "process_start_time_seconds": 1.7e9})  # fmt: skip


def _still() -> str:
    return page({R: 3, W: 0, STEPS: 500.0, MADE: 800.0, PROMPT: 100.0, DONE: 50})


@pytest.mark.parametrize(
    ("probe", "said", "first"),
    [
        (ProbeResult(5, 0, trouble="HTTP 500: oops", health=200), "5 of 5", "the server's log"),
        (ProbeResult(5, 4, trouble="HTTP 503", health=200), "1 of 5", "the server's log"),
        (ProbeResult(0, 0, trouble="HTTP 401", health=200), "which model", "RIDGELINE_API_KEY"),
        (ProbeResult(5, 0, trouble="HTTP 403: no", health=200), "5 of 5", "RIDGELINE_API_KEY"),
    ],
)
def test_own_requests_that_fail_are_a_fault(probe: ProbeResult, said: str, first: str) -> None:
    e = replace(evidence(*(_busy(t) for t in range(0, 31, 5)), apart_s=5.0), probe=probe)
    found = findings(e)
    assert next(iter(found)) == "own-requests-fail"
    assert not [f for f in found.values() if f.kind == "fine"]
    fault = found["own-requests-fail"]
    assert (fault.kind, fault.tries[0].knob) == ("fault", first)
    assert said in fault.title
    assert str(probe.trouble) in fault.title


def test_own_requests_that_are_answered_are_no_finding() -> None:
    e = evidence(*(_busy(t) for t in range(0, 31, 5)), apart_s=5.0)
    assert "own-requests-fail" not in findings(replace(e, probe=ProbeResult(5, 5, 0.3, 0.3)))
    assert "own-requests-fail" not in findings(replace(e, probe=ProbeResult(1, 0, silent_s=30.0)))


def _two(first: ProbeResult, second: ProbeResult) -> Evidence:
    """Replica 0 has a long queue for its 16 slots; replica 1 stands still with three requests."""
    rows = [
        Snapshot(t, merged([parse_metrics(_busy(t, 16, 200)), parse_metrics(_still())]))
        for t in range(31)
    ]
    probes = tuple(replace(p, target=str(n), server=f"http://r{n}")
                   for n, p in enumerate((first, second)))  # fmt: skip
    return replace(gather(rows, Known(max_num_seqs=16)), servers=2, probe=probes[0], probes=probes)


SILENT, FINE = ProbeResult(1, 0, silent_s=30.0, health=200), ProbeResult(5, 5, 0.3, 0.28)


def test_a_silent_replica_does_not_make_another_one_hung() -> None:
    found = findings(_two(SILENT, FINE))
    assert "hung" not in found
    assert found["stale-gauges"].kind == "note"
    limits = {f.id for f in found.values() if f.kind == "limit"} - {"unanswered"}
    assert limits == {"imbalance"}, "200 wait at one replica, and the other has room"
    assert found["unanswered"].kind == "limit"
    assert "http://r0" in found["unanswered"].title


def test_the_replica_that_stands_still_and_is_silent_is_hung() -> None:
    found = findings(_two(FINE, SILENT))
    hung = found["hung"]
    assert hung.confidence == "high"
    assert "in engine 1/0" in hung.title
    assert "unanswered" not in found


def test_what_was_done_is_not_advised_again() -> None:
    e = _two(FINE, SILENT)
    asked_first_alone = replace(e, probes=e.probes[:1])
    hung = findings(asked_first_alone)["hung"]
    assert hung.confidence == "medium"
    assert "--probe" not in words(hung)
    assert "--probe" in words(findings(replace(e, probes=(), probe=None))["hung"])


def _counted(t: float) -> str:
    return page({R: 16, W: 0, STEPS: 50.0 * t, MADE: 800.0 * t, PROMPT: 100.0 * t, DONE: 5 * t,
                 **histogram(E2E, {30: 5 * t}, 7.0 * 5 * t)})  # fmt: skip


def test_the_way_in_between_is_a_share_of_the_requests_that_are_served() -> None:
    """130 ms beside small requests of 200 ms, where those of the users take 7 s."""
    e = evidence(*(_counted(t) for t in range(31)), apart_s=1.0)
    assert "between" not in findings(replace(e, probe=ProbeResult(5, 5, 0.33, 0.20)))
    slow = findings(replace(e, probe=ProbeResult(5, 5, 2.2, 0.20)))["between"]
    assert slow.share == pytest.approx(2 / 9)


class _Server(http.server.BaseHTTPRequestHandler):
    """Pages of a busy engine, a list of models, and errors for whoever asks for an answer."""

    begun = time.monotonic()

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._reply(200, _busy(time.monotonic() - self.begun).encode(), "text/plain")
        else:
            self._reply(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(500, b'{"error": {"message": "CUDA error"}}')

    def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_the_command_says_so_and_of_two_servers_asks_both(tmp_path: Path) -> None:
    out = tmp_path / "d.json"
    with serving(_Server) as one, serving(_Server) as other:
        assert (
            ridgeline(["doctor", one, other, "--seconds", "1", "--probe", "--json", str(out)]) == 0
        )
        body = json.loads(out.read_text())
    failing = [f["title"] for f in body["findings"] if f["id"] == "own-requests-fail"]
    assert len(failing) == 2
    assert one in failing[0]
    assert other in failing[1]
    assert "CUDA error" in failing[0]
    assert body["probe"]["server"] == one
