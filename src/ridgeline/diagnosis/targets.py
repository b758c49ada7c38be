"""Which of Prometheus's series are of one server: by the labels that Prometheus gave them.

Job and instance are not enough: two namespaces may have the same of both, two jobs may scrape one
server, and two Prometheis may both have written down what they saw of it.
"""

import itertools
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.diagnosis.gathering import WANTED, Snapshot
from ridgeline.diagnosis.modelnames import models_on
from ridgeline.diagnosis.saved import label_masked
from ridgeline.telemetry.dialects import PREFIXES
from ridgeline.telemetry.prometheus import STARTED, Scrape, Series

ENGINE = tuple(n for n in WANTED if any(n.startswith(p) for p in PREFIXES))
ADDED = ("__name__", "job", "instance", "target")  # labels that are not the page's own
# Series without labels of their own: those that they have were given by Prometheus.
_BARE = ("up", "process_cpu_seconds_total", STARTED, "python_info")
_PAGES_OWN = ("engine", "model_name", "le", "server", "implementation", "version", "major", "minor",
              "patchlevel")  # fmt: skip
_GIVEN = ("namespace", "pod", "cluster", "container", "node", "prometheus", "prometheus_replica",
          "replica")  # where no bare series tells  # fmt: skip
_MOVE = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total",
         "vllm:iteration_tokens_total_count")  # fmt: skip
Key = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Target:
    """One scraped server: its pages by their times (s since 1970), oldest first.

    `down`: times at which Prometheus could not read it. given: its other labels, as far as they
    tell it from others of its job and instance.
    """

    job: str
    instance: str
    pages: list[tuple[float, Scrape]] = field(default_factory=list)
    down: list[float] = field(default_factory=list)
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As a person knows it."""
        base = self.instance or self.job or "the target"
        more = ",".join(f"{k}={v}" for k, v in self.given.items())
        return f"{base} ({more})" if more else base

    @property
    def host(self) -> str:
        """Its machine, as its address says it."""
        return host_of(self.instance)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models on its last page."""
        return models_on(self.pages[-1][1])

    @property
    def apart_s(self) -> float | None:
        """The usual time between two readings; None with fewer than two."""
        times = [at for at, _ in self.pages]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        return statistics.median(gaps) if gaps else None

    def snapshots(self) -> list[Snapshot]:
        """Its readings, those in vain among them."""
        rows = [Snapshot(at, page) for at, page in self.pages]
        rows += [Snapshot(at, None) for at in self.down]
        return sorted(rows, key=lambda s: s.at_s or 0.0)


