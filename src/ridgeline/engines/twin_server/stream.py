"""One generation on its way out, and what it leaves in metrics and log."""

import json

from ridgeline.engines.twin_server.connection import Connection, HttpRequest
from ridgeline.engines.twin_server.metrics import EngineMetrics
from ridgeline.engines.twin_server.pacer import StreamTimes
from ridgeline.engines.twin_server.protocol import Ask, Reply


class Stream:
    """Also for replies that are not streamed: their tokens count as they fall due.

    All times are monotonic ns. `planned_ns` and `sent_ns` are kept only for the log of sends.
    """

    __slots__ = (
        "admitted", "arrival_ns", "ask", "connection", "done", "engine", "first_ns", "id",
        "last_ns", "planned_ns", "reply", "request", "sent_ns", "times",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        request: HttpRequest,
        *,
        ask: Ask,
        reply: Reply,
        reply_id: str,
        arrival_ns: int,
    ) -> None:
        self.connection = connection
        self.request = request
        self.ask = ask
        self.reply = reply
        self.id = reply_id
        self.arrival_ns = arrival_ns
        self.admitted = False  # the pacer has it
        self.times = StreamTimes()
        self.engine = 0
        self.done = 0
        self.first_ns = 0
        self.last_ns = 0
        self.planned_ns: list[int] | None = None
        self.sent_ns: list[int] | None = None

    def observe_end(self, metrics: EngineMetrics, reason: str) -> None:
        """Count the ended request as vLLM does at the end of a request."""
        metrics.finished[reason] += 1
        if not self.done:  # aborted before its first token: no latency to tell
            return
        scheduled = self.times.scheduled_ns
        if scheduled is None:  # there is no queue
            scheduled = self.arrival_ns
        seconds = {
            "e2e_request_latency_seconds": self.last_ns - self.arrival_ns,
            "request_queue_time_seconds": scheduled - self.arrival_ns,
            "request_inference_time_seconds": self.last_ns - scheduled,
            "request_prefill_time_seconds": self.first_ns - scheduled,
            "request_decode_time_seconds": self.last_ns - self.first_ns,
        }
        metrics.prompt_tokens_cached += self.times.cached_tokens or 0
        histograms = metrics.histograms
        for name, nanos in seconds.items():
            histograms[name].observe(max(0, nanos) / 1e9)
        if self.done > 1:
            per_token = (self.last_ns - self.first_ns) / (self.done - 1) / 1e9
            histograms["request_time_per_output_token_seconds"].observe(per_token)
        histograms["request_prompt_tokens"].observe(len(self.ask.prompt))
        histograms["request_generation_tokens"].observe(self.done)
        histograms["request_max_num_generation_tokens"].observe(self.ask.output_tokens)
        histograms["request_params_n"].observe(1)
        if self.ask.max_tokens is not None:
            histograms["request_params_max_tokens"].observe(self.ask.max_tokens)

    def log_line(self, reason: str) -> str:
        """One JSON line: who, how it ended, and when each token was planned and truly sent."""
        line = {
            "id": self.id,
            "reason": reason,
            "prompt_tokens": len(self.ask.prompt),
            "arrival_ns": self.arrival_ns,
            "planned_ns": self.planned_ns,
            "sent_ns": self.sent_ns,
        }
        return json.dumps(line, separators=(",", ":")) + "\n"
