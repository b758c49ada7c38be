"""A ranking that measurements contradict is not relied on (884 predicted, 192 measured)."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.bands import TOKENS
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.experiment.calibrating import Observation, simulate
from ridgeline.experiment.heldagainst import Agreement, Held, agreement, hold
from ridgeline.experiment.predicting import Predictor
from ridgeline.twin.constants import priors_for

ROOT = Path(__file__).parents[2]
KNOBS = ROOT / "results" / "h200" / "knobs"


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The study of the stored runs, with the shape's own name for its model."""
    path = tmp_path_factory.mktemp("plan") / "knobs.yaml"
    text = (ROOT / "studies" / "h200-knobs.yaml").read_text()
    path.write_text(text.replace("models/qwen3-4b-shape", "Qwen/Qwen3-4B"))
    return path


def honest(measured: float) -> Held:
    """A throughput whose prediction is 1 with an error of a factor e at one sigma."""
    z = 1.6449
    return Held("x", TOKENS, measured, 1.0, math.exp(-z), math.exp(z))


def test_a_measurement_that_no_chance_explains_demotes_and_one_inside_does_not():
    wrong = Held("best", TOKENS, 192.0, 884.0, 700.0, 1100.0)  # 11 sigma off
    right = Held("base", TOKENS, 800.0, 884.0, 700.0, 1100.0)
    assert wrong.outside
    assert not right.outside
    assert agreement([right, wrong]) == Agreement({TOKENS: (1, 2)}, (TOKENS,))
    assert not agreement([right]).demoted
    # a latency that no chance explains demotes too: candidates are ranked by limits on it
    late = Held("base", "itl_s.p95", 0.09, 0.02, 0.01, 0.04)  # 3.6 sigma off
    assert agreement([right, late]).against == ("itl_s.p95",)
    near = Held("base", "itl_s.p95", 0.045, 0.02, 0.01, 0.04)  # 1.9 sigma
    assert agreement([right, near]) == Agreement({TOKENS: (0, 1), "itl_s.p95": (1, 1)})
    # what the twin refuses and an engine ran is a contradiction too
    assert agreement([Held("base", TOKENS, 800.0, refused="it does not fit")]).demoted


def test_a_prediction_without_a_band_is_not_known():
    bare = Held("base", TOKENS, 800.0, 884.0)
    assert bare.outside is None
    assert agreement([bare]) == Agreement({})
    assert not agreement([bare]).demoted
    assert (agreement([]).outside, agreement([]).known) == (0, 0)


@pytest.mark.parametrize(("outside", "of", "demotes"), [
    (1, 1, False), (1, 8, False), (2, 8, False), (3, 8, True), (2, 3, True), (1, 3, False),
    (3, 12, False), (4, 12, True),
])  # fmt: skip
def test_how_many_outside_are_too_many(outside, of, demotes):
    """Binomial with a tenth each, by hand: 3 or more of 8 come in 3.8 %, 2 or more in 18.7 %; 2 or
    more of 3 in 2.8 %; 4 or more of 12 in 2.6 %, 3 or more in 11.1 %.
    """
    just_outside = [honest(math.exp(1.7)) for _ in range(outside)]
    inside = [honest(1.0) for _ in range(of - outside)]
    found = agreement([*just_outside, *inside])
    assert found == Agreement({TOKENS: (outside, of)}, (TOKENS,) if demotes else ())
    assert found.expected == pytest.approx(of / 10)


FIGURES = (TOKENS, "ttft_s.p95", "itl_s.p95")


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("experiments", [3, 7, 12])
def test_an_honest_twin_is_seldom_demoted_and_a_biased_one_mostly(experiments, together):
    """With three figures an experiment whose errors are independent, or one and the same."""
    rng = random.Random(1)

    def measured(bias: dict[str, float]) -> list[Held]:
        found = []
        for _ in range(experiments):
            one = rng.gauss(0, 1)
            for path in FIGURES:
                error = bias.get(path, 0.0) + (one if together else rng.gauss(0, 1))
                found.append(replace(honest(math.exp(error)), path=path))
        return found

    def share(bias: dict[str, float]) -> float:
        return sum(agreement(measured(bias)).demoted for _ in range(2000)) / 2000

    assert share({}) < 0.1  # one of three figures outside was enough: more than 60 %
    for path in FIGURES:  # each by itself; three experiments tell less
        assert share({path: 2.5}) > (0.8 if experiments == 3 else 0.9)


