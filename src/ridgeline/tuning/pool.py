"""Which configurations a search asks the twin about: a few hundred of many thousands.

Coarse first: every single change of the baseline, and points at random. Then the best of what was
seen so far is refined round by round: steps to neighbouring values, and the single changes that
helped put together. What was measured and is good is refined as well. No order of knobs or values
is preferred; among equals the seed decides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ridgeline.tuning.port import Expected, Ground
from ridgeline.tuning.space import Point, Space
from ridgeline.tuning.trial import Candidate

LOOKS = 300  # twin looks at most, beside those around what was measured
AT_RANDOM = 60
BEAM = 5  # points that each round refines
TOGETHER = 8  # single changes that are combined with each other
IDLE = 0.002  # log points of value below which a change on top of others is taken for none
IDLE_LIMIT = 0.01  # the same of a limit
# What the engine works out by itself where it is not given. Of other options an equal identity may
# say that the resolution does not know them (a draft model), not that they change nothing.
FOLLOWING = ("max_cudagraph_capture_size", "max_num_batched_tokens", "long_prefill_token_threshold")
STEEPNESS = 3.0  # log points of value that a limit missed by one log point costs the ranking

Looked = dict[str, Expected]  # by what the engine would run with


def looks(
    space: Space,
    ground: Ground,
    limits: Mapping[str, float],
    *,
    measured: Sequence[Candidate],
    good: Sequence[Candidate],
    random: np.random.Generator,
) -> tuple[Expected, ...]:
    """The pool: every candidate once, the baseline first, refused ones left out.

    limits: the value of each limit. measured: are in the pool whatever the twin says. good: the
    best of them, whose neighbours are looked at too.
    """
    pool = _Pool(space, ground, limits)
    own = space.point(Candidate())
    pool.add([own, *map(space.point, measured)], forced=True)
    singles = list(space.singles(own))
    pool.add(singles)
    pool.add(space.draw(random) for _ in range(AT_RANDOM))
    base = pool.score(own)
    helped = [p for p in sorted(singles, key=pool.score, reverse=True) if pool.score(p) > base]
    pool.add(_together(space, own, helped[:TOGETHER]))
    refined: set[Point] = set()
    while len(pool) < LOOKS:
        best = [p for p in pool.best() if p not in refined][:BEAM]
        if not best:
            break
        before = len(pool)
        for point in best:
            refined.add(point)
            pool.add(space.neighbours(point))
        if len(pool) == before and len(refined) > 3 * BEAM:
            break
    for candidate in good:
        pool.add(space.neighbours(space.point(candidate)))
    return pool.expected() if measured else pool.without_idle()


def score(expected: Expected, limits: Mapping[str, float]) -> float:
    """How the twin ranks it: log value, less what the limits are missed by."""
    if expected.value is None or expected.value <= 0:
        return -math.inf
    found = math.log(expected.value)
    if not expected.limits:
        return found + math.log(max(expected.feasible, 1e-3))
    return found - STEEPNESS * sum(
        max(0.0, _over(key, value, limits[key]))
        for key, value in expected.limits.items()
        if key in limits
    )


def _over(key: str, value: float, limit: float) -> float:
    """Log of how far a limit is missed; of an attainment the other way round."""
    if not value > 0 or not limit > 0:
        return 0.0 if value <= limit else 3.0
    if math.isinf(value):
        return 3.0
    return math.log(limit / value if key == "attainment" else value / limit)


def _together(space: Space, own: Point, helped: Sequence[Point]) -> list[Point]:
    """Pairs of single changes to different dimensions, and the best of each dimension at once."""
    found, best = [], list(own)
    for i, one in enumerate(helped):
        found += [m for other in helped[i + 1 :] if (m := _merged(own, one, other)) is not None]
        for j, value in enumerate(one):
            if value != own[j] and best[j] == own[j]:
                best[j] = value
                found.append(tuple(best))
    return found


def _merged(own: Point, one: Point, other: Point) -> Point | None:
    pairs = list(zip(own, one, other, strict=True))
    if any(o not in (a, b) for o, a, b in pairs):
        return None
    return tuple(a if a != o else b for o, a, b in pairs)


def _simpler(point: Point, own: Point) -> list[Point]:
    """The point without one of its changes; none of a single change."""
    changed = [i for i, value in enumerate(point) if value != own[i]]
    if len(changed) < 2:
        return []
    return [(*point[:i], own[i], *point[i + 1 :]) for i in changed]


def _changes(point: Point, own: Point) -> frozenset[tuple[int, object]]:
    return frozenset((i, v) for i, (v, o) in enumerate(zip(point, own, strict=True)) if v != o)


def _as_good(one: Expected, other: Expected) -> bool:
    """True when `one` is expected to be no worse than `other` in value and in every limit."""
    if not one.value or not other.value or one.limits.keys() != other.limits.keys():
        return False
    if math.log(one.value / other.value) < -IDLE:
        return False
    return all(_over(k, v, other.limits[k]) <= IDLE_LIMIT for k, v in one.limits.items())


class _Pool:
    """What was looked at, by what the engine would run with."""

    def __init__(self, space: Space, ground: Ground, limits: Mapping[str, float]) -> None:
        self._space, self._ground, self._limits = space, ground, limits
        self._points: dict[str, Point] = {}
        self._found: dict[str, Expected] = {}
        self._scores: dict[Point, float] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, points: Iterable[Point], *, forced: bool = False) -> None:
        """Look at those that are new; forced: even where a rule refuses them."""
        wanted: dict[str, tuple[Point, Candidate]] = {}
        for point in points:
            candidate = self._space.candidate(point)
            resolved = self._space.resolved(candidate)
            if resolved.knobs is None or (not forced and self._space.refused(candidate)):
                continue
            name = resolved.identity
            if name not in self._found and name not in wanted:
                short = point if forced else self._shortest(point, name)
                wanted[name] = (short, self._space.candidate(short))
        seen = self._ground.expect([c for _, c in wanted.values()])
        for (name, (point, _)), expected in zip(wanted.items(), seen, strict=True):
            if expected.refused is not None and not forced:
                self._scores[point] = -math.inf
                continue
            self._points[name], self._found[name] = point, expected
            self._scores[point] = score(expected, self._limits)

    def _shortest(self, point: Point, name: str) -> Point:
        """Without the values of `FOLLOWING` that follow from the others by themselves."""
        own = self._space.point(Candidate())
        for i, (value, dimension) in enumerate(zip(own, self._space.dimensions, strict=True)):
            less = (*point[:i], value, *point[i + 1 :])
            if dimension.name not in FOLLOWING or point[i] == value:
                continue
            if self._identity(less) == name:
                point = less
        return point

    def score(self, point: Point) -> float:
        """The twin's; of a point that comes to the same as another the other's."""
        if point not in self._scores:
            resolved = self._space.resolved(self._space.candidate(point))
            same = None if resolved.knobs is None else self._points.get(resolved.identity)
            self._scores[point] = -math.inf if same is None else self._scores[same]
        return self._scores[point]

    def best(self) -> list[Point]:
        """Points that were looked at, the best first."""
        return sorted(self._points.values(), key=self.score, reverse=True)

    def expected(self) -> tuple[Expected, ...]:
        """All that were looked at."""
        return tuple(self._found.values())

    def without_idle(self) -> tuple[Expected, ...]:
        """All that were looked at, without those with an idle change, but for the baseline.

        Changes are idle on top of others when the twin expects as much without them. Before
        anything was measured there is no better knowledge, and the first candidates shall carry no
        setting that does nothing. Later what the twin is blind to may be found on top of what is
        good: without it a search took 13 % longer on the corpus (53 searches, error 9 %).
        """
        own = self._space.point(Candidate())
        left = self._without_idle(own)
        for _ in own:  # a sibling may have an idle change, too
            before = len(self)
            best = sorted((self._points[n] for n in left), key=self.score, reverse=True)
            self.add(simpler for p in best[:AT_RANDOM] for simpler in _simpler(p, own))
            if len(self) == before:
                break
            left = self._without_idle(own)
        return tuple(self._found[name] for name in left)

    def _without_idle(self, own: Point) -> list[str]:
        """Names of all but those of which a part of the changes was looked at and is as good."""
        changes = {name: _changes(point, own) for name, point in self._points.items()}
        parts = [(changes[n], e) for n, e in self._found.items() if changes[n]]
        return [
            name
            for name, found in self._found.items()
            if not any(part < changes[name] and _as_good(other, found) for part, other in parts)
        ]

    def _identity(self, point: Point) -> str:
        return self._space.resolved(self._space.candidate(point)).identity
