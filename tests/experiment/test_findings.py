"""Marks of published findings, from paired runs with planted ratios."""

import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from test_statistics import summary

from ridgeline.domain.summary import Summary
from ridgeline.experiment.findings import explain, hold_against
from ridgeline.experiment.results import load_results, to_json
from ridgeline.experiment.statistics import merge
from ridgeline.report.load import load_report
from ridgeline.workload.schemas import schema_of
from ridgeline.workload.study import Finding, Statement

ROOT = Path(__file__).parents[2]
RATE, TTFT = "throughput.output_tokens_per_s", "ttft_s.p95"
PLANTED = ((1, 1000, 0.50), (2, 1010, 0.52), (3, 990, 0.49))
BASE = {r: summary(rate, ttft, source="twin") for r, rate, ttft in PLANTED}


def scaled(rate: float, ttft: float, jitter: float = 0.0) -> dict[int, Summary]:
    shift = {1: 1 - jitter, 2: 1.0, 3: 1 + jitter}
    return {
        r: summary(
            (s.throughput.output_tokens_per_s or 0) * rate * shift[r],
            (s.ttft_s.p95 or 0) * ttft * shift[r],
            source="twin",
        )
        for r, s in BASE.items()
    }


def held(first: dict[int, Summary], *statements: Statement, expected: str | None = None):  # type: ignore[no-untyped-def]
    finding = Finding("id", "claim", "b", "a", statements, expected)  # type: ignore[arg-type]
    merged = {"a": merge(list(BASE.values()))}
    if first:
        merged["b"] = merge(list(first.values()))
    return hold_against(finding, first, BASE, merged)


FASTER = Statement(RATE, low=1.0)


@pytest.mark.parametrize(
    ("rate", "jitter", "mark"),
    [
        (1.5, 0.02, "reproduced"),
        (1.05, 0.2, "not reproduced"),  # better on average, not clearly
        (0.7, 0.02, "reversed"),
        (1.0, 0.0, "not reproduced"),  # no difference is not a little more
    ],
)
def test_a_direction(rate: float, jitter: float, mark: str) -> None:
    assert held(scaled(rate, 1.0, jitter), FASTER).mark == mark


def test_at_least_three_times_is_not_reached_by_twice() -> None:
    three = Statement("itl_s.p50", low=3.0)
    assert held(scaled(1.0, 1.0), three).mark == "not reproduced"
    assert held(scaled(2.0, 1.0, 0.01), Statement(RATE, low=3.0)).mark == "not reproduced"
    assert held(scaled(3.2, 1.0, 0.01), Statement(RATE, low=3.0)).mark == "reproduced"


def test_all_statements_must_hold() -> None:
    both = (FASTER, Statement(TTFT, high=1.0))
    assert held(scaled(1.5, 0.6, 0.01), *both).mark == "reproduced"
    assert held(scaled(1.5, 1.6, 0.01), *both).mark == "reversed"


def test_ratios_come_with_their_interval() -> None:
    found = held(scaled(1.5, 1.0, 0.02), FASTER)
    one = found.ratios[RATE]
    assert one.low < one.ratio < one.high
    assert one.ratio == pytest.approx(1.5, rel=0.001)
    assert found.pairs == 3
    # three pairs apart by 2 %: t of 2 degrees (4.303, and 1.061 for 80 %) times 2 % / sqrt(3)
    assert one.detectable == pytest.approx(math.expm1((4.303 + 1.061) * 0.02 / 3**0.5), rel=0.01)


def test_two_pairs_that_agree_by_chance_give_no_mark() -> None:
    """Noise of 11 % a run: of two pairs within 1 % of each other nothing can be told."""
    lucky = {r: s for r, s in scaled(1.5, 1.0, 0.001).items() if r != 3}
    found = held(lucky, FASTER, expected="reproduced")
    assert found.mark is None
    assert found.as_expected is False
    assert found.pairs == 2
    assert found.reason.startswith("too few pairs: 2 valid, a mark takes 3")
    assert found.ratios[RATE].ratio == pytest.approx(1.5, rel=0.001)
    assert found.ratios[RATE].detectable is None


def test_the_gpu_study_of_two_pairs_is_not_marked_and_tells_its_void_run() -> None:
    """results/h200/two-gpus: two pairs within 0.2 % of each other, and a void run 31 % away.

    By hand from the three cost ratios 0.3852, 0.5067 (void) and 0.3849: geometric mean 0.4219.
    """
    result = load_results(ROOT / "results" / "h200" / "two-gpus")
    cheaper = result.findings[0]
    assert (cheaper.mark, cheaper.pairs, cheaper.pairs_with_void) == (None, 2, 3)
    found = cheaper.ratios["cost.usd_per_million_output_tokens"]
    assert (found.ratio, found.detectable) == (pytest.approx(0.385, abs=5e-4), None)
    assert found.with_void == pytest.approx((0.4219, 0.285, 0.626), abs=1e-3)
    body = to_json(result)
    jsonschema.validate(body, schema_of("study-result"))
    told = body["findings"][0]
    assert (told["pairs"], told["pairs_with_void"], told["mark"]) == (2, 3, None)
    (ratio,) = told["ratios"].values()
    assert ratio["with_void"]["low"] == pytest.approx(0.285, abs=1e-3)
    line = load_report(ROOT / "results" / "h200" / "two-gpus", details=False).findings[0].ours
    assert "2 pairs: too few to know the noise" in line
    assert "with the void runs × 0.422 (0.285 to 0.625) over 3 pairs" in line


def test_every_finding_of_the_gpu_studies_says_on_how_many_pairs_it_rests() -> None:
    marked = 0
    for name in ("one-gpu", "two-gpus", "knobs", "prompts", "prompts-again"):
        for held_here in load_results(ROOT / "results" / "h200" / name).findings:
            marked += held_here.mark is not None
            assert held_here.mark is None or held_here.pairs >= 3
            assert held_here.mark is None or all(
                r.detectable or max(abs(r.low - 1), abs(r.high - 1)) <= 0.005
                for r in held_here.ratios.values()
            )
    assert marked >= 15


def test_without_a_valid_run_or_an_interval_there_is_no_mark() -> None:
    nothing = held({}, FASTER, expected="reproduced")
    assert nothing.mark is None
    assert nothing.as_expected is False
    assert nothing.reason == "b has no valid run"
    one = held({1: summary(2000)}, FASTER)
    assert one.mark is None
    assert "one pair" in one.reason


def test_the_reason_names_the_largest_change_of_the_accounting_first() -> None:
    before = replace(
        summary(), steps={"mean_step_s": 0.005, "no_graph_share": 0.05, "mean_decode_batch": 31.0}
    )
    after = replace(
        summary(), steps={"mean_step_s": 0.018, "no_graph_share": 1.0, "mean_decode_batch": 31.2}
    )
    text = explain(before, after)
    assert text == "mean step 5 ms → 18 ms; steps without a CUDA graph 5 % → 100 %"
    assert "the same within 3 %: mean step 5 ms, decode batch 31" in explain(before, before)


def test_measured_runs_have_no_accounting_to_explain_with() -> None:
    bare = replace(summary(), steps={})
    assert explain(bare, bare) == "nothing was sampled beside these runs that would account for it"
