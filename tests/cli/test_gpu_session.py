"""The script that runs studies on a host whose commands last minutes: begun, followed, packed."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ridgeline.experiment.results import load_results

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_session.sh"
STUDY = """\
name: small
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload: {arrivals: {users: 40}, duration_s: 5, warmup_s: 1, seed: 1}
baseline: {max_num_seqs: 16}
experiments: [{name: seqs-32, set: {max_num_seqs: 32}}]
repeats: 2
"""


def session(folder: Path, *arguments: str, ridgeline: str | None = None) -> str:
    """One call of the script with results in folder/runs; its output, which must end well."""
    command = ridgeline or f"{sys.executable} -P -m ridgeline.cli.main"
    done = subprocess.run(
        [SCRIPT, *arguments],
        env=os.environ | {"RIDGELINE": command, "RUNS": str(folder / "runs")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unpack(pack: Path, target: Path) -> None:
    with tarfile.open(pack / "results.tar.gz") as archive:
        archive.extractall(target, filter="data")


def test_studies_are_run_followed_packed_and_resumed_on_another_host(tmp_path: Path) -> None:
    study, state, pack = tmp_path / "s.yaml", tmp_path / "state", tmp_path / "pack"
    study.write_text(STUDY)
    session(tmp_path, "start", str(state), f"{study} --repeats 1")
    told = session(tmp_path, "wait", str(state), "100", str(pack))
    assert told.endswith("finished\n"), told
    assert "exit code 0" in told
    assert {p.name for p in pack.iterdir()} == {"results.tar.gz", "raw.tar.gz.aa", "session.log"}

    elsewhere = tmp_path / "elsewhere"
    unpack(pack, elsewhere / "runs")
    kept = {p.relative_to(elsewhere) for p in elsewhere.rglob("*.parquet")}
    assert Path("runs/small/baseline-r1/requests.parquet") in kept
    before = (elsewhere / "runs/small/baseline-r1/run.json").read_bytes()
    session(elsewhere, "start", str(elsewhere / "state"), str(study))
    session(elsewhere, "wait", str(elsewhere / "state"), "100")
    index = json.loads((elsewhere / "runs/small/index.json").read_text())
    assert {e["state"] for e in index["runs"].values()} == {"done"}
    assert len(index["runs"]) == 4
    assert (elsewhere / "runs/small/baseline-r1/run.json").read_bytes() == before
    assert len(load_results(elsewhere / "runs/small").experiments[1].valid) == 2


def test_a_tuning_runs_beside_studies_and_is_packed_with_its_trials(tmp_path: Path) -> None:
    study, state, pack = tmp_path / "s.yaml", tmp_path / "state", tmp_path / "pack"
    tune = "tune: {only: true, space: {max_num_seqs: [16, 64]}}\n"
    study.write_text(STUDY + "slo: {ttft_p95_ms: 2000}\n" + tune)
    entries = (f"tune {study} --trials 2", f"study {study} --repeats 1")
    session(tmp_path, "start", str(state), *entries)
    told = session(tmp_path, "wait", str(state), "100", str(pack))
    assert told.endswith("finished\n"), told
    assert told.count("exit code 0") == 2, told
    unpack(pack, tmp_path / "elsewhere")
    kept = tmp_path / "elsewhere" / "small-tune"
    assert (tmp_path / "elsewhere" / "small" / "index.json").is_file()
    assert json.loads((kept / "tune.json").read_text())["study"] == "small"
    assert {"tune.jsonl", "winner.yaml", "trials", "soak"} <= {p.name for p in kept.iterdir()}
    assert list(kept.glob("trials/*/run.json"))
    assert load_results(kept).experiments[0].name == "baseline"


def test_stop_ends_the_study_and_the_studies_after_it(tmp_path: Path) -> None:
    """A stand-in for Ridgeline that ends tidily on SIGTERM, as the real one does."""
    ridgeline = tmp_path / "ridgeline"
    ridgeline.write_text(
        f"#!/bin/sh\necho begun >>{tmp_path}/begun\n"
        f"trap 'echo tidy >{tmp_path}/tidy; exit 130' TERM\nwhile :; do sleep 0.1; done\n"
    )
    ridgeline.chmod(0o755)
    study, state = tmp_path / "s.yaml", tmp_path / "state"
    study.write_text(STUDY)
    session(tmp_path, "start", str(state), str(study), str(study), ridgeline=str(ridgeline))
    told = session(tmp_path, "wait", str(state), "2", ridgeline=str(ridgeline))
    assert told.endswith("not finished: wait again\n")
    session(tmp_path, "stop", str(state), ridgeline=str(ridgeline))
    assert (tmp_path / "tidy").exists()
    assert (tmp_path / "begun").read_text() == "begun\n", "the second study was not begun"


def test_a_session_that_ended_does_not_keep_the_next_from_beginning(tmp_path: Path) -> None:
    """Its process may stay in the table: nobody collects it in some containers."""
    study, state = tmp_path / "s.yaml", tmp_path / "state"
    study.write_text(STUDY)
    state.mkdir()
    with subprocess.Popen(["true"]) as ended, subprocess.Popen(["sleep", "60"]) as living:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
        (state / "pid").write_text(f"{ended.pid}\n")
        session(tmp_path, "start", str(state), str(study), ridgeline="true")
        session(tmp_path, "wait", str(state), "20", ridgeline="true")

        # finished, and its number belongs to another process by now
        (state / "pid").write_text(f"{living.pid}\n")
        session(tmp_path, "start", str(state), str(study), ridgeline="true")
        session(tmp_path, "wait", str(state), "20", ridgeline="true")

        (state / "finished").unlink()
        (state / "pid").write_text(f"{living.pid}\n")
        command = [SCRIPT, "start", state, study]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        living.kill()
    assert done.returncode == 2
    assert "are running already: 'wait' follows them" in done.stderr


def test_a_stop_that_came_too_late_does_not_end_the_next_session(tmp_path: Path) -> None:
    """The host went while `stop` waited: its mark lies there when the session is begun again."""
    study, state = tmp_path / "s.yaml", tmp_path / "state"
    study.write_text(STUDY)
    state.mkdir()
    (state / "stopped").touch()
    session(tmp_path, "start", str(state), str(study), ridgeline="echo was begun:")
    told = session(tmp_path, "wait", str(state), "20")
    assert told.endswith("finished\n")
    assert "was begun: study" in told


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    for arguments, words in (
        (("start", "state", "nowhere.yaml"), "no study file nowhere.yaml"),
        (("install", "nowhere", "state"), "holds no wheels"),
        (("begin",), "gpu_session.sh start STATE STUDY"),
    ):
        done = subprocess.run(
            [SCRIPT, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 2
        assert words in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("study.yaml", "launch:\n  environment: {HF_TOKEN: hf_x}\n", "HF_TOKEN"),
        ("study.yaml", "launch:\n  environment:\n    MY_API_KEY: 'x'\n", "MY_API_KEY"),
        ("study.yaml", "launch: {arguments: [--api-key, sk-x]}", "--api-key"),
        ("a-r1/run.json", '{"environment": {"HF_TOKEN": "hf_x"}}', "HF_TOKEN"),
        ("a-r1/run.json", '{"arguments": ["--hf-token", "hf_x"]}', "--hf-token"),
        ("study.yaml", "launch:\n  environment: {HF_TOKEN: null, A_KEY: '', B_KEY: $B}\n", None),
        ("study.yaml", "launch: {arguments: [--hf-token, --seed, '1', --api-key, $K]}", None),
        ("a-r1/run.json", '{"environment": {"HF_TOKEN": "***"}, "a": ["--api-key", "***"]}', None),
        # as `ridgeline tune` writes it beside its winner
        ("compose.yaml", 'environment:\n  VLLM_API_KEY: "${VLLM_API_KEY:?set it}"\n', None),
        ("compose.yaml", "environment:\n  A_KEY: '$A_KEY'\n", None),
        ("compose.yaml", 'environment:\n  VLLM_API_KEY: "sk-x"\n', "VLLM_API_KEY"),
    ],
)
def test_results_that_hold_a_secret_are_not_trimmed(
    tmp_path: Path, name: str, text: str, named: str | None
) -> None:
    (tmp_path / "s" / "a-r1").mkdir(parents=True)
    (tmp_path / "s" / "index.json").write_text('{"order": [], "runs": {}}')
    (tmp_path / "s" / name).write_text(text)
    command = [sys.executable, ROOT / "scripts" / "trim_results.py", tmp_path / "s", tmp_path / "o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if named is None else 1)
    assert (tmp_path / "o").exists() == (named is None)
    assert named is None or f"{name}: {named} holds a secret" in done.stderr
    assert "hf_x" not in done.stderr


def test_trimmed_results_keep_chunks_of_the_first_valid_repeat_alone(tmp_path: Path) -> None:
    states = {"a-r1": "void", "a-r2": "done", "a-r3": "done", "b-r1": "failed"}
    runs = {r: {"state": s, "experiment": r[0]} for r, s in states.items()}
    for folder in (*states, "cold/a-1", "a-r1.old-1"):
        (tmp_path / "s" / folder).mkdir(parents=True)
        for name in ("run.json", "requests.parquet", "chunks.parquet", "engine.log"):
            (tmp_path / "s" / folder / name).write_text(f"{folder} {name}")
        (tmp_path / "s" / folder / "run.json").write_text(json.dumps({"state": folder}))
    command = "ridgeline study studies/a.yaml --out /srv/host7/runs/a"
    index = {"order": list(states), "runs": runs, "command": command}
    (tmp_path / "s" / "index.json").write_text(json.dumps(index))
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "trim_results.py", tmp_path / "s", tmp_path / "out"],
        check=True, capture_output=True,
    )  # fmt: skip
    out = tmp_path / "out"
    kept = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    both = {f"{r}/{n}" for r in (*states, "cold/a-1") for n in ("run.json", "requests.parquet")}
    assert kept == {"index.json", "a-r2/chunks.parquet", *both}
    assert (out / "a-r2/chunks.parquet").read_text() == "a-r2 chunks.parquet"
    for run in (*states, "cold/a-1"):
        left_out = {} if run == "a-r2" else {"left_out": ["chunks.parquet"]}
        assert json.loads((out / run / "run.json").read_text()) == {"state": run, **left_out}, run
    told = json.loads((out / "index.json").read_text())
    assert told == {**index, "command": "ridgeline study studies/a.yaml --out a"}
