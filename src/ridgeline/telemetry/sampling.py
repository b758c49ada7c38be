"""Readings beside a run: a thread asks every probe once a second and keeps what it says.

Reading must cost the client next to nothing, because it shares its process: pages are searched,
not parsed, and everything slow (the network, the driver) happens outside Python's lock.
"""

import contextlib
import http.client
import math
import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol
from urllib.parse import urlsplit

from ridgeline.domain.records import RunEvent, TelemetryRow
from ridgeline.domain.run import LiveFigures, Watch, Window
from ridgeline.telemetry.prometheus import OLD_NAMES

PERIOD_S = 1.0
APART_S = 0.02  # between the readings of two probes, as far as the period allows
# Engine metrics that are kept, by vLLM's names, with the names under which they are stored.
GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
}
COUNTERS = {
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
}
# Histograms of the requests that finished, by the names of their means (seconds a request).
STAGES = {
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:time_to_first_token_seconds": "ttft",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One value that a probe read; see TelemetryRow for the words."""

    source: str
    unit: str
    metric: str
    value: float


class Probe(Protocol):
    """Something that can be read again and again. Implementations: EngineProbe, GpuProbe, ..."""

    def read(self) -> Iterable[Reading]:
        """What it says now; nothing where it cannot be had."""

    def close(self) -> None:
        """Let go of connections and handles; called once, by the thread that read."""


@dataclass(slots=True)
class FakeProbe:
    """Says prepared things, one group a reading, then nothing."""

    script: list[list[Reading]]
    closed: bool = False

    def read(self) -> Iterable[Reading]:
        """The next group."""
        return self.script.pop(0) if self.script else []

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class Sampling:
    """Reads the probes every `period_s` while the context is open; the first time at once.

    Each probe has a thread of its own, so that a page that hangs leaves the others' readings as
    they are. A probe that is slow delays its readings, it never makes them pile up. What a probe
    said is dated in the middle between asking it and its answer.
    """

    def __init__(self, probes: Sequence[Probe], period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._taken: list[tuple[int, Reading]] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(probe, i), name=f"telemetry {i}", daemon=True)
            for i, probe in enumerate(probes)
        ]

    def __enter__(self) -> "Sampling":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        deadline = time.monotonic() + 10.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def rows(self, zero_ns: int) -> tuple[TelemetryRow, ...]:
        """What was read, on the clock of a run whose zero is `zero_ns` on the monotonic clock."""
        return tuple(
            TelemetryRow(at - zero_ns, r.source, r.unit, r.metric, r.value)
            for at, r in sorted(self._taken, key=lambda taken: taken[0])
        )

    def _run(self, probe: Probe, number: int) -> None:
        # A little apart: each thread that searches its page holds Python's lock, which the client
        # shares, and several at once would keep it waiting for all of them.
        self._stop.wait(number * min(APART_S, self._period_s / len(self._threads)))
        due = time.monotonic()
        while True:
            # A driver or a /proc of another kind must not end the readings to come.
            with contextlib.suppress(Exception):
                self._read(probe)
            due = max(due + self._period_s, time.monotonic())
            if self._stop.wait(due - time.monotonic()):
                break
        with contextlib.suppress(Exception):
            probe.close()

    def _read(self, probe: Probe) -> None:
        asked = time.monotonic_ns()
        told = [reading for reading in probe.read() if math.isfinite(reading.value)]
        at = (asked + time.monotonic_ns()) // 2
        self._taken.extend((at, reading) for reading in told)


