#!/usr/bin/env python3
"""A stand-in for vllm-router: takes turns, and lets each request wait `FAKE_ROUTER_MS` first.

`FAKE_ROUTER_ENDS`: it ends after so many requests.
"""

import http.client
import http.server
import itertools
import os
import sys
import time
from urllib.parse import urlsplit


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a chunk may wait 40 ms for the one before
    turns = iter(())
    number = itertools.count(1)

    def do_GET(self) -> None:
        self.forward(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(float(os.environ.get("FAKE_ROUTER_MS", "0")) / 1000)
        if next(self.number) > float(os.environ.get("FAKE_ROUTER_ENDS", "inf")):
            print("thread 'tokio-runtime-worker' panicked: no workers Error", flush=True)
            os._exit(101)
        self.forward(body)

    def forward(self, body: bytes | None) -> None:
        link = http.client.HTTPConnection(urlsplit(next(self.turns)).netloc, timeout=20)
        try:
            link.request(self.command, self.path, body, {"Content-Type": "application/json"})
            reply = link.getresponse()
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.getheader("Content-Type", "text/plain"))
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while data := reply.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            link.close()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    words = sys.argv[1:]
    given = dict(itertools.pairwise(words))
    Handler.turns = itertools.cycle(words[words.index("--worker-urls") + 1 :])
    print("policy", given["--policy"], given["--prometheus-port"], flush=True)
    address = given["--host"], int(given["--port"])
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()


main()
