"""`ridgeline report` of a recording at 80 columns: nothing is cut, no figure wraps."""

import json
from pathlib import Path

import pytest
from watched_recording import BEGUN, record

from ridgeline.cli.main import run as ridgeline

LONG = ("https://inference-a.prod.example.com:8443/team/chat",
        "https://inference-b.prod.example.com:8443/team/chat")  # fmt: skip
EVERY = {
    "up": True, "running": 64.0, "waiting": 3.0, "kv_use": 0.52, "output_tokens_per_s": 1434.2,
    "ttft_s": {"p95": 1.12}, "itl_s": {"p95": 0.0143}, "mbu": 0.41, "mfu": 0.12, "gpus": 2,
    "gpu_utilisation": 0.91, "gpu_sm_active": 0.31, "usd_per_hour": 8.0,
    "usd_per_million_output_tokens": 1.55, "findings": ["batch-ceiling"],
}  # fmt: skip
CELLS = ("2 of 2", "64", "52%", "1120 ms", "14.3 ms", "41%", "12%", "91%", "31%", "1.55")


def _every_figure(folder: Path) -> Path:
    folder.mkdir()
    lines = [{"at": BEGUN + i, "replica": name, **EVERY} for i in range(2) for name in LONG]
    (folder / "figures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def at_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("at_80")
def test_every_figure_of_long_names_stands_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(["report", str(_every_figure(tmp_path / "kept"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for number in ("1", "2"):
        rows = [line.split(None, 1)[1] for line in lines if line.split()[:1] == [number]]
        told = "  ".join(rows)
        assert [cell for cell in CELLS if cell not in told] == []
    for number, name in enumerate(LONG, 1):
        assert f"{number}: {name}: batch-ceiling 100%" in lines


@pytest.mark.usefixtures("at_80")
def test_short_names_stand_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline(["report", str(record(tmp_path / "kept"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.split()[:1] == ["gpu-2:8000"]]
    assert row == ["gpu-2:8000", "270", "of", "300", "800", "8", "0", "10%", "60", "ms", "10", "ms"]
    assert "gpu-1:8000: none 60%, batch-ceiling 40%" in lines
    assert max(map(len, lines)) <= 80
