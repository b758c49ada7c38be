"""Speculative decoding over the loads of a study: gains by paired repeats, and where they end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.workload import Client, Workload
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.crossover import Crossover, Gain, crossover
from ridgeline.experiment.pairs import same_builds
from ridgeline.experiment.statistics import difference_of
from ridgeline.store.run_directory import StoredRun
from ridgeline.workload.study import EQUAL_WITHIN

if TYPE_CHECKING:
    from ridgeline.experiment.results import ExperimentResult

TOKENS = "throughput.output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class OverLoad:
    """One way to speculate over its loads. asynchronous: whether the scheduling of the next step
    goes on beside the running one (without speculation, with it), None = not known; told_by: by the
    engine's "log" or by the release's "rule".
    """

    config: Mapping[str, Any]
    found: Crossover
    asynchronous: tuple[bool | None, bool | None] = (None, None)
    told_by: str = "rule"

    @property
    def name(self) -> str:
        """As a person calls it: "ngram, 3 drafts"."""
        count = self.config.get("num_speculative_tokens")
        drafts = "" if count is None else f", {count} draft{'s' * (count != 1)}"
        return f"speculation ({self.config.get('method', 'method not named')}{drafts})"


def speculation_over_load(experiments: Sequence["ExperimentResult"]) -> tuple[OverLoad, ...]:
    """Each speculative configuration that was measured at two numbers of users or more, where at
    each the same without speculation was measured too.
    """
    levels: dict[str, list[tuple[Gain, ExperimentResult, ExperimentResult]]] = {}
    for one in experiments:
        other = _without(one, experiments)
        if other is None or one.configuration is None:
            continue
        gain = _gain(one, other)
        if gain is not None:
            key = repr((one.configuration.knobs, _traffic(one)))
            levels.setdefault(key, []).append((gain, one, other))
    found = []
    for rows in levels.values():
        if len({gain.streams for gain, _, _ in rows}) < 2:
            continue
        _, one, other = rows[0]
        assert one.configuration is not None
        config = one.configuration.knobs.speculative_config or {}
        (before, by), (after, _) = _asynchronous(other), _asynchronous(one)
        made = crossover([gain for gain, _, _ in rows])
        found.append(OverLoad(config, made, (before, after), by))
    return tuple(found)


def _without(
    one: "ExperimentResult", experiments: Sequence["ExperimentResult"]
) -> "ExperimentResult | None":
    """The experiment that differs by its speculation alone."""
    if one.configuration is None or one.configuration.knobs.speculative_config is None:
        return None
    knobs = replace(one.configuration.knobs, speculative_config=None)
    plain = replace(one.configuration, knobs=knobs)
    return next(
        (
            e
            for e in experiments
            if e.configuration == plain
            and _users(e) == _users(one)
            and _traffic(e) == _traffic(one)
        ),
        None,
    )


def _users(one: "ExperimentResult") -> int | None:
    return one.stored[0].meta.workload.arrivals.users if one.stored else None


def _traffic(one: "ExperimentResult") -> Workload | None:
    """What is asked for, whatever the number of users."""
    if not one.stored:
        return None
    load = one.stored[0].meta.workload
    arrivals = replace(load.arrivals, users=None, ramp_s=None)
    return replace(
        load, arrivals=arrivals, duration_s=0.0, warmup_s=0.0, warmup_auto=False, requests=None,
        seed=0, salt=None, client=Client(),
    )  # fmt: skip


def _gain(one: "ExperimentResult", other: "ExperimentResult") -> Gain | None:
    """By paired repeats; two measured ones do not show the noise: their interval is left out."""
    users = _users(one)
    before, after = (
        {n: run.summary for n, run in runs.items() if run.summary is not None}
        for runs in same_builds(other.counted, one.counted)
    )
    found = difference_of(TOKENS, before, after, EQUAL_WITHIN)
    if users is None or found is None or found.delta is None:
        return None
    low, high = (None if v is None else 1 + v for v in (found.low, found.high))
    rates = [r for s in after.values() if (r := s.throughput.output_tokens_per_s)]
    speed = sum(rates) / len(rates) / users if rates else None
    return Gain(float(users), 1 + found.delta, low, high, speed)


def _asynchronous(one: "ExperimentResult") -> tuple[bool | None, str]:
    """By the engine's own log, else as its release does."""
    run: StoredRun | None = next(iter(one.counted.values()), None)
    server: Mapping[str, Any] = {} if run is None or run.facts is None else run.facts.server
    replicas: Any = server.get("replicas") or ()
    told = next((r.get("async_scheduling") for r in replicas if isinstance(r, dict)), None)
    if told is not None:
        return bool(told), "log"
    return _by_rule(one.configuration), "rule"


def _by_rule(configuration: Configuration | None) -> bool | None:
    if configuration is None or configuration.gpu is None:
        return None
    try:
        twin = twin_of(replace(configuration, engine="twin", launch=None))
    except RidgelineError:
        return None
    return twin.knobs.async_depth > 1
