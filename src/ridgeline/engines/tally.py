"""What passes by on its way to the sink: counts, drifts from the plan, broken connections."""

from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ridgeline.domain.records import RecordSink, RequestRecord, RunEvent, StepTable
from ridgeline.domain.rows import MISSING, RequestRows
from ridgeline.domain.workload import Workload


class Tally:
    """Passes records on and adds up how far prompts were from their plan.

    `broken`: a connection was refused or ended in the middle of a reply.
    """

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.ok = 0
        self.broken = False
        self._planned = 0
        self._counted = 0
        self._drifts = array("d")
        self.sent: Counter[str | None] = Counter()  # by class of traffic

    def request(self, record: RequestRecord) -> None:
        """Take one ended request."""
        self.sent[record.traffic_class] += 1
        self.broken |= record.failure in ("connect", "stream_cut")
        if record.failure is None:
            self.ok += 1
            if record.prompt_tokens is not None:
                self._drifts.append(record.prompt_tokens / record.planned_prompt_tokens - 1)
                self._planned += record.planned_prompt_tokens
                self._counted += record.prompt_tokens
        self._sink.request(record)

    def rows(self, rows: RequestRows) -> None:
        """Take many ended requests."""
        self.sent.update(rows.text("traffic_class"))
        self.broken |= any(texts[0] in ("connect", "stream_cut") for texts in rows.texts)
        good = rows.succeeded
        self.ok += int(good.sum())
        counted, planned = rows.column("prompt_tokens"), rows.column("planned_prompt_tokens")
        known = good & (counted != MISSING)
        counted, planned = counted[known], planned[known]
        self._drifts.frombytes((counted / planned - 1).tobytes())
        self._planned += int(planned.sum())
        self._counted += int(counted.sum())
        self._sink.rows(rows)

    def event(self, event: RunEvent) -> None:
        """Take one event."""
        self._sink.event(event)

    def steps(self, table: StepTable) -> None:
        """Take a twin's steps."""
        self._sink.steps(table)

    @property
    def drift_text(self) -> str:
        """What prompts were counted as against their plan: at the median, at worst, in all."""
        worst = max(self._drifts, key=abs)
        middle = float(np.median(np.frombuffer(self._drifts)))
        return (
            f"prompt tokens counted against planned: {middle:+.1%} at the median,"
            f" {worst:+.1%} at worst, {self.drift or 0.0:+.1%} in all"
        )

    @property
    def drift(self) -> float | None:
        """Counted prompt tokens over planned ones, minus 1; None without usage."""
        return self._counted / self._planned - 1 if self._planned else None


def reuse_notes(workload: Workload, sent: Mapping[str | None, int]) -> list[str]:
    """How often the prompts of a file were sent, and that their lengths are estimates."""
    notes = []
    for kind in workload.kinds:
        file = kind.prompts.file
        count = sent.get(kind.name or None, 0)
        if file is None or not count:
            continue
        own = "with a beginning of its own" if file.salted else "as it is"
        times = count / file.rows
        often = f"{times:.3g} times" if times > 1 else "at most once"
        notes.append(
            f"each prompt of {Path(file.file).name} ({file.rows} rows) was sent {often}, {own};"
            " planned lengths are estimates (4 characters a token), the server's counts are exact"
        )
    return notes
