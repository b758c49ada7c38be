"""Numbers as the page and the console print them."""

import math
from dataclasses import replace

import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import summarise
from ridgeline.domain.records import RequestRecord, records_from_requests
from ridgeline.domain.run import ClientCheck, RunFacts, Window
from ridgeline.domain.slo import Slo
from ridgeline.report import numbers
from ridgeline.report.figures import latency_text

T = "\u2009"
M = "\u2212"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.4312, "0.431"),
        (6.5, "6.50"),
        (12.34, "12.3"),
        (999.6, f"1{T}000"),
        (12430, f"12{T}400"),
        (1234567, f"1{T}230{T}000"),
        (0.00012345, "0.000123"),
        (-3029, f"{M}3{T}030"),
        (math.inf, "∞"),
    ],
)
def test_three_significant_figures_with_thin_spaces(value, text):
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not measured"),
        (math.nan, "not measured"),
        (0.0067, "6.70 ms"),
        (1.716, f"1{T}720 ms"),
        (9.99, f"9{T}990 ms"),
        (9.9996, "10.0 s"),
        (29.02, "29.0 s"),
        (math.inf, "∞"),
    ],
)
def test_latencies_are_in_ms_below_ten_seconds(seconds, text):
    assert numbers.duration(seconds) == text


def test_an_interval_has_one_unit():
    assert numbers.duration_range(1.68, 1.772) == f"1{T}680–1{T}770 ms"
    assert numbers.duration_range(9.5, 10.4) == "9.50–10.4 s"
    assert numbers.duration_range(1.0, math.inf) == f"1{T}000 ms to ∞"


def test_an_error_rate_of_a_half_reads_so():
    assert numbers.share(0.5) == "0.50"
    assert numbers.share(0.0012) == "0.0012"
    assert numbers.share(0) == "0"
    assert numbers.share(None) == "not measured"


def test_percentages_and_their_intervals():
    assert numbers.percent(0.274) == "27 %"
    assert numbers.percent(-0.274, signed=True) == f"{M}27 %"
    assert numbers.percent(0.032, signed=True) == "+3.2 %"
    assert numbers.percent(0.0001, signed=True) == "0 %"
    assert numbers.percent_range(0.22, 0.31) == "22 to 31 %"
    # An interval that is narrower than a whole per cent must not look like a point.
    assert numbers.percent_range(0.561, 0.563) == "56.1 to 56.3 %"


def test_large_units():
    assert numbers.si(3.35e12, "B/s") == "3.35 TB/s"
    assert numbers.si(989e12, "FLOP/s") == "989 TFLOP/s"


def test_a_reply_that_the_client_gave_up_is_infinite_and_said_to_be_unfinished() -> None:
    """20 of 100 sent requests were still running when the grace time ended: none of them failed."""
    window = Window(0, 10**9)
    ended = RequestRecord(0, None, 0, 0, 5, 6, 7, 1, 2, 1, 2, finish_reason="length")
    rows = [
        replace(ended, index=i)
        if i < 80
        else RequestRecord(i, None, 0, 0, None, None, 9, 1, 2, failure="cancelled")
        for i in range(100)
    ]
    summary = summarise(
        records_from_requests(rows), window,
        facts=RunFacts("measured", window, ClientCheck("kernel")),
        configuration=Configuration("m", Knobs()), slo=Slo(),
    )  # fmt: skip
    assert summary.requests.failed == 0
    assert latency_text(summary, "e2e_s.p95") == "∞ (20 % not finished)"
