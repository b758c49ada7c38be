"""What is said after a tuning: knobs' worth, envelope, certificate, page; the recommendation."""

from contextlib import closing
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.slo import parse_slo
from ridgeline.experiment.engines import engine_named
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.tunetext import ablation_rows, manager, reach_words
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.outcome import Reach, TuneResult, read_result
from ridgeline.tuning.setting import setting_of
from ridgeline.tuning.trial import Candidate, Miss, Trial
from ridgeline.workload.studyfile import parse_study
from support.tunedengine import setting

STUDY = """\
name: after
model: Qwen/Qwen3-4B
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
tune: {only: true, finalists: 1, space: {max_num_seqs: [8, 64]}}
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    folder = tmp_path_factory.mktemp("after")
    (folder / "after.yaml").write_text(STUDY)
    out = folder / "out"
    assert run(["tune", str(folder / "after.yaml"), "--trials", "2", "--quiet",
                "--out", str(out)]) == 0  # fmt: skip
    found = read_result(out)
    assert found is not None
    return out, found


def test_a_single_knob_is_worth_what_the_duel_says(tuned: tuple[Path, TuneResult]) -> None:
    (bought,) = tuned[1].ablation
    assert bought.knob == "max_num_seqs"
    assert bought.ratio == pytest.approx(tuned[1].duel.duelists[1].ratio)  # type: ignore[union-attr]
    assert "predicted by the twin" in ablation_rows(tuned[1].ablation)[0]


def test_the_envelope_says_where_the_winner_ceases_to_hold(tuned: tuple[Path, TuneResult]) -> None:
    reaches = {r.what: r for r in tuned[1].envelope}
    assert set(reaches) == {"load", "prompt lengths", "output lengths"}
    assert reaches["load"].down is None, "with fewer users the larger ceiling costs nothing"
    assert reach_words(Reach("load", None, 2.0, 0.25, 3.0, "baseline")) == (
        "load: not up to x 2 (tried x 0.25 to x 3); there baseline wins"
    )


def test_the_certificate_names_the_bounds(tuned: tuple[Path, TuneResult]) -> None:
    body = tuned[1].certificate
    assert 0 < body["share_of_any"] <= body["share_of_own"] * 1.001
    assert "of the bound of any setting" in body["lines"][0]


def test_the_manager_reads_gpus_and_dollars(tuned: tuple[Path, TuneResult]) -> None:
    text = manager(tuned[1]) or ""
    assert text.startswith("The tokens that take 10 GPUs now take ")
    before, after = (s.usd_per_million_output_tokens for s in (tuned[1].baseline, tuned[1].winner))
    assert f"costs ${after:.3g} instead of ${before:.3g}" in text


def test_the_page_and_the_console_show_the_tuning(
    tuned: tuple[Path, TuneResult], capsys: pytest.CaptureFixture[str]
) -> None:
    page = render(load_report(tuned[0]))
    for words in ("The tuning", "The duel: the baseline against the finalists", "What each knob",
                  "How far the traffic may move", "The search: 2 trials", "max_num_seqs=64",
                  "the baseline, which everything is held against", "vllm serve"):  # fmt: skip
        assert words in page, words
    capsys.readouterr()
    assert run(["report", str(tuned[0])]) == 0
    shown = capsys.readouterr().out
    assert "Serve with max_num_seqs=64" in shown
    assert run(["report", str(tuned[0] / "trials")]) == 0


def test_a_tuning_that_was_stopped_can_be_reported_on(tmp_path: Path) -> None:
    from support.tunedengine import TEN, Listed, TunedEngine, session  # noqa: PLC0415

    with session(tmp_path, Listed(TEN[:1]), TunedEngine()) as begun:
        begun._begin()
    assert load_report(tmp_path).rows[0].name == "baseline"


def test_a_twin_that_measurements_contradict_is_demoted(tmp_path: Path) -> None:
    """C-SI-01: predicted far above what is measured; the prediction had a band."""
    study = parse_study(STUDY)
    base = setting_of(study)
    with closing(Oracle(base, tmp_path, cores=1)) as oracle:
        (expected,) = oracle.expect([Candidate()])
        assert expected.value is not None
        assert expected.low is not None
        assert expected.low < expected.value < (expected.high or 0)
        oracle.setting = _on_vllm(base)
        miss = (Miss("ttft_p95_ms", 400, 900, 800, 1000, False),)
        trial = Trial(1, Candidate(), "infeasible", value=1.0, limits=miss, run="trial-001-r1")
        oracle.learn([trial], tmp_path, {1: 100.0})
        assert "the twin is demoted: 1 of 1 measured throughputs" in (oracle.demoted or "")
        (wary,) = oracle.expect([Candidate({"max_num_seqs": 64})])
    assert wary.refused is None


def _on_vllm(base):  # type: ignore[no-untyped-def]
    from dataclasses import replace  # noqa: PLC0415

    return replace(base, configuration=replace(base.configuration, engine="vllm"))


def test_a_fit_that_no_calibration_file_may_hold_does_not_end_a_tuning(tmp_path: Path) -> None:
    from concurrent.futures import Future  # noqa: PLC0415

    body = {"schema": 1, "gpu": "H200-SXM", "constants": {"step_gap_ns": 1e30}}
    with closing(Oracle(setting_of(parse_study(STUDY)), tmp_path, cores=1)) as oracle:
        oracle._fit = Future()
        oracle._fit.set_result(body)
        (expected,) = oracle.expect([Candidate()])
    assert expected.value is not None
    assert "the twin was not calibrated" in oracle.notes[0]
    with closing(Oracle(setting_of(parse_study(STUDY)), tmp_path, cores=1)):
        pass  # nor is it found when the tuning goes on


def test_without_a_gpu_nothing_is_expected(tmp_path: Path) -> None:
    with closing(Oracle(setting(), tmp_path)) as oracle:
        (expected,) = oracle.expect([Candidate()])
    assert (expected.value, expected.refused, expected.feasible) == (None, None, 0.5)


def test_engines_are_made_once_and_a_twin_needs_no_start(tmp_path: Path) -> None:
    base = setting_of(parse_study(STUDY))
    with LastingEngines(engine_named, 3, base.configuration) as engines:
        assert engines("twin") is engines("twin")
        assert engines.is_up(base.configuration)
    assert parse_slo("")
