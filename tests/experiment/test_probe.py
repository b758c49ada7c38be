"""The probe's traffic must do what it is there for, and its file must be a study."""

from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import FULL_GRAPH, NO_GRAPH, PIECEWISE_GRAPH, MemorySink, StepTable
from ridgeline.domain.run import SilentWatch
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.probe import Load, probe_loads, probe_seconds, probe_study, probed
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.studyfile import load_study

HOST = probed(Configuration("Qwen3-4B", Knobs(max_model_len=4096), gpu="H200-SXM"))


def steps_of(load: Load) -> StepTable:
    sink = MemorySink()
    with TwinEngine().start(HOST) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(load.workload()), "p"), sink, SilentWatch())
    assert sink.step_table is not None
    return sink.step_table


def test_each_load_makes_the_steps_that_it_is_there_for() -> None:
    short, long, uncaptured, mixed, crowd = (steps_of(load) for load in probe_loads(HOST))
    prompts = short.prefill_tokens > 0
    assert (short.mode[~prompts] == FULL_GRAPH).all()
    assert (short.mode[prompts] == PIECEWISE_GRAPH).all()
    # A long prompt keeps the GPU longer than its launch takes: compute is what is seen.
    longest = long.prefill_tokens > 2000
    shares = long.parts["weights"][longest] / (long.end_ns - long.start_ns)[longest]
    assert longest.sum() > 10
    assert shares.mean() > 0.6
    # Most prompts go through steps without a graph, whose GPU waits for the host much of the time.
    idle = uncaptured.parts["launch"] + uncaptured.parts["cpu"]
    waits = idle / (uncaptured.end_ns - uncaptured.start_ns)
    carried = uncaptured.prefill_tokens > 0
    assert (uncaptured.mode[carried] == NO_GRAPH).mean() > 0.9
    assert waits[carried].mean() > 0.35
    carried = mixed.prefill_tokens > 0
    assert (mixed.mode[carried] == PIECEWISE_GRAPH).mean() > 0.9
    assert 0.1 < carried.mean() < 0.9
    assert np.quantile(crowd.decode_tokens, 0.75) > 80


def test_the_file_is_a_study_of_one_engine_under_three_minutes(tmp_path: Path) -> None:
    out = tmp_path / "probe.yaml"
    given = ["--model", "Qwen3-4B", "--gpu", "H200"]
    assert run(["calibrate", "--plan", str(out), *given]) == 0
    study = load_study(out)
    assert study.engine == "vllm"
    assert len({repr(e.configuration) for e in study.experiments}) == 1
    assert len(study.experiments) == 5
    assert all(e.workload.outputs.ignore_eos for e in study.experiments)
    assert study.experiments[0].configuration.knobs.enable_prefix_caching is False
    assert probe_seconds(probe_loads(study.experiments[0].configuration)) < 180


def test_a_study_s_own_launch_and_knobs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodel: Qwen3-8B\nengine: vllm\nengine_version: 0.21.0\n"
        "hardware: {gpu: H200-SXM, count: 2}\nlaunch: {arguments: [--load-format, dummy]}\n"
        "workload: {arrivals: {users: 4}}\n"
        "baseline: {tensor_parallel_size: 2, max_num_seqs: 8, kv_cache_dtype: fp8}\n"
    )
    text = probe_study(load_study(path).baseline.configuration)
    (tmp_path / "probe.yaml").write_text(text)
    found = load_study(tmp_path / "probe.yaml").baseline.configuration
    assert found.launch is not None
    assert found.launch.arguments == ("--load-format", "dummy")
    assert found.launch.cold_s == 0
    assert (found.knobs.tensor_parallel_size, found.knobs.kv_cache_dtype) == (2, "fp8")
    assert found.knobs.max_num_seqs == 256  # room for a crowd
    assert (found.engine_version, found.gpus) == ("0.21.0", 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "there are no runs to fit to; name their folders, or write a probe with --plan"),
        (["--plan", "x"], "--plan needs either --study FILE or both --model M and --gpu NAME"),
        (["--plan", "x", "--model", "Qwen3-4B"], "--plan needs either"),
        (["--plan", "x", "--model", "Qwen3-4B", "--gpu", "H900"], "unknown GPU 'H900'"),
        (["--model", "Qwen3-4B"], "there are no runs to fit to"),
        (["runs", "--plan", "x"], "give it no runs"),
        (["--plan", "no/such/x", "--model", "Qwen3-4B", "--gpu", "H200"], "cannot be written"),
        (["--plan", "x", "--model", "Llama-3.1-70B", "--gpu", "L4"], "not enough GPU memory"),
    ],
)
def test_bad_input_is_one_line(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", *given]) in (2, 3)
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_no_room_for_a_probe() -> None:
    short = Configuration("Qwen3-4B", Knobs(max_model_len=256), gpu="H200-SXM")
    with pytest.raises(BadInput, match="512 tokens and max_model_len is 256"):
        probe_loads(short)
