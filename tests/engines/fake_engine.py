"""A stand-in for an engine process: prints a given log, then ends, hangs or serves.

usage: fake_engine.py LOGFILE ending [--port N and anything else that an engine is given]
ending: exit=CODE | serve | hang (health 200, completions never) | child (serve, with a child) |
children (the same, and one in a session of its own)
"""

import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    ending = "serve"

    def do_GET(self) -> None:
        self.send_response(503 if "--not-healthy" in sys.argv else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        if self.ending == "hang":
            time.sleep(600)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    print(Path(sys.argv[1]).read_text(), flush=True)
    print("CUDA_VISIBLE_DEVICES =", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    ending = sys.argv[2]
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
