"""A recording within its bound: what goes is the oldest, it is said, and a kill costs no second."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchstate import State
from ridgeline.diagnosis import recorded
from ridgeline.diagnosis.keeping import Keeper, dropped, parse_limit
from ridgeline.diagnosis.live import Now
from support.metricserver import serving_page

BEGUN = 1796090000.0


def _line(at: float, **more: Any) -> str:
    return json.dumps({"at": at, "replica": "http://a:8000", "up": True, "findings": [],
                       "output_tokens_per_s": 100.0, "pad": "x" * 400, **more}) + "\n"  # fmt: skip


def _fill(folder: Path, limit: str, looks: int, every_s: float = 1.0) -> Keeper:
    keeper = Keeper(folder, parse_limit(limit))
    for look in range(looks):
        at = BEGUN + look * every_s
        keeper.add(_line(at, running=float(look)).encode(), at)
    return keeper


def _bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_a_size_is_held_and_the_newest_stays(tmp_path: Path) -> None:
    """4 MB of figures into a bound of 2 MB, of which figures have 0.8."""
    keeper = _fill(tmp_path, "2MB", 8000)
    own = tmp_path / "replica-000"
    own.mkdir()
    for page in range(60):  # 3 MB of pages
        keeper.page(own / f"metrics-{1796090000 + page}.txt", "x" * 50_000, BEGUN + page)
    recorded.close(tmp_path)
    assert _bytes(tmp_path) <= 2_000_000
    looks = [line["running"] for line in recorded._lines(tmp_path)]
    assert looks[-1] == 7999
    assert looks == [float(n) for n in range(8000 - len(looks), 8000)], "a run without a hole"
    assert len(looks) * 540 > 0.6e6, "what the bound has room for is kept"
    assert sorted(own.iterdir())[-1].name == "metrics-1796090059.txt"
    assert len(list(own.iterdir())) == 20  # half of the bound
    told, seconds = recorded.gone(tmp_path)
    assert (told.lines, told.pages, seconds) == (8000 - len(looks), 40, 8000 - len(looks))


def test_a_time_is_held(tmp_path: Path) -> None:
    keeper = _fill(tmp_path, "10min", 3600)
    own = tmp_path / "replica-000"
    own.mkdir()
    for at in range(0, 3600, 10):
        keeper.page(own / f"metrics-{1796090000 + at}.txt", "x 1\n", BEGUN + at)
    looks = [line["running"] for line in recorded._lines(tmp_path)]
    assert looks[-1] == 3599
    assert 600 <= len(looks) <= 600 * 18 / 16, "to a sixteenth, and the one that is written"
    assert len(list(own.iterdir())) == 61


def test_without_a_bound_all_stays(tmp_path: Path) -> None:
    _fill(tmp_path, "none", 8000)
    assert len(recorded._lines(tmp_path)) == 8000
    assert dropped(tmp_path).lines == 0


def test_a_silent_replica_keeps_its_last_two_pages(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, parse_limit("1MB"))
    for own in ("replica-000", "replica-001"):
        (tmp_path / own).mkdir()
    for page in range(3):
        keeper.page(tmp_path / f"replica-000/metrics-{page}.txt", "x" * 9_000, page)
    for page in range(100):
        keeper.page(tmp_path / f"replica-001/metrics-{page}.txt", "x" * 9_000, 10.0 + page)
    names = sorted(p.name for p in (tmp_path / "replica-000").iterdir())
    assert names == ["metrics-1.txt", "metrics-2.txt"]
    assert _bytes(tmp_path) <= 520_000


def test_a_later_run_goes_on_within_the_bound(tmp_path: Path) -> None:
    _fill(tmp_path, "1MB", 1500)
    keeper = Keeper(tmp_path, parse_limit("1MB"))
    for look in range(1500, 3000):
        keeper.add(_line(BEGUN + look, running=float(look)).encode(), BEGUN + look)
    looks = [line["running"] for line in recorded._lines(tmp_path)]
    assert looks == [float(n) for n in range(3000 - len(looks), 3000)]
    assert recorded.gone(tmp_path)[0].lines == 3000 - len(looks)
    assert _bytes(tmp_path) < 500_000


def test_a_kill_between_telling_and_dropping_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.unlink
    killed: list[Path] = []

    def kill(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("figures-") and not killed:
            killed.append(path)
            raise KeyboardInterrupt
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        _fill(tmp_path, "1MB", 1500)
    begun = int(recorded._lines(tmp_path)[-1]["running"]) + 1
    keeper = Keeper(tmp_path, parse_limit("1MB"))
    for look in range(begun, 1500):
        keeper.add(_line(BEGUN + look, running=float(look)).encode(), BEGUN + look)
    assert recorded.gone(tmp_path)[0].lines == 1500 - len(recorded._lines(tmp_path))


def test_the_report_and_its_page_say_what_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    _fill(folder, "1MB", 2000, every_s=10.0)
    left = len(recorded._lines(folder))
    said = (f"Dropped to hold the recording within 1MB: the first {(2000 - left) / 360:.1f} h of"
            f" the figures ({2000 - left:,} lines).")  # fmt: skip
    assert ridgeline(["report", str(folder), "--html", str(tmp_path / "p.html")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "p.html").read_text()


class _Pool:
    replicas = (SimpleNamespace(name="a", trouble=None, last_text=""),)

    def now(self) -> list[Now]:
        return [Now("a", True, 0.0, output_tokens_per_s=1.0)]


def test_the_watch_holds_a_bound_without_being_asked(tmp_path: Path) -> None:
    state = State(_Pool(), tmp_path)  # type: ignore[arg-type]
    state.look()
    assert state._keeper is not None
    assert state._keeper._limit.size == 200e6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--record", "x", "--record-limit", "12"], "bounds no recording"),
        (["--record", "x", "--record-limit", "1kB"], "at least 1MB"),
        (["--record", "x", "--record-limit", "5s"], "at least 1min"),
        (["--record-limit", "1GB"], "give --record DIR too"),
    ],
)
def test_bounds_that_are_none(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert ridgeline(["watch", "http://127.0.0.1:1", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_kill_costs_less_than_a_second(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with serving_page(b"vllm:num_requests_running 3\n") as url:
        words = [sys.executable, "-m", "ridgeline.cli.main", "watch", url, "--record", str(folder),
                 "--interval", "0.5"]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as watch:
            try:
                end = time.monotonic() + 60
                while not recorded.is_recording(folder) or len(recorded._lines(folder)) < 3:
                    assert time.monotonic() < end, "nothing was recorded"
                    time.sleep(0.05)
                time.sleep(1.2)
                os.kill(watch.pid, signal.SIGKILL)
                killed = time.time()
            finally:
                watch.kill()
    assert killed - recorded._lines(folder)[-1]["at"] < 1.0
    assert recorded.damaged(folder) == 0
    assert ridgeline(["report", str(folder)]) == 0
