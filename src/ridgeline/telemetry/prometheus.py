"""A server's /metrics page: one reading of it, and the difference of two.

A metric that is not on the page is None ("absent in this version"), never 0. Several series of
one name (one per engine of a data-parallel server) are summed. A value that is NaN or infinite
was not measured: its sum is None too.
"""

import http.client
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ridgeline.domain.run import ServerCounters

# Names that vLLM gave up, with the ones that took their place (vLLM's metrics documentation and
# release notes). Read only where the new name is absent.
OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",),
    "vllm:prefix_cache_queries_total": ("vllm:gpu_prefix_cache_queries_total",),
    "vllm:prefix_cache_hits_total": ("vllm:gpu_prefix_cache_hits_total",),
    # one sample per output event, under both names
    "vllm:inter_token_latency_seconds_sum": ("vllm:time_per_output_token_seconds_sum",),
    "vllm:inter_token_latency_seconds_count": ("vllm:time_per_output_token_seconds_count",),
    "vllm:request_queue_time_seconds_sum": ("vllm:time_in_queue_requests_sum",),
    "vllm:request_queue_time_seconds_count": ("vllm:time_in_queue_requests_count",),
    "vllm:cache_config_info": ("vllm:cache_config",),
}

REQUESTS = "vllm:request_success_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"
CACHE_HITS = "vllm:prefix_cache_hits_total"
PREEMPTIONS = "vllm:num_preemptions_total"
STARTED = "process_start_time_seconds"
TTFT_SUM = "vllm:time_to_first_token_seconds_sum"
TTFT_COUNT = "vllm:time_to_first_token_seconds_count"
TPOT_SUM = "vllm:request_time_per_output_token_seconds_sum"
TPOT_COUNT = "vllm:request_time_per_output_token_seconds_count"
EVENTS = "vllm:inter_token_latency_seconds_count"
# llama.cpp's server: prompt tokens that it computed, that its cache had, and what it generated.
# It counts no requests.
LLAMA_COMPUTED = "llamacpp:prompt_tokens_total"
LLAMA_CACHED = "llamacpp:prompt_tokens_cached_total"
LLAMA_GENERATED = "llamacpp:tokens_predicted_total"
LLAMA_BUSY = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
COUNTERS = (
    REQUESTS, PROMPT_TOKENS, GENERATION_TOKENS, CACHE_QUERIES, CACHE_HITS, PREEMPTIONS,
    TTFT_SUM, TTFT_COUNT, TPOT_SUM, TPOT_COUNT, EVENTS,
    LLAMA_COMPUTED, LLAMA_CACHED, LLAMA_GENERATED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """One sample of a page: its labels and value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of /metrics: wire name (with _total, _sum, ...) -> its series."""

    samples: Mapping[str, tuple[Series, ...]]

    def series(self, name: str) -> tuple[Series, ...]:
        """Every series of a metric under its name or an older one; empty when absent."""
        for alias in (name, *OLD_NAMES.get(name, ())):
            if alias in self.samples:
                return self.samples[alias]
        return ()

    def total(self, name: str) -> float | None:
        """The sum over all series, None when the server does not export the metric."""
        found = self.series(name)
        total = sum(s.value for s in found)
        return total if found and math.isfinite(total) else None

    def alias_used(self, name: str) -> str | None:
        """The older name under which the metric was found, None when under its own or not."""
        if name in self.samples:
            return None
        return next((old for old in OLD_NAMES.get(name, ()) if old in self.samples), None)


def parse_metrics(text: str) -> Scrape:
    """Read the Prometheus text format; raises ValueError when the text is something else."""
    from prometheus_client.parser import (  # noqa: PLC0415 (slow to import)
        text_string_to_metric_families,
    )

    samples: dict[str, list[Series]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(Series(sample.labels, float(sample.value)))
    return Scrape({name: tuple(found) for name, found in samples.items()})


def fetch_metrics(
    base_url: str, *, timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
) -> Scrape | None:
    """Read `base_url`/metrics; None when there is no such page or it cannot be had or read.

    `base_url` is scheme://host[:port], with an optional path before /metrics.
    """
    parts = urlsplit(base_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + "/metrics", headers=dict(headers or {}))
        reply = connection.getresponse()
        if reply.status != 200:
            return None
        return parse_metrics(reply.read().decode("utf-8"))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def whole_lines(text: str) -> str:
    """A page without what stands behind its last line end: a line that was cut says a wrong number.

    The format wants a line end behind the last line.
    """
    return text[: text.rfind("\n") + 1]


def merged(scrapes: Sequence[Scrape | None], without: Collection[int] = ()) -> Scrape | None:
    """One reading of several servers: a label `target` keeps their series apart.

    None when one could not be read, because sums would then be too small; but for those that are
    left out on purpose (`without`: their places).
    """
    samples: dict[str, list[Series]] = {}
    for target, scrape in enumerate(scrapes):
        if target in without:
            continue
        if scrape is None:
            return None
        for name, found in scrape.samples.items():
            samples.setdefault(name, []).extend(
                Series({**series.labels, "target": str(target)}, series.value) for series in found
            )
    return Scrape({name: tuple(found) for name, found in samples.items()})


def settled_metrics(
    fetch: Callable[[], Scrape | None],
    before: Scrape | None,
    requests: int,
    *,
    pause: Callable[[float], None],
    tries: int = 20,
) -> Scrape | None:
    """Read until the server has counted `requests` more successes than `before`, or stands still.

    A server counts a request just after its last byte, so the first reading can be too early. One
    that counts no requests (llama.cpp) has settled when it stands still and works on none.
    `pause(seconds)` waits between readings; at most `tries` of them, 0.1 s apart.
    """
    base = (before.total(REQUESTS) if before is not None else None) or 0.0
    last = fetch()
    still = 0
    for _ in range(tries):
        if last is None or still >= 5 or (last.total(REQUESTS) or 0.0) - base >= requests:
            break
        pause(0.1)
        now = fetch()
        unchanged = now is not None and all(now.total(n) == last.total(n) for n in COUNTERS)
        unchanged = unchanged and not any(last.total(name) for name in LLAMA_BUSY)
        still = still + 1 if unchanged else 0
        last = now
    return last


def difference(before: Scrape, after: Scrape, name: str) -> float | None:
    """How much a counter grew, summed over its series; None when `after` lacks it or either
    reading has a value that is no number.

    A series that is smaller than before was restarted: all that it shows is new then. A series
    that `before` did not have began at 0.
    """
    old = {_key(s): s.value for s in before.series(name)}
    found = after.series(name)
    if not found:
        return None
    grown = 0.0
    for series in found:
        was = old.get(_key(series), 0.0)
        grown += series.value - was if series.value >= was else series.value
    known = math.isfinite(grown) and all(map(math.isfinite, old.values()))
    return grown if known else None


def restarted(before: Scrape, after: Scrape) -> bool:
    """True when the server was started anew between the two readings: a counter fell, or the
    process says another start time (which a counter that has caught up again cannot hide).
    """
    begun = [{s.value for s in scrape.series(STARTED)} for scrape in (before, after)]
    if begun[0] and begun[1] and begun[0] != begun[1]:
        return True
    return any(
        math.isfinite(series.value) and series.value < old < math.inf
        for name in COUNTERS
        for series in after.series(name)
        if (old := {_key(s): s.value for s in before.series(name)}.get(_key(series))) is not None
    )


def counters_between(before: Scrape | None, after: Scrape | None) -> ServerCounters | None:
    """The growth of the counters that a run is held against; None without two readings."""
    if before is None or after is None:
        return None
    sums = {name: difference(before, after, name) for name in COUNTERS}
    if sums[GENERATION_TOKENS] is None and sums[LLAMA_GENERATED] is not None:
        return _llama(sums)
    return ServerCounters(
        requests_ok=_successes(before, after),
        prompt_tokens=sums[PROMPT_TOKENS],
        generation_tokens=sums[GENERATION_TOKENS],
        prefix_cache_queries=sums[CACHE_QUERIES],
        prefix_cache_hits=sums[CACHE_HITS],
        preemptions=sums[PREEMPTIONS],
        ttft_mean_s=_ratio(sums[TTFT_SUM], sums[TTFT_COUNT]),
        tpot_mean_s=_ratio(sums[TPOT_SUM], sums[TPOT_COUNT]),
        output_events=sums[EVENTS],
    )


def _llama(sums: Mapping[str, float | None]) -> ServerCounters:
    """What llama.cpp's server counts. A prompt is what it computed of it and what its cache had."""
    computed, cached = sums[LLAMA_COMPUTED], sums[LLAMA_CACHED]
    prompt = None if computed is None or cached is None else computed + cached
    return ServerCounters(
        prompt_tokens=prompt,
        generation_tokens=sums[LLAMA_GENERATED],
        prefix_cache_queries=prompt,
        prefix_cache_hits=cached,
    )


def _ratio(total: float | None, count: float | None) -> float | None:
    return total / count if count and total is not None else None


def bucket_of(
    before: Scrape, after: Scrape, histogram: str, share: float
) -> tuple[float, float, float] | None:
    """The bucket that holds the `share` quantile of what a histogram took in between two readings.

    `histogram` is its name without _bucket. Returns the bucket's ends and how many values came in;
    None when it is not exported or nothing came. What was in it before counts for nothing.
    """
    old = {_key(s): s.value for s in before.series(f"{histogram}_bucket")}
    grown: dict[float, float] = {}
    for series in after.series(f"{histogram}_bucket"):
        edge = float(series.labels["le"])
        grown[edge] = grown.get(edge, 0.0) + series.value - old.get(_key(series), 0.0)
    edges = sorted(grown)
    if not edges or not grown[edges[-1]] > 0:
        return None
    total = grown[edges[-1]]
    place = next(i for i, edge in enumerate(edges) if grown[edge] >= share * total)
    return (edges[place - 1] if place else 0.0), edges[place], total


def _successes(before: Scrape, after: Scrape) -> float | None:
    """Requests that ended well: by finish reason, without those aborted or failed."""

    def good(scrape: Scrape) -> Scrape:
        return Scrape(
            {
                REQUESTS: tuple(
                    s
                    for s in scrape.series(REQUESTS)
                    if s.labels.get("finished_reason") not in ("abort", "error")
                )
            }
        )

    if not after.series(REQUESTS):
        return None
    if not good(after).samples[REQUESTS]:
        return 0.0
    return difference(good(before), good(after), REQUESTS)


def _key(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(series.labels.items()))
