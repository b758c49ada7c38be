"""When has a run become steady, and until when was it?

The warm-up ends where MSER says: at the number d of values left out at the start that makes the
standard error of the mean of the rest smallest, sum (x - mean)^2 / (n - d)^2, over means of five
neighbouring values (MSER-5: White, Cobb and Spratt 2000, Winter Simulation Conference). Where that
is in the second half of what was seen, no steady state has been found yet. Of 42 rules that Hoad,
Robinson and Davies (2010, Journal of the Operational Research Society 61, 1631) compared it is the
one that needs no tuning and misses least; docs/decisions/0008 says why it is used here.
"""

from dataclasses import dataclass, field

import numpy as np

from ridgeline.domain.records import Floats, Ints, RunRecords
from ridgeline.domain.workload import Workload

STEADY = "steady"  # kind of the event that a window was opened because the run is steady
BATCH = 5  # values a mean is made of
BIN_S = 0.2  # length of one value: a mean is over a second
FEWEST_BATCHES = 6  # fewer show nothing
STAYS = 2.0  # a request's mean stay, so many times, is the least lead: the first wave is over then
DROP = 0.02  # a change over the rest, of its mean, that can be borne
DROP_ERRORS = 2.0  # a change within so many standard errors may be chance
MOST_RESIDUE = 0.9  # autocorrelation of the residues that is still corrected for
LEAST_REST = 4  # batches that must be left to look for a drift in


