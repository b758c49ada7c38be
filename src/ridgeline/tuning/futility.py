"""Ending a trial early once it cannot meet its targets any more.

Two bounds, both from live figures; each is a statement about the whole window, not about now:

- Median: half of the requests that ended in the window waited longer than a target on a higher
  percentile allows. What is left of the window can dilute that only if so many more requests come
  that they outnumber those; at twice the pace they would not.
- Queue: the engine is full and its queue has grown for HORIZON_S (the lower bound of its slope is
  above zero, every part of that time has its share of it, and it has not fallen back). A request
  that joins it waits for those before it at the pace at which requests end: longer than the target,
  and more requests will join than it allows.
"""

import re
from collections import deque
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats, RunEvent
from ridgeline.domain.run import LiveFigures, Watch
from ridgeline.domain.slo import Limit, Slo

HORIZON_S = 14.0
FEWEST_READINGS = 8
PARTS = 4  # of the horizon; a queue that stood still in one of them is watched further
FULL = 0.95  # of the KV cache: a new request has to wait for room
SAME = 0.05  # running requests that changed by less are as many as fit
PACE = 2.0  # how much faster requests may come in the rest of the window
FEWEST_ENDED = 20
MEASURING = "measuring"
_WAITS = ("ttft", "ttft_intent", "e2e")  # targets that waiting counts into
_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    waiting: float
    kv_use: float | None
    running: float
    ended: int


class Futility:
    """Follows the live figures of one run; `bound` is the bound that was passed, in words."""

    def __init__(self, slo: Slo, duration_s: float) -> None:
        """`duration_s`: length of the window."""
        self._limits = [x for x in slo.limits if x.metric in _WAITS and x.statistic in _SHARES]
        self._duration_s = duration_s
        self._looks: deque[_Look] = deque()
        self.bound: str | None = None

    def look(self, figures: LiveFigures) -> None:
        """Take the figures of now."""
        if self.bound is not None or not self._limits:
            return
        left = self._left(figures)
        self.bound = self._by_median(figures, left)
        if figures.waiting is not None:
            self._remember(figures)
            self.bound = self.bound or self._by_queue(figures, left)

    def _left(self, figures: LiveFigures) -> float:
        """The share of the window that is still to come."""
        over_s = max(figures.total_s - figures.elapsed_s, 0.0)
        return min(over_s / self._duration_s, 1.0) if self._duration_s else 0.0

    def _by_median(self, figures: LiveFigures, left: float) -> str | None:
        median_s, over = figures.ttft_p50_s, 1.0 - left
        if median_s is None or figures.phase != MEASURING or figures.ttft_seen < FEWEST_ENDED:
            return None
        for limit in self._limits:
            allowed = 1.0 - _SHARES[limit.statistic or "p50"]
            most = 1.0 + PACE * left / over if over > 0 else float("inf")
            if limit.metric == "e2e" or allowed * most >= 0.5:
                continue
            if median_s * 1e3 > limit.value:
                return (
                    f"median TTFT {median_s * 1e3:.0f} ms after {over:.0%} of the window, over"
                    f" {figures.ttft_seen} requests: {limit} cannot be met"
                )
        return None

    def _remember(self, figures: LiveFigures) -> None:
        assert figures.waiting is not None
        ended = figures.sent - figures.in_flight
        running = figures.in_flight - figures.waiting
        look = _Look(figures.elapsed_s, figures.waiting, figures.kv_use, running, ended)
        # The engine's page is read once a second, the client's figures come twice.
        if not self._looks or look.at_s - self._looks[-1].at_s >= 0.9:
            self._looks.append(look)
        while len(self._looks) > 2 and look.at_s - self._looks[1].at_s >= HORIZON_S:
            self._looks.popleft()

    def _by_queue(self, figures: LiveFigures, left: float) -> str | None:
        looks = self._looks
        span_s = looks[-1].at_s - looks[0].at_s
        if span_s < HORIZON_S or len(looks) < FEWEST_READINGS or not self._full():
            return None
        waiting = np.array([x.waiting for x in looks])
        at_s = np.array([x.at_s for x in looks])
        slope = _least_slope(at_s, waiting)
        parts = np.array_split(np.arange(len(looks)), PARTS)
        grew = all(_slope(at_s[p], waiting[p]) >= slope / 4 for p in parts)
        fell_back = waiting[-1] < waiting.max() - max(1.0, SAME * float(waiting.max()))
        if slope <= 0 or not grew or fell_back:
            return None
        rate = (looks[-1].ended - looks[0].ended) / span_s
        wait_s = float(waiting[-1]) / rate if rate > 0 else float("inf")
        limit = self._missed_by(wait_s, left)
        if limit is None:
            return None
        return (
            f"{waiting[-1]:.0f} requests wait and the queue has grown by at least {slope:.2g}/s for"
            f" {span_s:.0f} s (KV {_percent(figures.kv_use)}): one that joins waits {wait_s:.1f} s,"
            f" {limit} cannot be met"
        )

    def _full(self) -> bool:
        """Whether the engine can run no more requests than it does."""
        recent = list(self._looks)[-FEWEST_READINGS:]
        if all(x.kv_use is not None and x.kv_use >= FULL for x in recent):
            return True
        running = [x.running for x in recent]
        return min(running) > 0 and max(running) - min(running) <= SAME * max(running)

    def _missed_by(self, wait_s: float, left: float) -> Limit | None:
        """The first target that more of the coming requests miss than it allows."""
        for limit in self._limits:
            allowed = 1.0 - _SHARES[limit.statistic or "p50"]
            if wait_s * 1e3 > limit.value and left > 2 * allowed:
                return limit
        return None


def _slope(at_s: Floats, values: Floats) -> float:
    """Slope of the best straight line."""
    x = at_s - at_s.mean()
    return float(x @ values) / float(x @ x)


def _least_slope(at_s: Floats, values: Floats) -> float:
    """Lower end of that slope, two standard errors below it."""
    x, slope = at_s - at_s.mean(), _slope(at_s, values)
    off = values - values.mean() - slope * x
    return slope - 2 * float(np.sqrt(off @ off / max(len(x) - 2, 1) / (x @ x)))


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.0%}"


def limit_of(bound: str) -> str | None:
    """The key of the limit that a bound in words is about ("ttft_p95_ms"); None without one."""
    found = re.search(r"(\w+)=\S+ cannot be met$", bound)
    return None if found is None else found[1]


class FutilityWatch:
    """A Watch that passes everything on and ends the run when it cannot meet its targets."""

    def __init__(self, watch: Watch, futility: Futility) -> None:
        self._watch = watch
        self.futility = futility
        self._told = False

    def live(self, figures: LiveFigures) -> None:
        """Take the current figures."""
        self.futility.look(figures)
        bound = self.futility.bound
        if bound is not None and not self._told:
            self._told = True
            self._watch.event(RunEvent(round(figures.elapsed_s * 1e9), "stopped", bound))
        self._watch.live(figures)

    def event(self, event: RunEvent) -> None:
        """Take something worth telling."""
        self._watch.event(event)

    def stop_asked(self) -> bool:
        """True when the user asks, or when the targets cannot be met."""
        return self.futility.bound is not None or self._watch.stop_asked()
