"""Pools of started servers: each class reaches its own, with its own knobs and its own router."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Pool, Router
from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, TrafficClass, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import EndpointEngine
from ridgeline.engines.started import ServerLaunch, _devices, _servers
from ridgeline.engines.vllm import VllmEngine
from ridgeline.load.targets import Targets
from ridgeline.telemetry.prometheus import fetch_metrics
from ridgeline.workload.schedule import PlannedRequest, draw_schedule

HERE = Path(__file__).parent
ENGINE = (sys.executable, str(HERE / "twin_engine.py"), "{model}")
ROUTER = (sys.executable, str(HERE / "fake_router.py"))
CLASSES = (
    TrafficClass("chat", 0.8, Prompts(Lengths(8)), Outputs(Lengths(4)), priority=0),
    TrafficClass("batch", 0.2, Prompts(Lengths(8)), Outputs(Lengths(20)), priority=10),
)


def configuration(router: Router | None = None) -> Configuration:
    pools = (
        Pool("chat", ("chat",), Knobs(data_parallel_size=2, max_num_seqs=4)),
        Pool("offline", ("batch",), Knobs(max_num_seqs=64)),
    )
    launch = Launch(command=ENGINE, ready_s=60.0, router=router)
    return Configuration("Qwen/Qwen3-4B", Knobs(), engine="vllm", launch=launch, pools=pools)


def plan(classes: tuple[TrafficClass, ...] = CLASSES) -> DrivePlan:
    work = Workload(Arrivals(users=4), duration_s=1.5, warmup_s=0.0, classes=classes)
    return DrivePlan(draw_schedule(work), "salt")


def served_by_url(urls: list[str]) -> list[float]:
    pages = [fetch_metrics(url) for url in urls]
    return [page.total("vllm:request_success_total") or 0.0 for page in pages if page is not None]


def targets(records: list[RequestRecord]) -> dict[str | None, Counter[int | None]]:
    kinds = {r.traffic_class for r in records}
    return {k: Counter(r.target for r in records if r.traffic_class == k) for k in kinds}


def test_each_class_goes_to_its_own_servers(tmp_path: Path) -> None:
    """What the servers themselves counted agrees with what the client says where it sent."""
    sink = MemorySink()
    with VllmEngine(ServerLaunch(log_folder=tmp_path)).start(configuration()) as endpoint:
        before = served_by_url(list(endpoint.urls))
        facts = endpoint.drive(plan(), sink, SilentWatch())
        after = served_by_url(list(endpoint.urls))
    assert {r.failure for r in sink.requests} == {None}
    sent = targets(sink.requests)
    assert set(sent["chat"]) == {0, 1}
    assert set(sent["batch"]) == {2}
    assert abs(sent["chat"][0] - sent["chat"][1]) <= 1  # in turn
    probes = facts.extra_requests  # the prompts' calibration asks the first server
    served = [b - a for a, b in zip(before, after, strict=True)]
    assert served[1:] == [sent["chat"][1], sent["batch"][2]]
    assert sent["chat"][0] <= served[0] <= sent["chat"][0] + probes
    assert set(facts.server["pools"]) == {"chat", "offline"}  # type: ignore[call-overload]


def test_every_pool_has_a_router_of_its_own(tmp_path: Path) -> None:
    sink = MemorySink()
    wanted = configuration(Router(command=ROUTER))
    with VllmEngine(ServerLaunch(log_folder=tmp_path)).start(wanted) as endpoint:
        facts: RunFacts = endpoint.drive(plan(), sink, SilentWatch())
        served = served_by_url(list(endpoint.urls))
        assert {"router 0", "router 1"} <= set(endpoint._processes)
    assert {r.failure for r in sink.requests} == {None}
    sent = targets(sink.requests)
    assert (set(sent["chat"]), set(sent["batch"])) == ({0}, {1})  # of the two routers
    assert len(facts.server["urls"]) == 2  # type: ignore[arg-type]
    assert served[2] >= sent["batch"][1]
    assert min(served[:2]) >= sent["chat"][0] // 2 - 1


def test_servers_of_pools_take_gpus_one_after_another() -> None:
    pools = (
        Pool("a", ("chat",), Knobs(data_parallel_size=2)),
        Pool("b", ("batch",), Knobs(tensor_parallel_size=2)),
    )
    made = Configuration("m", Knobs(), gpu="H100-SXM", pools=pools)
    launch = ServerLaunch(gpus=(4, 5, 6, 7))
    given = [_devices(part, launch, first, made.layout_gpus) for part, first in _servers(made)]
    assert given == [["4"], ["5"], ["6", "7"]]


def test_pools_of_an_endpoint_are_asked_by_class(tmp_path: Path) -> None:
    """URLs of servers that run already; a class without a pool is refused before any traffic."""
    with VllmEngine(ServerLaunch(log_folder=tmp_path)).start(configuration()) as started:
        chat, _, batch = started.urls
        apart = (Pool("a", ("chat",), Knobs(), (chat,)), Pool("b", ("batch",), Knobs(), (batch,)))
        wanted = Configuration("", Knobs(), engine="endpoint", pools=apart)
        sink = MemorySink()
        with EndpointEngine().start(wanted) as endpoint:
            endpoint.drive(plan(), sink, SilentWatch())
            other = TrafficClass("other", 1.0, Prompts(Lengths(8)), Outputs(Lengths(4)))
            with pytest.raises(BadInput, match="no pool serves the class 'other'"):
                endpoint.drive(plan((other,)), MemorySink(), SilentWatch())
    sent = targets(sink.requests)
    assert (set(sent["chat"]), set(sent["batch"])) == ({0}, {1})


def test_classes_with_the_same_sites_share_a_router() -> None:
    found = Targets("least-loaded", 3, ((0, 1), (2,), (0, 1)))
    first = found.choose(PlannedRequest(0, 1, 1, traffic_class=0))
    other = found.choose(PlannedRequest(1, 1, 1, traffic_class=2))
    assert {first, other} == {0, 1}
    found.ended(other)
    assert found.choose(PlannedRequest(2, 1, 1, traffic_class=0)) == other
    assert found.choose(PlannedRequest(3, 1, 1, traffic_class=1)) == 2
    alone = Targets("round-robin", 2)
    assert [alone.choose(PlannedRequest(n, 1, 1)) for n in range(3)] == [0, 1, 0]
