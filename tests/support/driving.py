"""Short ways to build schedules and to drive a mock."""

import socket
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import numpy as np

from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import LiveFigures, SilentWatch
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.load.crew import drive_with
from ridgeline.load.http import Site
from ridgeline.load.job import Job, Limits
from ridgeline.load.openai import RequestForm
from ridgeline.load.outcome import DriveResult
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.schedule import PlannedRequest, Schedule

LIMITS = Limits(
    connect_ns=2_000_000_000,
    first_ns=10_000_000_000,
    gap_ns=10_000_000_000,
    total_ns=30_000_000_000,
    grace_ns=5_000_000_000,
)


def closed(
    users: int = 1,
    *,
    duration_s: float = 0.5,
    warmup_s: float = 0.0,
    requests: int | None = None,
    think_time_s: float = 0.0,
    prompt_tokens: int = 16,
    output_tokens: int = 8,
    start_ns: list[int] | None = None,
) -> Schedule:
    """A closed loop of equal requests."""
    arrivals = Arrivals(users=users, think_time_s=think_time_s)
    workload = Workload(arrivals, duration_s=duration_s, warmup_s=warmup_s, requests=requests)
    starts = np.array(start_ns if start_ns is not None else [0] * users, dtype=np.int64)
    return Schedule(
        workload,
        np.full(64, prompt_tokens, dtype=np.int32),
        np.full(64, output_tokens, dtype=np.int32),
        np.full(64, -1, dtype=np.int32),
        users=users,
        user_start_ns=starts,
    )


def opened(times_s: list[float], *, duration_s: float, warmup_s: float = 0.0) -> Schedule:
    """Arrivals at given times."""
    n = len(times_s)
    arrivals = Arrivals(rate_per_s=n / duration_s)
    return Schedule(
        Workload(arrivals, duration_s=duration_s, warmup_s=warmup_s),
        np.full(n, 16, dtype=np.int32),
        np.full(n, 8, dtype=np.int32),
        np.full(n, -1, dtype=np.int32),
        intended_ns=np.array([round(t * 1e9) for t in times_s], dtype=np.int64),
    )


class RecordingWatch(SilentWatch):
    """Keeps the live figures; asks to stop once `stop_when` says so of one of them."""

    def __init__(self, stop_after_s: float | None = None) -> None:
        self.figures: list[LiveFigures] = []
        self.asked = 0
        self._stop_after_s = stop_after_s

    def live(self, figures: LiveFigures) -> None:
        self.figures.append(figures)

    def stop_asked(self) -> bool:
        self.asked += 1
        last = self.figures[-1] if self.figures else None
        return (
            self._stop_after_s is not None
            and last is not None
            and last.elapsed_s >= self._stop_after_s
        )


@dataclass
class Outcome:
    """A drive and what it left."""

    result: DriveResult
    sink: MemorySink

    @property
    def records(self) -> list[RequestRecord]:
        return sorted(self.sink.requests, key=lambda r: r.index)

    def of_identity(self, users: int | None) -> dict[int, RequestRecord]:
        """The records by the identity that their requests carried in X-Identity."""
        if users is None:
            return {r.index: r for r in self.records}
        turns = dict.fromkeys(range(users), 0)
        found = {}
        for record in self.records:
            assert record.user is not None
            found[record.user + turns[record.user] * users] = record
            turns[record.user] += 1
        return found


@dataclass
class Maker:
    """Makes requests that carry their identity in a header."""

    form: RequestForm
    prompts: PromptMaker

    def __call__(self, planned: PlannedRequest, identity: int, _: int) -> list[bytes]:
        body = self.form.parts(
            self.prompts.encoded(identity, planned.prompt_tokens, planned.prefix),
            planned.output_tokens,
        )
        length = sum(map(len, body))
        head = f"POST {self.form.path} HTTP/1.1\r\nHost: mock\r\nX-Identity: {identity}\r\n"
        return [f"{head}Content-Length: {length}\r\n\r\n".encode(), *body]


def drive(
    url: str,
    schedule: Schedule,
    *,
    watch: SilentWatch | None = None,
    endpoint: str = "chat",
    site: Site | None = None,
    workers: int = 1,
    **limits_s: float | None,
) -> Outcome:
    """Drive a URL on loopback; limits in seconds by name, as in `Timeouts`."""
    parts = urlsplit(url)
    if site is None:
        site = Site(socket.AF_INET, ("127.0.0.1", parts.port), "127.0.0.1", url)
    form = RequestForm(endpoint, "mock")
    make = Maker(form, PromptMaker(schedule.workload, "salt"))
    limits = replace(
        LIMITS,
        **{
            name.removesuffix("_s") + "_ns": None if s is None else round(s * 1e9)
            for name, s in limits_s.items()
        },
    )
    sink = MemorySink()
    job = Job(schedule, [site], make, limits)
    return Outcome(drive_with(workers, job, sink, watch or SilentWatch()), sink)
