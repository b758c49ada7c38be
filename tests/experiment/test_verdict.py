"""Each rule voids what it must and leaves alone what it must not."""

from dataclasses import replace

import numpy as np
import pytest
from experiment_builders import evidence, request

from ridgeline.domain.calibration import ClientCalibration, ClientLevel
from ridgeline.domain.records import RequestRecord
from ridgeline.domain.run import ClientCheck, ServerCounters, Verdict
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix
from ridgeline.experiment.verdict import Evidence, judge, trend

STEADY = [request(i, 0.1 * i) for i in range(300)]
RATE = Arrivals(rate_per_s=10, process="constant")
FITTED: dict[str, object] = {"prompt_fit": {"tokens_per_word": 1.0, "overhead_tokens": 0.0}}
EXACT = ServerCounters(
    requests_ok=300.0,
    prompt_tokens=30000.0,
    generation_tokens=3000.0,
    prefix_cache_queries=30000.0,
    prefix_cache_hits=0.0,
)


def calibration(requests: float, chunks: float, cpu: float) -> ClientCalibration:
    """A client that timed so many right and no more, at that share of its core."""
    levels = [
        ClientLevel(
            kind=kind, asked_per_s=rate, requests_per_s=rate, chunks_per_s=rate, compared=9,
            failed=0, ttft_error_p50_s=0.0, ttft_error_p99_s=0.0, itl_error_p50_s=0.0,
            itl_error_p99_s=0.0, send_lateness_p50_s=0.0, send_lateness_p99_s=0.0,
            loop_lag_p99_s=0.0, cpu_share=cpu, server_lateness_p50_s=0.0,
            server_was_the_limit=False,
        )
        for kind, rate in (("requests", requests), ("chunks", chunks))
    ]  # fmt: skip
    return ClientCalibration(100, 1, 1.0, tuple(levels))


def reasons(e: Evidence) -> str:
    found = judge(e)
    assert found.valid == (not found.reasons)
    return " | ".join(found.reasons)


def test_a_quiet_steady_run_is_valid() -> None:
    found = judge(evidence(STEADY, counters=EXACT, server=FITTED))
    assert found.valid
    assert found.warnings == ()


class TestNothing:
    def test_no_request_inside_the_window(self) -> None:
        assert "no request was sent" in reasons(evidence([request(0, 99.0)]))

    def test_every_request_failed(self) -> None:
        failed = [request(i, 0.1 * i, failure="http_status") for i in range(40)]
        assert "every one of the 40 requests failed (http_status 40)" in reasons(evidence(failed))

    def test_the_commonest_message_is_quoted(self) -> None:
        failed = [
            request(i, 0.1 * i, failure="http_status", detail="HTTP 500: CUDA error")
            for i in range(40)
        ]
        found = reasons(evidence(failed))
        assert "HTTP 500: CUDA error" in found
        assert "look into the server's log" in found
        assert "client limit" not in found

    def test_one_success_is_enough_for_this_rule(self) -> None:
        mixed = [request(i, 0.1 * i, failure="timeout_gap" if i else None) for i in range(40)]
        assert "every one" not in reasons(evidence(mixed))

    def test_half_of_all_requests_failing_is_told(self) -> None:
        rows = [
            request(i, 0.1 * i, failure="http_status" if i % 2 else None, detail="HTTP 500: CUDA")
            for i in range(300)
        ]
        found = judge(evidence(rows))
        assert found.valid  # it is how this server is
        (line,) = [w for w in found.warnings if "failed" in w]
        assert "150 of 300 requests failed (http_status 150)" in line
        assert "HTTP 500: CUDA" in line


