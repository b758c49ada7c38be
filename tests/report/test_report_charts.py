"""What the charts claim: edges, closures, quantiles, titles made from the data."""

from dataclasses import replace

import numpy as np
import pytest
from study_factory import BENCH_CASE, CASES, bench, study

from ridgeline.report.charts import build_charts
from ridgeline.report.charts.distribution import quantile_s
from ridgeline.report.charts.seconds import REST, accounted
from ridgeline.report.charts.tradeoff import pareto
from ridgeline.report.evidence import distribution
from ridgeline.report.model import Roof


def chart(report, key):
    return next(c for c in build_charts(report, "seqs-64") if c.key == key)


def test_the_pareto_edge_holds_what_nothing_beats():
    points = [(1.0, 10.0), (2.0, 9.0), (2.0, 12.0), (3.0, 12.0), (4.0, 13.0)]
    assert pareto(points) == [0, 2, 4]


def test_the_title_of_the_trade_off_names_the_best_inside_the_slo():
    title = chart(study(), "tradeoff").title
    assert title == (
        "fp8-seqs-64 gives the most tokens per GPU inside the SLO: 3\u2009280/s at "
        "1\u2009550 ms p95 TTFT"
    )


def test_the_slo_is_a_shaded_part_of_the_picture():
    view = chart(study(), "tradeoff").views["TTFT"]
    region = next(s for s in view.layout["shapes"] if s["type"] == "rect")
    assert region["x0"] == 2000
    assert region["fillcolor"] == "@forbidden"


def test_baseline_is_grey_and_colours_do_not_move_when_experiments_go():
    def colours(report):
        traces = chart(report, "tradeoff").views["TTFT"].data
        return {t["meta"]: t["marker"]["color"] for t in traces if "meta" in t}

    whole = colours(study())
    assert whole["graphs"] == "@base"
    assert len(set(whole.values())) <= 7
    looks = {(t["marker"]["color"], t["marker"]["symbol"])
             for t in chart(study(), "tradeoff").views["TTFT"].data if "meta" in t}  # fmt: skip
    assert len(looks) == len(CASES)
    part = colours(study(cases=CASES[:4]))
    assert all(whole[name] == colour for name, colour in part.items())


def test_seconds_that_are_missing_from_the_account_are_shown():
    summary = study().rows[0].summary
    parts = accounted(replace(summary, accounting={"queue": 1.0, "decode": 0.5},
                              e2e_s=replace(summary.e2e_s, mean=2.0)))  # fmt: skip
    assert parts == {"queue": 1.0, "decode": 0.5, REST: 0.5}


def test_without_an_engine_account_the_client_still_splits_its_seconds():
    summary = bench().rows[0].summary
    parts = accounted(summary)
    assert set(parts) == {"until the first chunk", "first to last chunk"}
    assert sum(parts.values()) == pytest.approx(summary.e2e_s.mean)


def test_the_binding_limit_stands_under_each_bar():
    view = chart(study(), "seconds").views["all"]
    words = [a["text"] for a in view.layout["annotations"] if a.get("name") == "wrap"]
    assert len(words) == len(CASES)
    assert words[0].startswith("slots: running = max_num_seqs 32")


def test_the_roofline_names_its_ridge_and_says_which_side_decode_is_on():
    report = study(cases=CASES[:3])
    found = chart(report, "roofline")
    words = [a["text"] for a in found.views["all"].layout["annotations"]]
    assert "ridge 295 FLOP/byte" in words
    assert "3.35 TB/s (H100-SXM)" in words
    assert "989 TFLOP/s bf16, dense" in words
    assert found.title.startswith("Decode is memory-bound in every run: 32.0 to 64.0 FLOP/byte")


def test_a_roof_is_the_lower_of_its_two():
    roof = Roof("x", 1000.0, 10.0, "bf16")
    assert roof.ridge == 100.0
    assert roof.attainable(50.0) == 500.0
    assert roof.attainable(200.0) == 1000.0


def test_an_ecdf_keeps_the_percentiles_of_its_sample():
    values = np.arange(1, 10_001) / 1000.0
    np.random.default_rng(0).shuffle(values)
    found = distribution(values, values)
    assert len(found.shares) <= 310
    assert found.n == 10_000
    assert quantile_s(found, 0.95) == pytest.approx(9.5, rel=0.005)
    assert quantile_s(found, 0.99) == pytest.approx(9.9, rel=0.002)
    assert found.values_s[-1] == 10.0
    assert found.worst_s[:2] == (10.0, 9.999)
    assert list(found.values_s) == sorted(found.values_s)


def test_a_small_sample_is_shown_whole():
    found = distribution(np.array([3.0, 1.0, 2.0, 2.0]))
    assert found.values_s == (1.0, 2.0, 2.0, 3.0)
    assert found.shares == (0.25, 0.5, 0.75, 1.0)
    assert distribution(np.empty(0)) is None


def test_a_single_run_has_no_trade_off_but_its_distributions():
    keys = {c.key for c in build_charts(bench(), BENCH_CASE.name)}
    assert keys == {"seconds", "ecdf-ttft", "ecdf-itl"}


def test_distributions_compare_the_chosen_one_with_the_baseline():
    found = chart(study(), "ecdf-ttft")
    assert found.first == "seqs-64"
    view = found.views["seqs-64"]
    curves = [t for t in view.data if t["mode"] == "lines"]
    assert [c["name"] for c in curves] == ["graphs", "seqs-64"]
    assert curves[0]["line"]["dash"] != curves[1]["line"]["dash"]
    assert any("SLO: p95 TTFT 2\u2009000 ms" in a["text"] for a in view.layout["annotations"])
    assert "the baseline has" in view.title
    stalls = [t for t in chart(study(), "ecdf-itl").views["seqs-64"].data if t["mode"] == "markers"]
    assert len(stalls) == 2


def test_windows_are_marked_over_time():
    layout = chart(study(), "time").views["graphs"].layout
    warm = next(s for s in layout["shapes"] if s["type"] == "rect")
    assert (warm["x0"], warm["x1"]) == (0, 10.0)
    assert any("graph capture" in a["text"] for a in layout["annotations"])
