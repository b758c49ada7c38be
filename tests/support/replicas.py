"""Servers that play recorded pages, a second each, and Debian's Prometheus to read them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER = """
import socketserver, sys, threading, time
pages = [open(p, "rb").read() for p in sys.argv[3:]]
begun = time.monotonic()
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            while self.rfile.readline() not in (b"\\r\\n", b""):
                pass
            if self.server.hangs:
                time.sleep(600)
            body = pages[min(len(pages) - 1, int(time.monotonic() - begun))]
            head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
            self.wfile.write(head + body)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
servers = []
for number in range(int(sys.argv[1])):
    server = Server(("127.0.0.1", 0), Handler)
    server.hangs = number < int(sys.argv[2])
    servers.append(server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(" ".join(str(s.server_address[1]) for s in servers), flush=True)
sys.stdin.read()
"""


@contextmanager
def replicas(count: int, hanging: int, pages: list[Path]) -> Iterator[list[str]]:
    """Servers in a process of their own; so many of them never answer."""
    words = [sys.executable, "-c", SERVER, str(count), str(hanging), *map(str, pages)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        try:
            yield [f"http://127.0.0.1:{int(port)}" for port in ports]
        finally:
            process.kill()


def debian_prometheus() -> Path:
    """The folder with its prometheus and promtool."""
    found = subprocess.run([ROOT / "scripts/ensure_promtool.sh"], capture_output=True, text=True,
                           check=True)  # fmt: skip
    return Path(found.stdout.strip())
