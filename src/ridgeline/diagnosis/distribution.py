"""What a histogram took in between two readings: counts by bucket, and what can be said of them."""

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan

from ridgeline.telemetry.prometheus import Scrape, difference


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values by bucket. `edges`: upper ends, ascending, the last infinite; `counts`: in each.

    `total`: the sum of the values, None when the page does not tell it.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None

    @property
    def count(self) -> float:
        """How many values."""
        return sum(self.counts)

    @property
    def bucketed(self) -> bool:
        """Whether there are buckets to tell values apart by (a scraper may drop them)."""
        return len(self.edges) > 1

    @property
    def longest(self) -> float | None:
        """Where the last bucket with values ends; None where that has no end."""
        ends = [e for e, c in zip(self.edges, self.counts, strict=True) if c]
        return ends[-1] if ends and isfinite(ends[-1]) else None

    @property
    def mean(self) -> float | None:
        """Exact, from sum and count."""
        return None if self.total is None or not self.count else self.total / self.count

    def quantile(self, share: float) -> tuple[float, float] | None:
        """The ends of the bucket that holds the quantile; None without values or buckets."""
        if not self.count or not self.bucketed:
            return None
        seen = 0.0
        for place, (edge, count) in enumerate(zip(self.edges, self.counts, strict=True)):
            seen += count
            if seen >= share * self.count and count:
                return (self.edges[place - 1] if place else 0.0), edge
        return None

    def estimate(self, share: float) -> float | None:
        """The quantile, spread evenly in its bucket; the lower end where that has no upper one."""
        ends = self.quantile(share)
        if ends is None:
            return None
        low, high = ends
        if not isfinite(high):
            return low
        before = sum(c for e, c in zip(self.edges, self.counts, strict=True) if e <= low)
        inside = next(c for e, c in zip(self.edges, self.counts, strict=True) if e == high)
        return low + (high - low) * min(1.0, max(0.0, (share * self.count - before) / inside))

    def share_above(self, limit: float) -> tuple[float, float]:
        """The least and the most that the share of values above `limit` can be."""
        if not self.count:
            return 0.0, 0.0
        low = high = 0.0
        below = 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            if below >= limit:
                low += count
            if edge > limit:
                high += count
            below = edge
        return low / self.count, high / self.count

    def sum_above(self, limit: float) -> float:
        """The least that the values in buckets which begin at `limit` or above add up to."""
        below, found = 0.0, 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            if below >= limit:
                found += below * count
            below = edge
        return found


def between(before: Scrape, after: Scrape, name: str) -> Distribution | None:
    """What the histogram `name` (without _bucket) took in; None when it is not exported.

    A series that fell was restarted: all that it shows is new. Buckets of several series are added,
    by the edges that all of them have.
    """
    total = difference(before, after, f"{name}_sum")
    old = {_key(s.labels): s.value for s in before.series(f"{name}_bucket")}
    groups: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for series in after.series(f"{name}_bucket"):
        was, edge = old.get(_key(series.labels), 0.0), edge_of(series.labels)
        grown = series.value - was if series.value >= was else series.value
        if edge is not None and isfinite(grown):
            own = _key({k: v for k, v in series.labels.items() if k != "le"})
            groups.setdefault(own, {})[edge] = grown
    if any(inf not in upto for upto in groups.values()):
        return None  # the page was cut
    if not groups:
        count = difference(before, after, f"{name}_count")
        return None if count is None else Distribution((inf,), (count,), total)
    parts = [_of_cumulative(upto) for upto in groups.values()]
    whole = merged(parts)
    return None if whole is None else replace(whole, total=total)


def _of_cumulative(upto: Mapping[float, float]) -> Distribution:
    edges = sorted(upto)
    counts = [upto[edges[0]]] + [max(0.0, upto[b] - upto[a]) for a, b in itertools.pairwise(edges)]
    return Distribution(tuple(edges), tuple(counts), None)


def merged(parts: Sequence[Distribution]) -> Distribution | None:
    """Several histograms as one, by the edges that all of them have; None without any."""
    if not parts:
        return None
    common = sorted(set(parts[0].edges).intersection(*(p.edges for p in parts[1:])))
    if not common:
        return None
    counts = [0.0] * len(common)
    for part in parts:
        for edge, count in zip(part.edges, part.counts, strict=True):
            place = bisect_left(common, edge)
            if place < len(common):
                counts[place] += count
    totals = [p.total for p in parts if p.total is not None]
    whole = sum(totals) if len(totals) == len(parts) else None
    return Distribution(tuple(common), tuple(counts), whole)


def edge_of(labels: Mapping[str, str]) -> float | None:
    """A bucket's upper end; None where it does not tell one."""
    try:
        edge = float(labels.get("le", ""))
    except ValueError:
        return None
    return None if isnan(edge) else edge


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
