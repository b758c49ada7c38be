"""Pools of a twin: each behaves as the servers alone would with its classes alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs, Pool
from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, TrafficClass, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.schedule import Schedule, draw_schedule

CLASSES = (
    TrafficClass("chat", 0.8, Prompts(Lengths(200, 0.5)), Outputs(Lengths(32)), priority=0),
    TrafficClass("batch", 0.2, Prompts(Lengths(900, 0.5)), Outputs(Lengths(400)), priority=10),
)
KNOBS = Knobs(max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=4096)


def served(*pools: Pool, **knobs: object) -> Configuration:
    made = Configuration(
        "Qwen/Qwen3-4B", KNOBS.with_changes(knobs), gpu="H100-SXM", pools=tuple(pools)
    )
    return replace(made, gpus=made.layout_gpus)


def pool(name: str, kinds: tuple[str, ...], **knobs: object) -> Pool:
    return Pool(name, kinds, KNOBS.with_changes(knobs))


def load(**changes: object) -> Workload:
    work = Workload(
        Arrivals(rate_per_s=40.0), duration_s=10.0, warmup_s=3.0, seed=3, classes=CLASSES
    )
    return replace(work, **changes)  # type: ignore[arg-type]


def driven(
    configuration: Configuration, schedule: Schedule, **plan: object
) -> tuple[list[RequestRecord], RunFacts, MemorySink]:
    sink = MemorySink()
    with TwinEngine().start(configuration) as endpoint:
        facts = endpoint.drive(
            DrivePlan(schedule, "s", **plan),  # type: ignore[arg-type]
            sink, SilentWatch(),
        )  # fmt: skip
    return sorted(sink.requests, key=lambda r: r.index), facts, sink


def alone(schedule: Schedule, kind: int) -> Schedule:
    """The arrivals of one class, as drawn, and none of the others."""
    assert schedule.class_of is not None
    assert schedule.intended_ns is not None
    mine = schedule.class_of == kind
    return replace(
        schedule, prompt_tokens=schedule.prompt_tokens[mine],
        output_tokens=schedule.output_tokens[mine], prefix_group=schedule.prefix_group[mine],
        intended_ns=schedule.intended_ns[mine], class_of=schedule.class_of[mine],
    )  # fmt: skip


def test_each_pool_is_what_its_servers_are_alone() -> None:
    schedule = draw_schedule(load())
    apart = served(
        pool("chat", ("chat",), data_parallel_size=2, max_num_seqs=8),
        pool("batch", ("batch",), data_parallel_size=1),
    )
    together, facts, sink = driven(apart, schedule)
    for place, part in enumerate(apart.parts):
        mine = [r for r in together if r.traffic_class == CLASSES[place].name]
        own, _, _ = driven(part, alone(schedule, place))
        assert len(mine) == len(own) > 60
        assert [(r.sent_ns, r.first_ns, r.last_ns) for r in mine] == [
            (r.sent_ns, r.first_ns, r.last_ns) for r in own
        ]
        first = 0 if place == 0 else 2
        assert [r.target for r in mine] == [first + (r.target or 0) for r in own]
    table = sink.records().steps
    assert table is not None
    assert sorted(set(table.replica.tolist())) == [0, 1, 2]
    assert facts.counters is not None
    assert facts.counters.requests_ok == len(together)
    assert set(facts.server["pools"]) == {"chat", "batch"}  # type: ignore[call-overload]


def test_users_go_from_pool_to_pool() -> None:
    """In a closed loop a user's next request may be of another class: pools share the clock."""
    schedule = draw_schedule(load(arrivals=Arrivals(users=12)))
    found, facts, _ = driven(served(pool("all", ("batch", "chat"), data_parallel_size=2)), schedule)
    one, _, _ = driven(served(data_parallel_size=2), schedule)
    assert [(r.sent_ns, r.last_ns) for r in found] == [(r.sent_ns, r.last_ns) for r in one]
    apart, _, _ = driven(served(pool("c", ("chat",)), pool("b", ("batch",))), schedule)
    users = {(r.user, r.target) for r in apart}
    assert {target for _, target in users} == {0, 1}
    assert len(users) == 24  # every user has been at both
    spans = sorted((r.user or 0, r.sent_ns or 0, r.last_ns or 0) for r in apart)
    for (user, _, end), (then, sent, _) in itertools.pairwise(spans):
        assert user != then or sent >= end
    assert facts.window.seconds == pytest.approx(10.0)


def test_figures_of_classes_have_bands_that_hold_them() -> None:
    apart = served(pool("chat", ("chat",)), pool("batch", ("batch",)))
    _, facts, _ = driven(apart, draw_schedule(load(arrivals=Arrivals(rate_per_s=8.0))), bands=True)
    for name in ("chat", "batch"):
        errors = (
            facts.errors[f"classes.{name}.ttft_s.p95"],
            facts.errors[f"classes.{name}.e2e_s.mean"],
        )
        assert all(0.03 < error < 1.5 for error in errors)
    assert "ttft_s.p95" in facts.errors
    assert np.isfinite(list(facts.errors.values())).all()
