"""95 % intervals that respect what requests of one run share: the steps of the engine.

All streams of a replica wait for the same steps, so a million gaps are nowhere near a million
independent values. What is resampled here is therefore time: the window is cut into equal blocks,
each longer than a request stays in the system, and whole blocks are drawn with replacement (the
block bootstrap; Kuensch 1989). A block keeps its values as a histogram on a logarithmic grid, so a
resample is a weighted sum of histograms and its cost does not depend on the number of values.
"""

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain.percentile import PERCENTS, too_small
from ridgeline.domain.records import Floats, Ints
from ridgeline.domain.run import Window
from ridgeline.domain.summary import Interval, Percentiles

FEWEST_BLOCKS = 5
MOST_BLOCKS = 30
RESAMPLES = 400
# A histogram bin is a floating-point exponent and the first 8 bits of its mantissa: at most 0.4 %
# wide, and found by a shift instead of a logarithm. From 2 ** -20 s (1 us) to 2 ** 12 s.
_SHIFT = 52 - 8
_SHORTEST_S, _LONGEST_S = 2.0**-20, 2.0**12
_FIRST = int(np.float64(_SHORTEST_S).view(np.int64)) >> _SHIFT
_BINS = (int(np.float64(_LONGEST_S).view(np.int64)) >> _SHIFT) - _FIRST + 1
_Z = 1.959963984540054  # 97.5 % point of the normal distribution


@dataclass(frozen=True, slots=True)
class Blocks:
    """Equal time blocks of a window. `reason` says why they allow no interval, None when they do.

    `of` gives the block of a time stamp. `weights` (RESAMPLES x count) says how often each block
    was drawn in each resample: the same draws for all figures of a run.
    """

    window: Window
    count: int
    reason: str | None

    def of(self, at_ns: Ints | Floats) -> Ints:
        """Block index 0..count-1 of time stamps inside the window."""
        span = self.window.end_ns - self.window.start_ns
        return ((at_ns - self.window.start_ns) * (self.count / span)).astype(np.int64)

    @property
    def weights(self) -> Floats:
        """How often each block comes up in each resample, from a fixed stream."""
        rng = np.random.Generator(np.random.PCG64(20_240_229))
        even = np.full(self.count, 1 / self.count)
        return rng.multinomial(self.count, even, size=RESAMPLES).astype(np.float64)


def blocks(window: Window, residence_s: float | None) -> Blocks:
    """Cut the window into as many blocks as are longer than `residence_s`, at most MOST_BLOCKS."""
    if residence_s is None or window.seconds <= 0:
        return Blocks(window, 1, "no request to take a residence time from")
    count = min(MOST_BLOCKS, int(window.seconds / max(residence_s, 1e-9)))
    if count >= FEWEST_BLOCKS:
        return Blocks(window, count, None)
    return Blocks(
        window,
        max(1, count),
        f"the window of {window.seconds:.3g} s has {count} blocks longer than a request's residence"
        f" ({residence_s:.3g} s), an interval needs {FEWEST_BLOCKS}",
    )


def latency_intervals(
    values: Floats, at_ns: Ints | Floats, found: Percentiles, cut: Blocks
) -> dict[str, Interval]:
    """Intervals (keys mean, p50 ..) of the statistics `found` of finite `values` in seconds."""
    n = len(values)
    if n == 0:
        return {}
    reasons = {"mean": cut.reason} | {f"p{p}": too_small(p, n) or cut.reason for p in PERCENTS}
    if cut.reason is not None:
        return {key: Interval(None, None, n, reason) for key, reason in reasons.items()}
    block = cut.of(at_ns)
    weights = cut.weights
    drawn = weights @ np.bincount(block, minlength=cut.count)
    sums = weights @ np.bincount(block, values, minlength=cut.count)
    percentile_draws, tails = _resampled_percentiles(values, block, cut.count, weights)
    draws = [sums[drawn > 0] / drawn[drawn > 0], *percentile_draws]
    result = {}
    for (key, reason), resampled, tail in zip(
        reasons.items(), draws, (float(cut.count), *tails), strict=True
    ):
        estimate = getattr(found, key)
        if estimate is None:
            result[key] = Interval(None, None, n, reason or "not resolvable")
            continue
        doubt = None
        if tail < FEWEST_BLOCKS:
            doubt = f"too narrow to trust: the values above it lie in about {tail:.0f} time blocks"
        result[key] = replace(_around(estimate, resampled, cut.count, n), reason=doubt)
    return result