def truncation(values: Floats, batch: int = BATCH) -> int | None:
    """How many values to leave out at the start; None when no steady state is found.

    Values at the end that do not fill a batch are not looked at.
    """
    means = _means(values, batch)
    m = len(means)
    if m < FEWEST_BATCHES:
        return None
    d = int(np.argmin(_squared_errors(means)[: m - 1 - m // 4]))
    return d * batch if d <= m // 2 else None


def plateau(values: Floats, batch: int = BATCH) -> tuple[int, int] | None:
    """First and last + 1 index of the steady part of a series that may also fall at its end.

    MSER with both ends free; the part must be at least half of the series. None when the part that
    is found still drifts, or when there are too few values.
    """
    means = _means(values, batch)
    m = len(means)
    if m < FEWEST_BATCHES:
        return None
    sums = np.concatenate(([0.0], np.cumsum(means)))
    squares = np.concatenate(([0.0], np.cumsum(means**2)))
    best: tuple[float, int, int, int] | None = None
    for start in range(m // 2 + 1):
        stop = np.arange(start + -(-m // 2), m + 1)
        n = stop - start
        total = sums[stop] - sums[start]
        spread = np.maximum(squares[stop] - squares[start] - total**2 / n, 0.0)
        # What rounding leaves of a spread of nothing must not decide between equal parts.
        found = np.round(spread / (1e-12 + squares[-1]), 12) / n**2
        at = len(found) - 1 - int(np.argmin(found[::-1]))  # of equals the longest
        candidate = (float(found[at]), -int(n[at]), start, int(stop[at]))
        best = candidate if best is None else min(best, candidate)
    assert best is not None
    start, stop_at = best[2], best[3]
    if drifts(values[start * batch : stop_at * batch]):
        return None
    return start * batch, stop_at * batch


def drifts(values: Floats) -> bool:
    """True when a straight line through the series rises or falls by more than DROP of its mean,
    beyond DROP_ERRORS standard errors of its slope.

    Where neighbours go together n counts as n (1 - r) / (1 + r) values, r being the residues'
    autocorrelation (Santer et al. 2000, Journal of Geophysical Research 105, 7337).
    """
    n = len(values)
    if n < FEWEST_BATCHES:
        return False
    mean = float(values.mean())
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ values) / float(x @ x)
    rest = values - mean - slope * x
    left = float(rest @ rest)
    r = min(max(float(rest[1:] @ rest[:-1]) / left, 0.0), MOST_RESIDUE) if left > 0 else 0.0
    error = float(np.sqrt(left / (n - 2) / float(x @ x) * (1 + r) / (1 - r)))
    change = abs(slope) * (n - 1)
    return change > DROP * abs(mean) and abs(slope) > DROP_ERRORS * error


def _means(values: Floats, batch: int) -> Floats:
    count = len(values) // batch
    means: Floats = values[: count * batch].reshape(count, batch).mean(axis=1)
    return means


def _squared_errors(means: Floats) -> Floats:
    """The squared standard error of the mean of means[d:], for d from 0 to len - 1."""
    back = means[::-1]
    n = np.arange(1, len(back) + 1)
    total = np.cumsum(back)
    spread = np.maximum(np.cumsum(back**2) - total**2 / n, 0.0)
    errors: Floats = (spread / n**2)[::-1]
    return errors


@dataclass(slots=True)
class Onset:
    """Watches a run while it goes on and says when it is steady.

    It looks at chunks per second and at the requests in flight (their quotient is the time between
    the chunks of one stream). Steady: MSER finds an end of the warm-up in the first half of what
    was seen, for both; the rest does not drift; every user (closed loop) has had a reply; and
    the traffic has gone on for `least_s`, and for STAYS times a request's mean stay after the ramp.
    """

    users: int | None
    ramp_s: float = 0.0
    least_s: float = 0.0
    replies: int = 0
    rates: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)
    _chunks: int = 0
    _stay_s: float = 0.0

    @property
    def next_s(self) -> float:
        """When the next value is due, from the run's zero."""
        return (len(self.rates) + 1) * BIN_S

    def ended(self, stay_s: float) -> None:
        """Take a request that ended `stay_s` after it was sent."""
        self.replies += 1
        self._stay_s += stay_s

    def look(self, chunks: int, in_flight: int) -> bool:
        """Take what there is at `next_s`: chunks received until then, requests on their way."""
        self.rates.append(float(chunks - self._chunks))
        self._chunks = chunks
        self.in_flight.append(float(in_flight))
        seen_s = len(self.rates) * BIN_S
        if len(self.rates) % BATCH or self.replies < max(self.users or 0, 1):
            return False
        mean_stay_s = self._stay_s / self.replies
        if seen_s < max(self.least_s, self.ramp_s + STAYS * mean_stay_s):
            return False
        return all(self._settled(np.array(series)) for series in (self.rates, self.in_flight))

    @staticmethod
    def _settled(values: Floats) -> bool:
        cut = truncation(values)
        if cut is None or len(values) - cut < LEAST_REST * BATCH:
            return False
        return not drifts(values[cut:])


def onset_of(workload: Workload, user_start_ns: Ints | None) -> Onset | None:
    """What watches a run with an automatic warm-up; None for a fixed one."""
    if not workload.warmup_auto:
        return None
    users = workload.arrivals.users
    ramp_s = float(user_start_ns.max()) / 1e9 if user_start_ns is not None else 0.0
    return Onset(users, ramp_s, workload.least_warmup_s)


def observed(records: RunRecords, end_ns: int) -> dict[str, Floats]:
    """The series of a whole run, a value for each BIN_S from its zero to `end_ns`.

    throughput: chunks of all requests; itl: mean gap (s) that ended in it, the value before where
    none did; in flight: requests on their way.
    """
    bins = int(end_ns / 1e9 / BIN_S)
    width = BIN_S * 1e9
    at = records.chunk_ns[(records.chunk_ns >= 0) & (records.chunk_ns < bins * width)]
    counts = np.bincount((at / width).astype(np.int64), minlength=bins).astype(np.float64)
    edges = (np.arange(bins) + 1) * width
    start = np.where(np.isnan(records.sent_ns), records.intended_ns, records.sent_ns)
    begun = np.searchsorted(np.sort(start), edges, side="right")
    ended = np.searchsorted(np.sort(records.end_ns), edges, side="right")
    return {
        "throughput": counts,
        "ITL": _mean_gaps(records, bins, width),
        "requests in flight": (begun - ended).astype(np.float64),
    }


def _mean_gaps(records: RunRecords, bins: int, width: float) -> Floats:
    gaps = np.diff(records.chunk_ns, prepend=0).astype(np.float64) / 1e9
    own = np.ones(len(gaps), dtype=np.bool_)
    starts = records.chunk_start[:-1]
    own[starts[starts < len(gaps)]] = False
    own &= (records.chunk_ns >= 0) & (records.chunk_ns < bins * width)
    place = (records.chunk_ns[own] / width).astype(np.int64)
    counts = np.bincount(place, minlength=bins)
    sums = np.bincount(place, gaps[own], minlength=bins)
    known = np.flatnonzero(counts)
    if not len(known):
        return np.zeros(0)
    last = known[np.clip(np.searchsorted(known, np.arange(bins), side="right") - 1, 0, None)]
    means: Floats = sums[last] / counts[last]
    return means
