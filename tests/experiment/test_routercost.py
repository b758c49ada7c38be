"""What a router costs: known milliseconds are found again, and only from the twin without one."""

import contextlib
import json
from collections.abc import Iterator
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
from ridgeline.experiment.results import load_results, to_json
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.console import study as console_page
from ridgeline.report.load import report_of
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.schemas import schema_of

PLANTED_NS = 12_000_000
ROUTER = Launch(router=Router(policy="power_of_two"))


class Engine:
    """Answers by arithmetic; behind a router each first chunk comes 12 ms later."""

    name = "fake"

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        routed = configuration.launch is not None and configuration.launch.router is not None
        with pytest.MonkeyPatch.context() as patch:
            later = PLANTED_NS if routed else 0
            patch.setattr(experiment_fakes, "TTFT_NS", experiment_fakes.TTFT_NS + later)
            yield FakeEndpoint(configuration, noise=0.0)  # type: ignore[misc]


def measured(folder: Path, launches: dict[str, tuple[Launch | None, int]]) -> StudyDirectory:
    """Experiments by name: launch and max_num_seqs."""
    work = Workload(Arrivals(users=8), Prompts(Lengths(20)), Outputs(Lengths(30)),
                    duration_s=20.0, warmup_s=2.0, seed=7)  # fmt: skip
    made = tuple(
        PlannedExperiment(
            name, Configuration("m", Knobs(max_num_seqs=seqs), "fake", launch=launch), work
        )
        for name, (launch, seqs) in launches.items()
    )
    plan = Plan("s", "study", made[0].name, made, parse_slo(""), repeats=2)
    directory = StudyDirectory(folder)
    run_plan(plan, directory, lambda _: Engine(), SilentStudyWatch(), command="")
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
    for metric in ("ttft_s.p50", "ttft_s.p95"):
        assert first.seconds[metric] == pytest.approx((0.012, 0.012, 0.012), abs=1e-6)
        assert second.seconds[metric] == pytest.approx((0.024, 0.024, 0.024), abs=1e-6)
    assert first.seconds["itl_s.p50"] == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert first.throughput is not None
    assert first.throughput.delta is not None
    # a request lasts 100 + 29 x 10 ms, and 12 ms more behind the router
    assert first.throughput.delta == pytest.approx(390 / 402 - 1, abs=0.01)
    body = json.loads(json.dumps(to_json(result)))
    jsonschema.validate(body, schema_of("study-result"))
    assert [c["experiment"] for c in body["router_cost"]] == ["routed", "half-routed"]
    report = report_of(result, directory)
    assert "routed behind vllm-router (power_of_two) against client" in report.router_costs[0]
    assert "median TTFT +12.00 ms (+12.00 to +12.00)" in report.router_costs[0]
    assert console_page(report) is not None


def test_another_load_is_no_twin(tmp_path: Path) -> None:
    measured(tmp_path, {"client": (None, 100), "routed": (ROUTER, 90)})
    assert load_results(tmp_path).router_costs == ()
