"""What a router costs: known milliseconds are found again, and only from the twin without one."""

import contextlib
import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import experiment_fakes
import jsonschema
import pytest
from experiment_fakes import FakeEndpoint

from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import Endpoint
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.results import ExperimentResult, load_results, to_json
from ridgeline.experiment.routercost import router_costs
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.console import study as console_page
from ridgeline.report.load import report_of
from ridgeline.store.run_directory import StoredRun
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.schemas import schema_of

PLANTED_NS = 12_000_000
ROUTER = Launch(router=Router(policy="power_of_two"))


class Engine:
    """Answers by arithmetic; behind a router each first chunk comes 12 ms later on average, by
    `spread_ns` less in the first repeat and more in the last.
    """

    name = "fake"

    def __init__(self, spread_ns: int = 1_000_000) -> None:
        self.spread_ns = spread_ns
        self.starts: Counter[str] = Counter()

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        routed = configuration.launch is not None and configuration.launch.router is not None
        self.starts[str(configuration)] += 1
        with pytest.MonkeyPatch.context() as patch:
            extra = PLANTED_NS + (self.starts[str(configuration)] - 2) * self.spread_ns
            later = extra if routed else 0
            patch.setattr(experiment_fakes, "TTFT_NS", experiment_fakes.TTFT_NS + later)
            yield FakeEndpoint(configuration, noise=0.0)  # type: ignore[misc]


WORK = Workload(Arrivals(users=8), Prompts(Lengths(20)), Outputs(Lengths(30)),
                duration_s=20.0, warmup_s=2.0, seed=7)  # fmt: skip


def measured(
    folder: Path,
    launches: dict[str, tuple[Launch | None, int]],
    engine: Engine | None = None,
    loads: Mapping[str, Workload] | None = None,
) -> StudyDirectory:
    """Three repeats of experiments by name: launch and max_num_seqs; `loads` other than WORK."""
    engine = engine or Engine()
    made = tuple(
        PlannedExperiment(
            name,
            Configuration("m", Knobs(max_num_seqs=seqs), "fake", launch=launch),
            (loads or {}).get(name, WORK),
        )
        for name, (launch, seqs) in launches.items()
    )
    plan = Plan("s", "study", made[0].name, made, parse_slo(""), repeats=3)
    directory = StudyDirectory(folder)
    run_plan(plan, directory, lambda _: engine, SilentStudyWatch(), command="")
    return directory


def test_the_planted_milliseconds_are_the_cost(tmp_path: Path) -> None:
    directory = measured(
        tmp_path,
        {"client": (None, 100), "half": (None, 50), "routed": (ROUTER, 100),
         "half-routed": (ROUTER, 50), "alone": (replace(ROUTER, ready_s=5.0), 80)},
    )  # fmt: skip
    result = load_results(tmp_path)
    first, second = result.router_costs  # none for the one that has no twin
    assert (first.experiment, first.without) == ("routed", "client")
    assert (second.experiment, second.without) == ("half-routed", "half")
    assert first.router == "vllm-router (power_of_two)"
    assert (first.pairs, second.pairs) == (3, 3)
    half = 0.001 * 4.303 / 3**0.5  # Student's t of two degrees, over 11, 12 and 13 ms
    for metric in ("ttft_s.p50", "ttft_s.p95"):
        wanted = (0.012, 0.012 - half, 0.012 + half)
        assert first.seconds[metric] == pytest.approx(wanted, abs=2e-6)
        assert second.seconds[metric] == pytest.approx([2 * w for w in wanted], abs=4e-6)
    assert first.seconds["itl_s.p50"] == (pytest.approx(0.0, abs=1e-9), None, None)
    assert first.throughput is not None
    assert first.throughput.delta is not None
    # a request lasts 100 + 29 x 10 ms, and 12 ms more behind the router
    assert first.throughput.delta == pytest.approx(390 / 402 - 1, abs=0.01)
    body = json.loads(json.dumps(to_json(result)))
    jsonschema.validate(body, schema_of("study-result"))
    assert [c["experiment"] for c in body["router_cost"]] == ["routed", "half-routed"]
    report = report_of(result, directory)
    assert "routed behind vllm-router (power_of_two) against client" in report.router_costs[0]
    assert "median TTFT +12.00 ms (+9.52 to +14.48)" in report.router_costs[0]
    assert console_page(report) is not None


def test_another_load_is_no_twin(tmp_path: Path) -> None:
    measured(tmp_path, {"client": (None, 100), "routed": (ROUTER, 90)})
    assert load_results(tmp_path).router_costs == ()


def test_the_same_settings_under_other_traffic_are_no_twin(tmp_path: Path) -> None:
    fewer = replace(WORK, arrivals=Arrivals(users=4))
    launches = {"client": (None, 100), "routed": (ROUTER, 100)}
    measured(tmp_path, launches, loads={"client": fewer})
    assert load_results(tmp_path).router_costs == ()


def test_pairs_that_all_differ_by_the_very_same_have_no_interval(tmp_path: Path) -> None:
    """Coarse, not certain: three times 12 ms to the nanosecond is no interval of width zero."""
    measured(tmp_path, {"client": (None, 100), "routed": (ROUTER, 100)}, Engine(spread_ns=0))
    (cost,) = load_results(tmp_path).router_costs
    assert cost.seconds["ttft_s.p50"] == (pytest.approx(0.012, abs=1e-6), None, None)


def with_runs(
    experiment: ExperimentResult, *repeats: int, version: str = "1", days: int = 0
) -> ExperimentResult:
    """The experiment with such repeats measured on another build, or that many days later."""

    def changed(run: StoredRun) -> StoredRun:
        assert run.facts is not None
        begun = datetime.datetime.fromisoformat(run.meta.started_at)
        later = (begun + datetime.timedelta(days=days)).isoformat()
        facts = replace(run.facts, server={**run.facts.server, "version": version})
        return replace(run, meta=replace(run.meta, started_at=later), facts=facts)

    return replace(
        experiment,
        stored=tuple(changed(r) if r.meta.repeat in repeats else r for r in experiment.stored),
    )


def test_a_router_is_held_against_the_same_build_only(tmp_path: Path) -> None:
    measured(tmp_path, {"client": (None, 100), "routed": (ROUTER, 100)})
    client, routed = load_results(tmp_path).experiments
    (cost,), warnings = router_costs([client, with_runs(routed, 3, version="2")], 0.01)
    assert cost.pairs == 2
    assert cost.seconds["ttft_s.p50"][0] == pytest.approx(0.0115, abs=2e-6)  # of 11 and 12 ms
    assert cost.throughput is not None
    assert cost.throughput.pairs == 2
    assert len(warnings) == 1
    assert "routed was measured on fake 2 and client on fake 1: not every pair" in warnings[0]
    none, warnings = router_costs([client, with_runs(routed, 1, 2, 3, version="2")], 0.01)
    assert none == ()
    assert "no pair of them is compared" in warnings[0]


def test_a_router_measured_days_later_is_told(tmp_path: Path) -> None:
    measured(tmp_path, {"client": (None, 100), "routed": (ROUTER, 100)})
    client, routed = load_results(tmp_path).experiments
    (cost,), warnings = router_costs([client, with_runs(routed, 2, days=9)], 0.01)
    assert cost.pairs == 3
    assert len(warnings) == 1
    assert "routed and client are not interleaved in repeat 2: measured up to 9 d" in warnings[0]
    assert router_costs([client, routed], 0.01)[1] == ()
