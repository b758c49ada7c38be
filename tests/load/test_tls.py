"""TLS between socket and parser: what came last in what the socket gave."""

import contextlib
import ssl
import subprocess
from pathlib import Path

import pytest

from ridgeline.load.tls import Tls


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run([
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost",
        "-addext", "subjectAltName=DNS:localhost",
    ], check=True, capture_output=True)  # fmt: skip
    return folder


class Server:
    """The other side, in memory."""

    def __init__(self, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def shake(self, data: bytes) -> bytes:
        self.incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.session.do_handshake()
        return self.outgoing.read()

    def record(self, data: bytes) -> bytes:
        self.session.write(data)
        return self.outgoing.read()


@pytest.fixture
def sides(certificate: Path) -> tuple[Tls, Server, bytes]:
    """Client, server, and the session tickets that the server sends after its handshake."""
    client = Tls(ssl.create_default_context(cafile=str(certificate / "cert.pem")), "localhost")
    server, received, done = Server(certificate), b"", False
    while not done:
        done, out = client.handshake(received)
        received = server.shake(out)
    return client, server, received


def test_a_read_ends_with_data_only_without_more_of_tls(
    sides: tuple[Tls, Server, bytes],
) -> None:
    client, server, tickets = sides
    assert tickets, "TLS 1.3 of OpenSSL sends them after the handshake"
    assert client.decrypt(tickets + server.record(b"one"))[0] == b"one"
    assert client.data_last
    record = server.record(b"three")
    assert client.decrypt(record[:-1])[0] == b""
    assert not client.data_last
    assert client.decrypt(record[-1:])[0] == b"three"
    assert client.data_last
    two = server.record(b"a") + server.record(b"b")
    assert client.decrypt(two[:-3])[0] == b"a"
    assert not client.data_last, "a part of another record came after it"
    assert client.decrypt(two[-3:])[0] == b"b"
    assert client.data_last
    assert client.decrypt(server.record(b"c") + server.record(b"d"))[0] == b"cd"
    assert client.data_last


def test_the_close_after_data_is_a_later_byte(sides: tuple[Tls, Server, bytes]) -> None:
    """It bears no data, but it has moved the stamp of the read."""
    client, server, tickets = sides
    data = server.record(b"data")
    with pytest.raises(ssl.SSLWantReadError):
        server.session.unwrap()
    assert client.decrypt(tickets + data + server.outgoing.read())[0] == b"data"
    assert not client.data_last
