"""How many requests were where, on average over a window: Little's law for measured runs.

The mean number of requests in a stage, L, is the time that they spent there over the length of the
window. Little's law says that it equals the rate of passing the stage times the mean stay (Little
1961, Operations Research 9, 383). Both sides can be had from a client's stamps in different ways:
L as an integral over the window, rate and stay from the requests whose stay has its middle inside.
Where they disagree, the window is too short or too uneven for an account of seconds to mean much.
"""

from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats, RunRecords
from ridgeline.domain.run import Window


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Means over the window, in requests, of those that succeeded.

    in_flight = until_first (sent, no chunk yet) + streaming. closure_error: rate times stay, added
    up over the two stages, over `in_flight`, minus 1.
    """

    in_flight: float
    until_first: float
    streaming: float
    closure_error: float


def occupancy(records: RunRecords, window: Window) -> Occupancy | None:
    """None when no request that succeeded was in flight inside the window."""
    known = records.ok & ~np.isnan(records.sent_ns) & ~np.isnan(records.last_ns)
    sent, first, last = (getattr(records, f"{n}_ns")[known] for n in ("sent", "first", "last"))
    waiting, streaming = _inside(sent, first, window), _inside(first, last, window)
    total = waiting + streaming
    if total <= 0:
        return None
    little = _rate_times_stay(sent, first, window) + _rate_times_stay(first, last, window)
    return Occupancy(total, waiting, streaming, little / total - 1)


def _inside(start: Floats, end: Floats, window: Window) -> float:
    """Mean number of the stays [start, end) that go on, over the window."""
    overlap = np.minimum(end, window.end_ns) - np.maximum(start, window.start_ns)
    return float(np.maximum(overlap, 0.0).sum()) / (window.end_ns - window.start_ns)


def _rate_times_stay(start: Floats, end: Floats, window: Window) -> float:
    """Rate of the stays whose middle lies inside, times their mean."""
    middle = (start + end) / 2
    inside = (middle >= window.start_ns) & (middle < window.end_ns)
    return float((end - start)[inside].sum()) / (window.end_ns - window.start_ns)
