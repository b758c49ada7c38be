"""A calibration must find constants that are known, and refuse what teaches it nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.calibrate import NAMES, _figures, _warnings
from ridgeline.cli.main import run
from ridgeline.cli.output import show
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import FREE, calibrated, known_constants, twin_of
from ridgeline.experiment.calibrating import (
    FIGURES,
    Calibration,
    Observation,
    calibrate,
    errors_of,
    read_observations,
    simulate,
)
from ridgeline.experiment.probe import TOLD_BY
from ridgeline.store.run_directory import read_run
from ridgeline.workload.studyfile import load_study

PROBE = Path(__file__).parents[2] / "results" / "h200" / "probe"
LOAD = Workload(
    Arrivals(users=24), Prompts(Lengths(128, 0.5)), Outputs(Lengths(32, 0.5)),
    duration_s=4.0, warmup_s=1.0, seed=3,
)  # fmt: skip
STUDY = """
name: small
model: Qwen/Qwen3-4B
engine: twin
hardware: {gpu: H200-SXM}
workload:
  arrivals: {users: 16}
  prompts: {tokens: {min: 64, max: 192}}
  output_tokens: {min: 16, max: 32}
  duration_s: 5
  warmup_s: 1
baseline: {max_num_seqs: 16, max_model_len: 4096}
experiments: [{name: eager, set: {enforce_eager: true}}]
repeats: 1
"""


def observation(name, constants, **knobs):
    given = Knobs(max_model_len=4096, max_num_seqs=16).with_changes(knobs)
    configuration = Configuration("Qwen3-4B", given, "vllm", gpu="H200-SXM")
    blank = Observation(name, configuration, LOAD, {})
    return replace(blank, figures=simulate(blank, constants))


def test_known_constants_are_found_and_the_others_stay():
    """The measured figures come from a twin that launches half as fast, with gaps of 1 ms."""
    start = known_constants(Configuration("Qwen3-4B", Knobs(), gpu="H200-SXM"))
    truth = replace(
        start,
        eager_launch_ns_per_layer=2 * start.eager_launch_ns_per_layer,
        step_gap_ns=1_000_000.0,
    )
    seen = [observation("graphs", truth), observation("eager", truth, enforce_eager=True)]
    names = ("eager_launch_ns_per_layer", "step_gap_ns", "send_ns_per_chunk")
    found = calibrate(seen, names=names)
    assert found.constants["eager_launch_ns_per_layer"] == pytest.approx(
        truth.eager_launch_ns_per_layer, rel=0.1
    )
    assert found.constants["step_gap_ns"] == pytest.approx(1_000_000, rel=0.15)
    before, after, runs, missing = errors_of(found)["itl_p50_s"]
    assert (runs, missing) == (2, 0)
    assert before > 0.15
    assert after < 0.03
    body = found.to_json()
    assert json.loads(json.dumps(body)) == body


def test_a_constant_that_no_run_touches_is_not_informed():
    """Without eager mode and with every step in a graph nothing can be said of eager launches."""
    start = known_constants(Configuration("Qwen3-4B", Knobs(), gpu="H200-SXM"))
    seen = [observation("graphs", start, max_num_seqs=256, max_cudagraph_capture_size=1024)]
    found = calibrate(seen, names=("eager_launch_ns_per_layer", "step_gap_ns"))
    assert "eager_launch_ns_per_layer" not in found.informed
    assert "step_gap_ns" in found.informed
    said = _warnings(found)
    silent = [name for name in found.constants if name not in found.informed]
    assert [line.split()[0] for line in said[:-1]] == silent
    (eager,) = (line for line in said if line.startswith("eager_launch_ns_per_layer"))
    assert "what would: prompts above the largest captured size" in eager
    assert said[-1].startswith(f"{len(silent)} of 2 constants are not calibrated")
    assert found.constants["eager_launch_ns_per_layer"] == pytest.approx(
        start.eager_launch_ns_per_layer, rel=0.02
    )


def test_a_run_that_the_fit_made_worse_is_told_with_both_errors():
    start = known_constants(Configuration("Qwen3-4B", Knobs(), gpu="H200-SXM"))
    good, bad = observation("quiet", start), observation("crowd", start)
    before = {**bad.figures, "itl_p50_s": 0.95 * bad.figures["itl_p50_s"]}
    after = {**bad.figures, "itl_p50_s": 2.5 * bad.figures["itl_p50_s"],
             "ttft_p50_s": 1.05 * bad.figures["ttft_p50_s"]}  # fmt: skip
    found = Calibration(
        gpu="H200-SXM", model="Qwen3-4B", constants={}, errors={}, observations=(good, bad),
        before=(good.figures, before), after=(good.figures, after),
    )  # fmt: skip
    (line,) = _warnings(found)
    assert line.startswith("crowd is further off with the fitted constants than with the prior's")
    assert "(ITL p50 -5% -> +150%)" in line


def test_a_figure_that_the_twin_does_not_have_counts_as_missing_and_not_as_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = known_constants(Configuration("Qwen3-4B", Knobs(), gpu="H200-SXM"))
    good = observation("good", start)
    some = replace(good, name="some", figures={"itl_p50_s": 0.01, "ttft_p95_s": 1.0})
    found = Calibration(
        gpu="H200-SXM", model="Qwen3-4B", constants={}, errors={}, observations=(some, some),
        before=({"itl_p50_s": 0.02}, {"itl_p50_s": 0.012}),
        after=({"itl_p50_s": 0.011}, {}),
    )  # fmt: skip
    assert errors_of(found)["itl_p50_s"] == pytest.approx((1.0, 0.1, 1, 1))
    before, after, runs, missing = errors_of(found)["ttft_p95_s"]
    assert before != before
    assert after != after
    assert (runs, missing) == (0, 2)
    show(_figures(found))
    shown = capsys.readouterr().out
    assert "1 (1 more without a prediction)" in shown
    assert "nan" not in shown


def test_every_figure_of_a_fit_has_a_name():
    assert set(NAMES) == set(FIGURES)


def test_runs_of_a_model_in_a_folder_that_is_not_here_name_the_option(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)  # a checkout where vLLM was measured may have that folder
    assert run(["calibrate", str(PROBE)]) == 2
    said = capsys.readouterr().err
    assert "calibrate: unknown model 'models/qwen3-4b-shape'" in said
    assert "--model NAME" in said


def test_every_free_constant_has_a_load_that_tells_it():
    assert set(TOLD_BY) == set(FREE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Twin runs on disk, and the same as if they had been measured."""
    folder = tmp_path_factory.mktemp("calibrate")
    (folder / "study.yaml").write_text(STUDY)
    assert run(["study", str(folder / "study.yaml"), "--out", str(folder / "runs"), "--quiet"]) == 0
    return folder / "runs"