def split(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Samples by target and time, each server once; and what is to be said of that."""
    given = _given_names(rows)
    pages: dict[Key, dict[float, dict[str, list[Series]]]] = {}
    down: dict[Key, list[float]] = {}
    served: dict[Key, None] = {}
    for row in rows:
        labels = row.get("metric") or {}
        key = tuple((k, labels[k]) for k in ("job", "instance", *given) if labels.get(k))
        name = labels.get("__name__", "")
        own = {k: label_masked(k, v) for k, v in labels.items() if k not in (*ADDED, *given)}
        if name.startswith(ENGINE):
            served.setdefault(key)
        for at, value in samples(row):
            if name == "up":
                down.setdefault(key, []).extend([] if value else [at])
                continue
            at_that = pages.setdefault(key, {}).setdefault(at, {})
            at_that.setdefault(name, []).append(Series(own, value))
    found = [_target(key, pages.get(key, {}), down.get(key, [])) for key in sorted(served)]
    return _once(_told_apart([t for t in found if t.pages]))


def samples(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(time, value) of a row of an answer."""
    return [(float(at), float(value)) for at, value in row.get("values") or ()]


def host_of(instance: str) -> str:
    """The machine of an address."""
    return instance.rpartition(":")[0] or instance


def _given_names(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Labels that Prometheus gave beside job and instance."""
    bare = [row.get("metric") or {} for row in rows]
    told = [m for m in bare if m.get("__name__") in _BARE]
    names = {k for m in told for k in m} if told else {k for m in bare for k in m} & set(_GIVEN)
    return tuple(sorted(names - {*ADDED, *_PAGES_OWN}))


def _target(
    key: Key, pages: Mapping[float, Mapping[str, Sequence[Series]]], down: Sequence[float]
) -> Target:
    labels = dict(key)
    target = Target(labels.pop("job", ""), labels.pop("instance", ""), down=sorted(down))
    target.given = {k: label_masked(k, v) for k, v in labels.items()}
    target.pages = [
        (at, Scrape({n: tuple(s) for n, s in found.items()}))
        for at, found in sorted(pages.items())
        if any(name.startswith(ENGINE) for name in found)
    ]
    return target


def _told_apart(targets: Sequence[Target]) -> list[Target]:
    """With those of the given labels that tell targets of the same instance apart."""
    for _name, same in itertools.groupby(sorted(targets, key=_place), key=lambda t: t.instance):
        group = list(same)
        names = {k for t in group for k in t.given if len({o.given.get(k) for o in group}) > 1}
        for t in group:
            t.given = {k: v for k, v in t.given.items() if k in names}
            if len({o.job for o in group}) > 1:
                t.given = {"job": t.job, **t.given}
    return sorted(targets, key=_place)


def _place(target: Target) -> tuple[str, str, str]:
    return target.instance, target.job, str(sorted(target.given.items()))


def _once(targets: Sequence[Target]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Each server once: of what was scraped twice the one with the most readings."""
    kept: list[Target] = []
    said: list[str] = []
    for target in sorted(targets, key=lambda t: -len(t.pages)):
        twin = next((t for t in kept if _same(t, target)), None)
        if twin is None:
            kept.append(target)
        else:
            said.append(f"{target.name} is {twin.name} once more, scraped or kept twice: it is"
                        " counted once; choose one with --match")  # fmt: skip
    ordered = sorted(kept, key=lambda t: (t.job, *_place(t)))
    for instance in {t.instance for t in ordered}:
        alone = [t for t in ordered if t.instance == instance]
        if len(alone) == 1:
            alone[0].given = {}
    return tuple(ordered), tuple(said)


def _same(a: Target, b: Target) -> bool:
    """Whether two are one server: an address, a start, and counters that run as one."""
    if a.instance != b.instance:
        return False
    starts = [{s.value for _, page in t.pages for s in page.series(STARTED)} for t in (a, b)]
    if all(starts) and not starts[0] & starts[1]:
        return False
    told = False
    for name in _MOVE:
        one, other = _counter(a, name), _counter(b, name)
        for at, value in one:
            ends = _around(other, at)
            if ends is None:
                continue
            if not ends[0] <= value <= ends[1]:
                return False
            told = told or value > 0
    return told or (all(starts) and not any(v for n in _MOVE for _, v in _counter(a, n)))


def _counter(target: Target, name: str) -> list[tuple[float, float]]:
    return [(at, sum(s.value for s in rows)) for at, page in target.pages
            if (rows := page.series(name))]  # fmt: skip


def _around(rows: Sequence[tuple[float, float]], at: float) -> tuple[float, float] | None:
    """The values before and after a time; None where there are not both."""
    place = bisect_right(rows, at, key=lambda row: row[0])
    if place and rows[place - 1][0] == at:
        return rows[place - 1][1], rows[place - 1][1]
    return None if place in (0, len(rows)) else (rows[place - 1][1], rows[place][1])


def models_of(targets: Iterable[Target]) -> Iterator[tuple[str, list[str]]]:
    """Models, and the names of the targets that serve each."""
    found: dict[str, list[str]] = {}
    for target in targets:
        for model in target.models:
            found.setdefault(model, []).append(target.name)
    yield from sorted(found.items())
