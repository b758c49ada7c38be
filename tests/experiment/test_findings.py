"""Marks of published findings, from paired runs with planted ratios."""

from dataclasses import replace

import pytest
from test_statistics import summary

from ridgeline.domain.summary import Summary
from ridgeline.experiment.findings import explain, hold_against
from ridgeline.experiment.statistics import merge
from ridgeline.workload.study import Finding, Statement

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
    ratio, low, high = held(scaled(1.5, 1.0, 0.02), FASTER).ratios[RATE]
    assert low < ratio < high
    assert ratio == pytest.approx(1.5, rel=0.001)


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