class TestSample:
    def test_p95_needs_100_requests(self) -> None:
        few, enough = STEADY[:99], STEADY[:100]
        line = "ttft_p95_ms needs 100 requests, the window has 99"
        assert line in reasons(evidence(few, slo="ttft_p95_ms=500", seconds=9.9))
        assert reasons(evidence(enough, slo="ttft_p95_ms=500", seconds=10.0)) == ""

    def test_any_target_needs_ten_requests(self) -> None:
        slo = "e2e_mean_ms=500,error_rate=0.5"
        found = reasons(evidence(STEADY[:9], slo=slo, seconds=9.9))
        assert "e2e_mean_ms needs 10 requests, the window has 9" in found
        assert "error_rate needs 10 requests" in found
        assert "needs" not in reasons(evidence(STEADY[:10], slo=slo, seconds=9.9))

    def test_one_reply_with_many_gaps_is_one_request(self) -> None:
        """600 gaps of one reply go together: they support no p99."""
        one = [request(0, 1.0, tokens=601)]
        assert "itl_p99_ms needs 500 requests" in reasons(evidence(one, slo="itl_p99_ms=20"))

    def test_a_share_needs_what_its_percentile_needs(self) -> None:
        few = evidence(STEADY[:99], slo="ttft_p50_ms=500,attainment=0.95", seconds=9.9)
        assert "attainment needs 100 requests" in reasons(few)

    def test_no_failure_among_few_requests_proves_no_small_error_rate(self) -> None:
        found = judge(evidence(STEADY, slo="error_rate=0.001"))
        assert found.valid
        line = "no failure in 300 requests shows an error rate below 0.01 only"
        assert any(line in w for w in found.warnings)
        loose = judge(evidence(STEADY, slo="error_rate=0.02"))
        assert not any("error rate" in w for w in loose.warnings)

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

    def test_a_closed_loop_is_judged_by_the_load_that_delays_take_from_it(self) -> None:
        """A cycle is 100 + 9 x 10 = 190 ms and the delay: 2 % are 3.9 ms on average."""

        def late(mean_s: float) -> Evidence:
            rows = [request(i, 0.1 * i, late_s=2 * mean_s * (i % 2)) for i in range(300)]
            return evidence(rows, client=ClientCheck("kernel", send_lateness_p99_s=2 * mean_s))

        assert reasons(late(0.0035)) == ""
        assert "so much less load was offered" in reasons(late(0.0045))

    def test_a_rare_late_send_does_not_void_a_closed_loop(self) -> None:
        """TTFT counts from the sending. Only one who asks for TTFT from intent is misled."""
        rows = [request(i, 0.1 * i, late_s=0.05 if i % 50 == 0 else 0.0) for i in range(300)]
        client = ClientCheck("kernel", send_lateness_p99_s=0.05)
        found = judge(evidence(rows, client=client))
        assert found.valid
        assert any("TTFT from intent contains that delay" in w for w in found.warnings)
        asked = evidence(rows, client=client, slo="ttft_intent_p50_ms=500")
        assert "client limit: requests left 50 ms late" in reasons(asked)

    @pytest.mark.parametrize("arrivals", [Arrivals(users=1), Arrivals(rate_per_s=0.1)])
    def test_few_long_requests_are_no_late_client(self, arrivals: Arrivals) -> None:
        """Too few successes for a percentile are not a latency of nothing."""
        rows = [request(i, 2 + 10.0 * i, gap_s=0.09, tokens=100) for i in range(3)]
        client = ClientCheck("kernel", send_lateness_p99_s=0.0012)
        assert "client" not in reasons(evidence(rows, arrivals=arrivals, client=client))

    def test_a_frozen_client_voids_kernel_stamps_too(self) -> None:
        """A read has one stamp: what came one by one while the client was away looks like a stall
        of the server, and only the client knows better.
        """
        frozen = ClientCheck(
            "kernel", stamp_error_p95_s=1e-9, stamp_error_p99_s=2.6, stamp_error_max_s=3.0
        )
        assert "chunks are up to 2.6e+03 ms too late" in reasons(evidence(STEADY, client=frozen))
        starved = ClientCheck("kernel", stamp_error_p95_s=0.0011, stamp_error_p99_s=0.02)
        assert "1.1 ms too late at p95" in reasons(evidence(STEADY, client=starved))
        jitter = ClientCheck("kernel", stamp_error_p95_s=1e-9, stamp_error_p99_s=0.002)
        found = judge(evidence(STEADY, client=jitter))
        assert found.valid
        assert any("this could change by more than 5% are not shown" in w for w in found.warnings)
        rows = [request(i, 0.1 * i) for i in range(600)]
        asked = evidence(rows, client=jitter, seconds=60.0, slo="itl_p99_ms=50")
        assert "2 ms too late at p99" in reasons(asked)
        short = ClientCheck("kernel", stamp_error_p99_s=1e-9, stamp_error_max_s=0.3)
        found = judge(evidence(STEADY, client=short))
        assert found.valid
        assert any("did not look for up to 300 ms" in w for w in found.warnings)

    @pytest.mark.parametrize(
        ("gap_s", "borne_s", "void_s"),
        [
            (0.05, 0.049, 0.051),
            (0.01, 0.0098, 0.0102),
            (0.002, 0.0098, 0.0102),
            (0.0005, 4e-3, 6e-3),
        ],
        ids=["50 ms", "10 ms", "2 ms", "0.5 ms"],
    )
    def test_a_starved_client_voids_whatever_was_asked(
        self, gap_s: float, borne_s: float, void_s: float
    ) -> None:
        """p99 is printed in every run. A usual gap late is no jitter, with 10 ms as the least; ten
        gaps are too much in any case. What is borne is told, and its percentiles are withheld.
        """
        rows = [request(i, 0.1 * i, gap_s=gap_s) for i in range(300)]
        for error, void in ((borne_s, False), (void_s, True)):
            client = ClientCheck("kernel", stamp_error_p95_s=1e-9, stamp_error_p99_s=error)
            found = judge(evidence(rows, client=client))
            assert found.valid is not void
            lines = found.reasons if void else found.warnings
            assert any("too late at p99" in line for line in lines)

    def test_below_a_millisecond_nothing_matters(self) -> None:
        fast = [request(i, 0.1 * i, ttft_s=0.001, gap_s=0.0001) for i in range(300)]
        assert reasons(evidence(fast, client=ClientCheck("k", send_lateness_p99_s=0.0009))) == ""

    def test_late_first_chunks_void_where_a_ttft_is_asked_for(self) -> None:
        late = ClientCheck(
            "kernel", stamp_error_p95_s=1e-9, stamp_error_p99_s=1e-9, stamp_error_max_s=0.02,
            first_error_p95_s=0.0051, first_error_p99_s=0.02, first_error_max_s=0.02,
        )  # fmt: skip
        rows = [request(i, 0.1 * i) for i in range(300)]
        assert "first chunks are up to 5.1 ms too late at p95" in reasons(
            evidence(rows, client=late, slo="ttft_p95_ms=500")
        )
        assert reasons(evidence(rows, client=late, slo="itl_p95_ms=50")) == ""
        borne = replace(late, first_error_p95_s=0.0049)  # 5 % of a TTFT of 100 ms can be borne
        assert reasons(evidence(rows, client=borne, slo="ttft_p95_ms=500")) == ""

    def test_loop_lag_alone_voids_only_times_taken_at_the_read(self) -> None:
        """With the kernel's stamps it is the chunks that came together while away that count."""
        lag = {"loop_lag_p99_s": 0.2}
        assert "lagged 200 ms" in reasons(evidence(STEADY, client=ClientCheck("read", **lag)))
        alone = ClientCheck("kernel", stamp_error_p99_s=1e-9, stamp_error_max_s=1e-9, **lag)
        assert reasons(evidence(STEADY, client=alone)) == ""

    def test_a_worker_that_died_voids(self) -> None:
        text = "worker 2 of 4 died (signal 9): its part of the load was not offered"
        assert f"client limit: {text}" in reasons(
            evidence(STEADY, client=ClientCheck("kernel", faults=(text,)))
        )

    def test_more_load_than_the_client_was_shown_to_time_right_voids(self) -> None:
        """40 requests/s of 10 chunks: 40 requests and 360 further reads a second."""
        busy = [request(i, i / 40) for i in range(1200)]

        def said(requests: float, chunks: float, cpu: float = 0.9) -> Verdict:
            able = calibration(requests, chunks, cpu)
            found = evidence(busy)
            return judge(replace(found, facts=replace(found.facts, calibration=able)))

        assert said(100, 1000).valid
        assert said(80, 721).valid
        (reason,) = said(80, 719).reasons  # 0.5 + 360 / 719 is just above 1
        assert reason.startswith("client limit: 40 requests/s and 400 chunks/s in the busiest")
        assert "at most 80 requests/s or 719 chunks/s right" in reason
        assert not said(39, 1e6).valid
        # where the client had time left it was not the client that ended the search
        assert said(39, 1e6, cpu=0.5).valid
        assert any("could not be found out" in w for w in said(39, 1e6, cpu=0.5).warnings)

    def test_the_busiest_second_counts_not_the_mean(self) -> None:
        burst = [*STEADY, *(request(1000 + i, 10.0 + i / 500) for i in range(400))]
        found = evidence(burst)
        able = calibration(200, 1e6, 0.9)
        found = replace(found, facts=replace(found.facts, calibration=able))
        assert "in the busiest second" in reasons(found)

    def test_a_calibration_that_could_not_be_made_is_told(self) -> None:
        found = evidence(STEADY)
        able = ClientCalibration(100, 1, 0.1, problem="no port")
        verdict = judge(replace(found, facts=replace(found.facts, calibration=able)))
        assert verdict.valid
        assert "not calibrated: no port" in verdict.warnings[0]

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

    def test_a_queue_that_grows_faster_than_requests_end(self) -> None:
        """Twice the capacity: what was sent early succeeds slowly, the rest is given up."""
        rows = [
            request(i, t, ttft_s=0.3, gap_s=t / 9)
            if (t := 0.1 * i) < 14
            else request(i, t, ttft_s=0.3, failure="cancelled", ended_s=60.0)
            for i in range(300)
        ]
        found = reasons(evidence(rows, arrivals=RATE))
        assert "requests in flight rose from" in found
        assert "160 of 300 requests (53.3%) were not finished" in found

    @pytest.mark.parametrize("failure", ["timeout_total", "timeout_first", "cancelled"])
    def test_requests_that_never_get_an_answer_show_the_queue(self, failure: str) -> None:
        rows = [
            request(i, 0.1 * i, ttft_s=0.05 * i)
            if i % 10 == 0
            else request(i, 0.1 * i, failure=failure, ended_s=0.15 * i + 0.1)
            for i in range(300)
        ]
        assert "TTFT from intent rose" in reasons(evidence(rows, arrivals=RATE))

    def test_a_queue_that_only_replies_show_is_found(self) -> None:
        """First chunks come at once; the stay grows from 2 to 12 s."""
        rows = [
            request(i, t, ttft_s=0.05, gap_s=(2 + t / 3) / 9)
            for i in range(300)
            if (t := 0.1 * i) is not None
        ]
        found = reasons(evidence(rows, arrivals=RATE))
        assert "requests in flight rose" in found
        assert "E2E rose" in found

    def test_a_stable_queue_is_left_alone(self) -> None:
        """Poisson arrivals, stays of 0.2 to 6 s, in all 40 runs of 60 s after a warm-up of 15 s."""
        rng = np.random.default_rng(5)
        law = Arrivals(rate_per_s=10, process="poisson")
        told = 0
        for _ in range(40):
            at = np.cumsum(rng.exponential(0.1, size=1000)) - 15
            stays = rng.uniform(0.2, 6, size=1000)
            rows = [
                request(i, t, ttft_s=0.1, gap_s=(stay - 0.1) / 9)
                for i, (t, stay) in enumerate(zip(at.tolist(), stays.tolist(), strict=True))
                if t < 60
            ]
            told += "queue" in reasons(evidence(rows, arrivals=law, seconds=60.0))
        assert told <= 1

    @pytest.mark.parametrize("closed", [True, False])
    def test_an_outage_in_the_middle_is_no_steady_window(self, closed: bool) -> None:
        """A straight line sees nothing: it went down and came back."""
        arrivals = Arrivals(users=4) if closed else RATE
        rows = []
        for i in range(300):
            t = 0.1 * i
            if not 12 < t < 20:
                rows.append(request(i, t))
            elif not closed or i < 125:
                rows.append(request(i, t, ttft_s=20.1 - t))
        assert "no chunk came for 7." in reasons(evidence(rows, arrivals=arrivals))

    def test_half_the_speed_for_a_third_of_a_closed_loops_window(self) -> None:
        rows, t = [], 0.0
        while t < 30:
            slow = 3.0 if 10 < t < 20 else 1.0
            rows.append(request(len(rows), t, ttft_s=0.02 * slow, gap_s=0.01 * slow))
            t += 0.11 * slow
        assert "parts of" in reasons(evidence(rows, arrivals=Arrivals(users=1)))

    def test_waiting_for_first_chunks_is_no_outage(self) -> None:
        """One user whose prompts take 4 s each: silence is all that there is to hear."""
        rows = [request(i, 4.2 * i, ttft_s=4.1) for i in range(8)]
        assert "no chunk" not in reasons(evidence(rows, arrivals=Arrivals(users=1)))

    def test_a_window_shorter_than_a_request_is_void(self) -> None:
        """--requests 8 with 8 users ends the window after the first eight sends."""
        rows = [request(i, 0.0002 * i, gap_s=0.05) for i in range(8)]
        found = reasons(evidence(rows, seconds=0.00179, requests_asked=8))
        assert "window of 1.79 ms is shorter than the median stay" in found
        assert "ask for more --requests" in found

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

    def test_as_many_in_every_second_is_not_poisson(self) -> None:
        """Each second drawn for itself and scaled to the rate: the gaps look exponential."""
        rng = np.random.default_rng(0)
        at = np.concatenate([s + np.sort(rng.random(20)) for s in range(120)]).tolist()
        found = self.wrong(at, Arrivals(rate_per_s=20, process="poisson"), seconds=120.0)
        assert "counts do not vary as the Poisson law's do" in found

    def test_the_same_gaps_in_another_order_are_not_the_law(self) -> None:
        """Long gaps come together: their law is the right one, their order is not."""
        rng = np.random.default_rng(1)
        gaps = np.sort(rng.exponential(1 / 20, size=1200)).reshape(60, 20)
        rng.shuffle(gaps)
        at = np.cumsum(gaps.ravel())
        found = self.wrong(at[at < 60].tolist(), Arrivals(rate_per_s=20, process="poisson"))
        assert "depend on those 1 before" in found

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

    def test_the_servers_own_template_is_declared_sharing(self) -> None:
        """32 tokens of each prompt of 100 are the template's, and the same for all."""
        counters = ServerCounters(prefix_cache_queries=30000.0, prefix_cache_hits=9600.0)
        assert "32% of the prompt tokens" in reasons(evidence(STEADY, counters=counters))
        fit = {"prompt_fit": {"tokens_per_word": 1.0, "overhead_tokens": 35.0}}
        assert reasons(evidence(STEADY, counters=counters, server=fit)) == ""

    def test_hits_that_only_one_account_admits_count(self) -> None:
        rows = [request(i, 0.1 * i, cached=90) for i in range(300)]
        own = ServerCounters(prefix_cache_queries=30000.0, prefix_cache_hits=0.0)
        assert "90% of the prompt tokens were hits" in reasons(evidence(rows, counters=own))


