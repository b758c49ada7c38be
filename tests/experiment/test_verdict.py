"""Each rule voids what it must and leaves alone what it must not."""

from dataclasses import replace

import numpy as np
import pytest
from experiment_builders import evidence, request

from ridgeline.domain.run import ClientCheck, ServerCounters
from ridgeline.domain.workload import Arrivals, Lengths, Prompts, SharedPrefix
from ridgeline.experiment.verdict import Evidence, judge, trend

STEADY = [request(i, 0.1 * i) for i in range(300)]


def reasons(e: Evidence) -> str:
    found = judge(e)
    assert found.valid == (not found.reasons)
    return " | ".join(found.reasons)


def test_a_quiet_steady_run_is_valid() -> None:
    found = judge(evidence(STEADY))
    assert found.valid
    assert found.warnings == ()


class TestNothing:
    def test_no_request_inside_the_window(self) -> None:
        assert "no request was sent" in reasons(evidence([request(0, 99.0)]))

    def test_every_request_failed(self) -> None:
        failed = [request(i, 0.1 * i, failure="http_status") for i in range(40)]
        assert "every one of the 40 requests failed (http_status 40)" in reasons(evidence(failed))

    def test_one_success_is_enough_for_this_rule(self) -> None:
        mixed = [request(i, 0.1 * i, failure="timeout_gap" if i else None) for i in range(40)]
        assert "failed" not in reasons(evidence(mixed))


class TestSample:
    def test_p95_needs_100_requests(self) -> None:
        few, enough = STEADY[:99], STEADY[:100]
        line = "ttft_p95_ms needs 100 values, the window has 99"
        assert line in reasons(evidence(few, slo="ttft_p95_ms=500", seconds=9.9))
        assert reasons(evidence(enough, slo="ttft_p95_ms=500", seconds=10.0)) == ""

    def test_a_mean_and_a_share_need_none(self) -> None:
        assert (
            reasons(evidence(STEADY[:99], slo="e2e_mean_ms=500,error_rate=0.1", seconds=9.9)) == ""
        )

    def test_failures_count_as_values(self) -> None:
        rows = STEADY[:95] + [request(i, 0.1 * i, failure="connect") for i in range(95, 100)]
        assert "needs" not in reasons(evidence(rows, slo="ttft_p95_ms=500", seconds=10.0))


class TestClient:
    def test_late_sends_void_an_open_loop_above_5_percent_of_ttft(self) -> None:
        rate = Arrivals(rate_per_s=10, process="constant")
        ok = ClientCheck("kernel", send_lateness_p99_s=0.0049)
        bad = ClientCheck("kernel", send_lateness_p99_s=0.0051)
        assert reasons(evidence(STEADY, arrivals=rate, client=ok)) == ""
        assert "5.1 ms late" in reasons(evidence(STEADY, arrivals=rate, client=bad))

    def test_a_closed_loop_bears_5_percent_of_the_stay(self) -> None:
        # a stay is 100 + 9 x 10 = 190 ms, 5 % are 9.5 ms
        assert reasons(evidence(STEADY, client=ClientCheck("k", send_lateness_p99_s=0.009))) == ""
        late = ClientCheck("kernel", send_lateness_p99_s=0.010)
        assert "client limit" in reasons(evidence(STEADY, client=late))

    def test_below_a_millisecond_nothing_matters(self) -> None:
        fast = [request(i, 0.1 * i, ttft_s=0.001, gap_s=0.0001) for i in range(300)]
        assert reasons(evidence(fast, client=ClientCheck("k", send_lateness_p99_s=0.0009))) == ""

    def test_loop_lag_voids_only_times_taken_at_the_read(self) -> None:
        lag = {"loop_lag_p99_s": 0.2}
        assert "lagged 200 ms" in reasons(evidence(STEADY, client=ClientCheck("read", **lag)))
        assert reasons(evidence(STEADY, client=ClientCheck("kernel", **lag))) == ""

    def test_a_full_core_voids_and_a_busy_one_warns(self) -> None:
        assert "96%" in reasons(evidence(STEADY, client=ClientCheck("k", cpu_share=0.96)))
        busy = judge(evidence(STEADY, client=ClientCheck("k", cpu_share=0.85)))
        assert busy.valid
        assert "85%" in busy.warnings[0]


class TestSteady:
    def test_a_series_that_rises_one_percent_a_second_is_not_steady(self) -> None:
        at = np.cumsum(1 / (10 * (1 + 0.01 * np.arange(600) / 10)))
        rows = [request(i, float(t)) for i, t in enumerate(at)]
        assert "not steady: throughput changed by +" in reasons(evidence(rows, seconds=45.0))

    def test_noise_without_a_trend_is_steady(self) -> None:
        rng = np.random.default_rng(1)
        found = [trend(1000 * (1 + 0.1 * rng.normal(size=20))) for _ in range(2000)]
        assert sum(f is not None for f in found) <= 2

    def test_a_small_but_certain_drift_is_borne(self) -> None:
        assert trend(np.linspace(1000, 1090, 20)) is None
        assert trend(np.linspace(1000, 1120, 20)) == pytest.approx(120 / 1060)

    def test_a_growing_queue_voids_an_open_loop(self) -> None:
        """Above capacity the throughput is constant and only the waiting grows."""
        rows = [request(i, 0.1 * i, ttft_s=0.1 + 0.05 * i) for i in range(300)]
        rate = Arrivals(rate_per_s=10, process="constant")
        assert "the queue grew" in reasons(evidence(rows, arrivals=rate))

    def test_a_short_window_only_warns(self) -> None:
        found = judge(evidence(STEADY[:50], seconds=5.0))
        assert found.valid
        assert "too short" in found.warnings[0]