def _resampled_percentiles(
    values: Floats, block: Ints, count: int, weights: Floats
) -> tuple[Floats, list[float]]:
    """PERCENTS of each resample, shape (len(PERCENTS), R), and in how many blocks each tail lies.

    The second is the effective number (sum n)^2 / sum n^2 over the blocks' counts n of values at
    or above the percentile: a tail out of one bad second says nothing about the next one.
    """
    places = np.clip(values, _SHORTEST_S, _LONGEST_S).view(np.int64) >> _SHIFT
    places += block * _BINS - _FIRST
    table = np.bincount(places, minlength=count * _BINS).reshape(count, _BINS)
    used = np.flatnonzero(table.any(axis=0))
    table = table[:, used]
    whole = np.cumsum(table.sum(axis=0))
    cumulated = np.cumsum(weights @ table, axis=1)
    draw = np.arange(len(weights))
    low_edge = ((used + _FIRST) << _SHIFT).view(np.float64)
    high_edge = ((used + _FIRST + 1) << _SHIFT).view(np.float64)
    found, tails = np.empty((len(PERCENTS), len(weights))), []
    for i, percent in enumerate(PERCENTS):
        target = cumulated[:, -1] * (percent / 100)
        bin_index = (cumulated >= target[:, None] - 1e-9).argmax(axis=1)
        upper = cumulated[draw, bin_index]
        lower = np.where(bin_index > 0, cumulated[draw, bin_index - 1], 0.0)
        # Where in its bin the percentile falls, so that the grid does not show.
        part = (target - lower) / np.maximum(upper - lower, 1e-9)
        low, high = low_edge[bin_index], high_edge[bin_index]
        found[i] = low + part * (high - low)
        above = table[:, np.searchsorted(whole, whole[-1] * (percent / 100)) :].sum(axis=1)
        tails.append(float(above.sum() ** 2 / (above.astype(np.float64) ** 2).sum()))
    return found, tails


def rate_interval(per_block: Floats | Ints, n: int, cut: Blocks) -> Interval:
    """Interval of a rate per second from the amounts in each block; n is the number of events."""
    if cut.reason is not None:
        return Interval(None, None, n, cut.reason)
    rates = per_block / (cut.window.seconds / cut.count)
    mean, error = rates.mean(), rates.std(ddof=1) / np.sqrt(cut.count)
    half = student_t(cut.count - 1) * error
    return Interval(float(max(0.0, mean - half)), float(mean + half), n)


def share_interval(hits: Floats, at_ns: Ints | Floats, cut: Blocks) -> Interval:
    """Interval of the share of requests with `hits` 1.0 (0.0 else).

    When all are alike the blocks show no spread; the exact binomial bound for n independent
    requests is given then (0.025 ** (1 / n) away from the end), the tightest that can be claimed.
    """
    n = len(hits)
    if n == 0:
        return Interval(None, None, 0, "no requests")
    share = float(hits.mean())
    if share in (0.0, 1.0):
        bound: float = 0.025 ** (1 / n)
        return Interval(0.0, 1 - bound, n) if share == 0.0 else Interval(bound, 1.0, n)
    if cut.reason is not None:
        return Interval(None, None, n, cut.reason)
    block = cut.of(at_ns)
    weights = cut.weights
    drawn = weights @ np.bincount(block, minlength=cut.count)
    found = weights @ np.bincount(block, hits, minlength=cut.count)
    low, high = np.percentile(found[drawn > 0] / drawn[drawn > 0], [2.5, 97.5])
    widen = _widening(cut.count)
    return Interval(
        max(0.0, share - (share - float(low)) * widen),
        min(1.0, share + (float(high) - share) * widen),
        n,
    )


def _around(estimate: float, draws: Floats, count: int, n: int) -> Interval:
    """Percentile interval of `draws`, widened for few blocks, about the exact estimate.

    The spread is taken as a ratio to the middle of the draws, so that the grid of the histogram
    cancels out and a latency's interval stays above zero.
    """
    if estimate <= 0:
        low, high = np.percentile(draws, [2.5, 97.5])
        return Interval(min(estimate, float(low)), max(estimate, float(high)), n)
    low, middle, high = np.log(np.percentile(draws, [2.5, 50, 97.5]))
    widen = _widening(count)
    return Interval(
        estimate * float(np.exp((low - middle) * widen)),
        estimate * float(np.exp((high - middle) * widen)),
        n,
    )


def _widening(count: int) -> float:
    """What the plain bootstrap of `count` blocks lacks: Student's t and the n - 1 of a variance."""
    return float(student_t(count - 1) / _Z * np.sqrt(count / (count - 1)))


def student_t(degrees: int) -> float:
    """97.5 % point of Student's t for 4 or more degrees of freedom, within 0.3 %.

    The Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).
    """
    z, v = _Z, float(degrees)
    point: float = (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
    return point
