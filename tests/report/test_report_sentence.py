"""The one sentence: a winner only where the data carry one."""

from dataclasses import replace

from study_factory import CASES, Case, bench, study

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Workload
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.load import load_report
from ridgeline.report.model import COST, Difference, StudyReport
from ridgeline.report.sentence import answer
from ridgeline.store.study_directory import StudyDirectory

T = "\u2009"
BASE, SEQS, FP8 = CASES[0], CASES[2], CASES[4]
FAST_BASE = replace(BASE, ttft=1.5)


def difference(report: StudyReport, name: str, found: Difference) -> StudyReport:
    rows = tuple(
        replace(r, against_baseline={COST: found}) if r.name == name else r for r in report.rows
    )
    return replace(report, rows=rows)


def test_a_clear_winner_is_named_with_its_figures_and_interval():
    report = difference(
        study(cases=(FAST_BASE, SEQS)),
        "seqs-64",
        Difference(-0.274, -0.31, -0.22, "clearly better", 3),
    )
    found = answer(report)
    assert found.text == (
        f"On 4 H100-SXM, seqs-64 (max_num_seqs 64) serves 400 users at 1{T}780 ms p95 TTFT and "
        "7.30 ms p95 ITL for $0.363 per million output tokens: 27 % cheaper than the baseline "
        "(95 % interval 22 to 31 %)."
    )
    assert (found.tone, found.row, found.notes) == ("good", "seqs-64", ())


def test_a_cheaper_point_without_a_clear_difference_wins_nothing():
    report = difference(
        study(cases=(FAST_BASE, SEQS)),
        "seqs-64",
        Difference(-0.03, -0.08, 0.02, "no clear difference", 3),
    )
    found = answer(report)
    assert found.row == "graphs"
    assert found.tone == "neutral"
    assert found.text.startswith(
        "The baseline stands: nothing is clearly cheaper than the baseline inside the SLO."
    )
    assert "no clear difference" in found.text
    assert "3.0 % cheaper than the baseline (95 % interval −2.0 to 8.0 %)" in found.text


def test_where_the_baseline_misses_the_slo_the_cheapest_inside_is_named_as_that():
    report = difference(
        study(cases=(BASE, SEQS)), "seqs-64", Difference(0.01, -0.02, 0.04, "no clear difference")
    )
    found = answer(report)
    assert found.row == "seqs-64"
    assert (
        f"inside the SLO, which the baseline misses (p95 TTFT 3{T}030 ms, limit 2{T}000 ms)"
        in found.text
    )


def test_nothing_meets_the_slo_names_the_nearest_miss():
    # fp8 misses by 1.42, the baseline by 1.515, the third by 2.9.
    found = answer(study(cases=(BASE, CASES[3], FP8)))
    assert found.tone == "bad"
    assert found.row == "fp8"
    assert found.text == (
        "No experiment meets the SLO. The nearest miss is fp8 (quantization fp8): "
        f"p95 TTFT 2{T}840 ms, limit 2{T}000 ms."
    )


def test_a_lighter_load_cannot_win():
    light = Case("light", "10 users", 0.1, 0.004, 9000.0, users=10)
    found = answer(study(cases=(BASE, light)))
    assert found.row == "graphs"
    assert found.text.startswith("No experiment meets the SLO.")
    assert "light meets it, but serves 10 users." in found.notes


def test_rivals_whose_intervals_overlap_are_named():
    twin = replace(SEQS, name="also-64", tokens=12150.0)
    found = answer(study(cases=(BASE, SEQS, twin)))
    assert found.row == "also-64"
    assert "Not clearly apart from it: seqs-64 (their 95 % intervals overlap)." in found.notes


def test_void_runs_never_win():
    report = study(cases=(FAST_BASE, SEQS))
    rows = tuple(replace(r, void=r.name == "seqs-64") for r in report.rows)
    assert answer(replace(report, rows=rows)).row == "graphs"
    rows = tuple(
        replace(
            r,
            void=True,
            runs=tuple(replace(x, state="void", reasons=("client limit",)) for x in r.runs),
        )
        for r in report.rows
    )
    found = answer(replace(report, rows=rows))
    assert found.tone == "bad"
    assert found.text.startswith("No experiment has a valid run: client limit.")


