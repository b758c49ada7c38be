#!/usr/bin/env python3
"""A stand-in for vllm-router: takes turns, and is told its workers over HTTP as the real one is.

A request that finds its worker gone goes to the next one, as long as no byte of an answer came; a
stream whose worker goes breaks off. As in vllm-router, /add_worker answers once the worker's
/health has. POST /test/die ends it.
"""

import http.client
import http.server
import itertools
import json
import os
import sys
import threading
from urllib.parse import parse_qs, urlsplit

WORDS = sys.argv[1:]
GIVEN = dict(itertools.pairwise(WORDS))
lock = threading.Lock()
workers = list(WORDS[WORDS.index("--worker-urls") + 1 :])
turn = itertools.count()


def healthy(url: str) -> bool:
    """Until it says so, a minute at the most; somebody else's may be anything."""
    link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        link.request("GET", "/health")
        return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return urlsplit(url).port == 9
    finally:
        link.close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/list_workers":
            self.answer(200, json.dumps({"urls": workers}).encode())
        else:
            self.forward(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path, _, query = self.path.partition("?")
        if path == "/test/die":
            os._exit(101)
        elif path in ("/add_worker", "/remove_worker"):
            url = parse_qs(query)["url"][0]
            if path == "/add_worker" and not healthy(url):
                self.answer(400, b"not healthy")
                return
            with lock:
                if path == "/remove_worker" and url in workers:
                    workers.remove(url)
                elif path == "/add_worker" and url not in workers:
                    workers.append(url)
            self.answer(200, b"")
        else:
            self.forward(body)

    def forward(self, body: bytes | None) -> None:
        for _ in range(5):
            with lock:
                if not workers:
                    break
                url = workers[next(turn) % len(workers)]
            link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            try:
                headers = {k: v for k, v in self.headers.items() if k == "Authorization"}
                link.request(self.command, self.path, body, headers)
                reply = link.getresponse()
                if reply.headers.get("Transfer-Encoding") == "chunked":
                    self.stream(reply)
                else:
                    self.answer(reply.status, reply.read())
                return
            except (OSError, http.client.HTTPException):
                continue
            finally:
                link.close()
        self.answer(503, b"No available workers")

    def stream(self, reply: http.client.HTTPResponse) -> None:
        first = reply.read1()
        self.send_response(reply.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            data = first
            while data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                data = reply.read1()
            if reply.isclosed():
                self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # it has begun: nobody else can end it

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


Server((GIVEN["--host"], int(GIVEN["--port"])), Handler).serve_forever()
