"""`ridgeline knee` at the real vLLM: where its throughput rises no more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from real_vllm import RealVllm

pytestmark = pytest.mark.vllm

RIDGELINE = Path(sys.executable).with_name("ridgeline")


def test_a_sweep_of_users_is_measured_level_by_level(vllm: RealVllm, tmp_path: Path) -> None:
    """A few levels, so that it stays short: each fresh, counted by the server, on the curve.

    Two cores carry server and client, so the machine may void levels; that is said then, and the
    exit code is 3.
    """
    before = vllm.counts()
    done = subprocess.run(
        [RIDGELINE, "knee", vllm.url, "--start", "1", "--most", "2", "--resolution", "1",
         "--requests", "40", "--minutes", "2", "--prompt-tokens", "64", "--output-tokens", "16",
         "--ignore-eos", "--no-calibration", "--json", tmp_path / "k.json",
         "--out", tmp_path / "out"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    added = vllm.counts().since(before)
    assert done.returncode in (0, 3), done.stderr
    found = json.loads((tmp_path / "k.json").read_text())
    levels = found["levels"]
    assert [level["load"] for level in levels] == [1, 2][: len(levels)]
    counted = 0
    for level in levels:
        stored = json.loads((tmp_path / "out" / level["run_id"] / "run.json").read_text())
        counted += stored["summary"]["requests"]["ok"]
        assert stored["summary"]["requests"]["failed"] == 0
        assert level["tokens_per_s"] > 0
        reasons = " ".join(level["reasons"])
        assert level["state"] != "void" or "client" in reasons or "steady" in reasons, reasons
    assert added.requests >= counted >= 40 * len(levels)
    assert added.prefix_cache_hits == 0, "fresh prompts at every level"
    if done.returncode == 3:  # a level was void, or throughput still rises at 2
        assert "ridgeline: no knee: " in done.stderr
    else:
        assert 1 <= found["knee"]["value"] <= 2
    page = tmp_path / "k.html"
    shown = subprocess.run(
        [RIDGELINE, "report", tmp_path / "out", "--html", page],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "users" in shown.stdout
    text = page.read_text()
    assert "The table behind it" in text or "Levels" in text
    if sum(level["state"] != "void" for level in levels) > 1:  # else there is no curve
        assert 'id="chart-knee"' in text
