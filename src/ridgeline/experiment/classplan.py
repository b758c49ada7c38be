"""Which way to serve a mix of classes is the cheapest inside their limits, by the twin.

One pool first come first served, one pool with priorities, and a pool for each group of classes, on
every number of replicas up to what the study has. Short looks order what is worth a run in full; a
run in full is judged as one of a study is, and only such a run is named.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.domain.bands import of_class
from ridgeline.domain.classways import (
    BATCH,
    CANNOT,
    FCFS,
    POOLS,
    PRIORITY,
    URGENT,
    groups_of,
    odd_priorities,
    one_pool,
    pooled,
    ranked,
    splits,
)
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import SHARE_KEYS, Limit
from ridgeline.domain.workload import Workload
from ridgeline.experiment.predicting import Prediction, Predictor
from ridgeline.workload.study import ExperimentSpec

LOOK_S, LOOK_WARMUP_S = 10.0, 5.0
MOST_LOOKS = 400  # at one pool under one policy; settings beyond it are left out, and told
MOST_FULL = 6  # runs in full of one way on so many GPUs
DRAWS = 3  # other draws of the arrivals, in which the cheapest has to be inside, too
NEAR = 1.25  # a latency of a short look that is this much above its limit may be inside in full
ALIKE = 0.01  # a cost that is less than this apart is the same: the simpler way is taken
_FREE = ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
         "scheduling_policy", "api_server_count")  # fmt: skip
Said = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way, in full. way: FCFS, PRIORITY or POOLS. words: replicas and knobs.

    draws: other draws of the arrivals in which it was run as well, and `held` in how many of them
    it is a run to rely on that meets every limit.
    """

    way: str
    words: str
    prediction: Prediction
    draws: int = 0
    held: int = 0

    @property
    def configuration(self) -> Configuration:
        """What would be served."""
        return self.prediction.configuration

    @property
    def inside(self) -> bool:
        """Whether it is a run to rely on and every limit is met."""
        return _inside(self.prediction)

    @property
    def limited(self) -> bool:
        """Whether there is a limit to be inside of."""
        summary = self.prediction.summary
        return summary is not None and bool(summary.slo)

    @property
    def surely(self) -> bool:
        """Whether the bands of all its limited latencies are inside, too, and the other draws.

        A share (attainment, errors) has no band: the other draws speak for it.
        """
        summary = self.prediction.summary
        if summary is None or not self.inside or not self.limited or self.held < self.draws:
            return False
        for result in summary.slo:
            key, _, value = result.limit.partition("=")
            limit = Limit(key, float(value))
            if limit.statistic is None:
                continue
            # a twin without a cap sends when it is meant to: from intent is from sending
            path = f"{limit.metric.removesuffix('_intent')}_s.{limit.statistic}"
            kind = result.traffic_class
            band = summary.bands.get(path if kind is None else of_class(kind, path))
            if band is None or band.high > limit.value / 1000:
                return False
        return True

    @property
    def cost(self) -> float:
        """USD per million output tokens; without a price GPU-seconds per token."""
        summary = self.prediction.summary
        if summary is None:
            return float("inf")
        usd = summary.cost.usd_per_million_output_tokens
        if usd is not None:
            return usd
        return 1 / self.prediction.per_gpu if self.prediction.per_gpu else float("inf")


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """The ways that were run in full, each way's best first; `cheapest` is None where none is
    inside the limits, or there are no limits. group: class -> URGENT or BATCH. looked_at:
    configurations, short looks. most_gpus: the most that a way was given.
    """

    alternatives: tuple[Alternative, ...]
    group: Mapping[str, str]
    looked_at: int
    notes: tuple[str, ...] = ()
    most_gpus: int = 0

    @property
    def limited(self) -> bool:
        """Whether any limit was given, of a class or of all."""
        return any(a.limited for a in self.alternatives)

    @property
    def cheapest(self) -> Alternative | None:
        """Inside the limits at the lowest cost; of equal cost the simplest way."""
        good = [a for a in self.alternatives if a.inside and a.limited]
        least = min((a.cost for a in good), default=0.0)
        near = [a for a in good if a.cost <= least * (1 + ALIKE)]
        order = (FCFS, PRIORITY, POOLS)
        return min(near, key=lambda a: (not a.surely, order.index(a.way), a.cost), default=None)

    @property
    def cannot(self) -> tuple[str, ...]:
        """What vLLM's priority scheduling is not."""
        return tuple(f"not there: {hope}: {why}" for hope, why in CANNOT)


