"""The benchmark beside other tools: its servers answer and count right, its tables say what was."""

import http.client
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.client import mocks
from benchmarks.client.environments import Missing
from benchmarks.client.measuring import Session, order
from benchmarks.client.mocks import Mock, null_mock, paced_mock
from benchmarks.client.tables import markdown, put
from benchmarks.client.tools import Load, Printed, Tool, run

BODY = json.dumps({"messages": [{"role": "user", "content": "hm " * 3000}], "stream": True})


def python_null_mock(chunks: int) -> Mock:
    return Mock([sys.executable, "-m", "benchmarks.client.null_server", str(chunks)], "Python")


def c_null_mock(chunks: int) -> Mock:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    mock = null_mock(chunks)
    assert mock.kind == "C"
    return mock


def exchange(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, bytes]:
    connection.request(method, path, BODY if method == "POST" else None)
    reply = connection.getresponse()
    return reply.status, reply.read()


def connect(mock: Mock) -> http.client.HTTPConnection:
    address = urlsplit(mock.url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)


def events(body: bytes) -> list[dict[str, Any]]:
    *whole, end, rest = body.split(b"\n\n")
    assert (end, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in whole]


@pytest.mark.parametrize("server", [python_null_mock, c_null_mock])
def test_the_null_server_replies_and_counts(server: Callable[[int], Mock]) -> None:
    began = time.monotonic_ns()
    with server(3) as mock:
        connection = connect(mock)
        bodies = [exchange(connection, "POST", "/v1/chat/completions") for _ in range(5)]
        found = events(bodies[0][1])
        assert [status for status, _ in bodies] == [200] * 5
        assert [len({body for _, body in bodies})] == [1]
        texts = [e["choices"][0]["delta"].get("content") for e in found if e["choices"]]
        assert texts == ["", " word", " word", " word", ""]
        assert found[-1]["usage"]["completion_tokens"] == 3
        assert exchange(connection, "GET", "/metrics")[0] == 404
        models = json.loads(exchange(connection, "GET", "/v1/models")[1])
        assert models["data"][0]["id"] == "mock"
        stamps = mock.replies_ns()
        assert len(stamps) == 5
        assert began < stamps[0] <= stamps[-1] < time.monotonic_ns()
        assert stamps == sorted(stamps)
        assert mock.replies_ns() == [], "each reply is told once"
        connection.close()


def test_a_request_in_pieces_is_one_request() -> None:
    with c_null_mock(1) as mock:
        connection = connect(mock)
        connection.connect()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        for piece in (head[:30], head[30:], BODY[:100], BODY[100:]):
            connection.sock.sendall(piece.encode())
            time.sleep(0.02)
        assert connection.sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert len(mock.replies_ns()) == 1
        connection.close()


def test_no_compiler_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    mock = null_mock(1)
    assert mock.kind == "Python (no C compiler found)"
    with mock:
        connection = connect(mock)
        assert exchange(connection, "POST", "/v1/chat/completions")[0] == 200
        connection.close()


def test_the_paced_server_is_never_early_and_says_what_it_did() -> None:
    with paced_mock("role") as mock:
        connection = connect(mock)
        sent = time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", BODY)
        reply = connection.getresponse()
        role_at = time.monotonic_ns()
        body = reply.read()
        ((received, content),) = mock.stamps()
        connection.close()
    assert len(events(body)) == 1 + 50 + 2
    assert sent - 1_000_000 < received < role_at < content[0], "the role came at once"
    assert len(content) == 50
    for place, at in enumerate(content):
        assert at - received >= 100_000_000 + place * 10_000_000


def test_tools_take_turns_and_every_other_round_is_reversed() -> None:
    steps = list(order(["a", "b"], ["a"], 2))
    rates = [(s.load, s.tool) for s in steps if s.part == "rate"]
    assert rates == [
        ("1", "a"), ("1", "b"), ("200", "a"), ("200", "b"),
        ("1", "b"), ("1", "a"), ("200", "b"), ("200", "a"),
    ]  # fmt: skip
    assert {s.tool for s in steps if s.part == "truth"} == {"a"}


def test_a_tool_that_fails_is_an_error_with_its_words_and_leaves_no_process(tmp_path: Path) -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '77']); raise SystemExit('no luck')"
    tool = Tool("t", lambda _: "1", lambda *_: [sys.executable, "-c", script], lambda _: Printed())
    with pytest.raises(RuntimeError, match="no luck"):
        run(tool, "http://127.0.0.1:1", Load(1, 1, 1.0), tmp_path, {mocks.CORE})
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and sleeping(tmp_path):
        time.sleep(0.05)
    assert not sleeping(tmp_path)


def sleeping(folder: Path) -> bool:
    """Is a `sleep` there whose working directory is the folder?"""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder and "sleep" in (process / "comm").read_text():
                return True
        except OSError:
            continue
    return False


CLIENT = """
import sys, urllib.request
for _ in range(int(sys.argv[2])):
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], b"{}")).read()
"""


