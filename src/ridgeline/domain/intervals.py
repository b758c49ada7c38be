"""95 % intervals that respect what requests of one run share: the steps of the engine.

All streams of a replica wait for the same steps, so a million gaps are nowhere near a million
independent values. What is resampled here is therefore time: the window is cut into equal blocks,
each longer than a request stays in the system, and whole blocks are drawn with replacement (the
block bootstrap; Kuensch 1989). A percentile's interval lies between two other percentiles: those
that the share of values at or below it, whose error the blocks tell, may reach (Woodruff 1952). Of
few blocks the bootstrap of a tail is far too narrow.

How long a block must be is told by the data: longer than a request's stay, and at least
CORRELATIONS times as long as the figure's own values go together (`correlation_s`). What blocks of
that length still share is known from the correlation time and widens the interval.
"""

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.percentile import PERCENTS, too_small
from ridgeline.domain.pieces import pieces
from ridgeline.domain.records import Floats, Ints
from ridgeline.domain.run import Window
from ridgeline.domain.summary import Interval, Percentiles

FEWEST_BLOCKS = 5
MOST_BLOCKS = 30
RESAMPLES = 400
CORRELATIONS = 3.0
CORRELATION_BINS = (120, 60, 30)  # cuts of the window in which neighbours are compared
_Z = 1.959963984540054  # 97.5 % point of the normal distribution


@dataclass(frozen=True, slots=True)
class Blocks:
    """Equal time blocks of a window. `reason` says why they allow no interval, None when they do.

    `widening`: by how much an interval from blocks that were independent would be too narrow.

    `of` gives the block of a time stamp. `weights` (RESAMPLES x count) says how often each block
    was drawn in each resample: the same draws for all figures of a run.
    """

    window: Window
    count: int
    reason: str | None
    widening: float = 1.0

    def of(self, at_ns: Ints | Floats) -> Ints:
        """Block index 0..count-1 of time stamps inside the window."""
        span = self.window.end_ns - self.window.start_ns
        found = np.empty(len(at_ns), dtype=np.int64)
        for part in pieces(len(at_ns)):
            found[part] = (at_ns[part] - self.window.start_ns) * (self.count / span)
        return found

    @property
    def weights(self) -> Floats:
        """How often each block comes up in each resample, from a fixed stream."""
        rng = np.random.Generator(np.random.PCG64(20_240_229))
        even = np.full(self.count, 1 / self.count)
        return rng.multinomial(self.count, even, size=RESAMPLES).astype(np.float64)


def blocks(window: Window, residence_s: float | None, together_s: float = 0.0) -> Blocks:
    """Cut the window into blocks that are longer than `residence_s` and than CORRELATIONS times
    `together_s`, the correlation time of the figure's values; at most MOST_BLOCKS.
    """
    if residence_s is None or window.seconds <= 0:
        return Blocks(window, 1, "no request to take a residence time from")
    least = max(residence_s, CORRELATIONS * together_s, 1e-9)
    count = min(MOST_BLOCKS, int(window.seconds / least))
    if count >= FEWEST_BLOCKS:
        return Blocks(window, count, None, _shared(window.seconds / count, together_s))
    why = "as long as a request stays"
    if CORRELATIONS * together_s > residence_s:
        why = (
            f"{CORRELATIONS:g} times the {together_s:.3g} s for which its values rise and fall"
            " together"
        )
    return Blocks(
        window,
        max(1, count),
        f"no interval: {window.seconds:.3g} s have {count} separate parts of more than"
        f" {least:.3g} s ({why}), {FEWEST_BLOCKS} are needed; measure at least"
        f" {math.ceil(FEWEST_BLOCKS * least)} s",
    )


def correlation_s(window: Window, at_ns: Ints | Floats, values: Floats | None = None) -> float:
    """Over how long (s) values of a window go together: the time constant of an AR(1) process.

    With `values` their mean in each bin is looked at, without them how much weight `at_ns` brings.
    The correlation of neighbouring bins is corrected for its bias (Kendall 1954, Biometrika 41,
    403) and taken back to the time constant that means over such bins have; of several bin widths
    the longest counts, since noise of the single values hides it in short bins. 0 where neighbours
    do not go together, or where there are too few values to tell.
    """
    return max(_correlation_at(_binned(window, at_ns, values, n)) * window.seconds / n
               for n in CORRELATION_BINS)  # fmt: skip


def _binned(window: Window, at_ns: Ints | Floats, values: Floats | None, bins: int) -> Floats:
    place = Blocks(window, bins, None).of(at_ns)
    counts = np.bincount(place, minlength=bins).astype(np.float64)
    if values is None:
        return counts
    filled = counts > 0
    means: Floats = np.bincount(place, values, minlength=bins)[filled] / counts[filled]
    return means if 2 * len(means) > bins else np.zeros(0)


