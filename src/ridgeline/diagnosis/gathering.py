"""Scrapes -> Evidence. Counters may begin anew in between; several series of a name are summed."""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

from ridgeline.diagnosis.distribution import Distribution, between, merged
from ridgeline.diagnosis.evidence import (
    EngineLevels,
    Evidence,
    Histograms,
    Known,
    Level,
    LoraSlots,
)
from ridgeline.diagnosis.gpupages import gpus_of
from ridgeline.diagnosis.lagging import QUEUE, STAGES, Interval, without_lag
from ridgeline.diagnosis.lives import RETURNS, cut_short, in_turn, without_ended
from ridgeline.diagnosis.stillness import DONE as _DONE
from ridgeline.diagnosis.stillness import LEFT, StillClock, with_stillness
from ridgeline.diagnosis.stillness import engine_name as _engine
from ridgeline.telemetry.dialects import PREFIXES, engine_of, in_vllm_words, renamed
from ridgeline.telemetry.prometheus import (
    OLD_NAMES,
    STARTED,
    Scrape,
    Series,
    difference,
    restarted,
)

UNKNOWN = Known()
BATCHES, STUDENT = 5, 2.776  # the second: Student's 97.5 % quantile at four degrees of freedom


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading: when (s, any clock; None: not known), the page (None: not had), /health."""

    at_s: float | None
    page: Scrape | None
    health: int | None = None


def gather(
    snapshots: Sequence[Snapshot], known: Known = UNKNOWN, gpu_pages: Sequence[Scrape] = (), *,
    stored: bool = False,
) -> Evidence:  # fmt: skip
    """The evidence of snapshots in the order of their times.

    stored: a Prometheus kept them, and may have dropped what tells the front ends apart.
    """
    had = [s for s in snapshots if s.page is not None]
    health = next((s.health for s in reversed(snapshots) if s.health is not None), None)
    lost = len(snapshots) - len(had)
    if not had:
        return Evidence(None, 0.0, 0, known, health=health, lost=lost,
                        gpus=gpus_of(gpu_pages), gpu_page=bool(gpu_pages))  # fmt: skip
    raw = [s.page for s in had if s.page is not None]
    pages = [in_vllm_words(page) for page in raw]
    times = [s.at_s for s in had]
    span = _span(times)
    server = engine_of(raw[-1])
    reading = _Reading(pages, complete=server == "vllm")
    evidence = Evidence(
        server=server, span_s=span, scrapes=len(pages),
        known=_from_page(known, pages[-1]), engines=reading.engines(),
        running=reading.level("vllm:num_requests_running"),
        waiting=reading.level("vllm:num_requests_waiting"),
        waiting_capacity=reading.level(_BY_REASON, reason="capacity"),
        waiting_deferred=reading.level(_BY_REASON, reason="deferred"),
        kv_use=reading.level("vllm:kv_cache_usage_perc", mean=True), lora=_lora(pages[-1]),
        histograms=reading.histograms(), health=health, lost=lost, restarts=reading.restarts,
        mixed=reading.mixed, aliases=renamed(raw[-1]),
        several_fronts=server == "vllm" and not stored and _shared(raw[-1]),
        fronts_untold=server == "vllm" and stored and _shared(raw[-1]),
        gpus=gpus_of(gpu_pages), gpu_page=bool(gpu_pages), twin=bool(raw[-1].series(TWIN)),
    )  # fmt: skip
    if len(pages) < 2 or reading.mixed:
        return evidence
    evidence = with_stillness(evidence, _still_s(pages, times))
    evidence = replace(evidence, **reading.counts(), cores=_cores(reading, span))
    if None in times:
        return evidence
    at = [t for t in times if t is not None]
    return without_lag(evidence, [reading.intervals(g.name, at) for g in evidence.engines])


def _shared(page: Scrape) -> bool:
    """Whether it is the page of several processes: it has their requests, and no process's figures.

    With several API servers vLLM shows what they have written into a folder, without any `process_`
    metric. A page that was cut down to the engine's own does not tell.
    """
    own = (_CPU, STARTED, "python_info")
    return bool(page.series(HTTP)) and not any(page.series(name) for name in own)


_BY_REASON = "vllm:num_requests_waiting_by_reason"
_COUNTS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "steps": "vllm:iteration_tokens_total_count",
    "preemptions": "vllm:num_preemptions_total",
    "cache_queries": "vllm:prefix_cache_queries_total",
    "cache_hits": "vllm:prefix_cache_hits_total",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
}
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "prompt_lengths": "vllm:request_prompt_tokens",
    "output_lengths": "vllm:request_generation_tokens",
    "step_tokens": "vllm:iteration_tokens_total",
}
_SOURCES = "vllm:prompt_tokens_by_source_total"
_TRANSFERRED = ("vllm:nixl_bytes_transferred_sum", "vllm:nixl_bytes_transferred_total",
                "vllm:mooncake_bytes_transferred_sum")  # fmt: skip
LITTLE = (f"{QUEUE}_count", f"{QUEUE}_sum", *(f"{name}_sum" for name in STAGES))
_LORA = "vllm:lora_requests_info"
_CPU = "process_cpu_seconds_total"
HTTP = "http_requests_total"
TWIN = "ridgeline_twin_send_lateness_seconds_count"  # that `ridgeline twin` answers


# All that is read of a page, as beginnings of wire names: for readers that skip the rest.
WANTED = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:cache_config", _LORA, _DONE, _SOURCES, *_TRANSFERRED, _CPU, STARTED, HTTP, TWIN,
    *_COUNTS.values(), *_HISTOGRAMS.values(),
    *(old for olds in OLD_NAMES.values() for old in olds),
    *(prefix for prefix in PREFIXES if prefix != "vllm:"),
)  # fmt: skip


def _span(times: Sequence[float | None]) -> float:
    told = [t for t in times if t is not None]
    return told[-1] - told[0] if len(told) == len(times) and len(told) > 1 else 0.0


class _Reading:
    """Pages in order, split where a server began anew: there all that it shows is new.

    complete: every count is on the server's page from its start. `mixed`: the pages are of several
    servers in turn, of which no difference says anything.
    """

    def __init__(self, pages: Sequence[Scrape], *, complete: bool) -> None:
        self.pages = pages
        self.complete = complete
        self.spans: list[tuple[Scrape, Scrape]] = []
        self.restarts = 0
        first = 0
        for place in range(1, len(pages)):
            if restarted(pages[place - 1], pages[place]):
                self.restarts += 1
                self.spans.append((pages[first], pages[place - 1]))
                before = without_ended(pages[place - 1], pages[place])
                self.spans.append((before, pages[place]))
                first = place
        self.spans.append((pages[first], pages[-1]))
        self.mixed = self.restarts >= RETURNS and in_turn(pages)

    def level(
        self, name: str, *, mean: bool = False, keep: Callable[[Series], bool] | None = None,
        **labels: str,
    ) -> Level | None:  # fmt: skip
        """A gauge, summed (or averaged) over the series that have the labels."""
        values = []
        for page in self.pages:
            found = [
                s.value for s in page.series(name)
                if all(s.labels.get(k) == v for k, v in labels.items())
                and (keep is None or keep(s)) and isfinite(s.value)
            ]  # fmt: skip
            if found:
                values.append(sum(found) / (len(found) if mean else 1))
        return level_of(values)

    def count(self, name: str, keep: Callable[[Series], bool] | None = None) -> float | None:
        """A counter's growth, over restarts; None when the last page does not have it."""
        if len(self.pages) < 2 or self._untold(name) or not _kept(self.pages[-1], name, keep):
            return None
        grown = [
            difference(_only(before, name, keep), _only(after, name, keep), name)
            for before, after in self.spans
        ]
        told = [g for g in grown if g is not None]
        return sum(told) if told else None

    def intervals(self, engine: str, times: Sequence[float]) -> list[Interval]:
        """How much one engine's counters grew between each two readings at these times."""
        whole = {
            name: not self._untold(name) and bool(_kept(self.pages[-1], name, _of_engine(engine)))
            for name in LITTLE
        }  # fmt: skip
        own = [
            Scrape({n: tuple(_kept(page, n, _of_engine(engine))) for n in LITTLE})
            for page in self.pages
        ]
        return [
            Interval(at - times[0], _grown(before, after, whole))
            for at, before, after in zip(times[1:], own, own[1:], strict=False)
        ]

    def _untold(self, name: str) -> bool:
        """Whether one of the pages that a difference is taken of does not tell all of a count."""
        first, last = self.pages[0], self.pages[-1]
        return self.mixed or (self.complete and not self.restarts and cut_short(first, last, name))

    def counts(self) -> dict[str, Any]:
        """Evidence's counts."""
        found: dict[str, Any] = {field: self.count(name) for field, name in _COUNTS.items()}
        found["requests"] = self.count(_DONE, lambda s: s.labels.get("finished_reason") not in LEFT)
        found["failed"] = self.count(_DONE, lambda s: s.labels.get("finished_reason") == "error")
        found["aborted"] = self.count(_DONE, lambda s: s.labels.get("finished_reason") == "abort")
        sources = {s.labels.get("source", "?") for s in self.pages[-1].series(_SOURCES)}
        by_source = {source: self.count(_SOURCES, _from(source)) for source in sorted(sources)}
        found["prompt_by_source"] = {k: v for k, v in by_source.items() if v is not None}
        moved = [c for name in _TRANSFERRED if (c := self.count(name)) is not None]
        found["transferred"] = sum(moved) if moved else None
        return found

    def histograms(self) -> Histograms:
        """Evidence's histograms; empty ones with a single page, whose totals are of a lifetime."""
        if len(self.pages) < 2 or self.mixed:
            return Histograms()
        return Histograms(**{field: self._histogram(n) for field, n in _HISTOGRAMS.items()})

    def _histogram(self, name: str) -> Distribution | None:
        if self._untold(f"{name}_count"):
            return None
        parts = [between(before, after, name) for before, after in self.spans]
        return merged([p for p in parts if p is not None])

    def engines(self) -> tuple[EngineLevels, ...]:
        """The page's engine cores, in the order of their names."""
        names = {_engine(s) for s in self.pages[-1].series("vllm:num_requests_running")}
        return tuple(self._engine_levels(name) for name in sorted(names, key=_by_number))

    def _engine_levels(self, name: str) -> EngineLevels:
        def mine(series: Series) -> bool:
            return _engine(series) == name

        return EngineLevels(
            name,
            self.level("vllm:num_requests_running", keep=mine),
            self.level("vllm:num_requests_waiting", keep=mine),
            self.level("vllm:kv_cache_usage_perc", mean=True, keep=mine),
            self.count("vllm:generation_tokens_total", mine),
            self.count("vllm:num_preemptions_total", mine),
            self.level(_BY_REASON, keep=mine, reason="deferred"),
            self._running_queued(mine),
        )

    def _running_queued(self, mine: Callable[[Series], bool]) -> Level | None:
        """Running requests of the pages that also tell of waiting ones."""
        found = []
        for page in self.pages:
            waiting = _kept(page, "vllm:num_requests_waiting", mine)
            running = _kept(page, "vllm:num_requests_running", mine)
            if running and sum(s.value for s in waiting) >= 1:
                found.append(sum(s.value for s in running))
        return level_of(found)


