"""A recording of `watch`: its money, its gaps, what a kill or a full disk leaves."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.cli import watchstate
from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchstate import State
from ridgeline.diagnosis import recorded
from ridgeline.diagnosis.keeping import FIGURES
from ridgeline.diagnosis.live import Now
from ridgeline.report import watchedpage

DATA = Path(__file__).parent / "data"


def _line(at: float, **more: Any) -> str:
    return json.dumps({"at": at, "replica": "http://a:8000", "up": True,
                       "output_tokens_per_s": 100.0, "findings": [], **more}) + "\n"  # fmt: skip


def _recording(folder: Path, lines: Iterable[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / FIGURES).write_text("".join(lines))
    return folder


@pytest.mark.parametrize("hourly", [{}, {"usd_per_hour": 4.0}])
def test_the_cost_of_a_token_is_all_money_over_all_tokens(
    hourly: dict[str, float], tmp_path: Path
) -> None:
    """4 USD/h, busy at one look of ten: 100 tokens/s on average, 11.1 USD a million."""
    made = {"output_tokens_per_s": 1000.0, "usd_per_million_output_tokens": 4 / 3.6}
    rest = {"output_tokens_per_s": 0.0}
    lines = [_line(i, **(rest if i % 10 else made), **hourly) for i in range(100)]
    (row,) = recorded.summaries(_recording(tmp_path, lines))
    assert row.means["output_tokens_per_s"] == pytest.approx(100)
    assert row.means["usd_per_million_output_tokens"] == pytest.approx(11.11, abs=0.01)


def test_nothing_is_said_of_time_in_which_nobody_looked(tmp_path: Path) -> None:
    """Ten looks of twelve hundred with a finding, and a day between two recordings."""
    first = [_line(i, findings=["batch-ceiling"] if i >= 590 else []) for i in range(600)]
    _recording(tmp_path, [*first, *(_line(86400 + i) for i in range(600))])
    spans = recorded.stretches(tmp_path)
    seconds = {f: sum(s.end_s - s.begin_s for s in spans if s.finding == f)
               for f in ("batch-ceiling", "none")}  # fmt: skip
    assert seconds == {
        "batch-ceiling": pytest.approx(12, abs=1),
        "none": pytest.approx(1190, abs=2),
    }
    assert watchedpage._answer(spans, 1).endswith("no finding 99%, batch-ceiling 1%.")


def test_a_clock_that_is_set_back_makes_no_negative_time(tmp_path: Path) -> None:
    _recording(tmp_path, [*(_line(5000 + i, findings=["hung"]) for i in range(100)),
                          *(_line(1500 + i) for i in range(100))])  # fmt: skip
    spans = recorded.stretches(tmp_path)
    assert all(s.end_s >= s.begin_s >= 0 for s in spans)
    assert "hung 50%" in watchedpage._answer(spans, 1)
    (row,) = recorded.summaries(tmp_path)
    assert row.seconds == pytest.approx(198)


def test_a_peak_of_seconds_stays_in_the_picture_of_hours(tmp_path: Path) -> None:
    points = [(float(i), 60.0 if 40000 < i < 40030 else 0.2) for i in range(43200)]
    drawn = watchedpage._line(points, 1e3, ("p95", "c", "solid", "y"))
    assert max(y for y in drawn["y"] if y is not None) == 60_000
    assert min(y for y in drawn["y"] if y is not None) == 200
    assert len(drawn["y"]) < 2 * watchedpage.MOST_POINTS


class _Pool:
    """Replicas that are as they are told to be."""

    def __init__(self, *names: str) -> None:
        self.names = names

    @property
    def replicas(self) -> list[Any]:
        return [SimpleNamespace(name=n, trouble=None, last_text=f'vllm:x{{who="{n}"}} 1\n')
                for n in self.names]  # fmt: skip

    def now(self) -> list[Now]:
        return [Now(name, True, 0.0, output_tokens_per_s=1.0) for name in self.names]


def _state(pool: _Pool, folder: Path) -> State:
    return State(pool, folder)  # type: ignore[arg-type]


def test_a_line_that_a_kill_cut_costs_that_line_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _recording(tmp_path / "rec", [*(_line(i) for i in range(5)), _line(5)[:40]])
    state = _state(_Pool("http://a:8000"), folder)
    state.look()
    state.look()
    state.close()
    assert recorded.damaged(folder) == 1
    (row,) = recorded.summaries(folder)
    assert row.looks == 7
    assert ridgeline(["report", str(folder)]) == 0
    assert "1 damaged lines" in capsys.readouterr().out


def test_a_full_disk_ends_no_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _state(_Pool("a"), tmp_path / "rec")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(State, "_keep", full)
        state.look()
        state.look()
    assert capsys.readouterr().err.count("no space left on device") == 1
    state.look()
    assert "recording again" in capsys.readouterr().err
    assert len(recorded._lines(tmp_path / "rec")) == 1


def test_a_replica_keeps_its_folder_whoever_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchstate, "RECORD_EVERY_S", 0.0)
    pool = _Pool("pod-m")
    state = _state(pool, tmp_path)
    state.look()
    pool.names = ("pod-a", "pod-m")
    state.look()
    _state(_Pool("pod-a"), tmp_path).look()  # a later run
    for folder, name in (("replica-000", "pod-m"), ("replica-001", "pod-a")):
        texts = [p.read_text() for p in (tmp_path / folder).glob("metrics-*.txt")]
        assert texts
        assert all(name in text for text in texts)
    assert sorted(p.name for p in tmp_path.glob("replica-*")) == ["replica-000", "replica-001"]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("cut", [0, 40])
def test_a_page_that_was_cut_off_costs_that_page_alone(
    cut: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "replica-000"
    own.mkdir()
    pages = sorted(DATA.glob("vllm-0.32.0-healthy-moderate-*.txt"))
    for place, file in enumerate(pages):
        text = file.read_text()
        (own / f"metrics-{place}.txt").write_text(text if file != pages[-1] else text[:cut])
    assert ridgeline(["doctor", "--from", str(tmp_path), "--no-gains"]) == 0
    assert "hold no metrics" in capsys.readouterr().err
    alone = str(own / f"metrics-{len(pages) - 1}.txt")
    assert ridgeline(["doctor", "--from", alone]) == 2, "one that was named is refused"
