"""An engine that is nothing but slots: the closed forms of knee and capacity are known.

`slots` requests are served at once, each for `service_s`; the others wait in order of arrival. So
the throughput with u users is min(u, slots) / service_s requests per second, and an open loop is
stable below slots / service_s.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink, RequestRecord
from ridgeline.domain.run import ClientCheck, RunFacts, Warmup, Watch, Window
from ridgeline.engines.base import DrivePlan, Endpoint

LEAD_S = 6.0


@dataclass
class Slots:
    """`jitter`: relative standard deviation of a service. `facts`: changes what a drive tells."""

    slots: int = 16
    service_s: float = 1.0
    jitter: float = 0.1
    tokens: int = 20
    cached: Callable[[int], int | None] = lambda prompt: None
    client: ClientCheck = field(default_factory=lambda: ClientCheck("kernel"))
    source: str = "measured"
    drives: list[str] = field(default_factory=list)

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        schedule, workload = plan.schedule, plan.schedule.workload
        rng = np.random.default_rng(len(self.drives))
        self.drives.append(plan.salt)
        end_s = LEAD_S + workload.duration_s
        free = [0.0] * self.slots
        coming: list[tuple[float, int, int | None]] = []
        if schedule.intended_ns is not None:
            coming = [(ns / 1e9, i, None) for i, ns in enumerate(schedule.intended_ns)]
        else:
            assert schedule.users is not None
            assert schedule.user_start_ns is not None
            coming = [(ns / 1e9, u, u) for u, ns in enumerate(schedule.user_start_ns)]
        heapq.heapify(coming)
        index = inside = 0
        while coming:
            at, _, user = heapq.heappop(coming)
            if at >= end_s:
                continue
            inside += at >= LEAD_S
            begin = max(at, heapq.heappop(free))
            last = begin + self.service_s * max(0.1, 1 + self.jitter * rng.standard_normal())
            heapq.heappush(free, last)
            self._record(sink, index, user, (at, begin, last), plan)
            index += 1
            if user is not None:
                heapq.heappush(coming, (last, index + 10**6, user))
            if workload.requests is not None and inside == workload.requests:
                end_s = at + 1e-9
        window = Window(round(LEAD_S * 1e9), round(end_s * 1e9))
        return RunFacts(
            "measured", window, self.client, warmup=Warmup(window, workload.warmup_s, found=True),
            server={"engine": "slots"},
        )  # fmt: skip

    def _record(
        self,
        sink: RecordSink,
        index: int,
        user: int | None,
        times: tuple[float, float, float],
        plan: DrivePlan,
    ) -> None:
        at, begin, last = (round(t * 1e9) for t in times)
        chunks = np.linspace(begin + (last - begin) // 10, last, self.tokens).astype(np.int64)
        prompt = round(plan.schedule.workload.prompts.tokens.mean)
        sink.request(
            RequestRecord(
                index, user, at, at, int(chunks[0]), last, last, prompt, self.tokens,
                prompt_tokens=prompt, output_tokens=self.tokens, cached_tokens=self.cached(prompt),
                finish_reason="length", http_status=200, chunk_ns=chunks,
            )
        )  # fmt: skip


@dataclass
class SlotsEngine:
    """The Engine port over Slots; `started` counts its starts."""

    endpoint: Slots
    name: str = "endpoint"
    started: int = 0

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        self.started += 1
        yield self.endpoint
