"""Nothing but the server that was named is ever spoken to: no tokenizer, no download."""

import socket
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run as ridgeline
from support.mock_server import MockServer, Pages, models_page, plain_stream


@pytest.fixture
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuses, and notes, every name and address that is not this machine's."""
    asked: list[str] = []
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def here(host: Any) -> bool:
        return host in (None, "127.0.0.1", "localhost", "::1", b"127.0.0.1", b"localhost")

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if not here(host):
            asked.append(str(host))
            raise socket.gaierror(-2, "there is no network")
        return resolve(host, *rest, **more)

    def connecting(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and not here(address[0]):
            asked.append(str(address))
            raise OSError(101, "there is no network")
        return connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", connecting)
    return asked


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_local_folder_with_and_without_a_tokenizer(
    tokenizer: bool, tmp_path: Path, only_loopback: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that is served under an absolute folder; usage is enough to count by."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    pages: Pages = {"/v1/models": models_page(str(folder))}
    with MockServer([plain_stream(4, first_ms=2, gap_ms=2, prompt=24)], pages) as mock:
        args = ["bench", mock.url, "--model", str(folder), "--users", "2", "--requests", "12"]
        code = ridgeline([*args, "--warmup", "0", "--prompt-tokens", "24", "--output-tokens", "4",
                          "--quiet", "--out", str(tmp_path / "o")])  # fmt: skip
        assert code in (0, 3), capfd.readouterr().err  # void where the machine is busy
        assert len(mock.served) >= 12
    assert ridgeline(["report", str(tmp_path / "o"), "--html", str(tmp_path / "r.html")]) == 0
    assert only_loopback == []


def test_the_guard_sees_who_asks(only_loopback: list[str]) -> None:
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("example.org", 443), timeout=1)
    assert only_loopback == ["example.org"]
