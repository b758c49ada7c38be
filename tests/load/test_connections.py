"""Connections: opened beforehand, kept, replaced when a server closes them, never capped."""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.load.http import Site
from ridgeline.load.limits import SPARE_FILES, ensure_open_files
from support.driving import closed, drive, opened
from support.mock_server import (
    MockProcess,
    MockServer,
    Script,
    Served,
    at_once,
    plain_stream,
    stream,
    text,
)

MS = 1_000_000


def test_kept_connections_are_used_again_and_connect_time_is_its_own_column() -> None:
    with MockServer([plain_stream(2, first_ms=5, gap_ms=2)]) as mock:
        outcome = drive(mock.url, closed(4, duration_s=0.3))
        # one more connection asked whether anybody listens
        assert mock.accepted <= 5
    assert outcome.result.client.connections == 4
    connects = [r.connect_ns for r in outcome.records]
    assert all(c is not None and c > 0 for c in connects[:4])
    assert set(connects[4:]) == {0}


def test_a_thousand_streams_at_once() -> None:
    """No hidden cap: the server sees all of them open together."""
    with MockProcess([plain_stream(2, first_ms=1000, gap_ms=1000)]) as mock:
        outcome = drive(mock.url, closed(1000, duration_s=0.5))
        mock.stop()
    assert mock.peak_busy == 1000
    assert len(outcome.records) == 1000
    assert all(r.failure is None for r in outcome.records)
    assert outcome.result.client.connections == 1000


@pytest.mark.parametrize("keeps", [1, 4])
def test_a_server_that_closes_kept_connections_unannounced(keeps: int) -> None:
    """After each, or each fourth reply: no request is lost, none counted twice."""
    good = plain_stream(3, first_ms=3, gap_ms=1)
    closing = Script(good.parts, "closed")
    seen: Counter[int] = Counter()

    def answer(served: Served, _: int) -> Script:
        seen[served.connection] += 1
        return closing if seen[served.connection] % keeps == 0 else good

    with MockServer(answer) as mock:
        outcome = drive(mock.url, closed(3, duration_s=0.4))
        assert len(mock.served) == len(outcome.records)
        assert len({s.identity for s in mock.served}) == len(mock.served)
    assert all(r.failure is None for r in outcome.records)
    assert len(outcome.records) > 20
    retries = sum(r.retries or 0 for r in outcome.records)
    if keeps == 1:  # after a few it is known that nothing can be used again
        assert 1 <= retries <= 10
    else:
        assert retries >= 1


def test_connection_close_header_is_obeyed() -> None:
    head, *rest = plain_stream(1).parts
    closing = head[1].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with MockServer([Script(((0.0, closing), *rest))]) as mock:
        outcome = drive(mock.url, closed(1, duration_s=0.2, requests=5))
        assert len({s.connection for s in mock.served}) == 5
    assert all(r.failure is None for r in outcome.records)


def test_a_request_that_met_a_closed_connection_is_sent_once_more_and_marked() -> None:
    """The close comes with the last bytes of the first reply: nobody has read the second one."""
    good = plain_stream(2, first_ms=2, gap_ms=1)
    with MockServer([Script(good.parts, "closed"), good]) as mock:
        outcome = drive(mock.url, closed(requests=3))
        assert len(mock.served) == 3
    assert [(r.failure, r.retries) for r in outcome.records] == [(None, 0), (None, 1), (None, 0)]
    again = outcome.records[1]
    assert again.connect_ns is not None
    assert again.connect_ns > 0  # it went over a new connection


@pytest.mark.parametrize(("held_ms", "after"), [(0.0, "close"), (300.0, "close"), (300.0, "reset")])
def test_a_server_that_reads_a_request_and_closes_has_failed_it(held_ms: float, after: str) -> None:
    """However soon: what may have been worked on is not sent twice (RFC 9110, 9.2.2)."""
    good = plain_stream(2, first_ms=2, gap_ms=1)
    with MockServer([good, good, Script(((held_ms, b""),), after), good]) as mock:
        outcome = drive(mock.url, closed(requests=4, duration_s=20.0))
        assert len(mock.served) == 4
    held = outcome.records[2]
    assert (held.failure, held.retries) == ("stream_cut", 0)
    why = "closed by the server" if after == "close" else "Connection reset by peer"
    assert held.failure_detail == f"dropped before answering: {why}"
    assert held.end_ns is not None
    assert held.sent_ns is not None
    assert held.end_ns - held.sent_ns > (held_ms - 10) * MS