def _of_engine(name: str) -> Callable[[Series], bool]:
    return lambda series: _engine(series) == name


def _grown(
    before: Scrape, after: Scrape, whole: Mapping[str, bool]
) -> Callable[[str], float | None]:
    return lambda name: difference(before, after, name) if whole[name] else None


def _from(source: str) -> Callable[[Series], bool]:
    return lambda series: series.labels.get("source", "?") == source


def level_of(values: Sequence[float]) -> Level | None:
    """A Level of readings in order; None without any."""
    if not values:
        return None
    mean = sum(values) / len(values)
    return Level(mean, min(values), max(values), values[0], values[-1], len(values),
                 _half(values))  # fmt: skip


def _half(values: Sequence[float]) -> float | None:
    """Of the mean's 95 % interval, by the means of BATCHES stretches: neighbours are alike."""
    if len(values) < 2 * BATCHES:
        return None
    size = len(values) / BATCHES
    cuts = [round(i * size) for i in range(BATCHES + 1)]
    means = [statistics.fmean(values[a:b]) for a, b in itertools.pairwise(cuts)]
    return STUDENT * float(statistics.stdev(means)) / sqrt(BATCHES)


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(p) if p.isdigit() else 0, p) for p in name.split("/"))


def _kept(page: Scrape, name: str, keep: Callable[[Series], bool] | None) -> list[Series]:
    return [s for s in page.series(name) if keep is None or keep(s)]