class EngineProbe:
    """One replica's /metrics page: the GAUGES and COUNTERS, each summed over the page's series.

    A page of an engine with several cores has one series each; their KV use is averaged. A metric
    of which a series is no number (NaN, infinite) is left out: a sum over the rest is no sum.
    """

    def __init__(
        self,
        url: str,
        unit: str,
        timeout_s: float = 2.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._unit = unit
        self._path = parts.path.rstrip("/") + "/metrics"
        self._headers = dict(headers or {})
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)

    def read(self) -> Iterable[Reading]:
        """The page's values now; nothing when there is no page."""
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            reply = self._connection.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return []
        return list(self._values(body)) if reply.status == 200 else []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _values(self, page: bytes) -> Iterator[Reading]:
        found: dict[str, list[float]] = defaultdict(list)
        for name, value in _LINE.findall(page):
            with contextlib.suppress(ValueError):
                found[_STORED[name.decode()]].append(float(value))
        for metric, values in found.items():
            total = sum(values)
            if not math.isfinite(total):
                continue
            yield Reading(
                "engine", self._unit, metric, total / len(values) if metric == "kv_use" else total
            )


_STORED = {
    **GAUGES,
    **COUNTERS,
    **{
        f"{name}_{end}": f"{stage}_{end}"
        for name, stage in STAGES.items()
        for end in ("sum", "count")
    },
}
_STORED |= {  # llama.cpp's server
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:n_decode_total": "steps",
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:tokens_predicted_total": "generation_tokens",
}
_STORED |= {old: _STORED[new] for new in _STORED for old in OLD_NAMES.get(new, ())}
# a name, labels (whose values are quoted: none of ours holds a brace), a number
_LINE = re.compile(
    rb"^(" + b"|".join(re.escape(n.encode()) for n in _STORED) + rb")(?:\{[^}\n]*\})? ([^ \n]+)",
    re.MULTILINE,
)


class ClockWatch:
    """Passes a run on to another watch and learns the run's zero on the monotonic clock.

    `zero_ns` is None until the first live figures. They come a moment after they were taken, so
    the earliest of the zeros that they tell is the true one.
    """

    def __init__(self, inner: Watch) -> None:
        self._inner = inner
        self.zero_ns: int | None = None

    def live(self, figures: LiveFigures) -> None:
        """Take the current figures."""
        zero = time.monotonic_ns() - round(figures.elapsed_s * 1e9)
        self.zero_ns = zero if self.zero_ns is None else min(self.zero_ns, zero)
        self._inner.live(figures)

    def event(self, event: RunEvent) -> None:
        """Take something worth telling."""
        self._inner.event(event)

    def stop_asked(self) -> bool:
        """True once the user wants the run to end early."""
        return self._inner.stop_asked()


def summarise_engine(rows: Iterable[TelemetryRow], window: Window) -> dict[str, float]:
    """Means and peaks of the gauges over the window, growth per second of the counters.

    With the standard error of the means of running and waiting requests from so many "readings",
    taken as independent of each other (a second lies between them, and hundreds of steps).

    Gauges and rates of several replicas are added up at their means; KV use is their mean, its
    peak the fullest replica's. "replicas_told" is how many of them told the whole window: their
    first and last reading lie near its ends. What another one said is missing in every sum, and a
    metric that one of them did not tell throughout is absent, like all that was not measured. Empty
    when nothing was read in the window. "steps_per_s" counts steps with output: vLLM does not count
    a step that only carries unfinished prompts.
    """
    said = _series(rows, "engine", window)
    if not said:
        return {}
    units = sorted({unit for unit, _ in said})
    told = [u for u in units if _whole([p for (of, _), p in said.items() if of == u], window)]
    by_metric = {
        metric: [said[unit, metric] for unit in told]
        for metric in dict.fromkeys(metric for _, metric in said)
        if told and all(_whole([said.get((unit, metric), [])], window) for unit in told)
    }
    found: dict[str, float] = {}
    for metric in GAUGES.values():
        found |= _gauge(metric, by_metric.get(metric, []))
    for metric in COUNTERS.values():
        rates = [_rate(points) for points in by_metric.get(metric, [])]
        known = [rate for rate in rates if rate is not None]
        if known and len(known) == len(rates):
            found[f"{metric}_per_s"] = sum(known)
    return {**found, **_stage_means(by_metric), "replicas_told": len(told)}


