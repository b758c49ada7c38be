"""Ten minutes of tuning three knobs of the real vLLM on the CPU, killed in the middle and resumed:
the answer beats or ties what was served before, in a duel that the tuning has no part in.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ridgeline.tuning.journal import Told, read_journal
from support.cputuning import study_of, wait_for
from support.realtime import realtime_allowed

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm")]
from real_vllm import ENVIRONMENT, environment_folder, make_model  # noqa: E402

pytestmark = pytest.mark.acceptance

MINUTES = float(os.environ.get("RIDGELINE_TUNE_MINUTES", "10"))
# The client before all other work of the machine where that is allowed; its engines are ordinary.
FIRST = ["chrt", "--rr", "1"] if realtime_allowed() else []


def study_file(folder: Path) -> Path:
    python = environment_folder() / "bin" / "python"
    body = study_of(
        "ten-minutes-on-the-cpu", make_model(python, folder / "model"), [str(python)],
        ENVIRONMENT, ready_s=300.0, window={"warmup_s": 2.0, "duration_s": 6.0},
        slots=2, among=[1, 2, 4, 8], finalists=2,
    )  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def ridgeline(log: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [*FIRST, sys.executable, "-P", "-m", "ridgeline.cli.main", *words]
    with log.open("ab") as target:
        return subprocess.Popen(command, stdout=target, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    finally:
        process.kill()
        process.wait()


def test_ten_minutes_killed_in_the_middle_end_with_a_winner_that_beats_or_ties(
    tmp_path: Path,
) -> None:
    file, out, log = study_file(tmp_path), tmp_path / "out", tmp_path / "ridgeline.log"
    words = ("tune", str(file), "--out", str(out), "--minutes", f"{MINUTES:g}", "--quiet")

    def told() -> Told:
        return read_journal(out / "tune.jsonl")

    first = ridgeline(log, *words)
    try:
        wait_for(lambda: len(told().trials) > 1 or first.poll() is not None, 60 * MINUTES, log)
        assert first.poll() is None, log.read_text()
    finally:
        first.kill()
        first.wait()
    before = {t.run: (out / "trials" / str(t.run) / "run.json").read_bytes() for t in told().trials}
    time.sleep(20.0)  # its engines end by themselves; nobody is charged for this
    begun = time.monotonic()
    code = ended(ridgeline(log, *words), 60 * MINUTES + 300)
    took_s = time.monotonic() - begun
    for name, body in before.items():
        assert (out / "trials" / str(name) / "run.json").read_bytes() == body, "measured twice"
    states = {t.state for t in told().trials}
    assert states <= {"feasible", "void", "crashed"}, log.read_text()
    result = json.loads((out / "tune.json").read_text())
    print(result["verdict"])
    print(f"{len(told().trials)} trials, duel of {(result['duel'] or {}).get('rounds')} rounds,"
          f" {result['gpu_s'] / 60:.1f} of {MINUTES:g} minutes,"
          f" {told().lost_s:.0f} s of them lost to the kill; the second start took"
          f" {took_s / 60:.1f} minutes")  # fmt: skip
    assert code == 0, log.read_text()
    assert result["gpu_s"] <= 60 * MINUTES + 30
    assert result["duel"]["rounds"] >= 3
    if not result["winner"]["change"]:
        assert "The baseline stays" in result["verdict"]
        return
    assert result["soak"][-1]["passed"]
    again = tmp_path / "again.json"
    words = ("study", str(out / "winner.yaml"), "--repeats", "3", "--out", str(tmp_path / "again"))
    assert ended(ridgeline(log, *words, "--json", str(again), "--quiet"), 600) == 0, log.read_text()
    runs = {run["name"]: run for run in json.loads(again.read_text())["runs"]}
    fresh = runs["before"]["against_baseline"]["throughput.output_tokens_per_s"]
    print(f"fresh duel: the one before against the winner: {fresh}")
    assert fresh["verdict"] != "clearly better"
