"""What is said after a tuning: knobs' worth, envelope, certificate, page; the recommendation."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.slo import parse_slo
from ridgeline.experiment.engines import engine_named
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.numbers import dollars
from ridgeline.report.tunetext import ablation_rows, envelope_rows, manager, reach_words
from ridgeline.tuning.envelope import NOTHING, SHARED, beaten_by, reach_of, shared, shared_today
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.outcome import TuneResult, read_result
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
    assert set(reaches) == {"load", "prompt lengths", "output lengths", SHARED}
    load = reaches["load"]
    assert load.down is None, "with fewer users the larger ceiling costs nothing"
    assert load.up is not None
    assert "the winner breaks its targets (ttft_p95_ms" in (load.up_why or "")
    assert load.down_why is None
    rows = {row[0]: row for row in envelope_rows(tuned[1].envelope)}
    assert rows["load"][1:3] == (f"from × 0.25 below × {load.up:g}", "not looked at")
    assert rows["load"][3].startswith(f"at × {load.up:g}: the winner breaks its targets")
    assert reaches[SHARED].at == 0.0
    assert "(today 0%)" in rows[SHARED][1]


def test_each_end_of_the_envelope_has_its_own_reason() -> None:
    ends = {
        0.5: ("a=1", "a=1 gives 5.0 % more"),
        0.7: None,
        1.4: None,
        2.0: (NOTHING, "the winner breaks its targets (x)"),
    }
    found = reach_of("load", ends, 1.0, share=False)
    assert (found.down, found.down_why) == (0.5, "a=1 gives 5.0 % more")
    assert (found.up, found.up_why) == (2.0, "the winner breaks its targets (x)")
    assert reach_words(found) == (
        "load: above × 0.5, below × 2; at × 0.5 a=1 gives 5.0 % more; at × 2 the winner breaks its"
        " targets (x)"
    )
    whole = reach_of("load", {0.5: None, 2.0: None}, 1.0, share=False)
    assert reach_words(whole) == "load: from × 0.5 to × 2; which is as far as was looked"


def test_a_larger_shared_part_leaves_prompts_as_long() -> None:
    load = setting_of(parse_study(STUDY)).workload
    for share in (0.25, 0.9):
        moved = shared(load, share)
        assert shared_today(moved) == pytest.approx(share, abs=0.01)
        assert moved.mean_prompt_tokens == pytest.approx(load.mean_prompt_tokens, abs=1)


def test_a_cache_that_only_a_rival_has_wins_where_prompts_are_shared(tmp_path: Path) -> None:
    """The winner has no prefix cache: with nine tenths in common the one that has is better."""
    study = parse_study(
        STUDY.replace("tokens: {min: 100, max: 300}", "tokens: {min: 1500, max: 2500}")
    )
    with closing(Oracle(setting_of(study), tmp_path, cores=1)) as oracle:
        load = oracle.setting.workload
        rivals = [Candidate({"max_num_seqs": 16}),
                  Candidate({"max_num_seqs": 16, "enable_prefix_caching": True})]  # fmt: skip
        oracle.setting = replace(oracle.setting, slo=parse_slo(""))
        alike = beaten_by(oracle, oracle.under([(c, load) for c in rivals]))
        most = beaten_by(oracle, oracle.under([(c, shared(load, 0.9)) for c in rivals]))
    assert alike is None
    assert most is not None
    assert "enable_prefix_caching=True" in most[0]
    assert re.search(r"gives \d+(\.\d+)? % more", most[1])


def test_the_certificate_names_the_bounds(tuned: tuple[Path, TuneResult]) -> None:
    body = tuned[1].certificate
    assert 0 < body["share_of_any"] <= body["share_of_own"] * 1.001
    bounds, left = body["lines"]
    assert "of the roofline bound over all weights and KV types" in bounds
    assert left.startswith("By the twin, its constants prior and fitted to nothing measured here")


def test_the_manager_reads_gpus_and_dollars(tuned: tuple[Path, TuneResult]) -> None:
    text = manager(tuned[1]) or ""
    assert text.startswith("The tokens that take 10 GPUs now take ")
    before, after = (s.usd_per_million_output_tokens for s in (tuned[1].baseline, tuned[1].winner))
    assert f"costs {dollars(after)} instead of {dollars(before)}" in text


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