class TestUsage:
    def test_more_tokens_than_were_allowed_cannot_be(self) -> None:
        rows = [request(i, 0.1 * i, tokens=10, planned=10) for i in range(300)]
        rows[7] = replace(rows[7], output_tokens=100)
        line = "1 replies claim more output tokens than they were allowed (100 of at most 10)"
        assert line in reasons(evidence(rows))

    def test_far_fewer_tokens_than_chunks_cannot_be(self) -> None:
        rows = [replace(r, output_tokens=1) for r in STEADY]
        assert "fewer than half as many output tokens as" in reasons(evidence(rows))
        merged = [replace(r, output_tokens=8) for r in STEADY]  # a word may be cut in two chunks
        assert "usage" not in reasons(evidence(merged))

    def test_prompts_that_the_server_cuts(self) -> None:
        rows = [request(i, 0.1 * i, prompt=51) for i in range(300)]
        line = "prompts planned to be 100 tokens were counted as 51 on average"
        assert line in reasons(evidence(rows, server=FITTED))
        assert reasons(evidence(rows)) == ""  # nothing is known about how it counts
        near = [request(i, 0.1 * i, prompt=108) for i in range(300)]
        assert reasons(evidence(near, server=FITTED)) == ""

    @pytest.mark.parametrize(("claimed", "told"), [(4, True), (5, False), (9, False)])
    def test_fewer_than_half_as_many_tokens_as_chunks(self, claimed: int, told: bool) -> None:
        rows = [replace(r, output_tokens=claimed) for r in STEADY]  # ten chunks each
        assert ("fewer than half as many output tokens" in reasons(evidence(rows))) is told

    def test_a_few_tokens_off_are_the_calibrations_and_only_told(self) -> None:
        """Short prompts 11 tokens short, as three calibration texts left them at a real engine."""
        rows = [
            replace(request(i, 0.1 * i, prompt=45), planned_prompt_tokens=56) for i in range(300)
        ]
        found = judge(evidence(rows, server=FITTED))
        assert "prompts" not in " ".join(found.reasons)
        (told,) = [w for w in found.warnings if "planned to be 56 tokens" in w]
        assert "counted as 45" in told

    def test_only_the_long_ones_are_cut(self) -> None:
        """Plans from 50 to 250 tokens, cut at 200: on average 5 % are missing."""
        rows = [
            replace(request(i, 0.1 * i, prompt=min(50 + i % 201, 200)),
                    planned_prompt_tokens=50 + i % 201)
            for i in range(300)
        ]  # fmt: skip
        assert "the server cuts prompts" in reasons(evidence(rows, server=FITTED))

    def test_text_that_counts_unevenly_is_no_cut(self) -> None:
        """Each prompt is off by up to 30 %, and on average by none."""
        rng = np.random.default_rng(3)
        counts = (100 * rng.uniform(0.7, 1.3, size=300)).round().astype(int).tolist()
        rows = [request(i, 0.1 * i, prompt=n) for i, n in enumerate(counts)]
        assert "prompts" not in reasons(evidence(rows, server=FITTED))
        # a fit of three samples of such text misses its own samples: it allows for as much
        loose = {"prompt_fit": {**FITTED["prompt_fit"], "drift_tokens": 12.0}}  # type: ignore[dict-item]
        heavy = [request(i, 0.1 * i, prompt=n + 30) for i, n in enumerate(counts)]
        assert "prompts" in reasons(evidence(heavy, server=FITTED))
        assert "prompts" not in reasons(evidence(heavy, server=loose))

    def test_short_replies_are_told_and_void_where_the_length_was_asked_for(self) -> None:
        rows = [request(i, 0.1 * i, tokens=5, planned=10) for i in range(300)]
        found = judge(evidence(rows))
        assert found.valid
        assert any("100.0% of the replies ended before" in w for w in found.warnings)
        exactly = Outputs(Lengths(10), ignore_eos=True)
        assert "although ignore_eos was asked for" in reasons(evidence(rows, outputs=exactly))

    def test_what_could_not_be_checked_is_said(self) -> None:
        found = judge(evidence(STEADY))
        assert found.valid
        lines = " | ".join(found.warnings)
        assert "not checked against the server's counters" in lines
        assert "not checked whether prompts came out of a prefix cache" in lines
        part = judge(evidence(STEADY, counters=ServerCounters(requests_ok=300.0)))
        assert any(w.endswith("none): prompt tokens, output tokens") for w in part.warnings)


