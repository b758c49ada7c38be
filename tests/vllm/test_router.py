"""The real vllm-router before two replicas: every request arrives, and the counts agree."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.telemetry.prometheus import fetch_metrics
from ridgeline.workload.schedule import draw_schedule

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parents[2]
ENGINE = (sys.executable, str(ROOT / "tests" / "engines" / "twin_engine.py"), "{model}")


@pytest.fixture(scope="module")
def program() -> str:
    made = subprocess.run(
        [ROOT / "scripts" / "vllm_router_env.sh"], capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_two_replicas_have_one_url(tmp_path: Path, program: str, endpoint: str) -> None:
    """The replicas are twins' servers, which answer in known times; the router is the real one."""
    launch = Launch(command=ENGINE, ready_s=60.0, router=Router(command=(program,)))
    wanted = Configuration(
        "Qwen/Qwen3-4B", Knobs(data_parallel_size=2), engine="vllm", launch=launch
    )
    work = Workload(
        Arrivals(users=4), Prompts(Lengths(12)), Outputs(Lengths(6), ignore_eos=True),
        duration_s=2.0, warmup_s=0.0,
    )  # fmt: skip
    sink = MemorySink()
    with VllmEngine(ServerLaunch(log_folder=tmp_path)).start(wanted) as started:
        facts = started.drive(DrivePlan(draw_schedule(work), "salt", endpoint), sink, SilentWatch())
        replicas = [fetch_metrics(r.url) for r in started._replicas]
        assert facts.server["urls"] == [started._processes["router"].url]
    assert Counter(r.failure for r in sink.requests) == {None: len(sink.requests)}
    assert len(sink.requests) > 50
    assert all(r.output_tokens == 6 for r in sink.requests)
    assert facts.server["router"]["version"] == "0.1.17"  # type: ignore[index]
    assert facts.counters is not None
    assert facts.counters.requests_ok == len(sink.requests) + facts.extra_requests
    done = [m.total("vllm:request_success_total") for m in replicas if m is not None]
    assert len(done) == 2
    assert abs(done[0] - done[1]) <= 5  # in turn, questions about the models included
