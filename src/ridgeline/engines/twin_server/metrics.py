"""Prometheus metrics under vLLM's own names, labels and buckets.

Kept and rendered by hand: an observation sits between two tokens of a paced stream, and a scrape
must not hold the streams up for the milliseconds that a general registry takes. Names and buckets
are vLLM's public interface (its documentation, page "Production metrics").
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ridgeline.engines.twin_server.histogram import Histogram
from ridgeline.engines.twin_server.pacer import EngineState

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
          10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
         20.0, 40.0, 80.0)  # fmt: skip
REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
             120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
PARAMS_N = (1, 2, 5, 10, 20)
LATENESS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def one_two_five(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `limit`: vLLM's buckets for token counts."""
    values: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > limit:
                return tuple(values)
            values.append(step * scale)
        scale *= 10


@dataclass(slots=True)
class EngineMetrics:
    """What one engine (data-parallel rank) has served since the start."""

    max_model_len: int
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    histograms: dict[str, Histogram] = field(init=False)

    def __post_init__(self) -> None:
        tokens = one_two_five(self.max_model_len)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(TTFT_S),
            "inter_token_latency_seconds": Histogram(ITL_S),
            "request_time_per_output_token_seconds": Histogram(ITL_S),
            "e2e_request_latency_seconds": Histogram(REQUEST_S),
            "request_queue_time_seconds": Histogram(REQUEST_S),
            "request_inference_time_seconds": Histogram(REQUEST_S),
            "request_prefill_time_seconds": Histogram(REQUEST_S),
            "request_decode_time_seconds": Histogram(REQUEST_S),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_max_num_generation_tokens": Histogram(tokens),
            "request_params_n": Histogram(PARAMS_N),
            "request_params_max_tokens": Histogram(tokens),
        }


HELP = {
    "num_requests_running": "Requests that the engine is working on.",
    "num_requests_waiting": "Requests that wait to be scheduled.",
    "kv_cache_usage_perc": "Share of the KV cache in use, 0 to 1.",
    "cache_config_info": "The settings of the KV cache, as labels.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Requests taken back from running to make room.",
    "prompt_tokens": "Prompt tokens processed.",
    "prompt_tokens_cached": "Prompt tokens that came from the prefix cache.",
    "generation_tokens": "Tokens generated.",
    "request_success": "Requests finished, by reason.",
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between consecutive outputs of a request.",
    "request_time_per_output_token_seconds": "Mean time per output token of a request.",
    "e2e_request_latency_seconds": "From a request's arrival to its last token.",
    "request_queue_time_seconds": "From arrival to the first scheduling.",
    "request_inference_time_seconds": "From the first scheduling to the last token.",
    "request_prefill_time_seconds": "From the first scheduling to the first token.",
    "request_decode_time_seconds": "From the first token to the last one.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_max_num_generation_tokens": "Tokens that a request may generate.",
    "request_params_n": "The parameter n of a request.",
    "request_params_max_tokens": "The parameter max_tokens of a request.",
    "iteration_tokens_total": "Tokens of one engine step.",
}


