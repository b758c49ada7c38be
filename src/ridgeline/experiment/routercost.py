"""What a router costs: an experiment behind one against the same without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.domain.summary import Summary
from ridgeline.experiment.pairs import far_apart, refused, same_builds
from ridgeline.experiment.statistics import (
    ROUNDING,
    Difference,
    difference_of,
    figure,
    t_interval,
)
from ridgeline.workload.otherengine import router_name

if TYPE_CHECKING:
    from ridgeline.experiment.results import ExperimentResult

LATENCIES = ("ttft_s.p50", "ttft_s.p95", "itl_s.p50", "itl_s.p95")
THROUGHPUT = "throughput.output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class RouterCost:
    """`experiment` behind `router` against `without`, its twin without one.

    `seconds`: by metric of LATENCIES the mean paired difference in seconds with its 95 % interval,
    whose ends are None for one pair, and where every pair gave the very same difference (the figure
    is coarse, not certain). `throughput` is relative.
    """

    experiment: str
    without: str
    router: str
    pairs: int
    seconds: Mapping[str, tuple[float, float | None, float | None]]
    throughput: Difference | None


def router_costs(
    experiments: Sequence["ExperimentResult"], equal_within: float
) -> tuple[tuple[RouterCost, ...], tuple[str, ...]]:
    """Each experiment behind a router that has its twin without one, and valid pairs with it.

    With them the warnings about their pairs: the rules are those of every other comparison.
    """
    found, warnings = [], []
    for one in experiments:
        other = _without(one, experiments)
        if other is None or one.configuration is None or one.configuration.launch is None:
            continue
        router = one.configuration.launch.router
        assert router is not None
        told = refused(one.counted, other.counted), far_apart(one.counted, other.counted)
        warnings += [text for text in told if text]
        before, after = (
            {r: run.summary for r, run in runs.items() if run.summary is not None}
            for runs in same_builds(other.counted, one.counted)
        )
        repeats = sorted(set(before) & set(after))
        if repeats:
            found.append(
                RouterCost(
                    one.name, other.name, router_name(router), len(repeats),
                    _seconds(before, after, repeats),
                    difference_of(THROUGHPUT, before, after, equal_within),
                )
            )  # fmt: skip
    return tuple(found), tuple(warnings)


def _seconds(
    before: Mapping[int, Summary], after: Mapping[int, Summary], repeats: Sequence[int]
) -> dict[str, tuple[float, float | None, float | None]]:
    """A metric that a run lacks is left out."""
    told = {}
    for metric in LATENCIES:
        steps = []
        for r in repeats:
            a, b = figure(before[r], metric), figure(after[r], metric)
            if a is None or b is None or float("inf") in (a, b):
                break
            steps.append(b - a)
        else:
            low, mean, high = t_interval(steps)
            exact = len(steps) > 1 and max(steps) - min(steps) <= ROUNDING
            told[metric] = (mean, None, None) if exact else (mean, low, high)
    return told


def _without(
    one: "ExperimentResult", experiments: Sequence["ExperimentResult"]
) -> "ExperimentResult | None":
    """The experiment that differs in the router alone."""
    if one.configuration is None or not _routed(one.configuration) or not one.stored:
        return None
    wanted = _bare(one.configuration)
    work = replace(one.stored[0].meta.workload, seed=0)
    for other in experiments:
        theirs = other.configuration
        if theirs is None or _routed(theirs) or _bare(theirs) != wanted:
            continue
        if other.stored and replace(other.stored[0].meta.workload, seed=0) == work:
            return other
    return None


def _routed(configuration: Configuration) -> bool:
    if configuration.engine == "twin":  # which has no router
        return False
    return configuration.launch is not None and configuration.launch.router is not None


def _bare(configuration: Configuration) -> Configuration:
    launch = replace(configuration.launch or Launch(), router=None)
    return replace(configuration, launch=launch)


def cost_json(cost: RouterCost) -> dict[str, Any]:
    """As it stands in the JSON of a study's results."""
    rate = cost.throughput
    return {
        "experiment": cost.experiment,
        "without": cost.without,
        "router": cost.router,
        "pairs": cost.pairs,
        "seconds": {
            metric: {"delta": delta, "low": low, "high": high}
            for metric, (delta, low, high) in cost.seconds.items()
        },
        "throughput": None
        if rate is None
        else {"delta": rate.delta, "low": rate.low, "high": rate.high},
    }
