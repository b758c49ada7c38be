"""An engine that answers by arithmetic: known figures, no HTTP, no twin.

Every request of user u waits `ttft_s`, then gives a chunk every `gap_s`. Knob max_num_seqs is the
speed in percent (100 = the plain figures, 50 = twice as slow), so that experiments differ.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink, RequestRecord, RunEvent
from ridgeline.domain.run import ClientCheck, LiveFigures, RunFacts, ServerCounters, Watch, Window
from ridgeline.engines.base import DrivePlan, Endpoint

TTFT_NS, GAP_NS = 100_000_000, 10_000_000


@dataclass
class FakeEndpoint:
    configuration: Configuration
    before_end: Callable[[RecordSink], None] = lambda sink: None
    source: str = "measured"
    noise: float = 0.05

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        workload = plan.schedule.workload
        rng = np.random.default_rng(workload.seed)
        slow = 100 / (self.configuration.knobs.max_num_seqs or 100)
        slow *= float(np.exp(rng.normal(0, self.noise)))
        start = round(workload.warmup_s * 1e9)
        end = start + round(workload.duration_s * 1e9)
        assert plan.schedule.users is not None
        assert plan.schedule.user_start_ns is not None
        index, tokens, prompts = 0, 0, 0
        for user in range(plan.schedule.users):
            at, turn = int(plan.schedule.user_start_ns[user]), 0
            while at < end and not watch.stop_asked():
                want = plan.schedule.closed(user, turn)
                first = at + round(TTFT_NS * slow)
                chunks = first + round(GAP_NS * slow) * np.arange(want.output_tokens)
                sink.request(
                    RequestRecord(
                        index=index,
                        user=user,
                        intended_ns=at,
                        sent_ns=at,
                        first_ns=int(chunks[0]),
                        last_ns=int(chunks[-1]),
                        end_ns=int(chunks[-1]),
                        planned_prompt_tokens=want.prompt_tokens,
                        planned_output_tokens=want.output_tokens,
                        prompt_tokens=want.prompt_tokens,
                        output_tokens=want.output_tokens,
                        finish_reason="length",
                        chunk_ns=chunks.astype(np.int64),
                    )
                )
                tokens, prompts = tokens + want.output_tokens, prompts + want.prompt_tokens
                at, turn, index = int(chunks[-1]), turn + 1, index + 1
        watch.live(LiveFigures(1.0, 2.0, "measuring", 100.0, 0.1, index, 0, 0))
        sink.event(RunEvent(end, "note", "the end"))
        self.before_end(sink)
        return RunFacts(
            source=self.source,  # type: ignore[arg-type]
            window=Window(start, end),
            client=ClientCheck("simulated", cpu_share=0.1),
            counters=ServerCounters(
                requests_ok=index, prompt_tokens=prompts, generation_tokens=tokens
            ),
            server={"engine": "fake", "version": "1"},
            interrupted=watch.stop_asked(),
        )


@dataclass
class FakeEngine:
    """Starts `FakeEndpoint`; refuses configurations whose max_num_seqs is in `fails`."""

    name: str = "fake"
    fails: tuple[int, ...] = ()
    started: list[int | None] = field(default_factory=list)
    before_end: Callable[[RecordSink], None] = lambda sink: None

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        seqs = configuration.knobs.max_num_seqs
        self.started.append(seqs)
        if seqs in self.fails:
            raise RunFailed("CUDA out of memory, says the engine", where="fake")
        yield FakeEndpoint(configuration, self.before_end)  # type: ignore[misc]


def twin_like(name: str) -> FakeEngine:
    """For worker processes: an engine that is run like a twin."""
    return FakeEngine(name="twin")


def killed(name: str) -> FakeEngine:
    """For worker processes: an engine whose process is killed in the middle of a run."""
    return FakeEngine(name="twin", before_end=lambda sink: os.kill(os.getpid(), signal.SIGKILL))