def test_what_is_held_against_a_run_has_its_template_tokens():
    """1 500 of them a prompt here: the same figures as a calibration simulates for that run."""
    load = Workload(
        Arrivals(users=24), Prompts(Lengths(128, 0.5)), Outputs(Lengths(32, 0.5)),
        duration_s=4.0, warmup_s=1.0, seed=3,
    )  # fmt: skip
    served = Configuration("Qwen3-4B", Knobs(max_model_len=4096), "vllm", gpu="H200-SXM")
    bare = Observation("x", served, load, {"output_tokens_per_s": 1000.0, "ttft_p95_s": 0.5})
    long = replace(bare, prompt_extra=1500)
    twin = replace(served, engine="twin")
    for one in (bare, long):
        expected = simulate(one, priors_for("H200-SXM"))
        held = {h.path: h.predicted for h in hold([one], Predictor(Slo()), twin)}
        assert held[TOKENS] == pytest.approx(expected["output_tokens_per_s"], rel=1e-9)
    slow, quick = (hold([o], Predictor(Slo()), twin)[1].predicted for o in (long, bare))
    assert slow > 3 * quick


def test_real_runs_of_an_h200_with_one_of_eight_outside_do_not_contradict_the_priors(study, capsys):
    """64 slots without larger graphs: that host's launches were slower than the priors."""
    out = study.with_suffix(".json")
    arguments = ["plan", str(study), "--runs", str(KNOBS), "--top", "1", "--json", str(out)]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = (
        "Not contradicted: 1 of 8 output tokens/s, 1 of 8 p95 TTFT, 2 of 8 p95 ITL outside their"
        " 90 % bands, one of ten expected."
    )
    assert said in shown
    assert "in an order that measurements contradict" not in shown
    assert "None of them was started" in shown
    body = json.loads(out.read_text())
    assert body["ranking_demoted"] is False
    assert body["figures_held"]["itl_s.p95"] == {"outside": 2, "of": 8, "contradicts": False}
    assert body["throughputs_held"] == {"outside": 1, "of": 8, "expected": pytest.approx(0.8)}
    tokens = {h["experiment"]: h for h in body["measured"] if h["figure"] == TOKENS}
    assert set(tokens) == {"seqs-32", "seqs-64", "seqs-64-capture-1024", "seqs-128", "fp8",
                           "fp8-seqs-64-capture-1024", "eager", "users-250"}  # fmt: skip
    assert tokens["seqs-64"]["measured"] == pytest.approx(3320, rel=0.01)
    assert tokens["seqs-64"]["measured"] < tokens["seqs-64"]["low"]
    assert not tokens["seqs-32"]["outside"]


def test_real_runs_that_are_far_off_contradict_the_plan_and_it_says_so(study, capsys, tmp_path):
    """The same runs with a throughput of a tenth of what was measured at 32 slots."""
    copy = tmp_path / "knobs"
    shutil.copytree(KNOBS, copy)
    for path in copy.glob("seqs-32-r*/run.json"):
        body = json.loads(path.read_text())
        for name in ("output_tokens_per_s", "chunks_per_s"):
            body["summary"]["throughput"][name] /= 10
        path.write_text(json.dumps(body))
    out = study.with_suffix(".json")
    arguments = ["plan", str(study), "--runs", str(copy), "--top", "1", "--json", str(out)]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "The twin is contradicted: 2 of 8 output tokens/s, 1 of 8 p95 TTFT, 2 of 8 p95 ITL"
    assert said in shown
    assert "in an order that measurements contradict" in shown
    assert json.loads(out.read_text())["ranking_demoted"] is True


def test_runs_of_another_gpu_are_refused_in_one_line(study, capsys):
    other = study.with_name("h100.yaml")
    other.write_text(study.read_text().replace("H200-SXM", "H100-SXM"))
    assert run(["plan", str(other), "--runs", str(KNOBS)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "the runs are from H200-SXM, the plan is for H100-SXM" in said[0]
