"""The page of a recording of `ridgeline watch`."""

import json
import re
from pathlib import Path

import pytest
from watched_recording import BEGUN, record

from ridgeline.cli.main import run as ridgeline
from ridgeline.diagnosis.recorded import stretches


@pytest.fixture
def page(tmp_path: Path) -> str:
    folder = record(tmp_path / "kept")
    assert ridgeline(["report", str(folder), "--html", str(tmp_path / "p.html"), "--quiet"]) == 0
    return (tmp_path / "p.html").read_text()


def _payload(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page, re.S)
    assert found is not None
    body: dict[str, object] = json.loads(found[1])
    return body


def test_findings_stand_where_they_came_first(tmp_path: Path) -> None:
    """The first one's queue begins at 360 s; the second one is down from 240 to 300 s."""
    told = [(s.replica[-10:], s.begin_s, s.end_s, s.finding) for s in stretches(record(tmp_path))]
    assert told == [
        ("gpu-1:8000", 0, 360, "none"), ("gpu-1:8000", 360, 598, "batch-ceiling"),
        ("gpu-2:8000", 0, 240, "low-load"), ("gpu-2:8000", 240, 300, "no answer"),
        ("gpu-2:8000", 300, 598, "low-load"),
    ]  # fmt: skip


def test_the_page_says_what_came_first_and_shows_every_figure(page: str) -> None:
    assert "low-load 45%, no finding 30%, batch-ceiling 20%, no answer 5%" in page
    assert "270 of 300" in page
    charts = {c["key"]: c for c in _payload(page)["charts"]}  # type: ignore[attr-defined]
    assert set(charts) == {"findings", "time"}
    assert list(charts["time"]["views"]) == ["all replicas", "gpu-1:8000", "gpu-2:8000"]
    one = charts["time"]["views"]["gpu-1:8000"]
    lines = {(t["name"], t["yaxis"]): t for t in one["data"]}
    assert [name for name, _ in lines] == ["output tokens/s", "p95", "p50", "p95", "p50",
                                           "waiting", "running", "KV cache, %"]  # fmt: skip
    assert lines["p95", "y2"]["y"][-1] == pytest.approx(1e3 * (0.12 + 0.4 * 119 / 30))
    assert lines["output tokens/s", "y"]["x"][-1] == 598


def test_no_line_is_drawn_over_the_time_without_an_answer(page: str) -> None:
    charts = {c["key"]: c for c in _payload(page)["charts"]}  # type: ignore[attr-defined]
    (rate, *_) = charts["time"]["views"]["gpu-2:8000"]["data"]
    gap = rate["y"].index(None)
    assert (rate["x"][gap - 1], rate["x"][gap + 1]) == (238, 300)


def test_names_that_are_markup_are_only_text(tmp_path: Path) -> None:
    evil = "http://<img src=x onerror=alert(1)>:8000"
    folder = record(tmp_path / "kept", (evil, "http://</script><b>:1"))
    assert ridgeline(["report", str(folder), "--html", str(tmp_path / "p.html"), "--quiet"]) == 0
    text = (tmp_path / "p.html").read_text()
    assert "<img src=x" not in text
    assert "</script><b>" not in text


def test_a_recording_that_a_kill_cut_off_or_of_one_look(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    line = {"at": BEGUN, "replica": "http://a:1", "up": True, "running": 1.0, "findings": []}
    (folder / "figures.jsonl").write_text(json.dumps(line) + '\n{"at": 179')
    assert ridgeline(["report", str(folder), "--html", str(tmp_path / "p.html"), "--quiet"]) == 0
    assert "looked at once" in (tmp_path / "p.html").read_text()


def test_it_has_no_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path / "kept")
    assert ridgeline(["report", str(folder), "--markdown", str(tmp_path / "x.md")]) == 2
    assert "has a page and a table only" in capsys.readouterr().err