def test_a_server_that_uses_each_connection_once_loses_nothing() -> None:
    """It reads what comes on it to throw it away; from the first requests on this is known."""
    good = plain_stream(2, first_ms=2, gap_ms=1)
    seen: Counter[int] = Counter()

    def answer(served: Served, _: int) -> Script:
        seen[served.connection] += 1
        return good if seen[served.connection] == 1 else Script((), "close")

    with MockServer(answer) as mock:
        outcome = drive(mock.url, closed(3, duration_s=0.4))
    assert all(r.failure is None for r in outcome.records)
    assert 1 <= sum(r.retries or 0 for r in outcome.records) <= 10


def test_a_server_that_sheds_load_by_closing_has_failed_what_it_shed() -> None:
    """Every third request, read and dropped: as many failures, and nothing sent twice."""
    good = plain_stream(2, first_ms=2, gap_ms=1)
    dropped: list[int] = []

    def answer(served: Served, number: int) -> Script:
        if number < 20 or number % 3 != 2:  # connections have served before
            return good
        dropped.append(served.identity)
        return Script((), "close")

    with MockServer(answer) as mock:
        outcome = drive(mock.url, closed(4, duration_s=0.8))
        assert len(mock.served) == len(outcome.records)
    lost = {i for i, r in outcome.of_identity(4).items() if r.failure is not None}
    assert lost == set(dropped)
    assert len(lost) > 5
    assert not any(r.retries for r in outcome.records)


def test_the_time_of_a_request_sent_again_counts_from_its_first_sending() -> None:
    """New connections take 200 ms here, and the user waits for them."""
    good = plain_stream(2, first_ms=2, gap_ms=1)
    first = Script(good.parts, "close")
    with MockServer([first, good]) as mock, slow_door(mock.port, 0.2) as door:
        outcome = drive(f"http://127.0.0.1:{door}", closed(requests=2, duration_s=20.0))
    again = outcome.records[1]
    assert (again.failure, again.retries) == (None, 1)
    assert again.first_ns is not None
    assert again.sent_ns is not None
    assert again.first_ns - again.sent_ns > 190 * MS
    assert again.sent_ns - again.intended_ns < 100 * MS


@contextlib.contextmanager
def slow_door(port: int, wait_s: float) -> Iterator[int]:
    """A port that passes bytes on; every connection but the first waits first."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, _ = listener.accept()
                if len(open_) >= 2:  # one connection, both its ends, is there already
                    time.sleep(wait_s)
                outer = socket.create_connection(("127.0.0.1", port))
                open_.extend((inner, outer))
                if len(open_) == 2:  # what comes last leaves with the close, in one segment
                    inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                for pair in ((inner, outer), (outer, inner)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()
    for sock in open_:
        sock.close()


def test_a_reply_cut_after_its_first_byte_is_not_tried_again() -> None:
    good = plain_stream(2, first_ms=2, gap_ms=1)
    with MockServer([good, Script(((0.0, b"H"),), "close"), good]) as mock:
        outcome = drive(mock.url, closed(requests=3))
        assert len(mock.served) == 3
    assert [(r.failure, r.retries) for r in outcome.records][1] == ("stream_cut", 0)


def test_open_loop_opens_what_a_burst_needs() -> None:
    """Arrivals all at once, far above the mean rate that connections were prepared for."""
    with MockServer([plain_stream(2, first_ms=200, gap_ms=5)]) as mock:
        outcome = drive(mock.url, opened([0.1] * 150, duration_s=3.0))
        assert mock.peak_busy == 150
    assert all(r.failure is None for r in outcome.records)


def test_prompts_larger_than_the_socket_buffer() -> None:
    with MockServer([plain_stream(1, first_ms=1)]) as mock:
        outcome = drive(mock.url, closed(requests=2, prompt_tokens=900_000))
        sizes = [len(s.json()["messages"][0]["content"].split()) for s in mock.served]
    assert sizes == [900_000, 900_000]
    assert all(r.failure is None for r in outcome.records)


def test_open_file_limit_is_raised_or_named() -> None:
    """In a process of its own, because limits cannot be raised again."""
    code = """
