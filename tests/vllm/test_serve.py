"""`ridgeline serve` with the real vLLM on the CPU and the real vllm-router: two replicas.

One serve for all tests of this file, which follow each other.
"""

import json
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_vllm import ENVIRONMENT

from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.telemetry.prometheus import fetch_metrics
from ridgeline.telemetry.sampling import ClockWatch
from ridgeline.workload.schedule import draw_schedule
from support.cpuserving import PLAIN, STREAM, router_program, study_text
from support.served import Served, Users, ask, lives, serving_of
from support.serving import serving

pytestmark = pytest.mark.vllm
KEY = "swordfish-4711"
DONE = "vllm:request_success_total"
OUT_S = 15.0  # how long a hung replica may stay in rotation


@pytest.fixture(scope="module")
def router() -> str:
    return router_program()


@pytest.fixture(scope="module")
def lasting(
    vllm_python: Path, tiny_model: Path, router: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    file = folder / "study.yaml"
    file.write_text(study_text(vllm_python, ENVIRONMENT, tiny_model, router, 64))
    options = ("--api-key-env", "SERVE_TEST_KEY")
    environment = {"SERVE_TEST_KEY": KEY}
    with serving_of(file, folder / "state", *options, environment=environment,
                    ready_s=300.0) as served:  # fmt: skip
        served.ready = served.events("ready")
        yield served


@pytest.fixture
def served(lasting: Served) -> Served:
    lasting.wait(lambda: [r["state"] for r in lasting.state()["replicas"]] == ["up", "up"], 120.0)
    lasting.forget()
    return lasting


@pytest.fixture(scope="module")
def first_start_s(lasting: Served) -> float:
    """Of replica 0, as it was told before anything was killed."""
    return next(e["ready_s"] for e in lasting.ready if e["replica"] == 0)


def told_s(event: dict[str, Any]) -> float:
    """When it was told, on the monotonic clock."""
    at = datetime.fromisoformat(event["at"]).timestamp()
    return time.monotonic() - (time.time() - at)


class Healthy(BaseHTTPRequestHandler):
    """A server that is none of ours."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def users(served: Served, model: Path, count: int, pause_s: float = 0.0, tokens: int = 16) -> Users:
    """Threads of this process, on the two cores that the engines have too. With `tokens` other than
    16: streams, which say at their end how many came.
    """
    extra = PLAIN if tokens == 16 else {**STREAM, "max_tokens": tokens}
    return Users(served.port, count, model=str(model), key=KEY, extra=extra, pause_s=pause_s)


def give_way(served: Served) -> None:
    """Engines that serve leave the cores to those that start, for which the test waits."""
    for replica in served.state()["replicas"]:
        if replica["state"] == "up":
            for process in served.below_all(replica["url"]):
                with suppress(psutil.Error):  # one that has just ended
                    process.nice(19)


def inside(served: Served) -> list[str]:
    """The router's own list."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/list_workers", timeout=5) as reply:
        found: list[str] = json.load(reply)["urls"]
    return found


def done(served: Served) -> list[float]:
    pages = [fetch_metrics(r["url"]) for r in served.state()["replicas"]]
    found = [None if page is None else page.total(DONE) for page in pages]
    assert None not in found
    return [count for count in found if count is not None]


def test_32_users_are_balanced_within_a_tenth(served: Served, tiny_model: Path) -> None:
    before = done(served)
    with users(served, tiny_model, 32) as crowd:
        crowd.wait_for(300)
    assert crowd.statuses() == {200: len(crowd.answers)}
    counts = [after - first for after, first in zip(done(served), before, strict=True)]
    mean = sum(counts) / 2
    assert sum(counts) >= len(crowd.answers)
    print(f"32 users: {counts} requests")
    assert all(abs(count - mean) <= 0.1 * mean for count in counts), counts
    assert ask(served.port, model=str(tiny_model))[0] == 401  # without the key


def test_the_routers_own_interface_is_open_and_what_is_added_there_does_not_stay(
    served: Served,
) -> None:
    """Why `--host` elsewhere is refused with this router: no key is asked for."""
    front = f"http://127.0.0.1:{served.port}"
    with serving(Healthy) as stranger:
        add = urllib.request.Request(f"{front}/add_worker?url={stranger}", b"", method="POST")
        with urllib.request.urlopen(add, timeout=10) as reply:
            assert reply.status == 200
        served.wait_for("stranger", limit_s=5.0)
    assert stranger not in inside(served)


def test_one_killed_under_load_costs_its_requests_and_is_back(
    served: Served, first_start_s: float, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, by Ridgeline's own client: what breaks off has a class, what is sent later runs."""
    monkeypatch.setenv("RIDGELINE_API_KEY", KEY)
    work = Workload(
        Arrivals(users=32), Prompts(Lengths(16)), Outputs(Lengths(256), ignore_eos=True),
        duration_s=10.0, warmup_s=0.0,
    )  # fmt: skip
    endpoint = HttpEndpoint(f"http://127.0.0.1:{served.port}", model=str(tiny_model))
    sink = MemorySink()
    plan = DrivePlan(draw_schedule(work), "salt", "completions")
    clock = ClockWatch(SilentWatch())
    thread = threading.Thread(target=endpoint.drive, args=(plan, sink, clock))
    thread.start()
    served.wait(lambda: served.state()["replicas"][0]["running"], 30.0)
    time.sleep(2.0)
    for process in served.below(served.replica(0)["url"])[:-1]:
        process.kill()
    killed_s = time.monotonic()
    served.wait_for("lost")
    known_s = told_s(served.events("lost")[0])
    served.wait_for("up", limit_s=240.0)
    back_s = time.monotonic() - killed_s
    thread.join()
    print(f"its first start took {first_start_s:.1f} s, it was back after {back_s:.1f} s;"
          f" its death was known after {known_s - killed_s:.2f} s")  # fmt: skip
    assert known_s - killed_s < 3.0
    assert served.events("lost")[0]["replica"] == 0
    # A quarter: the users have the same two cores. 5 s: to see it, to end the rest of it, to wait
    # for about a second, to tell the router.
    assert back_s < 1.25 * first_start_s + 5.0
    failed = [r for r in sink.requests if r.failure is not None]
    assert clock.zero_ns is not None
    after_ns = 1e9 * known_s - clock.zero_ns
    later = [r for r in sink.requests if r.sent_ns is not None and r.sent_ns > after_ns]
    print(f"{len(sink.requests)} requests, failed: {Counter(r.failure for r in failed)}")
    assert 0 < len(failed) <= 32  # at most what was running
    assert {r.failure for r in failed} == {"stream_cut"}
    assert len(later) > 30
    assert {r.failure for r in later} == {None}


def test_a_stopped_engine_core_is_out_within_15_seconds(served: Served, tiny_model: Path) -> None:
    """Its API server answers /health with 200 all the time."""
    url = served.replica(1)["url"]
    cores = [p for p in served.below_all(url) if "EngineCore" in " ".join(p.cmdline())]
    assert len(cores) == 1, [p.cmdline() for p in served.below_all(url)]
    with users(served, tiny_model, 8) as crowd:
        crowd.wait_for(30)
        assert url in inside(served)
        cores[0].suspend()
        took_s = served.wait(lambda: url not in inside(served), 40.0)
        out_s = time.monotonic()
        crowd.wait_for(len(crowd.answers) + 30)
    print(f"out of the router's list {took_s:.1f} s after it was stopped")
    assert took_s < OUT_S
    (lost,) = served.events("lost")
    assert lost["replica"] == 1
    assert "hung: no completion and no step" in lost["words"]
    served.wait(lambda: not lives(cores[0]), 10.0)
    assert crowd.statuses(sent_after=out_s).keys() == {200}


def test_a_change_loses_no_request_and_ctrl_c_leaves_no_process(
    lasting: Served, vllm_python: Path, tiny_model: Path, router: str
) -> None:
    """The replica that was taken out before is still away: it comes back as the new one."""
    served = lasting
    served.forget()
    file = served.folder.parent / "study.yaml"
    file.write_text(study_text(vllm_python, ENVIRONMENT, tiny_model, router, 48))
    # short ones are sent again by the router, so that only streams show that one was drained
    streams = users(served, tiny_model, 4, pause_s=0.1, tokens=512)
    with users(served, tiny_model, 2, pause_s=0.3) as crowd, streams:
        give_way(served)
        served.change()
        served.wait_for("up", limit_s=300.0)
        give_way(served)
        served.wait_for("changed", limit_s=300.0)
        served.look()
        streams.wait_for(len(streams.answers) + 10)
    print(f"{len(crowd.answers)} requests and {len(streams.answers)} streams over a change")
    for each, tokens in ((crowd, 16), (streams, 512)):
        assert each.statuses() == {200: len(each.answers)}
        assert {a["usage"]["completion_tokens"] for _, _, _, a in each.answers} == {tokens}
    assert len(crowd.answers) + len(streams.answers) > 100
    drained = served.events("drained")[0]
    took = re.search(r"after ([\d.]+) s", drained["words"])
    assert took is not None
    begun_s = told_s(drained) - float(took[1])
    assert any(sent < begun_s < ended for sent, ended, _, _ in streams.answers)
    assert not served.events("cut")
    assert not served.events("lost")
    words = " ".join(served.command_lines).replace("\0", " ")
    assert "--max-num-seqs 64" in words
    assert "--max-num-seqs 48" in words
    assert KEY not in words
    assert served.stop() == 0
    assert served.left() == []
    assert len(served.family) >= 10
    for path in served.folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert len(served.events("ended")) == 1
