"""The space of a search: which settings may be varied, and what a combination of them means.

A point is one value for each dimension; a candidate is a point as its change from the baseline.
Distances are taken between what the engine would really run with (its resolved settings), so a
capture size that follows from the batch ceiling and the same size given by hand are one place.
The values come from rules about the hardware, the model, the load and the release
(`tuning.ranges`), never from what was found to be good somewhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.domain.records import Floats, Ints
from ridgeline.tuning.risk import Risk, risk_of
from ridgeline.tuning.trial import Candidate

Restart = Literal["live", "cached", "compile"]
LAYOUT = "layout"  # one dimension for tensor and data parallel size together
_COSTS: tuple[Restart, ...] = ("live", "cached", "compile")


@dataclass(frozen=True, slots=True)
class Dimension:
    """One knob (or the layout) and the values that a search may give it.

    values: the baseline's own among them; None is "as the engine does by itself"; of the layout
    pairs (tensor parallel size, data parallel size). ordered: neighbours in `values` are close.
    restart: what a change costs: nothing, a start with compiled code from the cache, or a start
    that compiles anew. why: the rule behind the values, for the report.
    """

    name: str
    values: tuple[Any, ...]
    ordered: bool = True
    restart: Restart = "compile"
    why: str = ""

    def settings(self, value: Any) -> dict[str, Any]:
        """The knobs that a value sets."""
        if self.name == LAYOUT:
            return {"tensor_parallel_size": value[0], "data_parallel_size": value[1]}
        return {self.name: value}


@dataclass(frozen=True)
class Resolved:
    """What the engine would make of a candidate. refused: why it cannot or should not run."""

    knobs: ResolvedKnobs | None
    refused: str | None = None
    routing: str = ""

    @cached_property  # thirty settings in words
    def identity(self) -> str:
        """Equal for candidates that run with exactly the same settings."""
        return f"{self.knobs!r} {self.routing}"


Point = tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """Dimensions, the baseline's value of each (`own`), and `look`, which resolves a change.

    left_out: knobs that are not varied, each with the reason in words.
    """

    dimensions: tuple[Dimension, ...]
    own: Mapping[str, Any]
    look: Callable[[Mapping[str, Any]], Resolved]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> Candidate:
        """The candidate without a change."""
        return Candidate()

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions' names, in the order of a point's values."""
        return tuple(d.name for d in self.dimensions)

    @property
    def size(self) -> int:
        """Points, the refused ones and those that come to the same among them."""
        return math.prod(len(d.values) for d in self.dimensions)

    def candidate(self, point: Point) -> Candidate:
        """The point as a change from the baseline."""
        change: dict[str, Any] = {}
        for dimension, value in zip(self.dimensions, point, strict=True):
            if value != self.own[dimension.name]:
                change.update(dimension.settings(value))
        return Candidate(change)

    def point(self, candidate: Candidate) -> Point:
        """The candidate's value in each dimension; what it does not change is the baseline's."""
        values = []
        for dimension in self.dimensions:
            given = {n: candidate.change.get(n) for n in dimension.settings((None, None))}
            if not any(n in candidate.change for n in given):
                values.append(self.own[dimension.name])
            elif dimension.name == LAYOUT:
                tensor, data = self.own[LAYOUT]
                values.append((given["tensor_parallel_size"] or tensor,
                               given["data_parallel_size"] or data))  # fmt: skip
            else:
                values.append(candidate.change[dimension.name])
        return tuple(values)

    def resolved(self, candidate: Candidate) -> Resolved:
        """What the engine would make of it; looked up once."""
        found = self._looked.get(candidate.key)
        if found is None:
            found = self._looked[candidate.key] = self.look(candidate.change)
        return found

    def refused(self, candidate: Candidate) -> str | None:
        """Why the candidate cannot or should not run, in words; None when it may."""
        return None if not candidate.change else self.resolved(candidate).refused

    def risk(self, candidate: Candidate) -> Risk:
        """What the changes may do to the answers, by the worst of them."""
        return risk_of({n: v for n, v in candidate.change.items() if n != "routing"}).risk

    def restart(self, one: Candidate, other: Candidate) -> Restart:
        """What going from one candidate to the other costs."""
        pairs = zip(self.dimensions, self.point(one), self.point(other), strict=True)
        found = [d.restart for d, a, b in pairs if a != b]
        return max(found, key=_COSTS.index, default="live")

    def singles(self, point: Point) -> Iterator[Point]:
        """All points that differ in one dimension."""
        for i, dimension in enumerate(self.dimensions):
            for value in dimension.values:
                if value != point[i]:
                    yield (*point[:i], value, *point[i + 1 :])

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Points one step away: the values beside it, of what has no order any other value."""
        for i, dimension in enumerate(self.dimensions):
            at = dimension.values.index(point[i]) if point[i] in dimension.values else 0
            for j, value in enumerate(dimension.values):
                if j != at and (not dimension.ordered or abs(j - at) == 1):
                    yield (*point[:i], value, *point[i + 1 :])

    def draw(self, random: np.random.Generator) -> Point:
        """A point at random, each value as likely as another; it may be refused."""
        return tuple(d.values[random.integers(len(d.values))] for d in self.dimensions)

    def places(self, candidates: Sequence[Candidate]) -> Floats:
        """Coordinates (candidates x features) for distances: each feature spans about 0..1.

        A refused candidate has the baseline's coordinates.
        """
        own = self.resolved(Candidate()).knobs
        rows = []
        for candidate in candidates:
            found = self.resolved(candidate)
            rows.append(_features(found.knobs or own, found.routing))
        raw: Floats = np.array(rows, dtype=np.float64).reshape(len(rows), len(_FEATURES))
        return raw[:, self._varied] / self._spans

    @cached_property
    def _looked(self) -> dict[tuple[tuple[str, str], ...], Resolved]:
        return {}

    @cached_property
    def _corners(self) -> Floats:
        """Features of the baseline and of every single change, to know what varies how far."""
        own = self.point(Candidate())
        found = [self.resolved(self.candidate(p)) for p in (own, *self.singles(own))]
        rows = [_features(f.knobs, f.routing) for f in found if f.knobs is not None]
        return np.array(rows, dtype=np.float64)

    @cached_property
    def _varied(self) -> Ints:
        return np.asarray(np.flatnonzero(np.ptp(self._corners, axis=0) > 0), dtype=np.int64)

    @cached_property
    def _spans(self) -> Floats:
        return np.asarray(np.ptp(self._corners, axis=0)[self._varied], dtype=np.float64)


_FEATURES: tuple[Callable[[ResolvedKnobs], float], ...] = (
    lambda k: math.log2(k.max_num_seqs),
    lambda k: math.log2(k.max_num_batched_tokens),
    lambda k: math.log2(1 + k.max_capture_size),
    lambda k: math.log2(k.long_prefill_token_threshold or k.max_model_len),
    lambda k: float(k.prefix_caching),
    lambda k: math.log2(k.kv_element_bytes),
    lambda k: math.log2(k.weight_bytes),
    lambda k: k.gpu_memory_utilization,
    lambda k: math.log2(k.api_servers / k.data_parallel),
    lambda k: float(k.async_depth),
    lambda k: float(k.drafts > 0),
    lambda k: float(k.drafts),
    lambda k: float(k.scheduling_policy == "priority"),
    lambda k: float(k.eager),
    lambda k: k.watermark,
    lambda k: math.log2(k.stream_interval),
    lambda k: math.log2(k.tensor_parallel),
    lambda k: math.log2(k.data_parallel),
    lambda k: float(k.chunked_prefill),
    lambda k: 0.0,  # the place of the routing, which is no knob of the engine
)
_ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")


def _features(knobs: ResolvedKnobs | None, routing: str) -> list[float]:
    assert knobs is not None, "the baseline resolves"
    values = [feature(knobs) for feature in _FEATURES]
    values[-1] = float(_ROUTINGS.index(routing)) if routing in _ROUTINGS else 0.0
    return values