class TestServer:
    def test_a_restarted_server_voids(self) -> None:
        assert "restarted" in reasons(evidence(STEADY, faults=("the server was restarted",)))

    def test_a_server_that_is_gone_at_the_end_voids(self) -> None:
        rows = [
            request(i, 0.1 * i, failure="connect" if i >= 250 else None, ended_s=0.1 * i + 0.01)
            if i >= 250
            else STEADY[i]
            for i in range(300)
        ]
        assert "the server is gone: no connection in the last 4.99 s" in reasons(evidence(rows))

    def test_one_that_refuses_now_and_then_is_not_gone(self) -> None:
        rows = [
            request(i, 0.1 * i, failure="connect", ended_s=0.1 * i) if i % 10 == 0 else STEADY[i]
            for i in range(300)
        ]
        assert "gone" not in reasons(evidence(rows))


class TestSentAgain:
    """Requests that met a connection closed by the server before they reached it."""

    def rows(self, again: int, failed: int = 0) -> list[RequestRecord]:
        return [
            replace(STEADY[i], retries=1)
            if i < again
            else request(i, 0.1 * i, failure="stream_cut", ended_s=0.1 * i + 0.01)
            if i >= 300 - failed
            else STEADY[i]
            for i in range(300)
        ]

    def test_more_than_chance_is_told(self) -> None:
        found = judge(evidence(self.rows(3)))
        assert found.valid
        (said,) = [w for w in found.warnings if "sent again" in w]
        assert "3 requests (1.00%)" in said
        assert not any("sent again" in w for w in judge(evidence(STEADY)).warnings)

    def test_a_target_on_errors_must_hold_with_them_too(self) -> None:
        line = "with them 2.00% failed, and error_rate=0.01 is not shown to be met"
        assert line in reasons(evidence(self.rows(4, failed=2), slo="error_rate=0.01"))
        assert line not in reasons(evidence(self.rows(4, failed=2), slo="error_rate=0.02"))

    def test_a_target_that_is_missed_anyway_is_missed(self) -> None:
        assert "sent again" not in reasons(evidence(self.rows(4, failed=9), slo="error_rate=0.01"))


