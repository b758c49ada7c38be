"""The figures that the progress line shows while a run goes on."""

from collections import deque

from ridgeline.domain.rows import MISSING, RequestRows
from ridgeline.domain.run import LiveFigures

RECENT_REQUESTS = 512
RECENT_NS = 3_000_000_000
MEASURING = "measuring"


class LiveView:
    """Keeps a little of the recent past. Tokens are chunks times the tokens per chunk seen."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self.sent = 0
        self.failed = 0
        self._ttft_ns: deque[int] = deque(maxlen=RECENT_REQUESTS)
        self.chunks_ended = 0
        self._counted_chunks = 0  # of replies whose tokens the server counted
        self._counted_tokens = 0
        self._history: deque[tuple[int, int]] = deque()  # (elapsed ns, chunks until then)
        self._measuring = False

    def ended(self, rows: RequestRows) -> None:
        """Take ended requests."""
        self.chunks_ended += int(rows.chunks.sum())
        good = rows.succeeded
        self.failed += len(rows) - int(good.sum())
        first, sent = rows.column("first_ns"), rows.column("sent_ns")
        seen = good & (first != MISSING) & (sent != MISSING)
        self._ttft_ns.extend((first - sent)[seen][-RECENT_REQUESTS:].tolist())
        tokens = rows.column("output_tokens")
        counted = good & (tokens != MISSING)
        self._counted_chunks += int(rows.chunks[counted].sum())
        self._counted_tokens += int(tokens[counted].sum())

    def figures(
        self, elapsed_ns: int, phase: str, chunks_in_flight: int, in_flight: int
    ) -> LiveFigures:
        """The figures now; `chunks_in_flight` are those of requests not ended yet."""
        if phase == MEASURING and not self._measuring:
            self._measuring = True
            self._ttft_ns.clear()
        history = self._history
        history.append((elapsed_ns, self.chunks_ended + chunks_in_flight))
        while len(history) > 2 and elapsed_ns - history[0][0] > RECENT_NS:
            history.popleft()
        span_ns = history[-1][0] - history[0][0]
        rate = None
        if span_ns > 0:
            per_chunk = self._counted_tokens / self._counted_chunks if self._counted_chunks else 1.0
            rate = (history[-1][1] - history[0][1]) / span_ns * 1e9 * per_chunk
        waits = sorted(self._ttft_ns)
        return LiveFigures(
            elapsed_s=elapsed_ns / 1e9,
            total_s=self.total_s,
            phase=phase,
            output_tokens_per_s=rate,
            ttft_p95_s=waits[int(0.95 * (len(waits) - 1))] / 1e9 if waits else None,
            sent=self.sent,
            failed=self.failed,
            in_flight=in_flight,
            chunks=self.chunks_ended + chunks_in_flight,
            ttft_p50_s=waits[len(waits) // 2] / 1e9 if waits else None,
            ttft_seen=len(waits),
        )