def _only(page: Scrape, name: str, keep: Callable[[Series], bool] | None) -> Scrape:
    return page if keep is None else Scrape({name: tuple(_kept(page, name, keep))})


def _still_s(pages: Sequence[Scrape], times: Sequence[float | None]) -> Mapping[str, float]:
    clock = StillClock()
    for page, at_s in zip(pages, times, strict=True):
        clock.look(at_s, page)
    return clock.still_s()


def _cores(reading: _Reading, span: float) -> Mapping[str, float]:
    """Cores of the process that shows the page (the API server, where there is one).

    Of several servers the busiest one's: each has an event loop of its own.
    """
    servers = {s.labels.get("target") for s in reading.pages[-1].series(_CPU)}
    used = [u for server in servers if (u := reading.count(_CPU, _of_target(server))) is not None]
    return {} if not used or not span else {"api server": max(used) / span}


def _of_target(target: str | None) -> Callable[[Series], bool]:
    return lambda series: series.labels.get("target") == target


def _lora(page: Scrape) -> LoraSlots | None:
    """The adapters of the newest series, whose value is when it was written."""
    rows = [s for s in page.series(_LORA) if isfinite(s.value)]
    if not rows:
        return None
    labels = max(rows, key=lambda s: s.value).labels
    most = _whole(labels.get("max_lora"))
    running, waiting = (
        tuple(filter(None, labels.get(f"{what}_lora_adapters", "").split(",")))
        for what in ("running", "waiting")
    )
    return None if not most else LoraSlots(most, running, waiting)


def _from_page(known: Known, page: Scrape) -> Known:
    """What the page's cache_config_info tells, where nothing else told it."""
    rows = page.series("vllm:cache_config_info")
    if not rows:
        return known
    labels = rows[0].labels
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    if tokens is None and blocks and size:
        tokens = (blocks - 1) * size  # one block is the null block
    told = {
        "block_size": size, "kv_tokens": tokens, "kv_dtype": labels.get("cache_dtype"),
        "prefix_caching": {"True": True, "False": False}.get(
            labels.get("enable_prefix_caching", "")),
    }  # fmt: skip
    return learn(known, told, "the page's cache_config_info")


def learn(known: Known, told: Mapping[str, object], source: str) -> Known:
    """Fill in what is not known yet, with where it comes from."""
    new = {k: v for k, v in told.items() if v is not None and getattr(known, k) is None}
    sources = {**known.sources, **dict.fromkeys(new, source)}
    return replace(known, **new, sources=sources)  # type: ignore[arg-type]


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(float(text))
    except (ValueError, OverflowError):
        return None
