"""The definitions, against streams whose right answers were worked out by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ridgeline.domain.errors import StoreError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.metrics import STALL_S, per_second, summarise, take_sample
from ridgeline.domain.percentile import inverted_cdf, percentiles
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.replies import server_times_note
from ridgeline.domain.run import ClientCheck, RunFacts, ServerCounters, Verdict, Window
from ridgeline.domain.slo import Slo, parse_slo
from ridgeline.domain.summary import Summary

MS = 1_000_000
S = 1_000_000_000


def request(
    index: int = 0,
    *,
    sent_ms: float = 0.0,
    chunks_ms: list[float] | np.ndarray | None = None,
    tokens: int | None = None,
    **more: Any,
) -> RequestRecord:
    """A request whose chunks arrive at the given times; it failed without any."""
    stamps = np.rint(np.asarray(chunks_ms if chunks_ms is not None else []) * 1e6).astype(np.int64)
    base: dict[str, Any] = {
        "user": None,
        "intended_ns": round(sent_ms * MS),
        "sent_ns": round(sent_ms * MS),
        "first_ns": int(stamps[0]) if len(stamps) else None,
        "last_ns": int(stamps[-1]) if len(stamps) else None,
        "end_ns": int(stamps[-1]) if len(stamps) else None,
        "planned_prompt_tokens": 10,
        "planned_output_tokens": tokens or max(1, len(stamps)),
        "prompt_tokens": 10,
        "output_tokens": tokens,
        "chunk_ns": stamps,
    }
    return RequestRecord(index=index, **(base | more))


def summary(
    requests: list[RequestRecord] | RunRecords,
    window: tuple[float, float] = (0, 60),
    *,
    slo: str | Slo = "",
    gpus: int = 1,
    price: float | None = None,
    open_loop: bool = False,
) -> Summary:
    records = requests if isinstance(requests, RunRecords) else records_from_requests(requests)
    span = Window(round(window[0] * S), round(window[1] * S))
    return summarise(
        records,
        span,
        facts=RunFacts("measured", span, ClientCheck("kernel")),
        configuration=Configuration("m", Knobs(), gpus=gpus, price_per_gpu_hour=price),
        slo=parse_slo(slo) if isinstance(slo, str) else slo,
        open_loop=open_loop,
    )


def many(n: int, **kind: Any) -> list[RequestRecord]:
    return [request(i, **kind) for i in range(n)]


def test_several_tokens_a_chunk() -> None:
    """TTFT 500 ms, TPOT 120 ms / 12, gaps of 40 ms: no TTFT inside TPOT, no token time in gaps."""
    found = summary(many(20, sent_ms=0, chunks_ms=[500, 540, 580, 620], tokens=13))
    assert found.ttft_s.p50 == pytest.approx(0.5)
    assert found.tpot_s.p50 == pytest.approx(0.010)
    assert found.itl_s.p50 == pytest.approx(0.040)
    assert not found.tokens_estimated
    assert any("spread evenly over their chunks" in note for note in found.notes)


def test_tpot_uses_the_tokens_that_came_not_those_asked_for() -> None:
    chunks = np.linspace(240, 1190, 20)
    found = summary(many(20, chunks_ms=chunks, tokens=20, planned_output_tokens=100))
    assert found.tpot_s.mean == pytest.approx(0.050)
    assert found.e2e_s.mean == pytest.approx(1.190)
    assert "100 % of the replies ended before their planned length" in found.notes


def test_tpot_leaves_the_first_token_out() -> None:
    found = summary(many(20, chunks_ms=np.linspace(500, 2000, 101), tokens=101))
    assert found.tpot_s.mean == pytest.approx(0.015)


def test_tokens_are_not_chunks() -> None:
    """One stream, 4 tokens every 10 ms: 400 tokens/s, 100 chunks/s, and no peak below the mean."""
    found = summary([request(chunks_ms=np.arange(0, 2000, 10), tokens=800)], (0, 2))
    assert found.throughput.output_tokens_per_s == pytest.approx(400)
    assert found.throughput.chunks_per_s == pytest.approx(100)
    peak = found.throughput.peak_output_tokens_per_s
    assert peak is not None
    assert peak >= 400


def test_without_usage_tokens_are_counted_from_chunks_and_marked() -> None:
    found = summary(many(20, chunks_ms=[100, 110, 120]))
    assert found.tokens_estimated
    assert found.tpot_s.p50 == pytest.approx(0.010)
    assert summary(many(20, chunks_ms=[100, 110, 120], tokens=3)).tokens_estimated is False


def test_tokens_before_the_window_do_not_count() -> None:
    """Sent 4 s before the window opens, 10 tokens/s from then to 6 s: 60 tokens, no TTFT."""
    early = request(sent_ms=-4000, chunks_ms=np.arange(-4000, 6000, 100), tokens=100)
    found = summary([early], (0, 10))
    assert found.throughput.output_tokens_per_s == pytest.approx(6.0)
    assert found.requests.sent == 0
    assert found.ttft_s.n == 0
    assert found.ttft_s.mean is None
    assert found.itl_s.n == 60
    assert found.requests.error_rate is None


def test_a_cut_window_divides_by_its_own_length() -> None:
    """100 requests of 10 tokens evenly over 4 s; the middle 2.4 s hold 600 tokens: 250/s."""
    requests = [request(i, chunks_ms=np.arange(10) * 4 + i * 40, tokens=10) for i in range(100)]
    assert summary(requests, (0.8, 3.2)).throughput.output_tokens_per_s == pytest.approx(250)


def test_a_first_wave_before_the_window_leaves_steady_percentiles_alone() -> None:
    """64 streams: the first wave waits 0.05 to 3.2 s, 19 later waves 0.2 s each."""
    waves = []
    for wave in range(20):
        for stream in range(64):
            wait = 50 * (stream + 1) if wave == 0 else 200
            sent = wave * 4000
            waves.append(
                request(len(waves), sent_ms=sent, chunks_ms=[sent + wait, sent + wait + 10])
            )
    steady = summary(waves, (4, 80))
    assert steady.ttft_s.p99 == pytest.approx(0.2)
    assert steady.requests.sent == 19 * 64
    whole = summary(waves, (0, 80))
    assert whole.ttft_s.p99 is not None
    assert whole.ttft_s.p99 > 2.5


def test_failures_are_infinitely_slow_in_the_second_view() -> None:
    """90 % finish in 1 s, 10 % time out at 30 s: p90 is 1 s, p95 is infinite."""
    good = [request(i, chunks_ms=[1000], tokens=1) for i in range(900)]
    bad = [request(900 + i, failure="timeout_total", end_ns=30 * S) for i in range(100)]
    found = summary(good + bad, slo="e2e_p90_ms=1500,e2e_p95_ms=1500,error_rate=0.05")
    assert found.e2e_s.p99 == pytest.approx(1.0)
    worst = found.failures_as_infinite["e2e_s"]
    assert worst.p90 == pytest.approx(1.0)
    assert worst.p95 == float("inf")
    assert found.requests.error_rate == pytest.approx(0.1)
    assert found.requests.failures == {"timeout_total": 100}
    assert [result.met for result in found.slo] == [True, False, False]
    assert found.to_json()["failures_as_infinite"]["e2e_s"]["p95"] == "infinite"


def test_a_stall_in_every_reply_is_seen() -> None:
    """TTFT 100 ms, 50 chunks 10 ms apart, one gap of 1010 ms after the tenth."""
    chunks = 100 + 10.0 * np.arange(50)
    chunks[10:] += 1000
    found = summary(many(100, chunks_ms=chunks, tokens=50))
    assert found.itl_s.mean == pytest.approx(0.0304, abs=1e-4)
    assert found.itl_s.p99 == pytest.approx(1.010)
    assert found.itl_s.p50 == pytest.approx(0.010)
    assert found.worst_stall_s.p50 == pytest.approx(1.010)
    assert found.stalled_requests_share == 1.0
    assert STALL_S == 0.5


def test_a_reply_without_content_has_no_latency() -> None:
    silent = request(failure="no_tokens", end_ns=5 * MS, finish_reason="stop")
    found = summary([silent])
    assert found.ttft_s.n == 0
    assert found.ttft_s.mean is None
    assert found.failures_as_infinite["ttft_s"].mean == float("inf")
    assert found.requests.error_rate == 1.0


def test_a_negative_duration_is_refused_not_shown() -> None:
    """A missing stamp taken off an epoch once gave a TTFT of -1.7e12 ms."""
    with pytest.raises(StoreError, match="request 0 has a negative ttft"):
        summary([request(sent_ms=50_000, chunks_ms=[10, 20])])
    swapped = request(1, chunks_ms=[10, 20])
    swapped = dataclasses.replace(swapped, chunk_ns=np.array([20 * MS, 10 * MS]))
    with pytest.raises(StoreError, match="request 1 has a negative gap"):
        summary([request(0, chunks_ms=[1, 2]), swapped])


def test_ttft_from_intent_shows_what_waiting_for_a_slot_costs() -> None:
    """Ten requests meant for t = 0 with one slot of 100 ms: from send 100, from intent 550 ms."""
    queue = [
        request(i, sent_ms=100 * i, chunks_ms=[100 * (i + 1)], tokens=1, intended_ns=0)
        for i in range(10)
    ]
    found = summary(queue, slo="ttft_p50_ms=120")
    assert found.ttft_s.mean == pytest.approx(0.100)
    assert found.ttft_intent_s.mean == pytest.approx(0.550)
    assert found.slo[0].met is True
    judged = summary(queue, slo="ttft_p50_ms=120", open_loop=True)
    assert judged.slo[0].value == pytest.approx(500)
    assert judged.slo[0].met is False


def test_a_request_that_could_not_be_sent_counts_where_it_was_meant() -> None:
    lost = request(0, sent_ms=1000, failure="connect", sent_ns=None)
    found = summary([lost, request(1, chunks_ms=[100, 110])])
    assert (found.requests.sent, found.requests.failed) == (2, 1)


def test_percentiles_are_values_that_were_seen() -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert inverted_cdf(values, (25, 50, 51, 100)) == [1.0, 2.0, 3.0, 4.0]
    assert inverted_cdf(values, (50, 80, 81), infinite=1) == [3.0, 4.0, float("inf")]
    assert inverted_cdf(np.empty(0), (50,)) == [None]


@pytest.mark.parametrize(
    ("n", "known"),
    [
        (9, []),
        (10, ["p50"]),
        (50, ["p50", "p90"]),
        (99, ["p50", "p90"]),
        (100, ["p50", "p90", "p95"]),
        (499, ["p50", "p90", "p95"]),
        (500, ["p50", "p90", "p95", "p99"]),
    ],
)
def test_a_percentile_needs_five_values_above_it(n: int, known: list[str]) -> None:
    found = percentiles(np.arange(n, dtype=np.float64))
    assert [p for p in ("p50", "p90", "p95", "p99") if getattr(found, p) is not None] == known


def test_an_unsupported_percentile_says_why_and_is_not_judged() -> None:
    found = summary(many(60, chunks_ms=[100, 110], tokens=2), slo="ttft_p95_ms=2000")
    assert found.ttft_s.p95 is None
    assert found.intervals["ttft_s.p95"].reason == (
        "n too small: 60 of the 100 values that a p95 needs"
    )
    assert (found.slo[0].value, found.slo[0].met) == (None, None)


def test_attainment_counts_requests_that_meet_every_limit() -> None:
    """4 are good, 2 have a late first token, 2 stall in 10 % of their gaps, 2 fail."""
    steady = 100 + 10.0 * np.arange(41)
    halting = steady.copy()
    for i in (10, 20, 30, 40):
        halting[i:] += 100
    requests = (
        [request(i, chunks_ms=steady, tokens=41) for i in range(4)]
        + [request(4 + i, chunks_ms=steady + 5000, tokens=41) for i in range(2)]
        + [request(6 + i, chunks_ms=halting, tokens=41) for i in range(2)]
        + [request(8 + i, failure="stream_cut") for i in range(2)]
    )
    found = summary(requests, (0, 10), slo="ttft_p95_ms=2000,itl_p95_ms=20,attainment=0.5")
    assert found.goodput.attainment == pytest.approx(0.4)
    assert found.goodput.requests_per_s == pytest.approx(0.4)
    assert found.slo[2].met is False
    lax = summary(requests, (0, 10), slo="ttft_p95_ms=2000,itl_p90_ms=20")
    assert lax.goodput.attainment == pytest.approx(0.6)
    mean = summary(requests, (0, 10), slo="itl_mean_ms=15")
    assert mean.goodput.attainment == pytest.approx(0.6)
    assert summary(requests, (0, 10), slo="error_rate=0.5").goodput.attainment is None


def test_cost_is_price_over_tokens() -> None:
    """4 GPUs at 3.95 USD/h and 10 000 tokens/s: 15.8 / 36 = 0.4389 USD per million tokens."""
    chunks = np.arange(1, 10_001) / 10.0
    found = summary([request(chunks_ms=chunks, tokens=10_000)], (0, 1.0001), gpus=4, price=3.95)
    assert found.cost.usd_per_million_output_tokens == pytest.approx(0.43889, rel=2e-4)
    assert found.throughput.per_gpu_output_tokens_per_s == pytest.approx(2500, rel=2e-4)
    assert summary([request(chunks_ms=chunks)], (0, 1)).cost.usd_per_million_output_tokens is None


def test_chunks_out_of_one_read_make_itl_unresolvable() -> None:
    """Ten gaps of 10 ms seen as five of 20 ms and five of none: the median is no number."""
    chunks = np.repeat(np.arange(1, 51) * 20.0, 2)
    shared = np.tile([False, True], 50)
    found = summary([request(i, chunks_ms=chunks, tokens=100, chunk_shared=shared) for i in (0, 1)])
    assert found.itl_s.p50 is None
    assert found.itl_s.p95 == pytest.approx(0.020)
    assert found.itl_s.mean == pytest.approx(0.98 / 99)
    assert found.itl_note is not None
    assert "not resolvable below the read interval of 20 ms" in found.itl_note
    assert found.tpot_s.mean == pytest.approx(0.98 / 99)
    clean = summary([request(i, chunks_ms=chunks, tokens=100) for i in (0, 1)])
    assert clean.itl_note is None


def test_a_reply_in_one_piece_has_no_time_per_token() -> None:
    """100 chunks in one segment after a second: 1 s TTFT and no rate of millions a second."""
    piece = {"chunks_ms": np.full(100, 1000.0), "tokens": 100}
    shared = np.array([False] + [True] * 99)
    found = summary(many(20, chunk_shared=shared, **piece))
    assert found.ttft_s.p50 == pytest.approx(1.0)
    assert found.tpot_s.n == 0
    assert found.tpot_s.mean is None
    assert found.itl_s.mean is None
    assert found.itl_note == "not measurable: each reply came within one read"
    assert "20 replies came at once: no time per token for them" in found.notes


def test_gaps_of_failed_requests_are_lost_not_fast() -> None:
    good = [request(i, chunks_ms=10.0 * np.arange(1, 102), tokens=101) for i in range(90)]
    bad = [
        request(90 + i, chunks_ms=[10, 11], failure="stream_cut", planned_output_tokens=101)
        for i in range(10)
    ]
    found = summary(good + bad)
    assert found.itl_s.n == 9000
    assert found.itl_s.p50 == pytest.approx(0.010)
    worst = found.failures_as_infinite["itl_s"]
    assert worst.n == 10_000
    assert worst.p90 == pytest.approx(0.010)
    assert worst.p95 == float("inf")
    assert "failed requests had delivered 20 chunks, which count nowhere" in found.notes


def test_tokens_by_the_second() -> None:
    """A rate that rises for 10 s, holds 1000/s for 20 s and falls for 10 s."""
    at: list[np.ndarray] = []
    for second in range(40):
        level = min(second, 9, 39 - second) + 1
        at.append(second * 1000 + np.arange(100 * level) * (10 / level))
    records = records_from_requests([request(chunks_ms=np.concatenate(at))])
    series = per_second(records, 0, 40 * S)
    assert series[9:30] == pytest.approx(np.full(21, 1000))
    assert series.mean() == pytest.approx(775)
    # A window that opens on the plateau sees its rate; one over the ramps underestimates it.
    plateau, whole = summary(records, (10, 30)), summary(records, (0, 40))
    assert plateau.throughput.output_tokens_per_s == pytest.approx(1000)
    assert whole.throughput.output_tokens_per_s == pytest.approx(775)
    assert whole.throughput.peak_output_tokens_per_s == pytest.approx(1000)
    assert len(per_second(records, 0, int(2.5 * S))) == 3


def test_sample_is_cut_by_sending_and_gaps_by_their_end() -> None:
    crossing = request(0, sent_ms=900, chunks_ms=[950, 1050, 1150, 2050], tokens=4)
    records = records_from_requests([crossing])
    sample = take_sample(records, Window(1 * S, 2 * S))
    assert len(sample.rows) == 0
    assert sample.gaps_s.tolist() == pytest.approx([0.1, 0.1])


def test_what_a_reader_must_know_is_noted() -> None:
    found = summary(many(20, chunks_ms=[100, 110], tokens=2, retries=1, read_timed=2))
    assert (
        "20 requests were sent again, because the server had closed their kept connection before"
        " they reached it; their times count from the first sending" in found.notes
    )
    assert "40 chunks carry the time of their read: the kernel gave none" in found.notes
    assert summary(many(20, chunks_ms=[100, 110], tokens=2)).notes == ()


def test_verdict_and_client_pass_through() -> None:
    span = Window(0, S)
    client = ClientCheck("simulated", loop_lag_p99_s=0.001)
    found = summarise(
        records_from_requests([]),
        span,
        facts=RunFacts("twin", span, client),
        configuration=Configuration("m", Knobs()),
        slo=Slo(),
        verdict=Verdict(valid=False, reasons=("nothing was sent",)),
    )
    assert found.source == "twin"
    assert found.verdict.valid is False
    assert found.client.loop_lag_p99_s == 0.001
    assert found.requests.error_rate is None
    assert found.accounting == {}
    assert found.throughput.output_tokens_per_s == 0.0


def test_the_answer_behind_the_reasoning_has_its_own_figure() -> None:
    """Reasoning from 100 to 340 ms, the answer from 350 ms: TTFT 100, first answer 350."""
    chunks = [*range(100, 341, 10), *range(350, 391, 10)]
    found = summary(many(20, chunks_ms=chunks, tokens=30, first_answer_ns=350 * MS))
    assert found.ttft_s.p50 == pytest.approx(0.100)
    assert found.first_answer_s is not None
    assert found.first_answer_s.p50 == pytest.approx(0.350)
    assert found.tpot_s.p50 == pytest.approx(0.010)
    plain = summary(many(20, chunks_ms=[100, 110], first_answer_ns=100 * MS))
    assert plain.first_answer_s is None
    assert summary(many(20, chunks_ms=[100, 110])).first_answer_s is None


def test_early_stops_have_a_share() -> None:
    stopped = [request(i, chunks_ms=[1, 2], tokens=2, planned_output_tokens=9) for i in range(3)]
    whole = [request(3, chunks_ms=[1, 2], tokens=2, planned_output_tokens=2)]
    assert summary([*stopped, *whole]).early_stops_share == pytest.approx(0.75)
    assert summary(whole).early_stops_share == 0.0
    assert summary([request(failure="no_tokens", end_ns=MS)]).early_stops_share is None


def test_a_servers_gap_per_event_is_no_time_per_token() -> None:
    """ITL sum 30 s over 1000 events for 3000 tokens: 3 tokens an event, TPOT 10 ms, not 30."""
    speculating = ServerCounters(generation_tokens=3000, output_events=1000, tpot_mean_s=0.010)
    said = server_times_note(speculating)
    assert said == ("the server gave 3.0 tokens per output event; its own time per token is 10 ms")
    # 100 replies of 8 tokens have 7 gaps each: one token an event
    plain = ServerCounters(requests_ok=100, generation_tokens=800, output_events=700)
    assert server_times_note(plain) is None
    assert server_times_note(ServerCounters(generation_tokens=800)) is None
    assert server_times_note(None) is None
