"""Did the requests of an open loop leave by the law that was asked for? The figures for it.

Dispersion: variance over mean of the counts in equal bins; 1 for a Poisson process whatever the
bins (Cox and Lewis 1966, The Statistical Analysis of Series of Events, chapter 6). A process that
is drawn anew and scaled for every second, or by every worker for itself, shows there.
"""

from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats, RunRecords
from ridgeline.domain.run import Window

LAGS = 5
FEWEST = 50  # gaps below which nothing of their law is said
FEWEST_BINS, MOST_BINS = 20, 1000
ARRIVALS_A_BIN = 10  # about; the bins are never so many that a count is mostly 0 or 1


@dataclass(frozen=True, slots=True)
class ArrivalFigures:
    """How the first sendings inside the window were spread. None = too few to tell.

    asked_per_s: of the schedule's own arrivals inside the window, achieved_per_s: of the sendings.
    gap_cv: coefficient of variation of the gaps. autocorrelation: of the gaps, at lags 1 to LAGS.
    dispersion: see the module; `bins` of them. burst_skew_max_s: of arrivals that were intended
    for the very same time, the longest from the first sending to the last; None where there are no
    such arrivals.
    """

    asked_per_s: float
    achieved_per_s: float
    gap_cv: float | None = None
    dispersion: float | None = None
    bins: int | None = None
    autocorrelation: tuple[float, ...] = ()
    burst_skew_max_s: float | None = None


def arrival_figures(records: RunRecords, window: Window) -> ArrivalFigures | None:
    """The figures of a run; None without a request in the window or a window without length.

    What a cap held back left its place in the law free, so that wait is taken off; the later turns
    of a session follow no law and are left out.
    """
    first = ~(records.turn > 0)
    intended = records.intended_ns[first]
    sent = (records.sent_ns - np.nan_to_num(records.cap_wait_ns))[first]
    due = (intended >= window.start_ns) & (intended < window.end_ns)
    left = np.sort(sent[(sent >= window.start_ns) & (sent < window.end_ns)])
    if window.seconds <= 0 or not (due.any() or len(left)):
        return None
    rates = float(np.count_nonzero(due)) / window.seconds, len(left) / window.seconds
    skew = burst_skew_s(intended[due], sent[due])
    gaps = np.diff(left) / 1e9
    if len(gaps) < FEWEST or gaps.mean() <= 0:
        return ArrivalFigures(*rates, burst_skew_max_s=skew)
    bins = int(np.clip(len(left) // ARRIVALS_A_BIN, FEWEST_BINS, MOST_BINS))
    return ArrivalFigures(
        *rates,
        gap_cv=float(gaps.std() / gaps.mean()),
        dispersion=dispersion(left, window, bins),
        bins=bins,
        autocorrelation=tuple(autocorrelation(gaps, lag) for lag in range(1, LAGS + 1)),
        burst_skew_max_s=skew,
    )


def dispersion(times_ns: Floats, window: Window, bins: int) -> float:
    """Variance over mean of the counts in that many equal bins of the window."""
    counts, _ = np.histogram(times_ns, bins=bins, range=(window.start_ns, window.end_ns))
    return float(counts.var(ddof=1) / counts.mean())


def autocorrelation(values: Floats, lag: int) -> float:
    """Of a series with itself, `lag` places on; 0 for a series that does not vary."""
    off = values - values.mean()
    whole = float(off @ off)
    return float(off[lag:] @ off[:-lag]) / whole if whole > 0 else 0.0


def burst_skew_s(intended_ns: Floats, sent_ns: Floats) -> float | None:
    """The longest from the first to the last sending among arrivals meant for the same time."""
    known = ~np.isnan(sent_ns)
    times, place, sizes = np.unique(intended_ns[known], return_inverse=True, return_counts=True)
    if not (sizes > 1).any():
        return None
    low, high = np.full(len(times), np.inf), np.full(len(times), -np.inf)
    np.minimum.at(low, place, sent_ns[known])
    np.maximum.at(high, place, sent_ns[known])
    return float((high - low).max()) / 1e9