def test_twins_teach_nothing(runs):
    with pytest.raises(BadInput, match="a twin cannot be calibrated on itself"):
        read_observations([runs])
    assert run(["calibrate", str(runs)]) == 2


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no finished run"):
        read_observations([tmp_path])
    with pytest.raises(BadInput, match="no such folder"):
        read_observations([tmp_path / "missing"])


def test_stored_runs_are_read_with_their_lengths_and_repeats(runs, tmp_path):
    for name in ("baseline-r1", "eager-r1"):
        path = runs / name / "run.json"
        body = json.loads(path.read_text())
        body["facts"]["source"] = "measured"
        body["facts"]["server"]["kv_tokens"] = 640_000
        path.write_text(json.dumps(body))
    base, eager = sorted(read_observations([runs]), key=lambda o: o.name)
    assert (base.name, eager.name, base.repeats) == ("baseline", "eager", 1)
    assert (base.prompt_extra, base.kv_tokens) == (0, 640_000)
    assert eager.figures["itl_p50_s"] > 3 * base.figures["itl_p50_s"]
    # What was "measured" is what the twin says of itself.
    start = known_constants(base.configuration)
    assert simulate(base, start)["itl_p50_s"] == pytest.approx(base.figures["itl_p50_s"], rel=1e-6)


def test_a_study_file_names_a_calibration_and_the_results_say_so(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "twin: {calibration: host.json}\n")
    file = tmp_path / "host.json"
    file.write_text('{"schema": 1, "gpu": "H200-SXM", "constants": {"step_gap_ns": 5000000}}')
    base = load_study(path).baseline.configuration
    twin = twin_of(base)
    assert (twin.constants.name, twin.constants.step_gap_ns) == ("calibrated", 5_000_000)
    # On another GPU it says nothing.
    assert twin_of(replace(base, gpu="H100-SXM")).constants.name == "prior"
    assert run(["study", str(path), "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    stored = read_run(tmp_path / "runs" / "baseline-r1")
    assert stored.facts.server["constants"] == "calibrated"
    assert stored.summary.itl_s.p50 > 0.005
    assert stored.meta.configuration.calibration == base.calibration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "host.json is no calibration file"),
        ('{"schema": 1, "gpu": "H200-SXM", "constants": {"a": 0}}', "is damaged"),
        ("nothing", "cannot be read"),
    ],
)
def test_a_bad_calibration_file_is_one_line_with_its_place(tmp_path, text, message):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "twin: {calibration: host.json}\n")
    (tmp_path / "host.json").write_text(text)
    with pytest.raises(BadInput, match=message):
        load_study(path)
    path.write_text(path.read_text().replace("engine: twin", "engine: sglang"))
    with pytest.raises(BadInput, match="twin belongs to an engine that the twin models"):
        load_study(path)


def test_constants_of_other_names_are_refused():
    configuration = Configuration("Qwen3-4B", Knobs(), gpu="H200-SXM")
    with pytest.raises(BadInput, match="did you mean"):
        calibrated(configuration, {"step_gap": 1.0})
    with pytest.raises(BadInput, match="above 0"):
        calibrated(configuration, {"step_gap_ns": 0.0})


def test_runs_without_the_times_of_chunks_teach_what_their_records_say(tmp_path):
    """Trimmed results keep the chunks of one repeat; the figures of the others are in run.json."""
    full = Path(__file__).parents[2] / "results" / "h200" / "knobs" / "seqs-64-r1"
    trimmed = tmp_path / "seqs-64-r1"
    shutil.copytree(full, trimmed)
    (trimmed / "chunks.parquet").unlink()
    run = json.loads((trimmed / "run.json").read_text())
    (trimmed / "run.json").write_text(json.dumps({**run, "left_out": ["chunks.parquet"]}))
    (whole,), (rest,) = read_observations([full]), read_observations([trimmed])
    assert len(whole.figures) == 8
    assert rest.figures == pytest.approx(dict(whole.figures))