import resource, sys
from ridgeline.load.limits import ensure_open_files
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
ensure_open_files(512)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""

    def run(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(soft), str(hard)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert int(run(1024, 1024).stdout) == 1024
    assert int(run(256, 2048).stdout) >= 512 + SPARE_FILES
    refused = run(256, 256).stderr.strip().splitlines()[-1]
    assert "BadInput" in refused
    assert "hard limit of this process is 256" in refused
    assert f"ulimit -Hn {512 + SPARE_FILES}" in refused


def test_too_many_users_are_refused_before_anything_is_sent() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(BadInput, match="open-file limit"):
        ensure_open_files(hard + 1)


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"),
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return folder


class TlsMock:
    """A thread a connection; each handshake begins 40 ms late, each reply takes 100 ms."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.requests = 0
        self._threads: list[threading.Thread] = []

    def serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(sock,), daemon=True)
            thread.start()

    def _talk(self, sock: socket.socket) -> None:
        time.sleep(0.04)
        reply = b"".join(data for _, data in plain_stream(3).parts)
        try:
            with self._context.wrap_socket(sock, server_side=True) as tls:
                while data := tls.recv(1 << 16):
                    if not data.endswith(b"}"):
                        continue
                    self.requests += 1
                    time.sleep(0.1)
                    tls.sendall(reply)
        except OSError:
            pass


@pytest.fixture
def tls_mock(certificate: Path) -> Iterator[TlsMock]:
    mock = TlsMock(certificate)
    thread = threading.Thread(target=mock.serve, daemon=True)
    thread.start()
    yield mock
    mock.listener.shutdown(socket.SHUT_RDWR)
    mock.listener.close()
    thread.join()


def test_tls_handshakes_are_not_in_the_ttft(tls_mock: TlsMock, certificate: Path) -> None:
    """64 streams, two requests each, handshakes 40 ms late: TTFT 100 ms in both rounds."""
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    url = f"https://localhost:{tls_mock.port}"
    site = Site(socket.AF_INET, ("127.0.0.1", tls_mock.port), "localhost", url, context)
    outcome = drive(url, closed(64, requests=128, duration_s=20.0), site=site)
    assert len(outcome.records) == 128
    assert all(r.failure is None for r in outcome.records), outcome.records[0].failure_detail
    rounds = outcome.records[:64], outcome.records[64:]
    for records in rounds:
        ttft = [((r.first_ns or 0) - (r.sent_ns or 0)) / MS for r in records]
        assert 99 < np.median(ttft) < 135
    assert min((r.connect_ns or 0) / MS for r in rounds[0]) >= 40
    assert {r.connect_ns for r in rounds[1]} == {0}
    assert outcome.result.client.receive_clock == "kernel"


def test_a_certificate_that_is_not_trusted_is_said(tls_mock: TlsMock) -> None:
    url = f"https://localhost:{tls_mock.port}"
    context = ssl.create_default_context()
    site = Site(socket.AF_INET, ("127.0.0.1", tls_mock.port), "localhost", url, context)
    with pytest.raises(Exception, match=r"(?i)TLS: CERTIFICATE_VERIFY_FAILED"):
        drive(url, closed(1), site=site)


def test_a_server_that_never_answers_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"https://localhost:{deaf.getsockname()[1]}"
        site = Site(
            socket.AF_INET, deaf.getsockname(), "localhost", url, ssl.create_default_context()
        )
        with pytest.raises(Exception, match=r"no connection in 0\.3 s"):
            drive(url, closed(1), site=site, connect_s=0.3)


def test_plain_replies_at_once_are_read_whole() -> None:
    """A reply larger than one read."""
    events = [(0.0, text("x" * 1000)) for _ in range(2000)]
    with MockServer([at_once(stream([*events, (0, plain_stream(1).parts[-1][1])]))]) as mock:
        outcome = drive(mock.url, closed(requests=1))
    record = outcome.records[0]
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) >= 2000
