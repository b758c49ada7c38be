"""Readings beside a drive never cost the measurement, whatever a server's page says."""

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from ridgeline.domain.records import MemorySink, RecordSink
from ridgeline.domain.run import ClientCheck, LiveFigures, RunFacts, SilentWatch, Watch, Window
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.engines import beside
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.beside import SampledEndpoint
from ridgeline.workload.schedule import draw_schedule

WINDOW = Window(0, 2_300_000_000)
PAGE = b"vllm:num_requests_running 8\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc NaN\n"


class Drive:
    """Takes as long as its window and measures nothing."""

    source = "measured"

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        watch.live(LiveFigures(0.0, 2.3, "measuring", None, None, 0, 0, 0))
        time.sleep(WINDOW.seconds)
        return RunFacts("measured", WINDOW, ClientCheck("kernel"), server={"engine": "vllm"})


@pytest.fixture
def page() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def driven(url: str) -> RunFacts:
    plan = DrivePlan(draw_schedule(Workload(Arrivals(users=1))), "salt", "chat")
    return SampledEndpoint(Drive(), [url]).drive(plan, MemorySink(), SilentWatch())


def test_a_page_with_gauges_that_are_no_numbers_leaves_a_run_with_the_others(page: str) -> None:
    facts = driven(page)
    told = facts.server["telemetry"]
    assert isinstance(told, dict)
    engine = told["engine"]
    assert (engine["running_mean"], engine["replicas_told"]) == (8.0, 1)
    assert not {"waiting_mean", "kv_use_mean"} & set(engine)
    assert facts.notes == ()


def test_a_summary_that_fails_is_a_note_and_the_measurement_stays(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> dict[str, float]:
        raise AttributeError("no numerator")

    monkeypatch.setattr(beside, "summarise_engine", breaks)
    facts = driven(page)
    assert facts.window == WINDOW
    assert facts.server == {"engine": "vllm"}
    assert facts.notes == (
        "the readings beside the run told nothing: AttributeError: no numerator",
    )
