"""`ridgeline study` from the command line: results on disk, JSON, exit codes, one-line errors."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.progress import plan_time
from ridgeline.domain.errors import RunFailed
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment import engines
from ridgeline.experiment.plan import plan_of, plan_runs
from ridgeline.workload.studyfile import parse_study

STUDY = """
name: small
model: Qwen/Qwen3-0.6B
engine: twin
hardware: {gpu: H100-SXM, count: 1, price_per_gpu_hour: 3.0}
workload:
  arrivals: {users: 24}
  prompts: {tokens: {min: 16, max: 32}}
  output_tokens: {min: 16, max: 32}
  warmup_s: 1
  duration_s: 8
  seed: 3
slo: {ttft_p95_ms: 2000, error_rate: 0.001}
baseline_name: eight
baseline: {max_num_seqs: 8, max_model_len: 2048}
experiments:
  - {name: sixteen, set: {max_num_seqs: 16}}
repeats: 2
"""
# Enough traffic to be spread over worker processes.
LARGE = STUDY.replace("duration_s: 8", "duration_s: 90").replace("repeats: 2", "repeats: 6")
FINDINGS = """
findings:
  - id: more-slots
    claim: twice the slots carry more
    compare: [sixteen, eight]
    ratio: [{metric: throughput.output_tokens_per_s, is: higher}]
    twin: EXPECTED
    because: the queue is shorter
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def states(folder: Path) -> list[str]:
    index = json.loads((folder / "index.json").read_text())
    return [run["state"] for run in index["runs"].values()]


def ids(folder: Path) -> list[str]:
    return json.loads((folder / "index.json").read_text())["order"]


def test_a_study_is_run_compared_and_resumed(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "out", tmp_path / "r.json"
    assert ridgeline(["study", str(study_file), "--out", str(out), "--json", str(result)]) == 0
    shown = capfd.readouterr()
    body = json.loads(result.read_text())
    assert body["schema"] == 1
    assert body["baseline"] == "eight"
    assert [r["name"] for r in body["runs"]] == ["eight", "sixteen"]
    rate = body["runs"][1]["against_baseline"]["throughput.output_tokens_per_s"]
    assert rate["verdict"] == "clearly better"
    assert rate["low"] < rate["delta"] < rate["high"]
    assert body["runs"][0]["against_baseline"] == {}
    assert body["runs"][1]["configuration"]["knobs"]["max_num_seqs"] == 16
    assert ids(out) == ["eight-r1", "sixteen-r1", "sixteen-r2", "eight-r2"]
    assert (out / "study.yaml").read_text() == STUDY
    assert "TWIN" in shown.out
    assert "sixteen" in shown.out
    for run in ids(out):
        assert f"{run}: started" in shown.err
        assert f"{run}: done, " in shown.err

    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("*.parquet")}
    assert ridgeline(["study", str(study_file), "--out", str(out), "--json", str(result)]) == 0
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.parquet")} == stamps
    assert json.loads(result.read_text()) == body
    assert "0 runs, 4 already done" in capfd.readouterr().err


