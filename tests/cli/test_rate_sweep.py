"""`ridgeline bench --rate-steps` at a server that stops answering in the second of three steps."""

import json
import re
import time
from pathlib import Path

import polars as pl
import pytest

from ridgeline.cli.main import run as ridgeline
from support.mock_server import (
    DONE,
    MockProcess,
    Pages,
    Script,
    Served,
    http_chunk,
    http_head,
    models_page,
    plain_stream,
    stream,
    text,
)

STEPS = "5:2,10:2,20:2"
TOKENS = 3
STOPS_S = 2.7  # after the first request of the run


class Stopping:
    """Answers in 5 ms, until it stops for everybody at one moment, in one of several ways."""

    def __init__(self, kind: str) -> None:
        self.kind, self.first_ns = kind, 0

    def __call__(self, served: Served, number: int) -> Script:
        if served.json()["max_tokens"] == TOKENS:  # no test request of the calibration
            self.first_ns = self.first_ns or served.received_ns
        seconds = (served.received_ns - self.first_ns) / 1e9 if self.first_ns else 0.0
        if seconds < STOPS_S - 0.3:
            return plain_stream(TOKENS, first_ms=5, prompt=20)
        never = (600_000.0, b"")
        if self.kind == "in the middle of replies" and seconds < STOPS_S:
            return Script(((0, http_head()), (5, http_chunk(text())), never), "hold")
        if self.kind == "after the head":
            return Script(((0, http_head()), never), "hold")
        if self.kind == "with comments":
            return stream([(20.0 * i, b": ping\n\n") for i in range(400)] + [(8000, DONE)])
        return Script((never,), "hold")


@pytest.mark.parametrize(
    "kind", ["at once", "after the head", "in the middle of replies", "with comments"]
)
def test_the_step_is_marked_what_was_there_is_kept_and_the_third_is_not_begun(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pages: Pages = {"/v1/models": models_page("mock")}
    began = time.monotonic()
    with MockProcess(Stopping(kind), pages, keep_bodies=True) as mock:
        args = [
            "bench",
            mock.url,
            "--rate-steps",
            STEPS,
            "--process",
            "constant",
            "--warmup",
            "0",
            "--no-calibration",
        ]
        result = tmp_path / "r.json"
        code = ridgeline([*args, "--prompt-tokens", "20", "--output-tokens", str(TOKENS),
                          "--json", str(result), "--out", str(tmp_path / "o")])  # fmt: skip
        shown = capfd.readouterr()
    assert time.monotonic() - began < 30
    assert code == 3, shown.err
    assert "the run is void: the server stalled: nothing came for" in shown.err
    assert "no figures for 20 requests/s" in shown.err
    table = {m[0]: line for line in shown.out.splitlines()
             if (m := re.match(r"(5|10|20) requests/s", line))}  # fmt: skip
    assert set(table) == {"5 requests/s", "10 requests/s"}
    assert "server stalled" in table["10 requests/s"]
    assert "server stalled" not in table["5 requests/s"]
    body = json.loads(result.read_text())
    first, second = body["load_steps"]
    assert first["figures"]["requests"]["failed"] == 0
    assert first["figures"]["requests"]["ok"] == 8  # of 2 s without the first fifth
    assert second["notes"][0].startswith("the server stalled")
    assert second["figures"]["requests"]["failed"] > 0
    assert body["window_s"] < 6
    rows = pl.read_parquet(next((tmp_path / "o").rglob("requests.parquet")))
    ok = rows.filter(pl.col("failure").is_null())
    assert len(ok) >= 10  # the partial records are there
    lost = rows.filter(pl.col("failure").is_not_null())
    assert set(lost["failure_detail"]) == {"the server stalled"}
    # nothing of the third step (20 in 2 s) was sent: 5 x 2 s, and less than 2 s of 10 a second
    assert len(rows) <= 10 + 20
    stored = json.loads((tmp_path / "o" / "bench-r1" / "run.json").read_text())
    assert stored["state"] == "void"


def test_a_stall_without_steps_ends_by_the_time_outs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One rate, no steps: the time-outs of a request end the wait, and the exit code says so."""

    pages: Pages = {"/v1/models": models_page("mock")}
    with MockProcess(Stopping("at once"), pages, keep_bodies=True) as mock:
        began = time.monotonic()
        args = [
            "bench",
            mock.url,
            "--rate",
            "20",
            "--duration",
            "4",
            "--warmup",
            "0",
            "--no-calibration",
        ]
        code = ridgeline([*args, "--first-token-timeout", "1", "--grace", "3", "--output-tokens",
                          str(TOKENS), "--out", str(tmp_path / "o")])  # fmt: skip
    shown = capfd.readouterr()
    assert time.monotonic() - began < 20
    assert code == 3, shown.err
    assert "timeout_first" in shown.err
