"""`ridgeline bench` against `ridgeline twin` with fixed latencies, and against bad servers."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from ridgeline.cli.bench import _exit_code
from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.summary import Interval, SloResult
from ridgeline.store.run_directory import read_run

COMMAND = [sys.executable, "-m", "ridgeline.cli.main"]
TTFT_MS, ITL_MS, TOKENS = 400, 20, 10
ATTEMPTS = 5
UNCALIBRATED = "--no-calibration"  # these runs are about other things, and it takes seconds
LOAD = ["--users", "8", "--warmup", "0.5", "--prompt-tokens", "20", "--output-tokens", str(TOKENS)]


def measure(args: list[str], out: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. A run that the busy test machine has made void is done again:
    that the client was the limit is then the right answer.
    """
    for _ in range(ATTEMPTS):
        code = ridgeline(["bench", *args, UNCALIBRATED, "--out", str(out)])
        shown = capfd.readouterr()
        if not (code == 3 and ("client limit" in shown.err or "the client read late" in shown.err)):
            break
    return code, shown.out, shown.err


def serve(*args: str) -> tuple[subprocess.Popen[str], str]:
    server = subprocess.Popen(
        [*COMMAND, "twin", "--port", "0", *args], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    line = server.stderr.readline()
    return server, "http://" + line.split("http://")[1].split()[0]


def stop(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.communicate(timeout=20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server, address = serve("--fixed-ttft-ms", str(TTFT_MS), "--fixed-itl-ms", str(ITL_MS))
    yield address
    stop(server)


@pytest.fixture
def slow_url() -> Iterator[str]:
    """First tokens come after half a minute."""
    server, address = serve("--fixed-ttft-ms", "30000", "--fixed-itl-ms", "1")
    yield address
    stop(server)


def test_figures_counts_and_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIDGELINE_API_KEY", "sk-very-secret")
    out, result = tmp_path / "o", tmp_path / "r.json"
    args = [url, *LOAD, "--requests", "40", "--json", str(result)]
    code, table, err = measure([*args, "--price-per-gpu-hour", "3.6", "--gpus", "2"], out, capfd)
    assert code == 0, err
    assert "MEASURED" in table
    assert "TTFT" in table
    body = json.loads(result.read_text())
    assert body["source"] == "measured"
    assert body["requests"] == {
        "sent": 40, "ok": 40, "failed": 0, "error_rate": 0.0, "failures": {}, "unfinished": 0
    }  # fmt: skip
    assert body["ttft_s"]["p50"] == pytest.approx(TTFT_MS / 1e3, abs=0.02)
    assert body["itl_s"]["p50"] == pytest.approx(ITL_MS / 1e3, abs=0.005)
    assert body["ttft_s"]["p95"] is None  # 40 values do not support it
    rate = body["throughput"]["output_tokens_per_s"]
    # 2 GPUs x 3.6 USD/h are 0.002 USD/s
    assert body["cost"]["usd_per_million_output_tokens"] == pytest.approx(2000 / rate)
    stored = json.loads((out / "bench-r1" / "run.json").read_text())
    assert stored["summary"] == body
    assert stored["state"] == "done"
    counters, facts = stored["facts"]["counters"], stored["facts"]
    assert counters["requests_ok"] >= 40 + facts["extra_requests"]
    assert not [p for p in out.rglob("*") if p.is_file() and b"very-secret" in p.read_bytes()]
    assert ridgeline(["report", str(out)]) == 0
    assert "MEASURED" in capfd.readouterr().out


def test_the_same_folder_is_measured_again(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        code, _, err = measure([url, *LOAD, "--requests", "16", "--quiet"], tmp_path / "o", capfd)
        assert code == 0, err
    assert (tmp_path / "o" / "bench-r1.old-1" / "run.json").exists()


@pytest.mark.parametrize(
    ("slo", "code", "line"),
    [
        ("ttft_p50_ms=2000,error_rate=0", 0, ""),
        ("ttft_p50_ms=100", 1, "limit missed: ttft_p50_ms=100"),
        ("ttft_p99_ms=2000", 3, "ttft_p99_ms needs 500 requests"),
    ],
)
def test_exit_codes_of_limits(
    url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    slo: str,
    code: int,
    line: str,
) -> None:
    args = [url, *LOAD, "--requests", "16", "--slo", slo, "--quiet"]
    found, _, err = measure(args, tmp_path / "o", capfd)
    assert found == code, err
    assert line in err


def test_open_loop_reports_both_ttfts(url: str, tmp_path: Path) -> None:
    load = ["--rate", "10", "--process", "constant", "--duration", "3", "--warmup", "1"]
    sizes = ["--output-tokens", "3", "--quiet"]
    result = tmp_path / "r.json"
    files = ["--out", str(tmp_path / "o"), "--json", str(result)]
    assert ridgeline(["bench", url, *load, *sizes, *files, UNCALIBRATED]) in (0, 3)
    body = json.loads(result.read_text())
    assert body["requests"]["sent"] == pytest.approx(30, abs=1)
    intent, sent = body["ttft_intent_s"], body["ttft_s"]
    assert intent["mean"] >= sent["mean"]
    if None not in (intent["p50"], sent["p50"]):  # a starved client's are withheld
        assert intent["p50"] >= sent["p50"]


def test_workers_and_replicas(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes, two base URLs: one result, with the share of each replica."""
    load = ["--users", "6", "--duration", "2", "--warmup", "0.5", "--output-tokens", "4"]
    more = ["--workers", "2", "--url", f"{url}/v1", "--routing", "least-loaded", "--quiet"]
    files = ["--out", str(tmp_path / "o"), "--json", str(tmp_path / "r.json")]
    assert ridgeline(["bench", url, *load, *more, *files, UNCALIBRATED]) in (0, 3), (
        capfd.readouterr().err
    )
    body = json.loads((tmp_path / "r.json").read_text())
    assert body["requests"]["failed"] == 0
    assert body["client"]["workers"] == 2
    table = pl.read_parquet(next((tmp_path / "o").rglob("requests.parquet")))
    assert sorted(table["index"].to_list()) == table["index"].to_list()
    assert set(table["target"].to_list()) == {0, 1}
    assert set(table["user"].to_list()) == set(range(6))


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--duration", "1"], "give either --users or --rate"),
        (["--users", "1", "--rate", "1"], "give either --users or --rate"),
        (["--rate", "-1"], "--rate must be above 0"),
        (["--rate", "nan"], "--rate must be above 0"),
        (["--users", "0"], "--users"),
        (["--users", "1", "--duration", "0"], "--duration must be above 0"),
        (["--users", "1", "--warmup", "soon"], "must be a number of seconds or auto, not 'soon'"),
        (["--users", "1", "--warmup", "nan"], "--warmup must be 0 to"),
        (["--users", "1", "--warmup", "5", "--warmup-limit", "9"], "belongs to --warmup auto"),
        (["--users", "1", "--warmup-limit", "0"], "--warmup-limit must be above 0"),
        (["--users", "1", "--duration", "1", "--requests", "1"], "not both"),
        (["--users", "1", "--slo", "ttft_p95=3"], "did you mean 'ttft_p95_ms'?"),
        (["--users", "1", "--slo", "ttft"], "is not KEY=NUMBER"),
        (["--users", "1", "--gpu", "H1000"], "unknown GPU 'H1000'"),
        (["--users", "1", "--gpu", "H1000"], "--gpu: "),
        (["--users", "1", "--model", "other"], "model 'other' is not served here"),
        (["--users", "100000000"], "--users"),
        (["--users", "1", "--warmup", "inf"], "--warmup must be 0 to"),
        (["--users", "1", "--warmup", "nan"], "--warmup"),
        (["--users", "1", "--duration", "1e300"], "--duration must be 0 to"),
        (["--users", "1", "--grace", "inf"], "--grace must be 0 to"),
        (["--users", "1", "--grace", "-1"], "--grace must be 0 to"),
        (["--users", "1", "--connect-timeout", "0"], "--connect-timeout must be above 0"),
        (["--users", "1", "--first-token-timeout", "nan"], "--first-token-timeout must be 0 to"),
        (["--users", "1", "--timeout", "-1"], "--timeout must be 0 to 86400 seconds, not -1"),
        (["--users", "1", "--workers", "0"], "--workers must be 1 to 256 or auto, not '0'"),
        (["--users", "1", "--workers", "2.5"], "--workers must be 1 to 256 or auto"),
        (["--users", "1", "--routing", "least-load"], "did you mean 'least-loaded'?"),
        (["--users", "1", "--routing", "least-loaded"], "give the others with --url"),
        (["--users", "1", "--price-per-gpu-hour", "inf"], "--price-per-gpu-hour must be"),
        (["--users", "1", "--price-per-gpu-hour", "nan"], "--price-per-gpu-hour"),
        (["--users", "1", "--spread", "nan"], "--spread"),
        (["--rate", "1", "--process", "gamma", "--burstiness", "nan"], "--burstiness must be"),
        (["--rate", "1", "--process", "gamma", "--burstiness", "inf"], "--burstiness must be"),
        (["--rate", "1e300"], "--rate must be"),
        (["--rate", "1e-300"], "--rate must be"),
        (["--users", "1", "--prompt-tokens", "99999999999999"], "--prompt-tokens"),
        (["--users", "1", "--output-tokens", "99999999999999"], "--output-tokens"),
        (["--users", "1", "--json", "/no/such/folder/x.json"], "no such folder"),
        (["--users", "1", "--json", "/"], "is a directory"),
        (["--users", "1", "--prompt-tokens", "9999999"], "max_model_len"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], args: list[str], line: str
) -> None:
    assert ridgeline(["bench", url, *args, "--quiet", "--out", str(tmp_path / "o")]) == 2
    lines = [x for x in capfd.readouterr().err.splitlines() if x.startswith("ridgeline: ")]
    assert len(lines) == 1
    assert line in lines[0]


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1",
        "http://[zz]:80",
        f"http://{'h' * 300}",
        f"http://{'h' * 70}.example",
        "http://a b:8000",
        "http://h:0",
        "http://..",
    ],
)
def test_addresses_that_are_none_are_one_line(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = ["bench", address, "--users", "1", "--out", str(tmp_path / "o")]
    assert ridgeline(args) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ridgeline: ")
    assert len(line) < 300


def test_a_file_where_the_folder_should_be(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    for folder in ("file", "file/deeper"):
        args = ["bench", url, "--users", "1", "--out", str(tmp_path / folder)]
        assert ridgeline(args) == 2
        assert "a folder is needed" in capfd.readouterr().err


def test_json_into_the_folder_that_is_to_be_made(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deeper"
    args = [
        "bench",
        url,
        *LOAD,
        UNCALIBRATED,
        "--requests",
        "16",
        "--quiet",
        "--out",
        str(folder / "o"),
    ]
    assert ridgeline([*args, "--json", str(folder / "r.json")]) in (0, 3)
    assert json.loads((folder / "r.json").read_text())["source"] == "measured"


def test_a_reply_longer_than_the_grace_time_is_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ten chunks in 2.7 s, and the client follows for 0.3 s only: it says so."""
    server, address = serve("--fixed-ttft-ms", "300", "--fixed-itl-ms", "300")
    load = ["--users", "4", "--duration", "1.5", "--warmup", "0", "--output-tokens", "9"]
    result, out = tmp_path / "r.json", tmp_path / "o"
    args = [
        "bench",
        address,
        *load,
        UNCALIBRATED,
        "--quiet",
        "--json",
        str(result),
        "--out",
        str(out),
    ]
    try:
        assert ridgeline([*args, "--grace", "0.3"]) == 3
        err = capfd.readouterr().err
        assert "not one of the 4 requests was finished" in err
        assert "--grace" in err
        counts = json.loads(result.read_text())["requests"]
        assert (counts["failed"], counts["unfinished"], counts["error_rate"]) == (0, 4, None)
        ridgeline([*args, "--grace", "20"])
        assert json.loads(result.read_text())["requests"]["ok"] == 4
        ridgeline([*args, "--first-token-timeout", "0.1"])
        assert "after 0.1 s and 0 chunks" in capfd.readouterr().err
    finally:
        stop(server)


Reply = tuple[int, str, bytes]
MODELS: Reply = (200, "application/json", b'{"data": [{"id": "m"}]}')


@pytest.fixture
def bad_server() -> Iterator[Callable[[Reply, Reply], str]]:
    servers = []

    def start(models: Reply, chat: Reply) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                reply = models if self.path == "/v1/models" else (404, "text/plain", b"none")
                status, kind, body = chat if self.command == "POST" else reply
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


KEY = "sk-very-secret-123"


@pytest.mark.parametrize("where", ["models", "chat"])
def test_a_key_that_the_server_quotes_is_shown_and_stored_nowhere(
    bad_server: Callable[[Reply, Reply], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    where: str,
) -> None:
    monkeypatch.setenv("RIDGELINE_API_KEY", KEY)
    quoted = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    refusal = (401, "application/json", quoted)
    address = bad_server(*((refusal, MODELS) if where == "models" else (MODELS, refusal)))
    study = f"""
name: k
model: m
engine: endpoint
url: {address}
workload: {{arrivals: {{users: 1}}, warmup_s: 1, duration_s: 2}}
baseline: {{}}
"""
    (tmp_path / "k.yaml").write_text(study)
    out, page = tmp_path / "o", tmp_path / "page.html"
    codes = [
        ridgeline(["bench", address, "--users", "1", "--out", str(tmp_path / "b")]),
        ridgeline(["study", str(tmp_path / "k.yaml"), "--out", str(out), "--json", "-"]),
        ridgeline(["report", str(out), "--html", str(page)]),
    ]
    assert codes[0] == 3
    shown = capfd.readouterr()
    assert "Incorrect API key provided: ***" in shown.err
    assert "Incorrect API key provided: ***" in (out / "index.json").read_text()
    assert KEY not in shown.out + shown.err
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert page in written
    assert not [p for p in written if KEY.encode() in p.read_bytes()]


def test_a_model_name_with_escapes_never_reaches_the_terminal(
    bad_server: Callable[[Reply, Reply], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = json.dumps({"data": [{"id": "m\x1b[31m[red]\nx"}]}).encode()
    address = bad_server((200, "application/json", models), MODELS)
    assert ridgeline(["bench", address, "--users", "1", "--out", str(tmp_path / "o")]) == 3
    err = capfd.readouterr().err
    assert "control characters" in err
    assert "\x1b" not in err


def test_a_length_that_is_true_is_no_length(
    bad_server: Callable[[Reply, Reply], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = b'{"data": [{"id": "m", "max_model_len": true}]}'
    address = bad_server((200, "application/json", models), (500, "text/plain", b"boom"))
    assert ridgeline(["bench", address, "--users", "1", "--out", str(tmp_path / "o")]) == 3
    assert "max_model_len" not in capfd.readouterr().err


SSE = "text/event-stream"


@pytest.mark.parametrize(
    ("models", "chat", "line"),
    [
        ((404, "application/json", b"{}"), MODELS, "404"),
        ((401, "application/json", b"{}"), MODELS, "set RIDGELINE_API_KEY"),
        ((500, "text/plain", b"boom"), MODELS, "500"),
        ((200, "text/html", b"<html>hello</html>"), MODELS, "web page"),
        (MODELS, (429, "application/json", b'{"error": {"message": "slow down"}}'), "429"),
        (MODELS, (500, "text/html", b"<html><script>\x00</script>"), "500"),
        (MODELS, (200, "text/html", b"<html>login</html>"), "/v1/chat/completions"),
        (MODELS, (200, SSE, b"data: [DONE]\n\n"), ""),
        (MODELS, (200, SSE, b'data: {"error": {"message": "out of KV"}}\n\n'), "out of KV"),
        (MODELS, (200, SSE, b"data: \xff\xfe\n\n"), ""),
    ],
)
def test_a_server_that_does_not_speak_the_protocol_is_one_line_and_exit_3(
    bad_server: Callable[[Reply, Reply], str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    models: Reply,
    chat: Reply,
    line: str,
) -> None:
    address = bad_server(models, chat)
    args = ["bench", address, "--users", "2", "--requests", "4", "--warmup", "0", "--quiet"]
    assert ridgeline([*args, "--out", str(tmp_path / "o")]) == 3
    err = capfd.readouterr().err
    told = [x for x in err.splitlines() if x.startswith("ridgeline: ")]
    assert len(told) == 1
    assert line in told[0]
    assert "\x00" not in err
    if (tmp_path / "o").exists():
        assert ridgeline(["report", str(tmp_path / "o"), "--quiet"]) == 0


def test_nobody_listens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "http://127.0.0.1:9", "--users", "1", "--out", str(tmp_path / "o")]
    assert ridgeline(args) == 3
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert "http://127.0.0.1:9" in err
    assert not (tmp_path / "o").exists()


def begin(url: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [*COMMAND, "bench", url, *LOAD, UNCALIBRATED, "--duration", "60", "--out", "o", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stderr is not None
    while "started" not in child.stderr.readline():
        assert child.poll() is None
    return child


def journal_holds(path: Path, size: int) -> None:
    end = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > size):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_that_takes_no_images_says_so_before_the_load(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = [*LOAD, "--duration", "1", "--images", "1:64x64"]
    code, _, err = measure([url, *args], tmp_path / "o", capfd)
    assert code == 3
    (line,) = [x for x in err.splitlines() if x.startswith("ridgeline: ")]
    assert "a test request failed: HTTP 400: the twin of 'twin' takes no images" in line


def test_why_a_run_is_void_is_said_once_on_one_console(url: str, tmp_path: Path) -> None:
    """20 requests carry no p99: told by the figures, or by the last line where those are not."""
    args = ["bench", url, *LOAD, "--requests", "20", "--slo", "ttft_p99_ms=900", UNCALIBRATED]
    why = "ttft_p99_ms needs 500 requests"

    def said(*more: str, apart: bool = False) -> tuple[str, str]:
        child = subprocess.run(
            [*COMMAND, *args, *more, "--out", str(tmp_path / "o")], text=True, timeout=60,
            check=False, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
        )  # fmt: skip
        assert child.returncode == 3
        return child.stdout, child.stderr or ""

    together, _ = said()
    assert together.count(why) == 1, together
    assert "ridgeline: the run is void\n" in together
    out, err = said(apart=True)
    assert (out.count(why), err.count(why)) == (1, 1), out + err
    quiet, _ = said("--quiet")
    assert quiet.count(why) == 1, quiet


def test_ctrl_c_keeps_and_reports_what_was_measured(url: str, tmp_path: Path) -> None:
    child = begin(url, tmp_path, "--json", "-")
    try:
        journal_holds(tmp_path / "o" / "bench-r1" / "journal.ridgeline", 20_000)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "Traceback" not in err
    body = json.loads(out)
    assert body["requests"]["ok"] > 5
    # what was on its way is no failure of the server, and the run does not pass for a whole one
    assert body["requests"]["failed"] == 0
    assert body["requests"]["error_rate"] == 0
    assert body["requests"]["unfinished"] > 0
    assert not body["verdict"]["valid"]
    assert body["window_s"] < 40
    stored = json.loads((tmp_path / "o" / "bench-r1" / "run.json").read_text())
    assert stored["state"] == "interrupted"


def test_ctrl_c_during_the_warm_up_is_no_crash(url: str, tmp_path: Path) -> None:
    child = begin(url, tmp_path, "--warmup", "30")
    try:
        journal_holds(tmp_path / "o" / "bench-r1" / "journal.ridgeline", 4_000)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "unexpected" not in err


def test_ctrl_c_during_calibration_does_not_wait_for_the_answer(
    slow_url: str, tmp_path: Path
) -> None:
    """The answer is half a minute away; one Ctrl-C is enough."""
    child = begin(slow_url, tmp_path)
    time.sleep(0.5)
    begun = time.monotonic()
    try:
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert time.monotonic() - begun < 15
    assert "Traceback" not in err
    assert "unexpected" not in err
    assert "nothing was measured" in err


def test_a_killed_bench_is_readable(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = begin(url, tmp_path)
    try:
        journal_holds(tmp_path / "o" / "bench-r1" / "journal.ridgeline", 20_000)
    finally:
        child.kill()
        child.communicate()
    assert ridgeline(["report", str(tmp_path / "o")]) == 0
    assert "MEASURED" in capfd.readouterr().out
    stored = json.loads((tmp_path / "o" / "bench-r1" / "run.json").read_text())
    assert stored["state"] == "interrupted"
    index = json.loads((tmp_path / "o" / "index.json").read_text())
    assert index["runs"]["bench-r1"]["reason"].startswith("stopped after ")
    assert stored["summary"]["requests"]["ok"] > 5
    assert not stored["verdict"]["valid"]


def test_a_terminal_shows_live_figures_and_no_colour_is_honoured(url: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(
        [*COMMAND, "bench", url, *LOAD, UNCALIBRATED, "--duration", "2", "--out", "o"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO once the other side is closed
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    child.wait(timeout=30)
    text = shown.decode()
    assert re.search(r"[\d,]+ tokens/s, p95 TTFT \d+ ms, 0 errors", text)
    assert re.search(r"0?0:0\d", text)  # the time left
    assert not re.search(r"\x1b\[[\d;]*3[0-7]m", text)


def test_an_automatic_warm_up_opens_the_window_when_it_is_steady(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "r.json"
    load = ["--users", "8", "--prompt-tokens", "20", "--output-tokens", str(TOKENS)]
    args = [url, *load, "--requests", "24", "--json", str(result)]
    code, table, err = measure(args, tmp_path / "o", capfd)
    assert code == 0, err
    assert "warm-up: steady after" in table
    body = json.loads(result.read_text())
    assert body["warmup"]["found"] is True
    assert body["requests"]["sent"] == 24
    opened_s = body["warmup"]["offered"]["start_ns"] / 1e9
    # users start over 5 s (a twelfth of the limit), then two stays of 0.6 s
    assert 6.0 <= opened_s <= 20.0
    stored = json.loads((tmp_path / "o" / "bench-r1" / "run.json").read_text())
    assert any(event["kind"] == "steady" for event in stored["events"])
    assert stored["run"]["workload"]["warmup_auto"] is True


def test_a_target_that_the_run_cannot_tell_is_neither_met_nor_missed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Late reads withhold a percentile of a run that stays valid; a target on it was "missed"."""
    run = read_run(Path(__file__).parents[2] / "results" / "h200" / "one-gpu" / "seqs-128-r1")
    assert run.summary is not None
    assert run.summary.verdict.valid
    why = "not resolvable: the client read late (chunk times up to 40 ms off)"
    open_ = SloResult("ttft_p50_ms=2000", None, None)
    intervals = {**run.summary.intervals, "ttft_s.p50": Interval(None, None, 16, why)}
    summary = replace(run.summary, slo=(open_,), intervals=intervals)
    assert _exit_code(replace(run, summary=summary), told=False) == 3
    assert f"limit not judged: ttft_p50_ms=2000: {why}" in capfd.readouterr().err
    share = SloResult("attainment=0.9", None, None)
    why = "not resolvable: between 80.00% and 95.00%, because the client read late"
    wide = {**intervals, "goodput.attainment": Interval(None, None, 16, why)}
    shares = replace(summary, slo=(share,), intervals=wide)
    assert _exit_code(replace(run, summary=shares), told=False) == 3
    assert f"limit not judged: attainment=0.9: {why}" in capfd.readouterr().err
    both = (open_, SloResult("itl_p95_ms=1", 5.0, False))
    assert _exit_code(replace(run, summary=replace(summary, slo=both)), told=False) == 1
    of_class = replace(summary, slo=(replace(open_, traffic_class="chat"),))
    assert _exit_code(replace(run, summary=of_class), told=False) == 3
    assert "chat: ttft_p50_ms=2000: the run cannot tell its figure" in capfd.readouterr().err