class Page:
    """Builds the text exposition format, one family after the other."""

    def __init__(self, created_s: float) -> None:
        self._lines: list[str] = []
        self._created = f"{created_s:.6f}"

    def family(
        self,
        kind: str,
        name: str,
        samples: Iterable[tuple[str, float]],
        description: str | None = None,
    ) -> None:
        """A gauge or counter; samples are (labels as text, value). No samples: left out."""
        rows = list(samples)
        if not rows:
            return
        wire = f"{name}_total" if kind == "counter" else name
        self._head(wire, kind, description or HELP[name.removeprefix("vllm:")])
        self._lines += [f"{wire}{_braced(labels)} {float(value)!r}" for labels, value in rows]
        if kind == "counter":
            self._created_family(name, [labels for labels, _ in rows])

    def histogram(
        self, name: str, samples: Iterable[tuple[str, Histogram]], description: str | None = None
    ) -> None:
        """A histogram; samples are (labels as text, histogram)."""
        rows = list(samples)
        self._head(name, "histogram", description or HELP[name.removeprefix("vllm:")])
        for labels, values in rows:
            comma = "," if labels else ""
            running = 0
            bounds = [*(repr(float(bound)) for bound in values.bounds), "+Inf"]
            for text, count in zip(bounds, values.counts, strict=True):
                running += count
                self._lines.append(f'{name}_bucket{{{labels}{comma}le="{text}"}} {float(running)}')
            self._lines.append(f"{name}_count{_braced(labels)} {float(running)}")
            self._lines.append(f"{name}_sum{_braced(labels)} {values.total!r}")
        self._created_family(name, [labels for labels, _ in rows])

    def _created_family(self, name: str, labels: list[str]) -> None:
        self._head(f"{name}_created", "gauge", "When counting began, Unix time in seconds.")
        self._lines += [f"{name}_created{_braced(text)} {self._created}" for text in labels]

    def _head(self, name: str, kind: str, description: str) -> None:
        self._lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]

    def text(self) -> str:
        """The whole page."""
        return "\n".join(self._lines) + "\n"


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as the exposition format writes them, without the braces."""
    escaped = {
        k: v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for k, v in labels.items()
    }
    return ",".join(f'{k}="{v}"' for k, v in escaped.items())


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


class ServerMetrics:
    """Everything that /metrics shows."""

    def __init__(self, model: str, max_model_len: int, engines: int, created_s: float) -> None:
        self.engines = [EngineMetrics(max_model_len) for _ in range(engines)]
        self.http: dict[tuple[str, str, str], int] = {}
        self.send_lateness = Histogram(LATENESS_S)
        self._created_s = created_s
        self._labels = [
            labels_text({"engine": str(i), "model_name": model}) for i in range(engines)
        ]

    def http_done(self, handler: str, method: str, status: int) -> None:
        """Count one answered HTTP request."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1

    def render(self, states: list[EngineState], cache_config: Mapping[str, str] | None) -> str:
        """The page; a value that this server does not have is left out, never 0."""
        page = Page(self._created_s)
        self._gauges(page, states, cache_config)
        self._counters(page, states)
        for name in self.engines[0].histograms:
            page.histogram(
                f"vllm:{name}",
                zip(self._labels, (e.histograms[name] for e in self.engines), strict=True),
            )
        steps = [
            (t, s.iteration_tokens)
            for t, s in zip(self._labels, states, strict=True)
            if s.iteration_tokens is not None
        ]
        if steps:
            page.histogram("vllm:iteration_tokens_total", steps)
        page.family(
            "counter",
            "http_requests",
            (
                (labels_text({"handler": h, "method": m, "status": s}), n)
                for (h, m, s), n in self.http.items()
            ),
            "HTTP requests answered.",
        )
        page.histogram(
            "ridgeline_twin_send_lateness_seconds",
            [("", self.send_lateness)],
            "How long after its planned time a token was handed to the kernel.",
        )
        page.family(
            "gauge",
            "process_start_time_seconds",
            [("", self._created_s)],
            "When this process began, Unix time in seconds.",
        )
        return page.text()

    def _gauges(
        self, page: Page, states: list[EngineState], cache_config: Mapping[str, str] | None
    ) -> None:
        rows = list(zip(self._labels, states, strict=True))
        page.family("gauge", "vllm:num_requests_running", ((t, s.running) for t, s in rows))
        page.family("gauge", "vllm:num_requests_waiting", ((t, s.waiting) for t, s in rows))
        page.family(
            "gauge",
            "vllm:kv_cache_usage_perc",
            ((t, s.kv_usage) for t, s in rows if s.kv_usage is not None),
        )
        if cache_config:
            page.family(
                "gauge",
                "vllm:cache_config_info",
                (
                    (labels_text({**cache_config, "engine": str(i)}), 1)
                    for i in range(len(self.engines))
                ),
            )

    def _counters(self, page: Page, states: list[EngineState]) -> None:
        rows = list(zip(self._labels, states, strict=True))
        for name, values in (
            ("prefix_cache_queries", [s.prefix_queried_tokens for s in states]),
            ("prefix_cache_hits", [s.prefix_hit_tokens for s in states]),
            ("num_preemptions", [s.preemptions for s in states]),
        ):
            page.family(
                "counter",
                f"vllm:{name}",
                ((t, v) for (t, _), v in zip(rows, values, strict=True) if v is not None),
            )
        has_cache = all(s.prefix_hit_tokens is not None for s in states)
        for name in ("prompt_tokens", "prompt_tokens_cached", "generation_tokens"):
            if name == "prompt_tokens_cached" and not has_cache:
                continue
            page.family(
                "counter",
                f"vllm:{name}",
                ((t, getattr(e, name)) for t, e in zip(self._labels, self.engines, strict=True)),
            )
        page.family(
            "counter",
            "vllm:request_success",
            (
                (f'{t},finished_reason="{reason}"', n)
                for t, e in zip(self._labels, self.engines, strict=True)
                for reason, n in e.finished.items()
            ),
        )
