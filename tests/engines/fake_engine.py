"""A stand-in for an engine process: prints a given log, then ends, hangs or serves.

usage: fake_engine.py LOGFILE ending [--port N and anything else that an engine is given]
ending: exit=CODE | late-exit=CODE (after a second) | serve | hang (health 200, completions never) |
child (serve, with a child) | children (the same, and one in a session of its own) |
stall (serve one completion, then none, with frozen gauges) | key=KEY (401 without it) |
silent (serve, but /metrics answers once only) |
status=CODE (completions always end so) | settles=N (N times 404 first)
"""

import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

# An engine core that stands still behind an API server that does not: the gauges freeze.
PAGES = {
    "/v1/models": '{"data": [{"id": "tiny"}]}',
    "/metrics": "vllm:num_requests_running 12\nvllm:num_requests_waiting 5\n"
    "vllm:iteration_tokens_total_count 88100\n",
}


class Handler(http.server.BaseHTTPRequestHandler):
    ending = "serve"
    answered = False
    asked = 0
    pages = 0

    def do_GET(self) -> None:
        if self.ending == "silent" and self.path == "/metrics":
            Handler.pages += 1
            time.sleep(600 if Handler.pages > 1 else 0)
        if self.ending in ("stall", "silent") and self.path in PAGES:
            body = PAGES[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(503 if "--not-healthy" in sys.argv else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        answered = Handler.answered
        Handler.answered = True
        if self.ending == "hang" or (self.ending == "stall" and answered):
            time.sleep(600)
        kind, _, value = self.ending.partition("=")
        Handler.asked += 1
        status, sent = 200, self.headers.get("Authorization")
        if kind == "key" and sent != f"Bearer {value}":
            status = 401
        elif kind == "status":
            status = int(value)
        elif kind == "settles" and Handler.asked <= int(value):
            status = 404
        body = b"{}" if status == 200 else f'{{"error": "no, not with {sent}"}}'.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    print(Path(sys.argv[1]).read_text(), flush=True)
    print("CUDA_VISIBLE_DEVICES =", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    ending = sys.argv[2]
    if ending.startswith("late-exit="):
        time.sleep(1.0)
        print("ended at", time.monotonic(), flush=True)
        sys.exit(int(ending.removeprefix("late-exit=")))
    if ending.startswith("exit="):
        sys.exit(int(ending.removeprefix("exit=")))
    if ending == "children":
        subprocess.Popen(["setsid", "sleep", "600"])
    if ending in ("children", "child"):
        subprocess.Popen(["sleep", "600"])
    Handler.ending = ending
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer.allow_reuse_port = "--shares-port" in sys.argv
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(600)


main()