class TestUnfinished:
    """Requests that the client itself gave up are no failures of the server."""

    def rows(self, every: int, failure: str) -> list[RequestRecord]:
        return [
            request(i, 0.1 * i, failure=failure, ended_s=90.0) if i % every == 0 else STEADY[i]
            for i in range(300)
        ]

    @pytest.mark.parametrize("failure", ["cancelled", "stopped"])
    def test_they_are_counted_apart(self, failure: str) -> None:
        counts = evidence(self.rows(10, failure)).summary.requests
        assert (counts.sent, counts.ok, counts.failed, counts.unfinished) == (300, 270, 0, 30)
        assert counts.error_rate == 0.0
        assert counts.failures == {}

    def test_above_one_percent_they_void_and_below_they_are_told(self) -> None:
        line = "30 of 300 requests (10.0%) were not finished when the client gave up"
        assert line in reasons(evidence(self.rows(10, "cancelled")))
        few = judge(evidence(self.rows(150, "cancelled")))
        assert few.valid
        assert any("2 of 300 requests" in w and "--grace" in w for w in few.warnings)

    def test_they_are_infinitely_slow_for_a_target(self) -> None:
        found = evidence(self.rows(10, "cancelled"), slo="ttft_p95_ms=500").summary.slo[0]
        assert (found.value, found.met) == (float("inf"), False)

    def test_none_finished_is_the_clients_doing(self) -> None:
        found = reasons(evidence(self.rows(1, "cancelled")))
        assert "not one of the 300 requests was finished" in found
        assert "failed" not in found


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

    def test_a_failed_request_widens_the_bounds_and_no_more(self) -> None:
        """The server may have counted it whole, in part or not at all."""
        rows = [*STEADY, request(300, 29.9, failure="stream_cut")]
        assert "counts" not in reasons(evidence(rows, counters=self.exact, extra=3))
        whole = replace(self.exact, requests_ok=304, prompt_tokens=30100, generation_tokens=3010)
        assert "counts" not in reasons(evidence(rows, counters=whole, extra=3))
        tenfold = ServerCounters(3000.0, 300000.0, 30000.0)
        found = reasons(evidence(rows, counters=tenfold, extra=3))
        assert "the server counted 3000 requests, this run 303 to 304" in found
        assert "300000 prompt tokens, this run 30000 to" in found
        assert "30000 output tokens, this run 3000 to 3010" in found
        lost = replace(self.exact, generation_tokens=2999.0)
        assert "2999 output tokens" in reasons(evidence(rows, counters=lost, extra=3))

    def test_a_reply_without_usage_widens_them_by_its_plan(self) -> None:
        rows = [*STEADY[:-1], replace(STEADY[-1], output_tokens=None, prompt_tokens=None)]
        assert "counts" not in reasons(evidence(rows, counters=self.exact, extra=3))
        other = ServerCounters(303.0, 60000.0, 6000.0)
        assert "60000 prompt tokens" in reasons(evidence(rows, counters=other, extra=3))