def _correlation_at(series: Floats) -> float:
    """Time constant in bins of an AR(1) process whose bin means have the series' correlation."""
    n = len(series)
    if n < 10:
        return 0.0
    rest = series - series.mean()
    power = float(rest @ rest)
    if power <= 0:
        return 0.0
    r = float(rest[1:] @ rest[:-1]) / power
    r += (1 + 3 * max(r, 0.0)) / n
    return float(np.interp(r, _NEIGHBOURS, _CONSTANTS))


# Correlation of neighbouring means over bins of length 1, of an AR(1) process of time constant t:
# (1 - e^-x)^2 / (2 (x - 1 + e^-x)) with x = 1 / t.
_CONSTANTS = np.concatenate(([0.0], np.geomspace(0.05, 100.0, 200)))
_NEIGHBOURS = np.array(
    [0.0, *((1 - np.exp(-1 / t)) ** 2 / (2 * (1 / t - 1 + np.exp(-1 / t))) for t in _CONSTANTS[1:])]
)


def _shared(block_s: float, together_s: float) -> float:
    """By how much the error of a mean exceeds what the spread of its blocks shows, for AR(1).

    The variance of a block's mean is 2 t / L (1 - t / L (1 - e^(-L / t))) of the process's own;
    what counts in the long run is 2 t / L.
    """
    if together_s <= 0:
        return 1.0
    x = block_s / together_s
    return float((1 - (1 - np.exp(-x)) / x) ** -0.5)


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
    counts = np.bincount(block, minlength=cut.count).astype(np.float64)
    weights = cut.weights
    drawn = weights @ counts
    sums = weights @ np.bincount(block, values, minlength=cut.count)
    result = {}
    if found.mean is not None:
        means = sums[drawn > 0] / drawn[drawn > 0]
        result["mean"] = _around(found.mean, means, cut, n)
    for percent in PERCENTS:
        key = f"p{percent}"
        estimate, reason = getattr(found, key), reasons[key]
        if estimate is None:
            result[key] = Interval(None, None, n, reason or "not resolvable")
            continue
        inside = (values <= estimate).astype(np.float64)
        below = np.bincount(block, inside, cut.count).astype(np.float64)
        half = _share_error(below, counts) * student_t(cut.count - 1) * cut.widening
        result[key] = _between(values, percent / 100, half, estimate)
    return result


def _share_error(hits: Floats, counts: Floats) -> float:
    """Standard error of sum(hits) / sum(counts) over independent blocks (a ratio estimate)."""
    n, blocks_n = counts.sum(), len(counts)
    rest = hits - hits.sum() / n * counts
    return float(np.sqrt(blocks_n / (blocks_n - 1) * (rest @ rest)) / n)


def _between(values: Floats, share: float, half: float, estimate: float) -> Interval:
    """The quantiles at share - half and share + half: Woodruff's interval (1952, Journal of the
    American Statistical Association 47, 635). Beyond the sample its upper end is not known.
    """
    n = len(values)
    low_rank = max(0, int(np.ceil((share - half) * n)) - 1)
    high_rank = int(np.ceil((share + half) * n)) - 1
    inside = min(high_rank, n - 1)
    ends = np.partition(values, sorted({low_rank, inside}))
    doubt = None
    if high_rank >= n - 1 and half > 0:
        doubt = (
            "the upper end is the largest value seen: the values above it lie in few time blocks"
        )
    return Interval(
        min(estimate, float(ends[low_rank])), max(estimate, float(ends[inside])), n, doubt
    )


def rate_interval(per_block: Floats | Ints, n: int, cut: Blocks) -> Interval:
    """Interval of a rate per second from the amounts in each block; n is the number of events."""
    if cut.reason is not None:
        return Interval(None, None, n, cut.reason)
    rates = per_block / (cut.window.seconds / cut.count)
    mean, error = rates.mean(), rates.std(ddof=1) / np.sqrt(cut.count)
    half = student_t(cut.count - 1) * error * cut.widening
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
    widen = _widening(cut)
    return Interval(
        max(0.0, share - (share - float(low)) * widen),
        min(1.0, share + (float(high) - share) * widen),
        n,
    )


def _around(estimate: float, draws: Floats, cut: Blocks, n: int) -> Interval:
    """Percentile interval of `draws`, widened for few blocks, about the exact estimate.

    The spread is taken as a ratio to the middle of the draws, so that the grid of the histogram
    cancels out and a latency's interval stays above zero.
    """
    drawn = np.percentile(draws, [2.5, 50, 97.5])
    if estimate <= 0 or drawn.min() <= 0:  # gaps of no length: there is no ratio
        return Interval(min(estimate, float(drawn[0])), max(estimate, float(drawn[2])), n)
    low, middle, high = np.log(drawn)
    widen = _widening(cut)
    return Interval(
        estimate * float(np.exp((low - middle) * widen)),
        estimate * float(np.exp((high - middle) * widen)),
        n,
    )


def _widening(cut: Blocks) -> float:
    """What the plain bootstrap of blocks lacks: Student's t, the n - 1 of a variance, and what the
    blocks still share.
    """
    n = cut.count
    return float(student_t(n - 1) / _Z * np.sqrt(n / (n - 1))) * cut.widening


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