def _whole(series: Iterable["_Points"], window: Window) -> bool:
    """True when readings tell the window from near its beginning to near its end.

    Near is 3 periods (a page may time out once), or 5 % of a longer window; in a short one, where
    both ends are near to anything, the readings must span a third.
    """
    times = sorted({at for points in series for at, _ in points})
    if len(times) < 2:
        return False
    near_s = max(3 * PERIOD_S, window.seconds / 20)
    ends_s = max(times[0] - window.start_ns, window.end_ns - times[-1]) / 1e9
    return ends_s <= near_s and times[-1] - times[0] >= window.seconds / 3 * 1e9


def _gauge(metric: str, replicas: Sequence["_Points"]) -> dict[str, float]:
    """Mean and peak of one gauge over the replicas, and what the number of readings allows."""
    if not replicas:
        return {}
    values = [[value for _, value in points] for points in replicas]
    means, peaks = [sum(v) / len(v) for v in values], [max(v) for v in values]
    if metric == "kv_use":
        return {f"{metric}_mean": sum(means) / len(means), f"{metric}_max": max(peaks)}
    return {
        f"{metric}_error": math.sqrt(sum(_error_of_mean(v) ** 2 for v in values)),
        "readings": min(map(len, values)),
        f"{metric}_mean": sum(means),
        f"{metric}_max": sum(peaks),
    }


def _error_of_mean(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _stage_means(by_metric: Mapping[str, Sequence["_Points"]]) -> dict[str, float]:
    """Mean seconds of the requests that finished between the first and the last reading.

    With the times of those readings, so that the client's requests of the same span can be found.
    """
    found: dict[str, float] = {}
    for stage in STAGES.values():
        sums = [_rise(points) for points in by_metric.get(f"{stage}_sum", [])]
        counts = [_rise(points) for points in by_metric.get(f"{stage}_count", [])]
        ended = sum(count or 0.0 for count in counts)
        if ended > 0 and None not in sums and None not in counts:
            found[f"{stage}_mean_s"] = sum(rise or 0.0 for rise in sums) / ended
    times = [at for points in by_metric.get("e2e_count", [])
             for at, _ in (points[0], points[-1])]  # fmt: skip
    if found and times:
        found |= {"first_reading_s": min(times) / 1e9, "last_reading_s": max(times) / 1e9}
    return found


def summarise_host(rows: Iterable[TelemetryRow], window: Window) -> dict[str, dict[str, float]]:
    """Of each process group of the engine: mean and peak of every metric over the window."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (unit, metric), points in _series(rows, "host", window).items():
        values = [value for _, value in points]
        found[unit][f"{metric}_mean"] = sum(values) / len(values)
        found[unit][f"{metric}_max"] = max(values)
    return dict(found)


_Points = list[tuple[int, float]]


def _series(
    rows: Iterable[TelemetryRow], source: str, window: Window
) -> Mapping[tuple[str, str], _Points]:
    """(unit, metric) -> (ns, value) of the readings of a source inside the window.

    Older records may hold readings that are no numbers: they are left out.
    """
    series: dict[tuple[str, str], _Points] = defaultdict(list)
    for row in rows:
        inside = row.source == source and window.start_ns <= row.at_ns < window.end_ns
        if inside and math.isfinite(row.value):
            series[row.unit, row.metric].append((row.at_ns, row.value))
    return series


def _rate(points: _Points) -> float | None:
    """Growth per second from the first to the last reading; None when it fell (a restart)."""
    grown = _rise(points)
    return None if grown is None else grown / (points[-1][0] - points[0][0]) * 1e9


def _rise(points: _Points) -> float | None:
    """Growth from the first to the last reading; None with one reading, or when it ever fell."""
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    if any(after < before for (_, before), (_, after) in pairwise(points)):
        return None
    return points[-1][1] - points[0][1]