def test_a_stopped_run_gets_no_valid_verdict() -> None:
    """The long requests of that moment are missing, so the figures are not those of the load."""
    assert "stopped after 30 s" in reasons(evidence(STEADY, interrupted=True))


def test_what_a_stop_left_half_told_leans_only_where_lengths_differ() -> None:
    open_end = [request(300 + i, 29.9, failure="stopped", ended_s=30.0, planned=10) for i in (0, 1)]
    even = reasons(evidence([*STEADY, *open_end], interrupted=True))
    assert "2 requests still on the way" in even
    assert "lean" not in even
    uneven = [*STEADY, *(replace(r, planned_output_tokens=90) for r in open_end)]
    assert "lean to the short ones" in reasons(evidence(uneven, interrupted=True))
    assert "on the way" not in reasons(evidence(STEADY, interrupted=True))


class TestAdviceToAClientAtItsLimit:
    """Full: more workers. Idle and late: the machine was busy with something else."""

    late = ClientCheck("read", loop_lag_p99_s=0.2, cpu_share=0.03, host_load=6.71, host_cores=2)

    def test_a_client_that_idled_was_kept_from_its_core(self) -> None:
        said = reasons(evidence(STEADY, client=self.late))
        assert "CPU 3% of its core" in said
        assert "something else on this machine held its core (load average 6.7 on 2 cores)" in said
        assert "chrt -f 50" in said
        assert "--workers" not in said

    def test_the_load_average_is_told_only_where_it_explains(self) -> None:
        said = reasons(evidence(STEADY, client=replace(self.late, host_load=0.4)))
        assert "held its core: free a core" in said
        assert "load average" not in said

    def test_a_client_that_was_full_needs_workers(self) -> None:
        said = reasons(evidence(STEADY, client=replace(self.late, cpu_share=0.97)))
        assert "more --workers" in said
        assert "chrt" not in said

    def test_a_worker_that_died_gets_no_such_advice(self) -> None:
        gone = ClientCheck("kernel", cpu_share=0.03, faults=("worker 2 of 4 died (signal 9)",))
        assert "chrt" not in reasons(evidence(STEADY, client=gone))
