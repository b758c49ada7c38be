"""A stand-in for vLLM's server that can be made to hang behind a healthy /health.

usage: stand_in.py MODEL --host H --port N [--max-num-seqs N and anything else]
It takes VLLM_API_KEY as vLLM does. Its answers say --max-num-seqs, by which two configurations can
be told apart. STAND_IN_STARTS_S: how long its start takes. With --max-num-seqs 13 it does not
start. STAND_IN_HANGS: a file; where it exists at the start, nothing is answered any more
after the first completion, /health neither. POST /test/hang: no completion ends any more.
POST /test/sick: /health says 503.
"""

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path

GIVEN = dict(zip(sys.argv, sys.argv[1:], strict=False))
SEQS = GIVEN.get("--max-num-seqs", "0")
KEY = os.environ.get("VLLM_API_KEY")
HANGS = Path(os.environ.get("STAND_IN_HANGS", "/no/such")).exists()
lock = threading.Lock()
state = {"running": 0, "tokens": 0, "hung": False, "sick": False, "done": 0}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        while HANGS and state["done"]:
            time.sleep(1.0)
        if self.path == "/health":
            self.answer(503 if state["sick"] else 200, b"")
        elif self.path == "/v1/models" and self.allowed():
            self.answer(200, json.dumps({"data": [{"id": GIVEN["--served-model-name"]}]}).encode())
        elif self.path == "/metrics":
            page = (
                f"vllm:num_requests_running {state['running']}\nvllm:num_requests_waiting 0\n"
                f"vllm:generation_tokens_total {state['tokens']}\n"
                f"vllm:request_success_total {state['done']}\n"
            )
            self.answer(200, page.encode())
        else:
            self.answer(404, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path.startswith("/test/"):
            state[{"hang": "hung"}.get(name := self.path.removeprefix("/test/"), name)] = True
            self.answer(200, b"")
        elif self.allowed():
            self.complete(json.loads(body))

    def allowed(self) -> bool:
        if KEY is None or self.headers.get("Authorization") == f"Bearer {KEY}":
            return True
        self.answer(401, b'{"error": "Unauthorized"}')
        return False

    def complete(self, body: dict) -> None:
        tokens = body.get("max_tokens", 16)
        answer = {"seqs": SEQS, "port": GIVEN["--port"]}
        answer["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        stream = body.get("stream", False)
        if stream:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        while HANGS and state["done"]:
            time.sleep(1.0)
        with lock:
            state["running"] += 1
        for _ in range(tokens):
            time.sleep(0.01)
            while state["hung"]:
                time.sleep(0.1)
            with lock:
                state["tokens"] += 1
            if stream:
                self.chunk(b"data: " + json.dumps(answer).encode() + b"\n\n")
        with lock:
            state["running"] -= 1
            state["done"] += 1
        if stream:
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        answer["usage"] = {"completion_tokens": tokens}
        self.answer(200, json.dumps(answer).encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


if SEQS == "13":
    print("ValueError: this many do not fit", flush=True)
    sys.exit(1)
time.sleep(float(os.environ.get("STAND_IN_STARTS_S", "0")))
Server((GIVEN["--host"], int(GIVEN["--port"])), Handler).serve_forever()
