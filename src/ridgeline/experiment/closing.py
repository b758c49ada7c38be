"""How well a measured run's account of seconds closes: the server's stages against all else.

The server's histograms are of the requests that finished between the first and the last reading;
the client knows the same requests, so their times are compared request for request, and nothing is
scaled. The server's gauges are of moments; they are held against the client's stamps over the same
span of time, not against requests that may have waited before it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.domain.intervals import student_t
from ridgeline.domain.occupancy import occupancy
from ridgeline.domain.records import RunRecords
from ridgeline.domain.run import Window

# What is wrong with an account, by name: its words. Each compares two things that nothing forces to
# agree; 0 is agreement.
ERRORS = {
    "residual_error": "the server's stages outlast its own total or the client's, by this share of"
    " a request's time",
    "split_error": "until the first chunk, or from there to the last, the server's stages outlast"
    " the client's time of the same requests, by this share of it",
    "queue_error": "requests that wait by the client's stamps against the gauge of waiting ones, of"
    " those in flight",
    "engine_error": "requests in the engine by the client's stamps against the gauge of running"
    " ones, of those in flight",
}
ERROR_LIMIT = 0.05
BUSY_FRONT = 0.9  # cores: an API server that takes as much reads its gauges when it gets to it

# What a gauge that was read so many times can tell, by the error that rests on it.
RESOLUTIONS = {"queue_error": "queue_resolution", "engine_error": "engine_resolution"}


@dataclass(frozen=True, slots=True)
class Stages:
    """What the server tells of the requests that it finished between two readings, in seconds.

    Of the same requests at the client: `stay`, the mean time from sent to last chunk, and `first`,
    to the first one; `rate`: how many ended a second. `span`: from the first to the last reading.
    """

    e2e: float
    queue: float
    prefill: float
    decode: float
    stay: float
    first: float
    rate: float
    span: Window

    @property
    def inside(self) -> float:
        """Seconds in the engine: queue, prefill and decode."""
        return self.queue + self.prefill + self.decode


def stages_of(records: RunRecords, engine: Mapping[str, Any]) -> Stages | None:
    """The stages of a run; None where the server does not tell them or nothing ended."""
    told = [engine.get(f"{name}_mean_s") for name in ("e2e", "queue", "prefill", "decode")]
    begin, end = engine.get("first_reading_s"), engine.get("last_reading_s")
    if begin is None or end is None or end <= begin or any(value is None for value in told):
        return None
    span = Window(round(begin * 1e9), round(end * 1e9))
    last = records.last_ns
    rows = records.ok & (last >= span.start_ns) & (last < span.end_ns)
    if not rows.any():
        return None
    sent, first = records.sent_ns[rows], records.first_ns[rows]
    e2e, queue, prefill, decode = (float(value) for value in told if value is not None)
    return Stages(
        e2e, queue, prefill, decode,
        stay=float(np.mean(last[rows] - sent)) / 1e9, first=float(np.mean(first - sent)) / 1e9,
        rate=float(rows.sum()) / span.seconds, span=span,
    )  # fmt: skip


def closing_errors(
    records: RunRecords, engine: Mapping[str, Any], told: Stages
) -> dict[str, float]:
    """ERRORS of the server's figures as they are, before anything is cut off at zero.

    What the front end and the network had is what is left over: of the server's time, of the
    client's, before the first chunk and after it. Left over may be nothing, never less.

    Gauges, by Little's law: a request is at the client's end in flight, and either waits, runs, or
    is outside the engine. The gauge of running requests is of the last finished step, so one in
    its first step may be missing there; between both counts there is no error. With them stand the
    RESOLUTIONS: how far the mean of so few readings may be off (95 %), by the same measure.
    """
    below = min(0.0, told.stay - told.e2e) + min(0.0, told.e2e - told.inside)
    before = told.first - told.queue - told.prefill
    after = told.stay - told.first - told.decode
    split = min(before, after, 0.0) - min(0.0, told.stay - told.inside)
    found = {"residual_error": below / told.stay, "split_error": min(0.0, split) / told.stay}
    running, waiting = engine.get("running_mean"), engine.get("waiting_mean")
    held = occupancy(records, told.span)
    if running is None or waiting is None or held is None:
        return found
    waits = held.until_first - told.rate * (before + told.prefill)
    most = held.in_flight - waiting - told.rate * (told.stay - told.inside)
    least = most - told.rate * told.prefill
    found["queue_error"] = (waits - waiting) / held.in_flight
    found["engine_error"] = (max(0.0, least - running) + min(0.0, most - running)) / held.in_flight
    for name, gauge in (("queue_resolution", "waiting"), ("engine_resolution", "running")):
        error, n = engine.get(f"{gauge}_error"), engine.get("readings")
        if error is not None and n is not None and n >= 5:
            found[name] = student_t(int(n) - 1) * error / held.in_flight
    return found


def account_warnings(steps: Mapping[str, float]) -> tuple[str, ...]:
    """What of an account's ERRORS is too large for it to be relied on, in words.

    A disagreement with a gauge that its few readings explain is none.
    """
    found = []
    for name, words in ERRORS.items():
        error = abs(steps.get(name, 0.0))
        beyond = error - steps.get(RESOLUTIONS.get(name, ""), 0.0)
        if error <= ERROR_LIMIT or beyond <= 0 or math.isnan(error):
            continue
        busy = steps.get("api_server_cores", 0.0) >= BUSY_FRONT and name in RESOLUTIONS
        why = "; its API server had no time left and answers late" if busy else ""
        found.append(f"the account of seconds is off by {100 * steps[name]:+.1f} % ({words}{why})")
    return tuple(found)
