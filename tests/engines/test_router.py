"""A router before the replicas: started, waited for, driven through, and its cost told."""

import json
import sys
from pathlib import Path

import psutil
import pytest

from ridgeline.cli.main import run
from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.router import router_facts
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.workload.schedule import draw_schedule

HERE = Path(__file__).parent
ENGINE = (sys.executable, str(HERE / "twin_engine.py"), "{model}")
ROUTER = (sys.executable, str(HERE / "fake_router.py"))


def configuration(**router: object) -> Configuration:
    given = Router(command=ROUTER, **router)  # type: ignore[arg-type]
    launch = Launch(command=ENGINE, ready_s=30.0, router=given)
    return Configuration("Qwen/Qwen3-4B", Knobs(data_parallel_size=2), engine="vllm", launch=launch)


def plan() -> DrivePlan:
    work = Workload(
        Arrivals(users=2), Prompts(Lengths(8)), Outputs(Lengths(4), ignore_eos=True),
        duration_s=1.0, warmup_s=0.0,
    )  # fmt: skip
    return DrivePlan(draw_schedule(work), "salt")


def test_the_version_is_known_also_behind_a_word_that_starts_it(tmp_path: Path) -> None:
    """`chrt --rr 1 vllm-router`: the environment is the program's, which is not the first word."""
    python, program = tmp_path / "python3", tmp_path / "vllm-router"
    python.write_text("#!/bin/sh\necho 0.1.17\n")
    program.write_text(f"#!{python}\n")
    for file in (python, program):
        file.chmod(0o755)
    for before in ((), ("env",), ("nice", "-n", "1")):
        found = router_facts(Router(command=(*before, str(program))))
        assert found["version"] == "0.1.17", before


def test_it_is_started_waited_for_and_driven_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 ms are planted in it. Counters and tokenizer are the replicas' own."""
    monkeypatch.setenv("FAKE_ROUTER_MS", "25")
    engine = VllmEngine(ServerLaunch(log_folder=tmp_path / "logs"))
    sink = MemorySink()
    with engine.start(configuration(policy="least_work")) as endpoint:
        facts = endpoint.drive(plan(), sink, SilentWatch())
        router = endpoint._processes["router"]
        replicas = endpoint._replicas
        assert "policy least_work" in router.process.log_text()
        family = [psutil.Process(p.process.pid) for p in (router, *replicas)]
    assert not any(p.is_running() for p in family)
    answered = [r for r in sink.requests if r.failure is None]
    assert len(answered) == len(sink.requests) > 10
    waits = sorted(r.first_ns - r.sent_ns for r in answered if r.first_ns and r.sent_ns)
    assert waits[0] >= 30_000_000  # the engine's own 5 ms and the router's: sleep is never short
    assert facts.server["urls"] == [router.url]
    assert facts.server["router"]["policy"] == "least_work"  # type: ignore[index]
    assert len(facts.server["replicas"]) == 2  # type: ignore[arg-type]
    assert facts.counters is not None
    assert facts.counters.requests_ok == len(answered) + facts.extra_requests
    assert facts.server["prompt_fit"]["exact"] is True  # type: ignore[index]
    units = {row.unit for row in endpoint.beside().telemetry}
    assert {"replica 0", "replica 1"} <= units


def test_a_router_that_dies_under_load_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ROUTER_ENDS", "20")
    engine = VllmEngine(ServerLaunch(log_folder=tmp_path / "logs"))
    with engine.start(configuration()) as endpoint:
        with pytest.raises(RunFailed, match=r"exit code 101 during the run.*panicked"):
            endpoint.drive(plan(), MemorySink(), SilentWatch())
        assert not endpoint.alive()
        assert "== router" in endpoint.beside().log


def test_a_router_that_does_not_start_is_told(tmp_path: Path) -> None:
    broken = Launch(
        command=ENGINE, ready_s=30.0, router=Router(command=(sys.executable, "-c", "1/0"))
    )
    wanted = Configuration("Qwen/Qwen3-4B", Knobs(), engine="vllm", launch=broken)
    engine = VllmEngine(ServerLaunch(log_folder=tmp_path / "logs"))
    said = r"before it was ready: ZeroDivisionError"
    with pytest.raises(RunFailed, match=said), engine.start(wanted):
        pass


@pytest.mark.parametrize(
    ("launch", "line", "words"),
    [
        ("router: no-such-router", 5, ["there is no program 'no-such-router'",
                                       "pip install vllm-router"]),
        ("container: [-v, a]", 6, ["gives words to docker run, and there is no image"]),
        ("tunnel: false", 6, ["another host, and there is none"]),
        ("arguments: ['--port', '8000']", 6, ["--port is Ridgeline's to give"]),
        ("host: '-oProxyCommand=x'", 6, ["host"]),
        ("image: '--privileged'", 6, ["image"]),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launch: str, line: int, words: list[str]
) -> None:
    file = tmp_path / "s.yaml"
    command = json.dumps(ENGINE)
    file.write_text(
        f"name: s\nmodel: m\nengine: vllm\nlaunch:\n  command: {command}\n  {launch}\n"
        "workload: {arrivals: {users: 1}}\n"
    )
    assert run(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"s.yaml:{line}" in said or f"s.yaml:{line + 1}" in said
    for word in words:
        assert word in said
