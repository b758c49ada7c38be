"""A tuning of three knobs on the real vLLM on the CPU, killed in the middle and begun again."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from real_vllm import ENVIRONMENT

from ridgeline.tuning.journal import Told, read_journal
from support.cputuning import OF_THE_MACHINE, study_of, wait_for

pytestmark = pytest.mark.vllm

LEFT_S = 40.0


@pytest.fixture
def study_file(vllm_python: Path, tiny_model: Path, tmp_path: Path) -> Path:
    body = study_of(
        "tune-on-the-cpu", tiny_model, [str(vllm_python)], ENVIRONMENT, ready_s=240.0,
        window={"warmup_s": 1.0, "duration_s": 2.0}, slots=1, among=[1, 8], finalists=1,
    )  # fmt: skip
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def begin(file: Path, out: Path, log: Path) -> subprocess.Popen[bytes]:
    words = ["tune", str(file), "--out", str(out), "--trials", "3", "--minutes", "6"]
    command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", *words]
    with log.open("ab") as target:
        return subprocess.Popen(command, stdout=target, stderr=subprocess.STDOUT)


def engines_of(model: Path) -> list[psutil.Process]:
    """Every living process that serves this test's model."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(model) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def told_in(out: Path) -> Told:
    return read_journal(out / "tune.jsonl")


def test_killed_in_the_middle_it_ends_with_a_winner_that_beats_or_ties_the_baseline(
    study_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "out", tmp_path / "ridgeline.log"
    first = begin(study_file, out, log)
    try:
        wait_for(lambda: told_in(out).trials or first.poll() is not None, 280, log)
        assert first.poll() is None, log.read_text()
    finally:
        first.kill()
        first.wait()
    wait_for(lambda: not engines_of(tiny_model), LEFT_S, log)
    before = told_in(out).trials
    kept = {t.run: (out / "trials" / str(t.run) / "run.json").read_bytes() for t in before}

    second = begin(study_file, out, log)
    try:
        code = second.wait(400)
    finally:
        second.kill()
        second.wait()
    assert engines_of(tiny_model) == []
    told, result = told_in(out), json.loads((out / "tune.json").read_text())
    assert {t.number for t in before} <= {t.number for t in told.trials}
    assert len({t.number for t in told.trials}) == len(told.trials)
    for name, body in kept.items():
        assert (out / "trials" / str(name) / "run.json").read_bytes() == body, "measured twice"
    states = {t.state for t in told.trials}
    assert states <= {"feasible", "void"}, log.read_text()
    void = [t.reason or "" for t in told.trials if t.state == "void"]
    assert all(reason.startswith(OF_THE_MACHINE) for reason in void)
    assert code == (0 if "feasible" in states else 3), log.read_text()
    winner, baseline = result["winner"], result["baseline"]
    print(result["verdict"])
    if winner["change"]:
        assert winner["measured"] == "duel"
        assert winner["value"] >= baseline["value"]
        assert result["soak"][-1]["passed"]
    else:
        assert "The baseline stays" in result["verdict"]
