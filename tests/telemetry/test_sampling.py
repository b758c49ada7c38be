"""Readings beside a run: what is read, on which clock, and what a window makes of it."""

import http.server
import math
import os
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from ridgeline.domain.records import TelemetryRow
from ridgeline.domain.run import LiveFigures, SilentWatch, Window
from ridgeline.telemetry import host as host_module
from ridgeline.telemetry.gpu import FakeSampler, GpuProbe, GpuSample, summarise_gpu
from ridgeline.telemetry.host import HostProbe, descendants, role_of
from ridgeline.telemetry.sampling import (
    ClockWatch,
    EngineProbe,
    FakeProbe,
    Reading,
    Sampling,
    summarise_engine,
    summarise_host,
)

SECOND = 1_000_000_000
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 31.0
vllm:num_requests_running{engine="1",model_name="a b"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:gpu_cache_usage_perc{engine="0"} 0.25
vllm:gpu_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total{engine="0"} 1.5e+06
vllm:generation_tokens_created{engine="0"} 1.79e+09
vllm:iteration_tokens_total_bucket{le="1.0"} 7
vllm:iteration_tokens_total_count{engine="0"} 42
"""


@pytest.fixture
def page() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = PAGE.encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_engines_page_is_read_without_its_neighbours(page: str) -> None:
    probe = EngineProbe(page, "replica 0")
    assert {r.metric: r.value for r in probe.read()} == {
        "running": 32.0,  # both engine cores
        "waiting": 5.0,  # not the series whose name only begins so
        "kv_use": 0.5,  # a share is averaged, and found under its older name
        "generation_tokens": 1_500_000.0,
        "steps": 42.0,
    }
    probe._connection.close()


def test_a_page_that_is_not_there_is_no_reading(page: str) -> None:
    wrong = EngineProbe(page + "/elsewhere", "replica 0")
    assert list(wrong.read()) == []
    wrong._connection.close()
    assert list(EngineProbe("http://127.0.0.1:9", "replica 0").read()) == []


def test_sampling_reads_at_once_and_again_until_it_ends() -> None:
    probe = FakeProbe([[Reading("gpu", "gpu 0", "power_w", float(i))] for i in range(1000)])
    zero = time.monotonic_ns()
    with Sampling([probe], period_s=0.01) as sampling:
        deadline = time.monotonic() + 10
        while len(sampling.rows(zero)) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    rows = sampling.rows(zero)
    time.sleep(0.05)
    assert sampling.rows(zero) == rows, "nothing is read after the end"
    assert [r.value for r in rows] == [float(i) for i in range(len(rows))]
    assert len(rows) >= 3
    assert 0 <= rows[0].at_ns <= rows[1].at_ns


def test_a_probe_that_breaks_does_not_end_the_others() -> None:
    class Broken:
        def read(self) -> list[Reading]:
            raise RuntimeError("line 'btime' not found in /proc/stat")

    good = FakeProbe([[Reading("gpu", "gpu 0", "power_w", float(i))] for i in range(1000)])
    with Sampling([Broken(), good], period_s=0.01) as sampling:
        deadline = time.monotonic() + 10
        while len(sampling.rows(0)) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert len(sampling.rows(0)) >= 2


def test_the_runs_zero_is_the_earliest_that_the_live_figures_tell() -> None:
    watch = ClockWatch(SilentWatch())
    assert watch.zero_ns is None
    before = time.monotonic_ns()
    for late_s in (0.05, 0.0, 0.2):  # figures that come late tell a zero that is too late
        elapsed_s = (time.monotonic_ns() - before) / 1e9
        time.sleep(late_s)
        watch.live(LiveFigures(elapsed_s, 9.0, "measuring", None, None, 0, 0, 0))
    assert watch.zero_ns is not None
    assert 0 <= watch.zero_ns - before < 40_000_000


class Paced:
    """A probe whose every reading takes `take_s`; it tells when it was asked."""

    def __init__(self, unit: str, take_s: float) -> None:
        self.unit, self.take_s = unit, take_s
        self.asked: list[int] = []

    def read(self) -> list[Reading]:
        self.asked.append(time.monotonic_ns())
        time.sleep(self.take_s)
        return [Reading("engine", self.unit, "running", 1.0)]

    def close(self) -> None:
        pass


def test_a_page_that_hangs_leaves_the_others_readings_as_they_are() -> None:
    hung, quick = Paced("replica 0", 1.0), Paced("replica 1", 0.0)
    with Sampling([hung, quick], period_s=0.02) as sampling:
        time.sleep(0.6)
    found = [r.at_ns for r in sampling.rows(0) if r.unit == "replica 1"]
    assert len(hung.asked) == 1
    assert len(found) >= 10


def test_a_reading_is_dated_between_its_asking_and_its_answer() -> None:
    slow = Paced("replica 0", 0.2)
    with Sampling([slow], period_s=10.0) as sampling:
        time.sleep(0.3)
    (row,) = sampling.rows(slow.asked[0])
    assert row.at_ns == pytest.approx(0.1 * SECOND, abs=0.04 * SECOND)


def test_rows_of_several_probes_are_in_the_order_of_time() -> None:
    with Sampling([Paced("replica 0", 0.05), Paced("replica 1", 0.0)], period_s=0.02) as sampling:
        time.sleep(0.3)
    times = [row.at_ns for row in sampling.rows(0)]
    assert len(times) > 5
    assert times == sorted(times)


def served(text: str) -> dict[str, float]:
    return {r.metric: r.value for r in EngineProbe("http://x", "replica 0")._values(text.encode())}


def test_a_gauge_that_is_no_number_is_no_reading() -> None:
    """Also where one engine core of two says so: a sum over the other one is no sum."""
    page = (
        'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 3\n'
        "vllm:kv_cache_usage_perc +Inf\nvllm:num_requests_waiting 4\n"
    )
    assert served(page) == {"waiting": 4.0}


def test_what_is_no_number_is_kept_from_no_probe() -> None:
    values = [float("nan"), 7.0, float("inf")]
    with Sampling([FakeProbe([[Reading("gpu", "gpu 0", "power_w", v) for v in values]])]) as found:
        time.sleep(0.1)
    assert [row.value for row in found.rows(0)] == [7.0]


def test_readings_of_older_records_that_are_no_numbers_are_left_out() -> None:
    points = [(t / 2, 10.0 if t % 2 else math.nan) for t in range(6)]
    found = summarise_engine(rows("running", *points), Window(0, 3 * SECOND))
    assert (found["running_mean"], found["readings"]) == (10.0, 3)


def test_a_replica_that_answered_once_has_not_told_the_window() -> None:
    """Its page is gone after the first reading: nothing of it is in the sums."""
    whole = [*rows("running", *((float(t), 32.0) for t in range(60))),
             *rows("steps", *((float(t), 100.0 * t) for t in range(60)))]  # fmt: skip
    once = [*rows("running", (0.0, 8.0), unit="replica 1"),
            *rows("steps", (0.0, 7.0), unit="replica 1")]  # fmt: skip
    window = Window(0, 60 * SECOND)
    alone = summarise_engine(whole, window)
    assert alone["replicas_told"] == 1
    assert summarise_engine([*whole, *once], window) == alone
    half = rows("running", *((float(t), 8.0) for t in range(30)), unit="replica 1")
    assert summarise_engine([*whole, *half], window) == alone
    assert summarise_engine(once, window) == {"replicas_told": 0}


def test_in_a_short_window_two_readings_side_by_side_are_not_the_whole() -> None:
    window = Window(0, 4 * SECOND)
    side_by_side, apart = rows("running", (1.5, 8.0), (2.5, 8.0)), rows("running", (1, 8), (3, 8))
    assert summarise_engine(side_by_side, window) == {"replicas_told": 0}
    assert summarise_engine(apart, window)["running_mean"] == 8.0


def test_a_page_that_timed_out_once_near_the_beginning_is_told() -> None:
    late = rows("running", *((float(t), 8.0) for t in range(2, 8)))
    assert summarise_engine(late, Window(0, 8 * SECOND))["replicas_told"] == 1
    later = rows("running", *((float(t), 8.0) for t in range(4, 8)))
    assert summarise_engine(later, Window(0, 8 * SECOND)) == {"replicas_told": 0}


def test_a_counter_that_one_replica_does_not_tell_has_no_sum() -> None:
    window = Window(0, 60 * SECOND)
    times = range(60)
    made = [
        *rows("running", *((float(t), 32.0) for t in times)),
        *rows("steps", *((float(t), 100.0 * t) for t in times)),
        *rows("running", *((float(t), 16.0) for t in times), unit="replica 1"),
        *rows("steps", *((float(t), 100.0 * (t % 40)) for t in times), unit="replica 1"),
    ]
    found = summarise_engine(made, window)  # replica 1 was started anew after 40 s
    assert found["running_mean"] == 48.0
    assert found["replicas_told"] == 2
    assert "steps_per_s" not in found


def rows(metric: str, *points: tuple[float, float], unit: str = "replica 0") -> list[TelemetryRow]:
    return [TelemetryRow(round(t * SECOND), "engine", unit, metric, v) for t, v in points]


def test_a_window_means_its_own_readings_only() -> None:
    found = summarise_engine(
        [
            *rows("running", (0.5, 900.0), (1.0, 10.0), (2.0, 30.0), (3.0, 900.0)),
            *rows("steps", (1.0, 100.0), (2.5, 250.0)),
        ],
        Window(1 * SECOND, 3 * SECOND),
    )
    assert found == {
        "running_mean": 20.0, "running_max": 30.0, "steps_per_s": 100.0, "replicas_told": 1,
        "running_error": 10.0, "readings": 2,  # 10 and 30: half their distance
    }  # fmt: skip


def test_replicas_add_up_and_shares_do_not() -> None:
    found = summarise_engine(
        [
            *rows("waiting", (1.0, 4.0), (2.0, 4.0), unit="replica 0"),
            *rows("waiting", (1.1, 6.0), (2.1, 6.0), unit="replica 1"),
            *rows("kv_use", (1.0, 0.2), (2.0, 0.2), unit="replica 0"),
            *rows("kv_use", (1.1, 0.8), (2.1, 0.8), unit="replica 1"),
        ],
        Window(0, 3 * SECOND),
    )
    assert found == {
        "waiting_mean": 10.0, "waiting_max": 10.0, "kv_use_mean": 0.5, "kv_use_max": 0.8,
        "replicas_told": 2, "waiting_error": 0.0, "readings": 2,
    }  # fmt: skip


def test_a_counter_that_fell_and_one_reading_have_no_rate() -> None:
    window = Window(0, 3 * SECOND)
    fell = summarise_engine(rows("steps", (1.0, 50.0), (2.0, 10.0)), window)
    assert fell == {"replicas_told": 1}
    assert summarise_engine(rows("steps", (1.0, 50.0)), window) == {"replicas_told": 0}
    assert summarise_engine(rows("steps", (5.0, 50.0)), window) == {}, "nothing in the window"


def test_cpu_is_measured_of_the_process_that_burns_it() -> None:
    burn = "import time\nwhile True: sum(range(20000))"
    # a guard with one child, as engines are started
    guard = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; "
         f"p = subprocess.Popen([sys.executable, '-c', {burn!r}, 'VLLM::EngineCore']); "
         f"print(p.pid, flush=True); p.wait()"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert guard.stdout is not None
    child = int(guard.stdout.readline())
    try:
        probe = HostProbe({"replica 0": guard.pid})
        first = {r.metric for r in probe.read()}
        time.sleep(0.5)
        second = {r.metric: r for r in probe.read() if r.unit != "machine"}
        assert first == {"memory_bytes"}, "CPU is a difference of two readings"
        assert second["cpu_cores"].unit == "replica 0: engine core"
        assert 0.05 < second["cpu_cores"].value < 1.5
        assert second["memory_bytes"].value > 1e6
        assert {guard.pid, child} <= descendants()
        assert os.getpid() not in descendants()
    finally:
        os.kill(child, 9)
        guard.communicate()
    left = [r for r in probe.read() if r.unit != "machine"]
    assert left == [], "what has ended is left out"


def test_what_the_hypervisor_took_is_read_of_the_whole_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # user system idle iowait steal, seconds over all cores: in 2 s 1.5 cores were busy, 0.5 stolen
    stat = iter([(10.0, 5.0, 80.0, 1.0, 4.0), (12.0, 6.0, 81.0, 1.0, 5.0)])
    clock = iter([100.0, 102.0])
    times = namedtuple("times", "user system idle iowait steal")
    now = SimpleNamespace(at=0.0, stat=times(*next(stat)))
    monkeypatch.setattr(psutil, "cpu_times", lambda: now.stat)
    monkeypatch.setattr(host_module.time, "monotonic", lambda: now.at)
    now.at = next(clock)
    probe = HostProbe({"replica 0": os.getpid()})
    assert not [r for r in probe.read() if r.unit == "machine"], "a difference of two readings"
    now.at, now.stat = next(clock), times(*next(stat))
    read = {r.metric: r.value for r in probe.read() if r.unit == "machine"}
    assert read == pytest.approx({"busy_cores": 1.5, "stolen_cores": 0.5})
    assert not list(HostProbe({}).read()), "an engine elsewhere: this machine is not its host"


def test_a_machine_that_does_not_tell_steal_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        psutil, "cpu_times", lambda: namedtuple("times", "user system idle")(1.0, 1.0, 1.0)
    )
    probe = HostProbe({"replica 0": os.getpid()})
    for _ in range(2):
        assert not [r for r in probe.read() if r.unit == "machine"]


def test_roles_come_from_titles() -> None:
    assert role_of(["VLLM::EngineCore"], direct=False) == "engine core"
    assert role_of(["python3", "-m", "vllm", "serve"], direct=True) == "api server"
    assert role_of(["python3", "-m", "something"], direct=False) == "other"


def test_host_rows_are_grouped_by_process() -> None:
    made = [
        TelemetryRow(SECOND, "host", "replica 0: engine core", "cpu_cores", 0.5),
        TelemetryRow(2 * SECOND, "host", "replica 0: engine core", "cpu_cores", 1.0),
        TelemetryRow(9 * SECOND, "host", "replica 0: engine core", "cpu_cores", 9.0),
    ]
    assert summarise_host(made, Window(0, 3 * SECOND)) == {
        "replica 0: engine core": {"cpu_cores_mean": 0.75, "cpu_cores_max": 1.0}
    }


def test_a_gpu_probe_leaves_out_what_is_not_known_and_other_gpus() -> None:
    samples = [
        GpuSample(0, "H200", power_w=400.0, throttled_by=("power brake",), processes=(7,)),
        GpuSample(1, "H200", power_w=90.0),
    ]
    probe = GpuProbe(FakeSampler([samples]), gpus=[0])
    before = time.monotonic_ns()
    read = {(r.unit, r.metric): r.value for r in probe.read()}
    after = time.monotonic_ns() + 1
    assert read == {
        ("gpu 0", "power_w"): 400.0,
        ("gpu 0", "throttled: power brake"): 1.0,
        ("gpu 0", "processes"): 1.0,
    }
    (summary,) = probe.summaries(before, after, ours=[7])
    assert (summary.index, summary.power_mean_w, summary.strangers) == (0, 400.0, ())
    assert summary.tensor_active is None
    assert probe.summaries(after, after + SECOND) == ()


def test_strangers_cannot_be_told_where_process_numbers_are_not_ours() -> None:
    """A driver outside our container lists numbers that mean nothing here: not known, not none."""
    samples = [GpuSample(0, "H200", processes=(40001, 40002))]
    of_container = summarise_gpu(samples, ours=[11, 12])
    of_host = summarise_gpu(samples, ours=[40001])
    assert of_container is not None
    assert of_host is not None
    assert of_container.strangers is None
    assert of_host.strangers == (40002,)


def test_probes_are_closed_when_the_sampling_ends_also_one_that_fails() -> None:
    class Broken(FakeProbe):
        def close(self) -> None:
            self.closed = True
            raise OSError

    probes = [Broken([]), FakeProbe([])]
    with Sampling(probes, period_s=0.01):
        assert not any(p.closed for p in probes)
    assert all(p.closed for p in probes)