def test_json_to_standard_output_is_nothing_else(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = ["study", str(study_file), "--repeats", "1", "--json", "-", "--out", str(tmp_path / "o")]
    assert ridgeline(args) == 0
    shown = capfd.readouterr()
    body = json.loads(shown.out)
    difference = body["runs"][1]["against_baseline"]["ttft_s.p50"]
    assert difference["low"] is None
    assert difference["reason"] == "one pair of runs has no interval"
    assert "TWIN" in shown.err


def test_only_keeps_the_baseline(study_file: Path, tmp_path: Path) -> None:
    three = STUDY.replace("repeats: 2", "  - {name: four, set: {max_num_seqs: 4}}\nrepeats: 1")
    study_file.write_text(three)
    out = tmp_path / "o"
    args = ["study", str(study_file), "--only", "four", "--quiet", "--out", str(out)]
    assert ridgeline(args) == 0
    assert ids(out) == ["eight-r1", "four-r1"]


@pytest.mark.parametrize(("limit", "code"), [(2000, 0), (0.001, 1)])
def test_a_gate_fails_only_when_the_experiment_misses_the_slo(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], limit: float, code: int
) -> None:
    study_file.write_text(STUDY.replace("ttft_p95_ms: 2000", f"ttft_p95_ms: {limit}"))
    base = ["study", str(study_file), "--repeats", "1", "--quiet", "--out", str(tmp_path / "o")]
    assert ridgeline([*base, "--gate", "sixteen"]) == code
    assert ("gate failed: sixteen misses ttft_p95_ms" in capfd.readouterr().err) == bool(code)
    assert ridgeline(base) == 0  # a missed SLO without a gate is a result like any other


@pytest.mark.parametrize(("expected", "code"), [("reproduced", 0), ("not reproduced", 1)])
def test_check_published_compares_marks_with_expectations(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], expected: str, code: int
) -> None:
    three = STUDY.replace("repeats: 2", "repeats: 3")
    study_file.write_text(three + FINDINGS.replace("EXPECTED", expected))
    args = ["study", str(study_file), "--check-published", "--quiet", "--out", str(tmp_path / "o")]
    assert ridgeline(args) == code
    line = "published finding more-slots: reproduced, the study file expects not reproduced"
    assert (line in capfd.readouterr().err) == bool(code)