def session(folder: Path) -> Session:
    """Two tools of a kind, and one that cannot be set up."""
    made = Session(folder)

    def absent(_: Path) -> str:
        raise Missing("not installed: apt-get install it")

    def command(url: str, load: Load, _: Path) -> list[str]:
        return [sys.executable, "-c", CLIENT, f"{url}/v1/chat/completions", "120"]

    def broken(url: str, load: Load, _: Path) -> list[str]:
        return [sys.executable, "-c", CLIENT, f"{url}/v1/chat/completions", "1"]

    said = Printed(1.0, ttft_mean_ms=83.25)
    made.tools = {
        "aiperf": Tool("AIPerf 9", lambda _: "9", command, lambda _: said),
        "broken": Tool("Broken", lambda _: "1", broken, lambda _: said),
        "wrk": Tool("wrk -t1", absent, command, lambda _: said),
    }
    return made


def test_a_session_measures_tells_what_failed_and_goes_on(tmp_path: Path) -> None:
    first = session(tmp_path)
    ready = first.prepare(list(first.tools))
    assert ready == ["aiperf", "broken"]
    steps = [s for s in order(ready, [], 1) if s.load == "1"]
    assert first.measure(steps, until=time.monotonic()) == 2, "no time: nothing is begun"
    assert first.measure(steps, None) == 1, "what failed may be tried once more"
    again = session(tmp_path)
    again.prepare(list(again.tools))
    good = again.results["steps"]["rate/1/aiperf/0"]
    assert good["requests"] == 120
    assert good["error"] is None
    assert "only 1 requests came" in again.results["steps"]["rate/1/broken/0"]["error"]
    assert again.measure(steps, None) == 0
    assert again.results["steps"]["rate/1/aiperf/0"] == good, "what is there is not made again"
    failed = again.results["steps"]["rate/1/broken/0"]
    assert failed["tries"] == 2
    assert again.measure(steps, None) == 0
    assert again.results["steps"]["rate/1/broken/0"] == failed, "twice is enough"
    text = markdown(again.results, again.tools)
    assert "wrk -t1: not installed: apt-get install it" in text
    assert "| Broken | failed: see below |" in text
    assert "- Broken, rate, chunks a reply: 1, round 0 (" in text
    assert "2 tries): `RuntimeError: only 1 requests came`" in text
    assert "| 83.25 |" in text


def test_a_slow_or_failing_tool_holds_up_no_other(tmp_path: Path) -> None:
    """A slice goes on with what fits into it; what failed waits for what was never tried."""
    made = session(tmp_path)
    made.prepare(["aiperf", "broken"])
    steps = [s for s in order(["broken", "aiperf"], [], 2) if s.load == "1"]
    slow = {"error": "RuntimeError: exit code none within 400 s", "seconds": 400.0, "tries": 1}
    made.results["steps"]["rate/1/broken/0"] = slow
    made.results["steps"]["rate/200/aiperf/0"] = {"error": None, "seconds": 3.0, "tries": 1}
    assert made.measure(steps, time.monotonic() + 30) == 2
    found = made.results["steps"]
    assert found["rate/1/aiperf/0"]["error"] is None
    assert found["rate/1/aiperf/1"]["error"] is None
    assert found["rate/1/broken/0"] == slow
    assert "rate/1/broken/1" not in found, "400 s do not fit into half a minute"


def test_the_table_of_truths_tells_what_failed(tmp_path: Path) -> None:
    made = session(tmp_path)
    made.prepare(["aiperf"])
    made.results["steps"]["truth/role/aiperf/0"] = {
        "date": "2030-01-01 00:00", "load_average": 1.0, "seconds": 9.0, "tries": 2,
        "error": "RuntimeError: exit code 1: no `choices` |\n  in chunk",
    }  # fmt: skip
    text = markdown(made.results, made.tools)
    title = "a role chunk at once, the first token at 100 ms"
    assert f"| {title} | AIPerf 9 | failed: see below | - | - | - | - |" in text
    said = "`RuntimeError: exit code 1: no 'choices' / in chunk`"
    assert f"- AIPerf 9, {title} (2030-01-01 00:00, 2 tries): {said}" in text


def test_the_table_has_medians_and_ratios(tmp_path: Path) -> None:
    made = session(tmp_path)
    made.prepare(["aiperf"])
    for name, rates in {"aiperf": (90.0, 100.0, 130.0), "broken": (2000.0, 1900.0, 4000.0)}.items():
        for number, rate in enumerate(rates):
            made.results["steps"][f"rate/200/{name}/{number}"] = {
                "date": "2030-01-01 00:00", "load_average": 1.0, "error": None, "mock": "C",
                "requests_per_s": rate, "mock_busy": 0.25, "requests": 9,
                "printed": {"ttft_mean_ms": None, "verdict": "valid" if number else "void: x"},
            }  # fmt: skip
    (row,) = (
        line for line in markdown(made.results, made.tools).splitlines() if "| Broken" in line
    )
    assert row == (
        "| Broken | 2,000 (1,900 to 4,000) | 400,000 | 20 | - | 25 | - | valid in 2 of 3 | 3 |"
    )


def test_the_tables_go_into_their_place_of_a_page_only() -> None:
    page = "a\n<!-- client-tables: by x -->\nold\n<!-- /client-tables -->\nb\n"
    changed = put(page, "new\n")
    assert changed == "a\n<!-- client-tables: by x -->\n\nnew\n\n<!-- /client-tables -->\nb\n"
    assert put(changed, "new\n") == changed
    with pytest.raises(SystemExit, match="no place"):
        put("nothing here", "new\n")
