"""What a calibration is of: a card by its figures, a model by its shape; what a file may say."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.cli.twin import _spec
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Calibration, Configuration, Knobs, Served
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine, twin_of
from ridgeline.engines.twin_scope import scope_notes, scope_of
from ridgeline.experiment.calibrating import read_observations
from ridgeline.experiment.plan import fingerprint
from ridgeline.workload.calibrationfile import read_calibration
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.study import override
from ridgeline.workload.studyfile import load_study

ROOT = Path(__file__).parents[2]
KNOBS = ROOT / "results" / "h200" / "knobs"
STORED = ROOT / "validation" / "data" / "h200-probe.json"
CARD = {
    "name": "My-GPU", "compute_capability": "9.0", "memory_bytes": 80e9,
    "bandwidth_bytes_per_s": 1.0e12, "bf16_flops": 200e12,
}  # fmt: skip
STUDY = """
name: mine
model: Qwen/Qwen3-4B
engine: twin
hardware: {{gpu: {gpu}}}
workload:
  arrivals: {{users: 4}}
  prompts: {{tokens: 64}}
  output_tokens: {{mean: 16}}
  duration_s: 3
  warmup_s: 1
baseline: {{max_num_seqs: 16, max_model_len: 4096}}
experiments: []
repeats: 1
"""
HOST = Configuration("Qwen/Qwen3-4B", Knobs(max_model_len=4096), gpu="H200-SXM")


def card(folder: Path, **changes: Any) -> None:
    (folder / "card.yaml").write_text(json.dumps({**CARD, **changes}))


def calibration(folder: Path, **changes: Any) -> Path:
    body = {**json.loads(STORED.read_text()), **changes}
    path = folder / "host.json"
    path.write_text(json.dumps({n: v for n, v in body.items() if v is not ...}))
    return path


def test_a_calibration_of_another_card_with_the_same_name_is_not_applied(tmp_path: Path) -> None:
    card(tmp_path)
    (tmp_path / "s.yaml").write_text(
        STUDY.format(gpu="./card.yaml") + "twin: {calibration: host.json}\n"
    )
    calibration(tmp_path, gpu="My-GPU", gpu_figures=CARD)
    same = load_study(tmp_path / "s.yaml").baseline.configuration
    assert twin_of(same).constants.name == "calibrated"
    assert not any("another GPU" in note for note in scope_notes(same))
    card(tmp_path, bandwidth_bytes_per_s=3.0e12)
    other = load_study(tmp_path / "s.yaml").baseline.configuration
    assert twin_of(other).constants.name == "prior"
    (note,) = scope_notes(other)
    assert note == (
        "the calibration is of another GPU that is called My-GPU too (bandwidth_bytes_per_s 1e+12,"
        " here 3e+12): this one is predicted with its priors"
    )
    # an older file does not tell: applied by its name, and that is said
    calibration(tmp_path, gpu="My-GPU", gpu_figures=...)
    untold = load_study(tmp_path / "s.yaml").baseline.configuration
    assert twin_of(untold).constants.name == "calibrated"
    assert any("does not say the figures of My-GPU" in note for note in scope_notes(untold))


def test_a_card_of_ones_own_is_not_taken_for_the_catalogues(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.format(gpu="./card.yaml"))
    card(tmp_path, name="h200 SXM")
    with pytest.raises(BadInput, match=r"is called H200-SXM.*give yours a name of its own"):
        load_study(tmp_path / "s.yaml")


def test_a_catalogue_gpus_calibration_is_not_that_of_a_stored_card_with_its_name() -> None:
    made = read_calibration(STORED)
    mine = replace(HOST, gpu_figures={**CARD, "name": "H200-SXM"}, calibration=made)
    assert scope_of(mine) is None
    assert twin_of(replace(HOST, calibration=made)).constants.name == "calibrated"
    assert twin_of(mine).constants.name == "prior"


def test_what_is_calibrated_on_a_card_says_its_figures(tmp_path: Path) -> None:
    from ridgeline.engines.twin import known_constants  # noqa: PLC0415
    from ridgeline.experiment.calibrating import Observation, calibrate, simulate  # noqa: PLC0415

    load = Workload(
        Arrivals(users=4), Prompts(Lengths(64)), Outputs(Lengths(16)), duration_s=2.0, warmup_s=1.0
    )
    served = Configuration(
        "Qwen/Qwen3-4B", Knobs(max_model_len=4096), "vllm", gpu="My-GPU", gpu_figures=CARD
    )
    blank = Observation("x", served, load, {})
    seen = replace(blank, figures=simulate(blank, known_constants(served)))
    body = calibrate([seen], names=("step_gap_ns",)).to_json()
    assert body["gpu_figures"] == CARD
    path = tmp_path / "host.json"
    path.write_text(json.dumps(body))
    assert read_calibration(path).gpu_figures == CARD


def test_a_study_of_a_card_is_reported_without_the_cards_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card(tmp_path)
    (tmp_path / "s.yaml").write_text(STUDY.format(gpu="./card.yaml"))
    out, page = tmp_path / "runs", tmp_path / "page.html"
    assert run(["study", str(tmp_path / "s.yaml"), "--out", str(out), "--quiet"]) == 0
    assert run(["report", str(out), "--html", str(page)]) == 0
    assert "My-GPU" in page.read_text()
    capsys.readouterr()


def test_all_that_was_fitted_counts_for_the_constants_are_pooled() -> None:
    def scoped(*fitted: Served) -> Configuration:
        return replace(
            HOST, calibration=Calibration("H200-SXM", {"step_gap_ns": 1e5}, fitted_on=fitted)
        )

    here = Served("Qwen/Qwen3-4B", "bf16", 1, "0.21")
    big = Served("meta-llama/Llama-3.1-70B", "fp8", 4, "0.21")
    assert scope_notes(scoped(here)) == ()
    for order in ((big, here), (here, big)):
        (note,) = scope_notes(scoped(*order))
        assert note.startswith(
            "the calibration was fitted on something else too: model meta-llama/Llama-3.1-70B (here"
            " Qwen/Qwen3-4B), weights fp8 (here bf16), tensor parallelism 4 (here 1);"
        )
        found = scope_of(scoped(*order))
        assert found is not None
        assert found.wider
    # on a tie both are named
    fp8, ranks = replace(here, model="Qwen/Qwen3-0.6B"), replace(here, weights="fp8")
    (note,) = scope_notes(scoped(fp8, ranks))
    assert "fitted on something else: model Qwen/Qwen3-0.6B (here" in note
    assert "weights fp8 (here bf16)" in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"constants": {}}, "holds no constant"),
        ({"constants": {"step_gap_ns": float("inf")}}, "step_gap_ns"),
        ({"constants": {"step_gap_ns": 1e308}}, "step_gap_ns"),
        ({"constants": {"gemm_flops_share": 50.0}}, "gemm_flops_share"),
        ({"constants": {"step_gap": 1e5}}, "did you mean"),
        ({"covariance": [[-1.0]]}, "covariance"),
        ({"covariance": [[1e5]]}, "covariance"),
        ({"constants": {"step_gap_ns": 1e5, "send_ns_per_chunk": 2e4},
          "covariance": [[1.0, 0.5], [-0.5, 1.0]]}, "covariance"),
        ({"constants": {"step_gap_ns": 1e5, "send_ns_per_chunk": 2e4},
          "covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance"),
        ({"residuals": {"foo": 0.1}}, "residuals"),
        ({"residuals": {"ttft_s.p95": 1e9}}, "residuals"),
        ({"gpu_figures": {"name": "x"}}, "figures"),
    ],
)  # fmt: skip
def test_a_calibration_file_with_what_no_fit_writes_is_refused_with_its_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    plain = {"constants": {"step_gap_ns": 1e5}, "covariance": [], "residuals": {}}
    read_calibration(calibration(tmp_path, **plain))
    path = calibration(tmp_path, **{**plain, **changes})
    with pytest.raises(BadInput, match=words) as error:
        read_calibration(path)
    assert "host.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("deviation", [20.0, 50.0])
def test_bands_that_cannot_be_had_are_not_left_out_in_silence(deviation: float) -> None:
    """A step gap of 0.1 ms that may be 13 hours, or longer than a clock can say."""
    load = Workload(
        Arrivals(users=4), Prompts(Lengths(64)), Outputs(Lengths(16)), duration_s=2.0, warmup_s=1.0
    )
    made = Calibration("H200-SXM", {"step_gap_ns": 1e5}, ("step_gap_ns",), ((deviation**2,),), {})
    with TwinEngine().start(replace(HOST, calibration=made)) as endpoint:
        plan = DrivePlan(draw_schedule(load), "b", bands=True)
        facts = endpoint.drive(plan, MemorySink(), SilentWatch())
    assert facts.errors == {}
    assert any("no bands" in note for note in facts.notes)


def test_a_vllm_study_names_its_calibration_for_plan_and_twin(tmp_path: Path) -> None:
    text = STUDY.format(gpu="H200-SXM").replace("engine: twin", "engine: vllm")
    (tmp_path / "s.yaml").write_text(text)
    bare = load_study(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text(text + "twin: {calibration: host.json}\n")
    calibration(tmp_path)
    study = load_study(tmp_path / "s.yaml")
    # what is measured does not depend on it, so neither does its fingerprint
    one, other = bare.baseline, study.baseline
    assert one.configuration == other.configuration
    assert fingerprint(one.configuration, one.workload, "chat", {}) == fingerprint(
        other.configuration, other.workload, "chat", {}
    )
    on_twin = override(study, engine="twin").baseline.configuration
    assert twin_of(on_twin).constants.name == "calibrated"
    assert _spec(tmp_path / "s.yaml", None).configuration == on_twin  # `ridgeline twin FILE`
    out = tmp_path / "plan.json"
    assert run(["plan", str(tmp_path / "s.yaml"), "--top", "1", "--json", str(out)]) in (0, 3)
    assert json.loads(out.read_text())["constants"] == "calibrated"
    (tmp_path / "s.yaml").write_text(
        (tmp_path / "s.yaml").read_text().replace("engine: vllm", "engine: sglang")
    )
    with pytest.raises(BadInput, match="not to sglang"):
        load_study(tmp_path / "s.yaml")


def renamed(folder: Path, name: str) -> Path:
    """One stored run, as if its model had been called so."""
    import shutil  # noqa: PLC0415

    target = folder / "seqs-32-r1"
    shutil.copytree(KNOBS / "seqs-32-r1", target)
    path = target / "run.json"
    text = path.read_text()
    path.write_text(re.sub(r'"model":\s*"models/qwen3-4b-shape"', f'"model": "{name}"', text))
    assert name in path.read_text()
    return target


def test_runs_of_another_shape_are_refused_and_those_of_an_unknown_one_are_said_to_be_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout may have the folder that the runs' model was in
    (tmp_path / "other").mkdir()
    other = renamed(tmp_path / "other", "meta-llama/Llama-3.1-8B-Instruct")
    with pytest.raises(BadInput, match=r"seqs-32 served meta-llama/Llama-3.1-8B-Instruct"):
        read_observations([other], "Qwen/Qwen3-4B")
    (tmp_path / "s.yaml").write_text(STUDY.format(gpu="H200-SXM"))
    assert run(["plan", str(tmp_path / "s.yaml"), "--runs", str(other)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "seqs-32 served meta-llama/Llama-3.1-8B-Instruct, which has another shape" in said[0]
    assert "--runs" in said[0]
    # its own name where that is known, the other where it is a folder that is not here
    (tmp_path / "same").mkdir()
    (same,) = read_observations([renamed(tmp_path / "same", "Qwen3-4B")], "Qwen/Qwen3-4B")
    assert (same.configuration.model, same.taken_for) == ("Qwen3-4B", None)
    arguments = [
        "plan",
        str(tmp_path / "s.yaml"),
        "--top",
        "1",
        "--runs",
        str(KNOBS / "seqs-32-r1"),
    ]
    run([*arguments, "--json", str(tmp_path / "out.json")])
    shown = " ".join(capsys.readouterr().out.split())
    words = "models/qwen3-4b-shape, whose shape is not known here, is taken for Qwen/Qwen3-4B"
    assert words in shown
    assert words in json.loads((tmp_path / "out.json").read_text())["measured_notes"][0]