class TestArrivals:
    def poisson(self, seed: int, rate: float = 20.0, seconds: float = 60.0) -> list[float]:
        rng = np.random.default_rng(seed)
        at = np.cumsum(rng.exponential(1 / rate, size=int(rate * seconds * 2)))
        return at[at < seconds].tolist()

    def wrong(self, at: list[float], arrivals: Arrivals, seconds: float = 60.0) -> str:
        rows = [request(i, t) for i, t in enumerate(at)]
        return reasons(evidence(rows, arrivals=arrivals, seconds=seconds))

    def test_poisson_passes_for_poisson_and_not_for_constant(self) -> None:
        law = Arrivals(rate_per_s=20, process="poisson")
        for seed in range(5):
            assert "arrivals" not in self.wrong(self.poisson(seed), law)
        regular = (np.arange(1200) / 20).tolist()
        assert "do not follow the Poisson law" in self.wrong(regular, law)
        assert "arrivals" not in self.wrong(regular, Arrivals(rate_per_s=20, process="constant"))
        poisson = self.wrong(self.poisson(1), Arrivals(rate_per_s=20, process="constant"))
        assert "off the constant 50 ms" in poisson

    def test_half_the_rate_is_not_the_rate(self) -> None:
        at = self.poisson(3, rate=10)
        assert "Poisson" in self.wrong(at, Arrivals(rate_per_s=20, process="poisson"))

    def test_gamma_has_its_own_law(self) -> None:
        rng = np.random.default_rng(2)
        at = np.cumsum(rng.gamma(0.25, 1 / (20 * 0.25), size=1100))
        bursty = Arrivals(rate_per_s=20, process="gamma", burstiness=0.25)
        rows = at[at < 60].tolist()
        assert "law" not in self.wrong(rows, bursty)
        assert "Poisson" in self.wrong(rows, Arrivals(rate_per_s=20, process="poisson"))

    def test_requests_that_never_left_are_missed(self) -> None:
        rows = [request(i, 0.1 * i) for i in range(300)]
        rows = [replace(r, sent_ns=None) if r.index % 10 == 0 else r for r in rows]
        rate = Arrivals(rate_per_s=10, process="constant")
        assert "270 requests left inside the window, 300 were due" in reasons(
            evidence(rows, arrivals=rate)
        )


class TestCache:
    hits = ServerCounters(prefix_cache_queries=1000.0, prefix_cache_hits=970.0)

    def test_the_void_run_that_looked_best(self) -> None:
        """Prompts of an earlier run, 97 % of them hits."""
        line = "97% of the prompt tokens were hits, the workload declares 0%"
        assert line in reasons(evidence(STEADY, counters=self.hits))

    def test_declared_sharing_is_no_surprise(self) -> None:
        shared = Prompts(Lengths(10), SharedPrefix(300))
        assert reasons(evidence(STEADY, counters=self.hits, prompts=shared)) == ""

    def test_usage_tells_it_where_the_server_has_no_counters(self) -> None:
        rows = [request(i, 0.1 * i, cached=64) for i in range(300)]
        assert "64% of the prompt tokens" in reasons(evidence(rows))

    def test_no_evidence_no_doubt(self) -> None:
        assert reasons(evidence(STEADY, counters=ServerCounters(prefix_cache_queries=0.0))) == ""


class TestCounts:
    exact = ServerCounters(requests_ok=303.0, prompt_tokens=30000.0, generation_tokens=3000.0)

    def test_calibration_requests_are_counted(self) -> None:
        assert reasons(evidence(STEADY, counters=self.exact, extra=3)) == ""

    def test_another_client_on_the_server_is_found(self) -> None:
        line = "the server counted 303 requests, this run 300"
        assert line in reasons(evidence(STEADY, counters=self.exact))

    def test_lost_tokens_are_found(self) -> None:
        lost = replace(self.exact, generation_tokens=3001.0)
        assert "3001 output tokens, this run 3000" in reasons(
            evidence(STEADY, counters=lost, extra=3)
        )

    def test_a_failed_request_ends_the_comparison(self) -> None:
        rows = [*STEADY, request(300, 29.9, failure="stream_cut")]
        assert "counts" not in reasons(evidence(rows, counters=self.exact))


def test_a_stopped_run_says_so_and_stays_valid() -> None:
    found = judge(evidence(STEADY, interrupted=True))
    assert found.valid
    assert "stopped after 30 s" in found.warnings[0]
