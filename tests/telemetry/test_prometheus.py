"""Reading /metrics: sums over series, old names, absence, restarts, differences."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.telemetry.prometheus import (
    Scrape,
    bucket_of,
    counters_between,
    difference,
    fetch_metrics,
    merged,
    parse_metrics,
    restarted,
    settled_metrics,
)
from support.mock_server import MockServer, page, plain_stream


def vllm_page(
    ok: float,
    prompt: float,
    generated: float,
    *,
    engines: int = 1,
    aborted: float = 0,
    ttft: tuple[float, float] = (0, 0),
) -> str:
    """A page as vLLM writes it, every count split evenly over the engines."""
    lines = [
        "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.",
        "# TYPE vllm:prompt_tokens_total counter",
    ]
    label = 'engine="{}",model_name="m"'
    for name, value in (("prompt_tokens", prompt), ("generation_tokens", generated)):
        if name != "prompt_tokens":
            lines.append(f"# TYPE vllm:{name}_total counter")
        for engine in range(engines):
            lines.append(f"vllm:{name}_total{{{label.format(engine)}}} {value / engines}")
        lines.append(f"# TYPE vllm:{name}_created gauge")
        lines.append(f"vllm:{name}_created{{{label.format(0)}}} 1.7e9")
    lines.append("# TYPE vllm:request_success_total counter")
    for engine in range(engines):
        for reason, value in (("stop", ok / 2), ("length", ok / 2), ("abort", aborted)):
            lines.append(
                f'vllm:request_success_total{{{label.format(engine)},finished_reason="{reason}"}}'
                f" {value / engines}"
            )
    lines.append("# TYPE vllm:time_to_first_token_seconds histogram")
    lines.append(
        f'vllm:time_to_first_token_seconds_bucket{{{label.format(0)},le="+Inf"}} {ttft[1]}'
    )
    lines.append(f"vllm:time_to_first_token_seconds_count{{{label.format(0)}}} {ttft[1]}")
    lines.append(f"vllm:time_to_first_token_seconds_sum{{{label.format(0)}}} {ttft[0]}")
    return "\n".join(lines) + "\n"


def test_all_series_of_a_name_are_summed() -> None:
    text = "\n".join(
        f'vllm:num_requests_running{{engine="{i}"}} {v}' for i, v in enumerate((3, 5, 2, 6))
    )
    assert parse_metrics(text).total("vllm:num_requests_running") == 16


@pytest.mark.parametrize(
    ("text", "value", "alias"),
    [
        ("vllm:gpu_cache_usage_perc 0.42", 0.42, "vllm:gpu_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc 0.42", 0.42, None),
        ("vllm:kv_cache_usage_perc 0.42\nvllm:gpu_cache_usage_perc 0.9", 0.42, None),
        ("vllm:something_else 1", None, None),
    ],
)
def test_renamed_metrics(text: str, value: float | None, alias: str | None) -> None:
    scrape = parse_metrics(text + "\n")
    assert scrape.total("vllm:kv_cache_usage_perc") == value
    assert scrape.alias_used("vllm:kv_cache_usage_perc") == alias


def test_differences_over_engines() -> None:
    before = parse_metrics(vllm_page(10, 1000, 500, engines=4, ttft=(150, 50)))
    after = parse_metrics(vllm_page(30, 3000, 1700, engines=4, aborted=4, ttft=(170, 250)))
    counters = counters_between(before, after)
    assert counters is not None
    assert counters.requests_ok == 20  # the aborted ones are none
    assert counters.prompt_tokens == 2000
    assert counters.generation_tokens == 1200
    # what was observed before the run stays out: 20 s over 200 requests
    assert counters.ttft_mean_s == pytest.approx(0.1)
    # not on the page, so not known
    assert counters.preemptions is None
    assert counters.prefix_cache_queries is None


def test_nothing_happened_is_zero_not_absent() -> None:
    scrape = parse_metrics(vllm_page(10, 1000, 500))
    counters = counters_between(scrape, scrape)
    assert counters is not None
    assert counters.requests_ok == 0
    assert counters.prompt_tokens == 0
    assert counters.ttft_mean_s is None


def test_a_series_that_is_new_began_at_zero() -> None:
    before = parse_metrics('vllm:num_preemptions_total{engine="0"} 3\n')
    after = parse_metrics(
        'vllm:num_preemptions_total{engine="0"} 4\nvllm:num_preemptions_total{engine="1"} 2\n'
    )
    assert difference(before, after, "vllm:num_preemptions_total") == 3
    assert difference(Scrape({}), after, "vllm:num_preemptions_total") == 6


def test_restart() -> None:
    first = parse_metrics("vllm:num_preemptions_total 37\n")
    again = parse_metrics("vllm:num_preemptions_total 4\n")
    assert not restarted(first, first)
    assert restarted(first, again)
    assert difference(first, again, "vllm:num_preemptions_total") == 4


def test_several_servers_are_one_reading() -> None:
    before = merged([parse_metrics(vllm_page(10, 100, 50)), parse_metrics(vllm_page(50, 900, 90))])
    after = merged([parse_metrics(vllm_page(14, 140, 70)), parse_metrics(vllm_page(52, 920, 94))])
    counters = counters_between(before, after)
    assert counters is not None
    assert (counters.requests_ok, counters.prompt_tokens) == (6, 60)
    assert counters.generation_tokens == 24
    assert merged([parse_metrics("a 1\n"), None]) is None
    assert counters_between(None, after) is None


def test_fetching() -> None:
    pages = {
        "/metrics": page(200, "text/plain", vllm_page(1, 2, 3).encode()),
        "/base/metrics": page(200, "text/plain", b"a 7\n"),
    }
    with MockServer([plain_stream(1)], pages) as mock:
        scrape = fetch_metrics(mock.url)
        assert scrape is not None
        assert scrape.total("vllm:generation_tokens_total") == 3
        deeper = fetch_metrics(f"{mock.url}/base")
        assert deeper is not None
        assert deeper.total("a") == 7
        url = mock.url
    assert fetch_metrics(url) is None  # nobody there any more


@pytest.mark.parametrize(
    "answer",
    [
        page(404, "application/json", b"{}"),
        page(200, "text/html", b"<html>\n<p>hello</p></html>"),
        page(200, "text/plain", b"\xff\xfe\x00"),
        page(500, "text/plain", b""),
    ],
)
def test_pages_that_are_no_metrics(answer: object) -> None:
    with MockServer([plain_stream(1)], {"/metrics": answer}) as mock:  # type: ignore[dict-item]
        assert fetch_metrics(mock.url) is None


def test_settling_waits_for_the_server_to_count() -> None:
    """The server counts a request a little after its last byte."""
    readings = [parse_metrics(vllm_page(ok, ok, ok)) for ok in (10, 12, 12, 16, 20, 99)]
    pauses: list[float] = []
    found = settled_metrics(
        iter(readings).__next__,
        parse_metrics(vllm_page(0, 0, 0)),
        20,
        pause=pauses.append,
    )
    assert found is readings[4]
    assert len(pauses) == 4


def test_settling_ends_when_nothing_moves() -> None:
    still = parse_metrics(vllm_page(10, 10, 10))
    pauses: list[float] = []
    assert settled_metrics(lambda: still, None, 99, pause=pauses.append) is still
    assert len(pauses) == 5
    assert settled_metrics(lambda: None, None, 99, pause=pauses.append) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_was_not_measured(value: str) -> None:
    """Neither as a count nor as a start to count from."""
    good = parse_metrics(vllm_page(10, 100, 50))
    odd = parse_metrics(vllm_page(20, float(value), 80))
    for before, after in ((good, odd), (odd, good), (odd, odd)):
        counters = counters_between(before, after)
        assert counters is not None
        assert counters.prompt_tokens is None
        assert counters.generation_tokens is not None
        assert json.dumps(asdict(counters), allow_nan=False)
    assert odd.total("vllm:prompt_tokens_total") is None
    assert not restarted(good, odd)


def test_a_restart_is_seen_even_when_the_counters_have_caught_up() -> None:
    counts = vllm_page(10, 100, 50)
    before, after = (
        parse_metrics(f"{counts}process_start_time_seconds {at}\n") for at in (1.7e9, 1.7e9 + 60)
    )
    assert restarted(before, after)
    assert not restarted(before, before)
    without = parse_metrics(vllm_page(10, 100, 50))
    assert not restarted(without, after)


def test_what_a_histogram_saw_before_the_window_stays_out() -> None:
    """50 values of 3 s before, 200 of 0.1 s inside: the median's bucket holds 0.1 s."""

    def read(fast: int, slow: int) -> Scrape:
        edges = (("0.05", 0), ("0.1", fast), ("0.25", fast), ("2.5", fast), ("5.0", fast + slow),
                 ("+Inf", fast + slow))  # fmt: skip
        return parse_metrics("".join(
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{e}"}} {n}\n'
            for e, n in edges
        ))  # fmt: skip

    name = "vllm:time_to_first_token_seconds"
    assert bucket_of(read(0, 50), read(200, 50), name, 0.5) == (0.05, 0.1, 200)
    assert bucket_of(Scrape({}), read(200, 50), name, 0.9) == (2.5, 5.0, 250)
    assert bucket_of(read(200, 50), read(200, 50), name, 0.5) is None
    assert bucket_of(Scrape({}), Scrape({}), name, 0.5) is None


def test_tokens_per_output_event_are_known() -> None:
    lines = (
        'vllm:inter_token_latency_seconds_sum{{engine="0"}} {}\n'
        'vllm:inter_token_latency_seconds_count{{engine="0"}} {}\n'
        'vllm:request_time_per_output_token_seconds_sum{{engine="0"}} {}\n'
        'vllm:request_time_per_output_token_seconds_count{{engine="0"}} {}\n'
        'vllm:generation_tokens_total{{engine="0"}} {}\n'
    )
    before = parse_metrics(lines.format(5, 100, 1, 10, 500))
    after = parse_metrics(lines.format(35, 1100, 2, 110, 3500))
    counters = counters_between(before, after)
    assert counters is not None
    assert counters.output_events == 1000
    assert counters.generation_tokens == 3000
    assert counters.tpot_mean_s == pytest.approx(0.010)
