"""A Prometheus that wants a token or a password, over TLS; neither is shown or kept anywhere."""

import base64
import ssl
import subprocess
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from support.fake_prometheus import FakePrometheus, served

TOKEN, PASSWORD = "tok-4f9a-secret-of-prometheus", "correct-horse-battery"
BASIC = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
PAGE = """\
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 0
vllm:generation_tokens_total{engine="0"} %d
"""


@pytest.fixture
def fake() -> FakePrometheus:
    made = FakePrometheus(1000.0)
    for step in range(5):
        made.scraped(PAGE % (500 * step), 900.0 + 15 * step,
                     {"job": "vllm", "instance": "h:8000"})  # fmt: skip
    return made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
def user(tmp_path: Path) -> Path:
    file = tmp_path / "user"
    file.write_text(f"reader:{PASSWORD}\n")
    return file


def _nothing_shown(text: str) -> None:
    for secret in (TOKEN, PASSWORD, BASIC.split()[1]):
        assert secret not in text


@pytest.mark.parametrize("way", ["file", "variable", "user"])
@pytest.mark.parametrize("command", ["doctor", "watch"])
def test_it_is_read_with_what_it_wants(
    way: str, command: str, fake: FakePrometheus, token: Path, user: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = {"file": ["--prometheus-token-file", str(token)], "variable": [],
             "user": ["--prometheus-user-file", str(user)]}[way]  # fmt: skip
    if way == "variable":
        monkeypatch.setenv("RIDGELINE_PROMETHEUS_TOKEN", TOKEN)
    kept = tmp_path / "kept"
    more = ["--save", str(kept)] if command == "doctor" else ["--for", "1", "--record", str(kept)]
    with served(fake, BASIC if way == "user" else f"Bearer {TOKEN}") as url:
        assert ridgeline([command, "--prometheus", url, *given, *more]) == 0
    shown = capsys.readouterr()
    assert "h:8000" in shown.out
    _nothing_shown(shown.out + shown.err)
    files = [file for file in kept.rglob("*") if file.is_file()]
    assert files
    for file in files:
        _nothing_shown(file.read_text(errors="replace"))


@pytest.mark.parametrize("command", ["doctor", "watch"])
def test_what_is_refused_says_what_to_give(
    command: str, fake: FakePrometheus, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(fake, "Bearer another-one") as url:
        assert ridgeline([command, "--prometheus", url]) == 2
        assert "wants authentication (HTTP 401); give --prometheus-token-file" in (
            capsys.readouterr().err.replace(url + ": ", ""))  # fmt: skip
        arguments = [command, "--prometheus", url, "--prometheus-token-file", str(token)]
        assert ridgeline(arguments) == 2
    error = capsys.readouterr().err
    assert "refuses the token or password that it was given" in error
    _nothing_shown(error)
    assert len(error.strip().splitlines()) == 1


def test_a_token_that_prometheus_quotes_is_masked(
    token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Quoting(FakePrometheus):
        def answer(self, query: str) -> dict[str, object]:
            return {"status": "error", "error": f"no tenant for {TOKEN}"}

    with served(Quoting(1.0)) as url:
        arguments = ["doctor", "--prometheus", url, "--prometheus-token-file", str(token)]
        assert ridgeline(arguments) == 2
    error = capsys.readouterr().err
    assert "no tenant for ***" in error
    _nothing_shown(error)


@pytest.mark.parametrize(
    ("text", "option", "words"),
    [
        (None, "token", "cannot be read (no such file"),
        ("", "token", "must hold just one line"),
        ("one\ntwo\n", "token", "must hold just one line"),
        ("two words", "token", "holds no token"),
        ("nocolon-hunter2", "user", "write one line USER:PASSWORD"),
        (":hunter2", "user", "write one line USER:PASSWORD"),
    ],
)
def test_a_file_that_holds_none(
    text: str | None, option: str, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "f"
    if text is not None:
        file.write_text(text)
    arguments = ["--prometheus", "http://127.0.0.1:1", f"--prometheus-{option}-file", str(file)]
    assert ridgeline(["doctor", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "hunter2" not in error


def test_two_of_them_or_without_a_prometheus(
    token: Path, user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--prometheus-token-file", str(token), "--prometheus-user-file", str(user)]
    assert ridgeline(["doctor", "--prometheus", "http://127.0.0.1:1", *both]) == 2
    assert "give one of" in capsys.readouterr().err
    assert ridgeline(["watch", "http://127.0.0.1:1", *both[:2]]) == 2
    assert "needs --prometheus URL" in capsys.readouterr().err


def test_tls_by_a_certificate_that_is_trusted_and_by_none_else(
    fake: FakePrometheus, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run([
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
        "-out", pem, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
    ], check=True, capture_output=True)  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    with served(fake, f"Bearer {TOKEN}", context) as url:
        assert url.startswith("https://")
        arguments = ["doctor", "--prometheus", url, "--prometheus-token-file", str(token)]
        assert ridgeline(arguments) == 3
        assert "TLS failed" in capsys.readouterr().err
        assert fake.queries == [], "nothing is told to a server that is not trusted"
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert ridgeline(arguments) == 0
    assert "h:8000" in capsys.readouterr().out
