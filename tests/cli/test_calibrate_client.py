"""`bench --calibrate`, and the short form before every run of a real server."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.selftest import Calibrated
from ridgeline.domain.calibration import ClientCalibration, ClientLevel
from ridgeline.domain.workload import Arrivals, Client, Workload
from ridgeline.load import selftest
from ridgeline.load.selftest import NullServerProcess, tried_streams
from ridgeline.report.selftest import calibration_table, calibration_words

LOAD = ["--users", "2", "--duration", "1", "--warmup", "0", "--output-tokens", "5"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with NullServerProcess("5", "20") as server:
        yield server.url


def stored(folder: Path) -> dict[str, object]:
    body: dict[str, object] = json.loads((folder / "bench-r1" / "run.json").read_text())
    return body


def test_a_run_has_its_calibration_and_tells_it(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(["bench", url, *LOAD, "--out", str(tmp_path)]) in (0, 3)
    shown = capfd.readouterr()
    assert "client calibration: done in" in shown.err
    both = shown.err + shown.out
    assert both.count("client calibration: 100 streams, 1 worker, ") == 1
    found = stored(tmp_path)["facts"]["calibration"]  # type: ignore[index]
    assert {level["kind"] for level in found["levels"]} == {"requests", "chunks"}
    assert 0 < found["seconds"] < 20
    page = tmp_path / "page.html"
    assert ridgeline(["report", str(tmp_path), "--html", str(page), "--quiet"]) == 0
    assert "Client calibration" in page.read_text()


def test_it_can_be_left_out(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = ridgeline(["bench", url, *LOAD, "--no-calibration", "--out", str(tmp_path)])
    assert code in (0, 3)
    assert "client calibration" not in "".join(capfd.readouterr())
    assert stored(tmp_path)["facts"]["calibration"] is None  # type: ignore[index]


def test_alone_it_needs_no_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "LONG", selftest.SHORT)  # as in full, only sooner
    assert ridgeline(["bench", "--calibrate", "--users", "50", "--json", "-"]) == 0
    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert found["streams"] == 100
    levels = found["levels"]
    assert all(level["true"] in (True, False) for level in levels)
    for kind in ("requests", "chunks"):
        best = max(
            (x[f"{kind}_per_s"] for x in levels if x["kind"] == kind and x["true"]), default=0
        )
        assert found[f"{kind}_per_s"] == best
    for word in ("requests/s timed right", "chunks/s timed right"):
        assert word in shown.err or "no rate of" in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--users", "4"], "give the URL of a server"),
        (["--calibrate", "--no-calibration"], "exclude each other"),
        (["--calibrate", "--workers", "0"], "--workers must be"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(["bench", *args]) == 2
    (told,) = [x for x in capfd.readouterr().err.splitlines() if x.startswith("ridgeline: ")]
    assert line in told


def test_every_level_fits_into_80_columns() -> None:
    level = ClientLevel(
        kind="requests", asked_per_s=99_999.0, requests_per_s=99_999.0, chunks_per_s=199_999.0,
        compared=9, failed=0, ttft_error_p50_s=0.00123, ttft_error_p99_s=0.2581,
        itl_error_p50_s=0.0, itl_error_p99_s=1.5, send_lateness_p50_s=0.0099949,
        send_lateness_p99_s=0.3517, loop_lag_p99_s=0.4055, cpu_share=0.99,
        server_lateness_p50_s=0.0, server_was_the_limit=False,
    )  # fmt: skip
    shown = console_lines(level)
    head, row = (line.split() for line in shown[1:3])
    assert head[-2:] == ["CPU", "times"]
    assert row == ["requests", "99", "999", "199", "999", "1.23", "258", "0.00", "1500", "9.99",
                   "352", "406", "99%", "late"]  # fmt: skip
    assert not {"true:", "late:", "busy:"} - set(" ".join(shown).split())


def console_lines(level: ClientLevel) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(calibration_table(ClientCalibration(100, 1, 1.0, (level,))))
    return console.export_text().splitlines()


def test_once_for_all_runs_with_as_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as will drive: with fewer users than workers, there are as many as users."""
    asked: list[tuple[float, int]] = []

    def calibrate(streams: float, workers: int) -> ClientCalibration:
        asked.append((streams, workers))
        return ClientCalibration(tried_streams(streams), workers, 1.0, problem="not tried")

    monkeypatch.setattr(selftest, "calibrate_client", calibrate)
    told: list[str] = []
    calibrated = Calibrated(told.append)
    for users, workers in ((8, 2), (64, 2), (1, 2), (1, 1)):
        load = Workload(Arrivals(users=users), client=Client(workers=workers))
        assert calibrated(load).workers == min(users, workers)
    assert asked == [(8.0, 2), (1.0, 1)]
    assert len(told) == 2


