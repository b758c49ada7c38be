"""A soak from which nothing comes back is not survived: a server that locks up under its load."""

import http.server
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.summary import RequestCounts
from ridgeline.store.run_directory import StoredRun, read_run
from ridgeline.tuning.soaking import judged
from ridgeline.tuning.trial import Candidate

ONE = Candidate({"max_num_seqs": 8})
CHUNK = {"id": "x", "object": "chat.completion.chunk"}


class Server(http.server.ThreadingHTTPServer):
    """Answers `most` requests at a time at once; with one more waiting it answers none."""

    daemon_threads = True

    def __init__(self, most: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.most, self.here, self.lock = most, 0, threading.Lock()
        self.over = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.here += 1
        self.server.over.wait(0.1)
        if self.server.here > self.server.most:
            self.server.over.wait(30)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for i in range(8):
            choice = {"index": 0, "delta": {"content": "a"},
                      "finish_reason": "length" if i == 7 else None}  # fmt: skip
            self._say(json.dumps({**CHUNK, "choices": [choice]}))
        usage = {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24}
        self._say(json.dumps({**CHUNK, "choices": [], "usage": usage}))
        self._say("[DONE]")
        self.close_connection = True
        with self.server.lock:
            self.server.here -= 1

    def _say(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def loaded(folder: Path, most: int) -> StoredRun:
    """Eight users on a server that answers so many at a time."""
    server = Server(most)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        run(["bench", f"http://127.0.0.1:{server.server_address[1]}", "--users", "8",
             "--prompt-tokens", "16", "--output-tokens", "8", "--duration", "2", "--warmup", "0",
             "--grace", "1", "--out", str(folder), "--quiet"])  # fmt: skip
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
    return read_run(next(folder.glob("*-r1")))


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return loaded(tmp_path_factory.mktemp("hung"), 2)


def test_a_server_that_answers_nobody_has_not_survived(hung: StoredRun) -> None:
    assert hung.failure is None, "to the client it is alive"
    found = judged(hung, ONE, "8 at a time")
    assert not found.passed
    assert "hangs under load: 8 of 8 requests were left waiting" in (found.reason or "")


def test_one_that_answers_has(tmp_path: Path) -> None:
    found = judged(loaded(tmp_path, 99), ONE, "8 at a time")
    assert (found.passed, found.reason) == (True, None)


def test_no_figure_and_no_request_prove_nothing(hung: StoredRun) -> None:
    assert not judged(replace(hung, summary=None), ONE, "").passed
    assert hung.summary is not None
    none = replace(hung.summary, requests=RequestCounts(0, 0, 0, None))
    assert "no request was sent" in (judged(replace(hung, summary=none), ONE, "").reason or "")
