"""What single replies show beside their latencies: the answer behind the reasoning, early stops."""

import numpy as np

from ridgeline.domain.percentile import percentiles
from ridgeline.domain.records import Bools, Ints, RunRecords
from ridgeline.domain.run import ServerCounters
from ridgeline.domain.summary import Percentiles

SEVERAL = 1.05  # tokens of an output event from which on the server's ITL is no time per token


def first_answers(records: RunRecords, rows: Ints, ok: Bools) -> Percentiles | None:
    """Time from sending to the first chunk of the answer itself, of the successes in `rows`.

    TTFT counts reasoning as content; a reader of the answer waits for this. None where no reply
    began with reasoning, because it is TTFT then. Replies without an answer are left out.
    """
    kept = rows[ok]
    answer, first = records.first_answer_ns[kept], records.first_ns[kept]
    known = ~np.isnan(answer)
    if not (answer[known] > first[known]).any():
        return None
    return percentiles((answer - records.sent_ns[kept])[known] / 1e9)


def early_stops_share(
    tokens: np.ndarray, records: RunRecords, rows: Ints, ok: Bools
) -> float | None:
    """Share of the successes in `rows` that are shorter than planned; None without any success.

    `tokens` are the output tokens of every request of the run.
    """
    kept = rows[ok]
    if not len(kept):
        return None
    return float((tokens[kept] < records.planned_output_tokens[kept]).mean())


def server_times_note(counters: ServerCounters | None) -> str | None:
    """How the server's own time between outputs must be read, where an output holds more tokens.

    A server's ITL histogram counts output events. With speculation (or a stream interval) an event
    holds several tokens, and its gap is no time per token: that is TPOT.
    """
    if counters is None or not counters.output_events or not counters.generation_tokens:
        return None
    first_tokens = counters.requests_ok or 0.0  # those are no events of that histogram
    per_event = (counters.generation_tokens - first_tokens) / counters.output_events
    if per_event < SEVERAL:
        return None
    tpot = ""
    if counters.tpot_mean_s is not None:
        tpot = f"; its own time per token is {counters.tpot_mean_s * 1e3:.3g} ms"
    return f"the server gave {per_event:.1f} tokens per output event{tpot}"
