"""`ridgeline twin --trace` and `--replay`: the twin's steps as a file, and beside an engine's."""

import gzip
import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run as cli
from ridgeline.twin import replica

DATA = Path(__file__).parents[1] / "twin" / "data"
STUDY = """
name: traced
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 2}
engine: twin
workload:
  arrivals: {users: 12}
  prompts: {dataset: synthetic, tokens: {mean: 200, spread: 0.5}}
  output_tokens: {max: 40}
  duration_s: 2
baseline: {max_num_seqs: 8, max_num_batched_tokens: 512, num_gpu_blocks_override: 130,
           max_model_len: 1024}
experiments:
  - {name: two, set: {data_parallel_size: 2}}
"""


def run(*arguments: object) -> int:
    return cli([str(a) for a in arguments])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(gzip.decompress((DATA / "steps-vllm-0.33.0.jsonl.gz").read_bytes()))
    return path


def test_a_real_engines_log_is_held_against_the_twin(log, tmp_path, capsys):
    out = tmp_path / "twin.jsonl"
    assert run("twin", "--replay", log, "--trace", out) == 0
    assert "the twin decides the same" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == len(log.read_text().splitlines())
    assert run("twin", "--replay", out) == 0  # the same form


def test_the_first_step_that_differs_is_named_and_the_exit_code_says_so(log, capsys):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[4]["free_blocks"] -= 1
    log.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert run("twin", "--replay", log) == 1
    assert "the twin decides otherwise: step 3: free_blocks: engine" in capsys.readouterr().err


def test_a_study_is_traced_and_its_trace_replays_to_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(replica, "PACKED_STEPS", 100)  # as a longer load packs its first steps
    study, out = tmp_path / "study.yaml", tmp_path / "steps.jsonl"
    study.write_text(STUDY)
    assert run("twin", study, "--trace", out) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["engine"] == "twin"
    assert lines[0]["max_num_seqs"] == 8
    assert sum(len(line["arrived"]) for line in lines[1:]) > 12
    assert max(sum(line["scheduled"].values()) for line in lines[1:]) == 512
    assert any(line["preempted"] for line in lines[1:])
    told = f"{len(lines) - 1} steps"
    assert f"{told} of experiment baseline written to" in capsys.readouterr().err
    assert run("twin", "--replay", out) == 0
    assert told in capsys.readouterr().err
    assert run("twin", study, "--experiment", "two", "--trace", out) == 2
    assert "data_parallel_size: has 2 replicas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{}\n", ":1: has no header"),
        ("{]\n", ":1: is no JSON"),
        ('{"step_log": 1, "version": "0.9"}\n', "knows the engine's releases"),
    ],
)
def test_bad_logs_are_one_clear_line(tmp_path, capsys, text, words):
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    assert run("twin", "--replay", path) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_a_last_line_that_was_cut_off_is_left_out(log):
    log.write_text(log.read_text() + '{"step": 7, "upd')
    assert run("twin", "--replay", log) == 0


def test_options_that_do_not_go_together(log, tmp_path, capsys):
    assert run("twin", "study.yaml", "--replay", log) == 2
    assert "leave FILE out" in capsys.readouterr().err
    assert run("twin", "--trace", tmp_path / "out") == 2
    assert "needs a study file" in capsys.readouterr().err
