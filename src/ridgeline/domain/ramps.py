"""What a run does outside its steady part: where its throughput holds still, how it began."""

import numpy as np

from ridgeline.domain.metrics import per_second
from ridgeline.domain.percentile import percentiles
from ridgeline.domain.records import RunRecords
from ridgeline.domain.run import Window
from ridgeline.domain.steadystate import BIN_S, plateau
from ridgeline.domain.summary import Percentiles, Plateau

RAMP_SHARE = 0.02  # by which ramps must lower the mean rate of a window to be told


def plateau_of(records: RunRecords, window: Window) -> Plateau | None:
    """The steady part of a window with ramps; None where it has none, or is one.

    A mean over ramps is less than what the server carries: 10 s up, 20 s at 1000 tokens/s and 10 s
    down make 750.
    """
    width_ns = round(BIN_S * 1e9)
    bins = (window.end_ns - window.start_ns) // width_ns
    series = per_second(records, window.start_ns, window.end_ns, width_ns)[:bins]
    found = plateau(series)
    if found is None:
        return None
    first, last = found
    held, whole = float(series[first:last].mean()), float(series.mean())
    if held <= (1 + RAMP_SHARE) * whole:
        return None
    zero_s = window.start_ns / 1e9
    return Plateau(zero_s + first * BIN_S, zero_s + last * BIN_S, held / BIN_S)


def warmup_ttft(records: RunRecords, window: Window) -> Percentiles | None:
    """TTFT of the successes sent before the window, None without any."""
    before = records.ok & (records.sent_ns < window.start_ns)
    if not before.any():
        return None
    ttft = (records.first_ns - records.sent_ns)[before] / 1e9
    return percentiles(ttft[~np.isnan(ttft)])