def test_a_load_that_grows_is_calibrated_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 streams say little of 4 096 users; a search that comes back to few asks no more."""
    asked: list[float] = []

    def calibrate(streams: float, workers: int) -> ClientCalibration:
        asked.append(streams)
        return ClientCalibration(tried_streams(streams), workers, 1.0, problem="not tried")

    monkeypatch.setattr(selftest, "calibrate_client", calibrate)
    calibrated = Calibrated(lambda _: None)
    streams = []
    for users in (1, 64, 4096, 1000, 2):
        streams.append(calibrated(Workload(Arrivals(users=users))).streams)
    assert asked == [1.0, 4096.0]
    assert streams == [100, 100, 200, 200, 100]


def test_what_the_table_shows_later_is_not_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ClientCalibration(8, 1, 1.25)
    monkeypatch.setattr(selftest, "calibrate_client", lambda *_: found)
    for later, words in ((True, "done in 1.2 s"), (False, calibration_words(found))):
        told: list[str] = []
        Calibrated(told.append, shown_later=later)(Workload(Arrivals(users=8)))
        assert told == [f"client calibration: {words}"]
    monkeypatch.setattr(selftest, "calibrate_client", lambda *_: replace(found, problem="no port"))
    told = []
    Calibrated(told.append, shown_later=True)(Workload(Arrivals(users=8)))
    assert "not done: no port" in told[0]


def test_what_ended_the_search_is_told_without_a_contradiction() -> None:
    """A disturbed level, a null server at its end, or a search that simply went no higher."""
    level = ClientLevel(
        kind="requests", asked_per_s=2000.0, requests_per_s=2000.0, chunks_per_s=2000.0,
        compared=9, failed=0, ttft_error_p50_s=0.0, ttft_error_p99_s=1e-5,
        itl_error_p50_s=None, itl_error_p99_s=None, send_lateness_p50_s=0.0,
        send_lateness_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.3,
        server_lateness_p50_s=0.0, server_was_the_limit=False,
    )  # fmt: skip
    late = replace(level, requests_per_s=4000.0, send_lateness_p50_s=0.02)
    limited = replace(level, requests_per_s=4000.0, server_was_the_limit=True)
    for other, why in (
        (late, "2 000 requests/s timed right at least (above that something else on this machine"),
        (limited, "4 000 requests/s timed right at least (the null server sent no more)"),
        (level, "2 000 requests/s timed right at least (no higher rate was tried)"),
        (replace(late, cpu_share=0.97), "2 000 requests/s timed right, stamp errors"),
    ):
        words = calibration_words(ClientCalibration(100, 1, 1.0, (level, other)))
        assert why in " ".join(words.split()), words


STUDY = """\
name: two
model: mock
engine: endpoint
url: {url}
baseline: {{}}
workload:
  arrivals: {{users: 2}}
  prompts: {{tokens: {{min: 20, max: 30}}}}
  output_tokens: {{min: 5, max: 5}}
  warmup_s: 0
  duration_s: 0.5
experiments:
  - {{name: more, workload: {{arrivals: {{users: 4}}}}}}
"""


def test_a_study_is_calibrated_once(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "two.yaml", tmp_path / "o"
    file.write_text(STUDY.format(url=url))
    command = ["study", str(file), "--repeats", "1", "--retries", "0", "--quiet"]
    assert ridgeline([*command, "--out", str(out)]) in (0, 3)
    assert capfd.readouterr().err.count("client calibration: ") == 1
    runs = [json.loads(path.read_text()) for path in sorted(out.glob("*/run.json"))]
    assert len(runs) == 2
    first, second = (run["facts"]["calibration"] for run in runs)
    assert first == second
    assert first["levels"]
