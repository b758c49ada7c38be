"""Since when an engine that holds requests has not moved, engine by engine.

Two readings a moment apart say little; a watch keeps a StillClock over all of them, so that how
long an engine stands still does not end where its window does.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ridgeline.diagnosis.evidence import Evidence
from ridgeline.telemetry.prometheus import Scrape, Series

DONE = "vllm:request_success_total"
_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")
# what moves while an engine works
_STEPS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total")
_MOVES = (*_STEPS, "vllm:prompt_tokens_total", "vllm:num_preemptions_total",
          "vllm:kv_cache_usage_perc", DONE)  # fmt: skip
# Clients that hang up on a hung engine are counted by its front end.
LEFT = ("abort", "error")


class StillClock:
    """Readings in order, and since when each busy engine has told the same."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[tuple[float | None, ...], float]] = {}
        self._at_s = 0.0

    def look(self, at_s: float | None, page: Scrape) -> None:
        """Take a reading (in vLLM's words), at a time on the clock of those before it."""
        if at_s is None:
            self._since.clear()
            return
        self._at_s = at_s
        standing = {}
        for name in {engine_name(s) for s in page.series(_BUSY[0])}:
            told = _told(page, name)
            if told is None:
                continue
            same = self._since.get(name)
            standing[name] = same if same is not None and same[0] == told else (told, at_s)
        self._since = standing

    def still_s(self) -> dict[str, float]:
        """Seconds that each engine has stood still with requests in it; 0 for those that move."""
        return {name: self._at_s - since for name, (_, since) in self._since.items()}


def with_stillness(e: Evidence, still_s: Mapping[str, float]) -> Evidence:
    """The evidence with how long each of its engines has stood still."""
    engines = tuple(replace(g, stood_still_s=still_s.get(g.name, 0.0)) for g in e.engines)
    return replace(e, engines=engines, stood_still_s=max(still_s.values(), default=0.0))


def engine_name(series: Series) -> str:
    """Which engine core a series is of; one of several servers has its server's name before it.

    `server` is the label of a router that shows its replicas' figures on a page of its own.
    """
    labels = series.labels
    told = (labels.get("target"), labels.get("server"), labels.get("engine"))
    return "/".join(name for name in told if name is not None) or "0"


def _told(page: Scrape, name: str) -> tuple[float | None, ...] | None:
    """What would move; None for an engine without requests or without any count of its work."""

    def mine(series: Series) -> bool:
        left = series.labels.get("finished_reason") in LEFT
        return engine_name(series) == name and not left

    busy = sum(_sum(page, metric, mine) or 0.0 for metric in _BUSY)
    told = tuple(_sum(page, metric, mine) for metric in _MOVES)
    return None if not busy >= 1 or told[: len(_STEPS)] == (None,) * len(_STEPS) else told


def _sum(page: Scrape, metric: str, mine: Callable[[Series], bool]) -> float | None:
    found = [s.value for s in page.series(metric) if mine(s)]
    return sum(found) if found else None