def test_no_slo_is_not_called_inside_one():
    report = study(cases=(BASE, SEQS))
    rows = tuple(
        replace(r, summary=replace(r.summary, slo=())) for r in report.rows if r.summary is not None
    )
    found = answer(replace(report, rows=rows, slo=Slo()))
    assert found.row == "seqs-64"
    assert "SLO" not in found.text
    assert found.tone == "neutral"


def test_half_of_the_requests_failed_is_a_red_headline():
    found = answer(bench(50))
    assert found.tone == "bad"
    assert "∞ (50 % failed) p95 TTFT" in found.text
    assert found.notes == (
        "50 of 100 requests failed (error rate 0.50); throughput and cost count successes only.",
    )


def test_errors_without_an_slo_are_red_too():
    assert answer(bench(3, slo=Slo())).tone == "bad"
    assert answer(bench(0, slo=Slo())).tone == "neutral"


def test_nothing_measured():
    assert answer(replace(bench(), rows=())).text == "No run has been made yet."


def quantised(report: StudyReport, name: str, **knobs: str) -> StudyReport:
    rows = []
    for row in report.rows:
        configuration = row.configuration
        assert configuration is not None
        if row.name == name:
            changed = configuration.knobs.with_changes(knobs)
            configuration = replace(configuration, knobs=changed)
        rows.append(replace(row, configuration=configuration))
    return replace(report, rows=tuple(rows))


def test_a_winner_with_other_numerics_says_that_quality_was_not_checked():
    report = difference(
        study(cases=(FAST_BASE, SEQS)),
        "seqs-64",
        Difference(-0.274, -0.31, -0.22, "clearly better", 3),
    )
    assert "numerics" not in answer(report).text
    for knobs in ({"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}, {"dtype": "float16"}):
        found = answer(quantised(report, "seqs-64", **knobs))
        (knob,) = knobs
        assert found.text.endswith(f"Its numerics change ({knob}): output quality was not checked.")
    # the same numbers in both are no change
    both = quantised(quantised(report, "graphs", quantization="fp8"), "seqs-64", quantization="fp8")
    assert "numerics" not in answer(both).text


def test_without_limits_and_without_the_studys_load_the_sentence_is_whole():
    """Only a lighter load has a valid run, and there is no SLO to speak of."""
    report = study(cases=(BASE, CASES[9]))
    rows = [replace(r, summary=replace(r.summary, slo=())) for r in report.rows if r.summary]
    rows[0] = replace(rows[0], void=True)
    text = answer(replace(report, rows=tuple(rows), slo=Slo())).text
    assert text == (
        "No experiment under the study's load (400 users) has a valid run; valid are only:"
        " single-gpu (100 users)."
    )


def test_a_run_that_was_never_steady_has_no_headline_number(tmp_path):
    """A rate above what the twin carries, its queue growing to the end: a verdict, no figure."""
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=8), "twin", gpu="H100-SXM")
    workload = Workload(Arrivals(rate_per_s=20), outputs=Outputs(Lengths(100)), duration_s=20)
    plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
    run_plan(plan, StudyDirectory(tmp_path), lambda _: TwinEngine(), SilentStudyWatch(),
             command="x")  # fmt: skip
    found = answer(load_report(tmp_path, details=False))
    assert found.tone == "bad"
    assert found.text.startswith("The run is void: not steady")
    assert "tokens/s" not in found.text
    assert "p95" not in found.text


def test_percentiles_that_too_few_requests_do_not_support_are_told_once(tmp_path):
    """Twelve requests: no p95 of anything, and a headline that can still be read."""
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(), "twin", gpu="H100-SXM")
    workload = Workload(
        Arrivals(users=2), outputs=Outputs(Lengths(2)), duration_s=30, warmup_s=1, requests=12
    )
    plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
    run_plan(plan, StudyDirectory(tmp_path), lambda _: TwinEngine(), SilentStudyWatch(),
             command="x")  # fmt: skip
    text = answer(load_report(tmp_path, details=False)).text
    assert text.count("n too small") == 1
    assert "at no p95 TTFT or p95 ITL (n too small: 12 of the 100 values that a p95 needs)" in text
