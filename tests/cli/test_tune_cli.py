"""`ridgeline tune` on the twin, as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from ridgeline.cli.main import run
from ridgeline.tuning.journal import read_journal
from ridgeline.workload.studyfile import load_study

STUDY = """\
name: small
model: Qwen/Qwen3-4B
engine_version: "0.33.0"
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  arrivals: {users: 40}
  prompts: {tokens: {min: 100, max: 300}}
  output_tokens: {min: 20, max: 60, ignore_eos: true}
  duration_s: 4
  warmup_s: 2
  seed: 1
slo: {ttft_p95_ms: 400, itl_p95_ms: 30}
baseline: {max_num_seqs: 8, enable_prefix_caching: false}
tune:
  only: true
  finalists: 2
  space:
    max_num_seqs: [8, 16, 32, 64]
    max_num_batched_tokens: [1024, 4096]
"""


def write(folder: Path, text: str = STUDY) -> Path:
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def test_it_finds_a_winner_proves_it_and_hands_it_over(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    out, file = tmp_path / "out", write(tmp_path)
    arguments = ["tune", str(file), "--trials", "4", "--out", str(out), "--json", "-"]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    body = json.loads(shown.out)
    assert {"winner", "baseline", "trials", "certificate"} <= set(body)
    assert body["source"] == "twin"
    assert body["baseline"]["meets"] is False
    assert body["winner"]["meets"] is True
    assert body["winner"]["change"]["max_num_seqs"] > 8
    assert body["winner"]["command"].startswith("vllm serve Qwen/Qwen3-4B ")
    count = len(body["trials"])  # it may end before its budget does
    assert 2 <= count <= 4
    assert [t["number"] for t in body["trials"]] == list(range(1, count + 1))
    assert shown.err.index(" combinations of max_num_seqs, ") < shown.err.index("trial 1:"), (
        "the plan is first"
    )
    for words in ("budget: 4 trials", "best so far:", "trials left", "Serve with max_num_seqs="):
        assert words in shown.err

    winner = load_study(out / "winner.yaml")
    assert (
        winner.baseline.configuration.knobs.max_num_seqs == body["winner"]["change"]["max_num_seqs"]
    )
    assert run(["study", str(out / "winner.yaml"), "--repeats", "1", "--out", str(out / "w")]) == 0
    assert "vllm serve Qwen/Qwen3-4B" in (out / "serve.sh").read_text()
    served = yaml.safe_load((out / "compose.yaml").read_text())
    assert "--max-num-seqs" in served["services"]["vllm-0"]["command"]

    before = (out / "tune.jsonl").read_bytes()
    capsys.readouterr()
    assert run(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["winner"] == body["winner"]
    assert len(read_journal(out / "tune.jsonl").trials) == count, "nothing is measured twice"
    assert (out / "tune.jsonl").read_bytes() == before


def test_a_budget_of_gpu_minutes_holds_on_the_twin_as_on_a_gpu(tmp_path: Path) -> None:
    """By hand, for one finalist whose engine takes turns with the baseline's: starts 4 x 120 s,
    rounds 3 x 2 x 8 s, the soak 155 s: 11.4 minutes, and two trials of the search 4.3.
    """
    out = tmp_path / "out"
    assert (
        run(["tune", str(write(tmp_path)), "--gpu-minutes", "17", "--quiet", "--out", str(out)])
        == 0
    )
    body = json.loads((out / "tune.json").read_text())
    assert body["gpu_s"] <= 17 * 60 * 1.05
    assert body["duel"]["rounds"] >= 3
    assert body["soak"][0]["passed"]


def test_what_cannot_be_tuned_is_one_line(tmp_path: Path) -> None:
    text = STUDY.replace("hardware:", "engine: endpoint\nurl: http://127.0.0.1:9\nhardware:")
    text = text.replace("baseline: {max_num_seqs: 8, enable_prefix_caching: false}\n", "")
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline.cli.main", "tune", str(write(tmp_path, text))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot be tuned" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_budget_that_holds_no_three_rounds_of_all_finalists_decides_with_fewer(
    tmp_path: Path, capsys
) -> None:  # type: ignore[no-untyped-def]
    """By hand, for one finalist: engines take turns, so starts 4 x 120 s, rounds 3 x 2 x 66 s, the
    soak 155 s: 17.2 of 24 minutes. With two it is 26.5 (7 starts), which does not fit in.
    """
    text = STUDY.replace("duration_s: 4", "duration_s: 60").replace("finalists: 2", "finalists: 3")
    file = write(tmp_path, text.replace("tune:", "tune:\n  window_s: 4"))
    out = tmp_path / "out"
    arguments = ["tune", str(file), "--gpu-minutes", "24", "--out", str(out), "--json", "-"]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    body = json.loads(shown.out)
    assert "finalists go on: with more of them the rounds that the budget" in shown.err
    assert body["duel"]["rounds"] >= 3
    assert body["winner"]["change"]