def price_classes(
    specs: Sequence[ExperimentSpec], predict: Predictor, said: Said = lambda what, done, of: None,
    *, host_gpus: int | None = None,
) -> ClassPlan | None:  # fmt: skip
    """Price the ways under the baseline's mix; None where it has fewer than two classes.

    `specs`: the study's experiments, the baseline first; its pools are tried with the knobs that
    the others set. host_gpus: how many there are, None: as many as the study's largest layout.
    """
    base, load = specs[0].configuration, specs[0].workload
    if len(load.classes) < 2:
        return None
    there = host_gpus or max(spec.configuration.gpus for spec in specs)
    return _Search(specs, replace(base, pools=()), load, predict, said, gpus=there).result()


class _Search:
    def __init__(
        self, specs: Sequence[ExperimentSpec], base: Configuration, load: Workload,
        predict: Predictor, said: Said, *, gpus: int,
    ) -> None:  # fmt: skip
        self.base, self.predict, self.said = base, predict, said
        self.group = groups_of(load.classes)
        self.load = ranked(load, self.group)
        self.notes = list(odd_priorities(load))
        if self.load != load:
            self.notes.append("no class has a priority: priced with 0 for the urgent, 1 for others")
        self.short = replace(
            self.load, duration_s=min(load.duration_s, LOOK_S), warmup_auto=False,
            warmup_s=min(load.warmup_s, LOOK_WARMUP_S),
        )  # fmt: skip
        each = base.knobs.gpus // (base.knobs.data_parallel_size or 1)
        self.most = max(1, gpus // each)
        changes = list(_changes(specs))
        self.changes = changes[: max(1, MOST_LOOKS // self.most)]
        left = len(changes) - len(self.changes)
        if left:
            self.notes.append(f"{left} of the study's {len(changes)} settings were not tried")
        if self.most == 1:
            self.notes.append(
                f"pools were not tried: {gpus} GPU{'s' * (gpus != 1)} hold one replica of {each}"
                f" GPU{'s' * (each != 1)}; more with hardware.count"
            )
        self.given = [s.configuration for s in specs if s.configuration.pools]
        self.looked_at = 0

    def result(self) -> ClassPlan:
        """All three ways."""
        found = []
        for way, made in (
            (FCFS, list(self._one_pool("fcfs"))),
            (PRIORITY, list(self._one_pool("priority"))),
            (POOLS, list(self._pools())),
        ):
            if made:
                found += self._way(way, made)
        most = max(a.configuration.gpus for a in found)
        return ClassPlan(tuple(found), self.group, self.looked_at, tuple(self.notes), most)

    def _one_pool(self, policy: str) -> Iterable[Configuration]:
        """With the baseline's knobs and with what the study sets: pools may have these, too."""
        for replicas in range(1, self.most + 1):
            made = one_pool(self.base, replicas, policy)
            for change in ({}, *self.changes):
                yield replace(made, knobs=made.knobs.with_changes(change))

    def _pools(self) -> Iterable[Configuration]:
        for replicas in range(2, self.most + 1):
            for counts in splits(replicas, (URGENT, BATCH)):
                yield pooled(self.base, counts, self.group)
        yield from self.given  # the study's own pools, as they stand

    def _way(self, way: str, made: Sequence[Configuration]) -> list[Alternative]:
        """The cheapest inside the limits, and what the most replicas give, each in full."""
        looks = []
        for number, configuration in enumerate(made):
            self.said(f"classes: {way}", number, len(made))
            looks.append(self._look(configuration))
        ordered = sorted(looks, key=lambda p: (p.rank[:3], p.configuration.gpus))
        hopeful = sorted(filter(_hopeful, looks), key=_small_first)
        tried = [
            p.configuration
            for gpus in sorted({p.configuration.gpus for p in hopeful})
            for p in [h for h in hopeful if h.configuration.gpus == gpus][:MOST_FULL]
        ]
        best = self._first_inside(way, tried)
        largest = [p.configuration for p in ordered if p.configuration.replicas == self.most]
        at_most = self._best_of(way, largest[:MOST_FULL])
        kept = [at_most] if best is None else [best]
        if way == POOLS:
            kept = self._own_knobs(kept[0])
        known = [repr(a.configuration) for a in kept]
        return kept if repr(at_most.configuration) in known else [*kept, at_most]

    def _best_of(self, way: str, made: Sequence[Configuration]) -> Alternative:
        """In full, the one of the best rank: a short look does not see a queue that grows."""
        fulls = []
        for number, configuration in enumerate(made):
            self.said(f"classes: {way}, all replicas", number, len(made))
            fulls.append(self.predict(configuration, self.load, {}, in_full=True))
        best = min(fulls, key=lambda p: p.rank)
        return self._in_full(way, best.configuration)

    def _first_inside(self, way: str, made: Sequence[Configuration]) -> Alternative | None:
        """In full, the smallest first, until one is inside."""
        for number, configuration in enumerate(made):
            self.said(f"classes: {way}, in full", number, len(made))
            found = self.predict(configuration, self.load, {}, in_full=True)
            if _inside(found):
                return self._in_full(way, configuration)
        return None

    def _own_knobs(self, found: Alternative) -> list[Alternative]:
        """The pools, and where some of the study's knobs are better for one of them, with those."""
        best = self._look(found.configuration)
        changed = False
        for place, pool in enumerate(found.configuration.pools):
            for change in self.changes:
                pools = list(best.configuration.pools)
                pools[place] = replace(pool, knobs=pool.knobs.with_changes(change))
                look = self._look(replace(best.configuration, pools=tuple(pools)))
                if look.rank < best.rank:
                    best, changed = look, True
        if not changed:
            return [found]
        own = self._in_full(POOLS, best.configuration)
        return sorted([found, own], key=lambda a: a.prediction.rank)

    def _look(self, configuration: Configuration) -> Prediction:
        self.looked_at += 1
        return self.predict(configuration, self.short, {})

    def _in_full(self, way: str, configuration: Configuration) -> Alternative:
        found = self.predict(configuration, self.load, {}, bands=True, in_full=True)
        made = Alternative(way, self._words(configuration), found)
        if not made.inside or not made.limited:
            return made
        others = [
            self.predict(configuration, replace(self.load, seed=self.load.seed + n), {},
                         in_full=True)
            for n in range(1, DRAWS + 1)
        ]  # fmt: skip
        return replace(made, draws=DRAWS, held=sum(map(_inside, others)))

    def _words(self, configuration: Configuration) -> str:
        def replicas(n: int) -> str:
            return f"{n} replica" + ("s" if n != 1 else "")

        def own(knobs: Knobs) -> list[str]:
            return [f"{n} {v}" for n, v in knobs.given().items()
                    if n not in _FREE and getattr(self.base.knobs, n) != v]  # fmt: skip

        if not configuration.pools:
            return ", ".join([replicas(configuration.replicas), *own(configuration.knobs)])
        told = []
        for pool in configuration.pools:
            count = replicas(pool.knobs.data_parallel_size or 1)
            told.append(", ".join([f"{count} for {' and '.join(pool.classes)}", *own(pool.knobs)]))
        return "; ".join(told)


def _inside(found: Prediction) -> bool:
    """Whether a run in full is one to rely on and meets every limit."""
    return found.summary is not None and not found.void and found.missed == 0


def _hopeful(look: Prediction) -> bool:
    """Whether what a short look saw does not speak clearly against it."""
    if look.summary is None or look.void:
        return False
    for result in look.summary.slo:
        key, _, limit = result.limit.partition("=")
        slack = NEAR if key not in SHARE_KEYS else 1.0
        if result.met is False and (result.value or 0.0) > slack * float(limit):
            return False
    return True


def _small_first(found: Prediction) -> tuple[float, ...]:
    return (float(found.configuration.gpus), *found.rank)


def _changes(specs: Sequence[ExperimentSpec]) -> Iterable[dict[str, Any]]:
    """What the study's experiments and their pools set of engine options, each one's together."""
    given = specs[0].configuration.knobs
    seen: list[dict[str, Any]] = []
    for part in (part for spec in specs[1:] for part in spec.configuration.parts):
        knobs = part.knobs.given()
        change = {n: v for n, v in knobs.items() if n not in _FREE and getattr(given, n) != v}
        if change and change not in seen:
            seen.append(change)
            yield change