def test_an_engine_that_cannot_start_is_a_result_and_exit_3(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other experiments are measured and compared all the same."""
    bad = "  - {name: broken, set: {gpu_memory_utilization: 0.01}}\nrepeats: 1"
    study_file.write_text(STUDY.replace("repeats: 2", bad))
    result = tmp_path / "r.json"
    args = ["study", str(study_file), "--quiet", "--out", str(tmp_path / "o")]
    assert ridgeline([*args, "--json", str(result)]) == 3
    err = capfd.readouterr().err
    assert "no valid run of broken: " in err
    assert "no available memory for the cache blocks" in err
    body = {r["name"]: r for r in json.loads(result.read_text())["runs"]}
    assert body["broken"]["summary"] is None
    assert body["sixteen"]["against_baseline"]["itl_s.p50"]["delta"] is not None


def test_a_gate_looks_at_each_repeat_not_at_their_mean(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    base = ["study", str(study_file), "--repeats", "3", "--quiet", "--out", str(out)]
    assert ridgeline([*base, "--gate", "sixteen"]) == 0
    assert "gate passed: sixteen meets every limit in each repeat; 3 of 3" in capfd.readouterr().err
    runs = [json.loads((out / f"sixteen-r{r}" / "run.json").read_text()) for r in (1, 2, 3)]
    values = sorted(run["summary"]["ttft_s"]["p95"] * 1e3 for run in runs)
    mean = sum(values) / 3
    assert values[1] < values[2]
    limit = (max(mean, values[1]) + values[2]) / 2
    study_file.write_text(STUDY.replace("ttft_p95_ms: 2000", f"ttft_p95_ms: {limit}"))
    assert ridgeline([*base, "--gate", "sixteen"]) == 1
    err = capfd.readouterr().err
    assert "0 runs, 6 already done" in err  # a new limit judges, it does not measure
    assert "gate failed: sixteen misses ttft_p95_ms" in err
    assert f"in 1 of 3 repeats (worst found {values[2]:.4g}); 3 of 3" in err


def test_repeats_that_crashed_do_not_pass_for_a_study(
    study_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of three repeats die: what is left meets the SLO, but it is not the study asked for."""

    class Flaky(TwinEngine):
        tries = 0

        def start(self, configuration):  # type: ignore[no-untyped-def]
            if configuration.knobs.max_num_seqs == 16:
                Flaky.tries += 1
                if Flaky.tries < 3:
                    raise RunFailed("device-side assert, says the engine")
            return super().start(configuration)

    monkeypatch.setattr(engines, "engine_named", lambda name: Flaky())
    args = ["study", str(study_file), "--repeats", "3", "--quiet", "--out", str(tmp_path / "o")]
    assert ridgeline([*args, "--gate", "sixteen"]) == 3
    err = capfd.readouterr().err
    assert "gate passed: sixteen meets every limit in each repeat; 1 of 3 planned" in err
    assert "2 of 3 runs of sixteen have no valid result: " in err
    assert "device-side assert" in err


REFUSED = [
    # (what stands there, what a user wrote instead, the option, line, words)
    ("Qwen/Qwen3-0.6B", "Qwen/Nope", [], 3, "experiment eight: model: unknown model"),
    ("engine: twin", 'engine: twin\nengine_version: "0.10.0"', [], 5,
     "experiment eight: engine_version: the twin knows"),
    ("{max_num_seqs: 16}", "{enable_expert_parallel: true}", [], 17,
     "experiment sixteen: enable_expert_parallel: the twin does not model"),
    ("{max_num_seqs: 16}", "{max_num_batched_tokens: 4, max_num_seqs: 16}", [], 17,
     "experiment sixteen: max_num_batched_tokens"),
    ("{max_num_seqs: 16}", "{quantization: fp9}", [], 17, "experiment sixteen: quantization"),
    ("max_model_len: 2048", "max_model_len: 60", [], 15,
     "experiment eight: max_model_len: prompt and output of up to 64 tokens do not fit into 60"),
    ("{min: 16, max: 32}", "{min: 16, max: 9999}", [], 15, "do not fit into 2048"),
    ("", "", ["--engine", "endpoint"], None, "--engine endpoint: an endpoint needs the key 'url'"),
    ("engine: twin\nhardware: {gpu: H100-SXM, count: 1, price_per_gpu_hour: 3.0}",
     "engine: vllm", ["--engine", "twin"], None, "hardware.gpu: a twin needs a GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "options", "line", "words"), REFUSED)
def test_what_cannot_run_is_refused_before_anything_runs(
    study_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    before: str,
    after: str,
    options: list[str],
    line: int | None,
    words: str,
) -> None:
    study_file.write_text(STUDY.replace(before, after, 1) if before else STUDY)
    out = tmp_path / "o"
    assert ridgeline(["study", str(study_file), *options, "--out", str(out)]) == 2
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert words in err
    assert line is None or f"small.yaml:{line}: " in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["missing.yaml"], "missing.yaml: there is no such file"),
        (["FILE", "--only", "sixten"], "did you mean 'sixteen'?"),
        (["FILE", "--gate", "nobody"], "there is no experiment 'nobody'"),
        (["FILE", "--engine", "vlm"], "did you mean 'vllm'?"),
        (["FILE", "--engine", "sglang"], "cannot start sglang by itself"),
        (["FILE", "--check-published"], "needs findings with an expectation"),
        (["FILE", "--repeats", "0"], "--repeats"),
        (["FILE", "--repeats", "many"], "--repeats"),
        (["FILE", "--nonsense"], "--nonsense"),
        ([], "FILE"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], args: list[str], line: str
) -> None:
    given = [str(study_file) if a == "FILE" else a for a in args]
    assert ridgeline(["study", *given, "--out", str(tmp_path / "o")]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert line in shown.err
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_is_one_line_and_exit_3(
    study_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert ridgeline(["study", str(study_file), "--out", str(tmp_path / "file" / "o")]) == 3
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert "choose another folder with --out" in err


def test_an_unexpected_error_is_one_line_and_a_traceback_in_a_file(
    study_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> None:
        raise KeyError("a bug\nof two lines")

    monkeypatch.setattr("ridgeline.workload.studyfile.load_study", broken)
    assert ridgeline(["study", str(study_file)]) == 3
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert "unexpected KeyError" in err
    place = Path(err.split("the traceback is in ")[1].strip())
    assert "def broken" in place.read_text() or "in broken" in place.read_text()
    place.unlink()


COMMAND = [sys.executable, "-m", "ridgeline.cli.main"]


def start(*args: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *args],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def read_until(child: subprocess.Popen[str], text: str) -> list[str]:
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"never saw {text!r}: {lines}")


def test_ctrl_c_ends_tidily_and_the_next_start_finishes(study_file: Path, tmp_path: Path) -> None:
    """The signal goes to the whole group, as a terminal sends it: workers must not die of it."""
    study_file.write_text(LARGE)
    args = ["study", str(study_file), "--out", "o", "--json", "r.json"]
    child = start(*args, folder=tmp_path)
    try:
        read_until(child, ": done, ")
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "what was measured is kept" in err
    assert "Traceback" not in err
    after = states(tmp_path / "o")
    assert {"done", "planned"} <= set(after)
    assert "running" not in after
    assert json.loads((tmp_path / "r.json").read_text())["runs"][0]["name"] == "eight"
    assert "TWIN" in out
    done = subprocess.run(
        [*COMMAND, *args], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert f"{after.count('done')} already done" in done.stderr


def test_killed_workers_and_parent_leave_a_readable_study(study_file: Path, tmp_path: Path) -> None:
    study_file.write_text(LARGE)
    child = start("study", str(study_file), "--out", "o", folder=tmp_path)
    try:
        read_until(child, ": done, ")
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and ridgeline(["report", str(tmp_path / "o"), "--quiet"]):
        time.sleep(0.1)
    assert ridgeline(["report", str(tmp_path / "o"), "--quiet"]) == 0
    assert "done" in states(tmp_path / "o")
    assert "running" not in states(tmp_path / "o")


def test_a_second_ctrl_c_does_not_wait(study_file: Path, tmp_path: Path) -> None:
    study_file.write_text(LARGE.replace("users: 24", "users: 200"))
    child = start("study", str(study_file), "--out", "o", folder=tmp_path)
    try:
        read_until(child, "started")
        for _ in range(2):
            os.killpg(child.pid, signal.SIGINT)
            time.sleep(0.3)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert ridgeline(["report", str(tmp_path / "o"), "--quiet"]) == 0
    assert "running" not in states(tmp_path / "o")


def test_an_engine_that_is_not_installed_is_told_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "name: v\nmodel: Qwen/Qwen3-4B\nengine: vllm\nhardware: {gpu: H100-SXM}\n"
        "launch: {command: [no-such-vllm, serve, '{model}']}\n"
        "workload: {arrivals: {users: 4}}\nbaseline: {max_num_seqs: 4}\n"
        "experiments:\n  - {name: b, set: {max_num_seqs: 8}}\n"
    )
    assert ridgeline(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no-such-vllm" in line
    assert "study.yaml" in line
    assert not (tmp_path / "out").exists()


def test_the_plan_of_real_engines_is_told_in_minutes_before_it_starts() -> None:
    text = (
        "name: s\nmodel: m\nengine: vllm\nhardware: {gpu: H200-SXM, count: 2}\n"
        "workload: {arrivals: {users: 1}, warmup_s: 5, duration_s: 25}\n"
        "experiments: [{name: two, set: {data_parallel_size: 2}}, {name: again}]\nrepeats: 4\n"
    )
    runs = plan_runs(plan_of(parse_study(text, "s.yaml", folder=Path())))
    assert plan_time(runs) == (
        "plan: 6.0 minutes of traffic (8.0 GPU minutes), 2 engine starts of about 2 minutes, which"
        " count as GPU minutes too; replies' ends come on top"
    )
    twins = [replace(r, configuration=replace(r.configuration, engine="twin")) for r in runs]
    assert plan_time(twins) == ""
