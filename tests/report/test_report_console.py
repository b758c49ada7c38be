"""The terminal says what the page says, at 80 columns and without colour."""

import io
from dataclasses import replace

from rich.console import Console
from study_factory import CASES, bench, study

from ridgeline.domain.summary import Band
from ridgeline.report import console
from ridgeline.report.html import render
from ridgeline.report.model import COST, Difference, ErrorLine

T = "\u2009"


def printed(renderable, width=80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, force_terminal=False).print(renderable)
    return out.getvalue()


def joined(text: str) -> str:
    return " ".join(text.split())


def test_a_study_fits_80_columns_and_needs_no_colour():
    text = printed(console.study(study()))
    assert max(map(len, text.splitlines())) <= 80
    for case in CASES:
        assert case.name in text
    assert "TWIN prediction, prior" in text
    assert "✓ inside the SLO" in text
    assert f"✗ 3{T}030" in text.replace("\u202f", T).replace(" 030", f"{T}030")
    assert "no clear difference" in joined(text)
    assert "35 of 36 runs valid, 1 void" in joined(text)
    assert "h200-3 void: the window is not steady" in joined(text)


def test_wide_terminals_also_get_intervals_and_published_values():
    text = printed(console.study(study()), 150)
    assert f"1{T}680–1{T}770 ms" in text
    assert f"pub. 12{T}400 chunks/s" in text


def test_a_prediction_stands_with_its_band_and_what_a_band_is():
    report = study()
    bands = {"ttft_s.p95": Band(0.2731, 1.019), COST: Band(0.0868, 0.1612)}
    rows = tuple(
        replace(r, summary=replace(r.summary, bands=bands)) if r.name == "final" else r
        for r in report.rows
    )
    assert "In brackets" not in printed(console.study(report), 150), "none has a band"
    report = replace(report, rows=rows)
    wide, narrow = joined(printed(console.study(report), 150)), printed(console.study(report), 80)
    for text in (wide.replace("\u202f", T), joined(render(report)).replace("\u202f", T)):
        assert f"[273–1{T}020 ms]" in text.replace("1 020", f"1{T}020")
        assert "[0.0868–0.161]" in text
        assert "nine times of ten, from how well the twin" in text
        assert "prior constants are known" in text
    assert "95 % interval, band, published" in joined(narrow)


def test_a_finding_against_the_expectation_is_told():
    assert "✗ not as expected (reversed)" in joined(printed(console.study(study())))


def test_half_failed_shows_in_words_and_numbers():
    report = bench(50)
    row = replace(
        report.rows[0],
        errors=(ErrorLine("timeout_first", 50, "no [bold]content[/bold] <script> in 10 s"),),
    )
    text = joined(printed(console.single_run(replace(report, rows=(row,)))))
    assert "errors: 50 of 100 requests failed (error rate 0.50)" in text
    # Markup of a server's text is text.
    assert 'timeout_first × 50: "no [bold]content[/bold] <script> in 10 s"' in text
    assert "SLO ✗ missed: error rate 0.50, at most 0.0010" in text
    assert "failures as ∞" in text
    assert "(successes only)" in text
    assert "MEASURED vLLM 0.32.0" in text


def test_ttft_from_intent_is_shown_when_it_differs_by_more_than_a_millisecond():
    report = bench()
    summary = report.rows[0].summary
    assert "TTFT from intent" not in printed(console.single_run(report)).split("p95 interval")[1]
    late = replace(summary.ttft_intent_s, p95=summary.ttft_s.p95 + 0.0011)
    row = replace(report.rows[0], summary=replace(summary, ttft_intent_s=late))
    text = printed(console.single_run(replace(report, rows=(row,))))
    assert "TTFT from intent" in text


def test_unsupported_percentiles_say_why():
    report = bench()
    summary = report.rows[0].summary
    few = replace(summary.ttft_s, p99=None, n=40)
    intervals = dict(summary.intervals) | {
        "ttft_s.p99": replace(summary.intervals["ttft_s.p95"], low=None, high=None,
                              reason="n too small: 40 of 500")
    }  # fmt: skip
    row = replace(report.rows[0], summary=replace(summary, ttft_s=few, intervals=intervals))
    line = next(
        x for x in printed(console.single_run(replace(report, rows=(row,)))).splitlines()
        if x.startswith("TTFT ")
    )  # fmt: skip
    assert "n too small" in line


def test_a_twin_behind_http_is_not_taken_for_a_real_engine():
    report = bench()
    badge = replace(report.badge, engine="ridgeline-twin", engine_version="0.1.0")
    text = joined(printed(console.single_run(replace(report, badge=badge))))
    assert "the server is a digital twin (ridgeline-twin 0.1.0)" in text


def test_tokens_per_gpu_are_only_told_where_the_gpus_are_known():
    assert "per GPU" not in printed(console.single_run(bench()))
    assert "per GPU" in printed(console.study(study()), 150)


def test_how_many_comparisons_and_how_pairs_were_measured_is_said():
    report = replace(study(), warnings=("fp8 and graphs are not interleaved in repeat 2",))
    text = joined(printed(console.study(report)))
    assert "not adjusted for the 11 comparisons" in text
    assert "about 0.6 would look clearly different by chance" in text
    assert "warning: fp8 and graphs are not interleaved in repeat 2" in text
    assert "adjusted" not in joined(printed(console.study(study(cases=CASES[:2]))))


def test_an_equal_figure_is_called_equal():
    report = study(cases=CASES[:2])
    equal = Difference(0.001, -0.002, 0.003, "no clear difference", 3, "equal within 0.5 %")
    rows = (report.rows[0], replace(report.rows[1], against_baseline={COST: equal}))
    text = joined(printed(console.study(replace(report, rows=rows)), 150))
    assert "+0.1 % (−0.2 to 0.3 %), equal within 0.5 %" in text


def test_other_numerics_stand_in_the_table():
    report = study(cases=CASES[:2])
    row = report.rows[1]
    assert row.configuration is not None
    knobs = row.configuration.knobs.with_changes({"quantization": "fp8"})
    changed = replace(row, configuration=replace(row.configuration, knobs=knobs))
    report = replace(report, rows=(report.rows[0], changed))
    assert "numerics change" in joined(printed(console.study(report)))
    page = render(report)
    assert "numerics change: output quality was not checked" in page


def test_a_limit_that_one_repeat_misses_is_explained_beside_a_mean_that_keeps_it():
    report = study(cases=CASES[:3])
    row = report.rows[2]
    assert row.summary is not None
    slo = tuple(
        replace(r, value=23.4, met=False) if r.limit.startswith("itl") else r
        for r in row.summary.slo
    )
    changed = replace(row, summary=replace(row.summary, slo=slo))
    report = replace(report, rows=(*report.rows[:2], changed))
    told = "p95 ITL 23.4 ms in its worst repeat"
    assert told in joined(printed(console.study(report), 150))
    assert told in render(report)
    # the eager row misses by its mean: there is nothing to explain
    assert printed(console.study(report), 150).count("worst repeat") == 1
