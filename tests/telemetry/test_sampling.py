"""Readings beside a run: what is read, on which clock, and what a window makes of it."""

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ridgeline.domain.records import TelemetryRow
from ridgeline.domain.run import LiveFigures, SilentWatch, Window
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
            *rows("waiting", (1.0, 4.0), unit="replica 0"),
            *rows("waiting", (1.1, 6.0), unit="replica 1"),
            *rows("kv_use", (1.0, 0.2), unit="replica 0"),
            *rows("kv_use", (1.1, 0.8), unit="replica 1"),
        ],
        Window(0, 3 * SECOND),
    )
    assert found == {
        "waiting_mean": 10.0, "waiting_max": 10.0, "kv_use_mean": 0.5, "kv_use_max": 0.8,
        "replicas_told": 2,
    }  # fmt: skip


def test_a_counter_that_fell_and_one_reading_have_no_rate() -> None:
    window = Window(0, 9 * SECOND)
    assert summarise_engine(rows("steps", (1.0, 50.0), (2.0, 10.0)), window) == {}
    assert summarise_engine(rows("steps", (1.0, 50.0)), window) == {}


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
        second = {r.metric: r for r in probe.read()}
        assert first == {"memory_bytes"}, "CPU is a difference of two readings"
        assert second["cpu_cores"].unit == "replica 0: engine core"
        assert 0.05 < second["cpu_cores"].value < 1.5
        assert second["memory_bytes"].value > 1e6
        assert {guard.pid, child} <= descendants()
        assert os.getpid() not in descendants()
    finally:
        os.kill(child, 9)
        guard.communicate()
    assert list(probe.read()) == [], "what has ended is left out"


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
