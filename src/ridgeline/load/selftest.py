"""What this client can do on this host: driven against null servers of its own, stamp by stamp.

The servers write at planned times and stamp every write (`nullserver`), so that each time stamp of
the client can be held against the moment at which its bytes were really handed to the kernel. What
came of it is a `domain.run.ClientCalibration`: loads at which the stamps were true.
"""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.calibration import FULL_SHARE, ClientCalibration, ClientLevel
from ridgeline.domain.errors import EndpointError, RidgelineError
from ridgeline.domain.records import Floats, Ints, MemorySink, RunRecords, records_from_requests
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.load.crew import drive_with
from ridgeline.load.http import Site
from ridgeline.load.job import Job, Limits
from ridgeline.load.limits import ensure_open_files
from ridgeline.load.outcome import DriveResult
from ridgeline.workload.schedule import PlannedRequest, Schedule

FEWEST_STREAMS = 100  # with fewer, high rates would have gaps that no server has
MOST_STREAMS, LONG_MOST_STREAMS = 200, 1000  # the more there are, the longer a level takes
REQUEST_S = 0.05  # about the length of a reply; short, so that a short window has many
FEWEST_CHUNKS, MOST_CHUNKS = 4, 50
CORE_SHARE = 0.95  # of a core: what the next load is meant to take
LEAST_RISE = 1.25  # a fuller loop needs less for each read, so more may be possible
WINDOW_S, LONG_WINDOW_S = 0.15, 1.0
TRIES, LONG_TRIES = 4, 8
MOST_S, LONG_MOST_S = 1.0, 15.0  # no further level is begun for a kind after so long
FIRST_RATE = {"requests": 4000.0, "chunks": 12_000.0}  # per worker
LEAST_RATE = 100.0
KEPT_UP = 0.9  # a server that gives less of what was asked of it was the limit itself
START_S = 10.0
LIMITS = Limits(2_000_000_000, 5_000_000_000, 5_000_000_000, 10_000_000_000, 5_000_000_000)


@dataclass(frozen=True, slots=True)
class Pace:
    """A closed loop of `streams` users whose replies have `chunks` chunks, one each `gap_ns`."""

    streams: int
    chunks: int
    gap_ns: int

    @property
    def request_s(self) -> float:
        """How long a reply takes (s)."""
        return self.chunks * self.gap_ns / 1e9

    @property
    def chunks_per_s(self) -> float:
        """What all streams together get."""
        return self.streams * 1e9 / self.gap_ns

    def schedule(self, duration_s: float) -> Schedule:
        """Users that begin evenly over the length of a reply, which is the warm-up."""
        starts = np.arange(self.streams) * (self.chunks * self.gap_ns) // self.streams
        workload = Workload(
            Arrivals(users=self.streams), duration_s=duration_s, warmup_s=self.request_s
        )
        return Schedule(
            workload,
            np.full(1, 8, dtype=np.int32),
            np.full(1, self.chunks, dtype=np.int32),
            np.full(1, -1, dtype=np.int32),
            users=self.streams,
            user_start_ns=starts.astype(np.int64),
        )


@dataclass(frozen=True, slots=True)
class PacedRequests:
    """Makes requests that tell a null server their identity and their pace."""

    pace: Pace

    def __call__(self, planned: PlannedRequest, identity: int, target: int) -> list[bytes]:
        """One request."""
        pace = self.pace
        return [
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: null\r\nX-Pace: %d %d %d\r\n"
            b"Content-Length: 2\r\n\r\n{}" % (identity, pace.chunks, pace.gap_ns)
        ]


class NullServerProcess:
    """A null server in a process of its own; a context manager. Raises EndpointError."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> "NullServerProcess":
        self.process = subprocess.Popen(  # noqa: S603  this program itself
            [sys.executable, "-m", "ridgeline.load.nullserver", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.__exit__()
            raise EndpointError("the null server did not start", fix="see its words above")
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    @property
    def site(self) -> Site:
        """Where it is, for the client."""
        return Site(socket.AF_INET, ("127.0.0.1", self.port), "127.0.0.1", self.url)

    def stamps(self) -> "dict[int, Sent]":
        """What it has sent since the last such call, by the request's identity."""
        with urllib.request.urlopen(f"{self.url}/stamps", timeout=START_S) as reply:  # noqa: S310
            told = np.frombuffer(reply.read(), dtype=np.int64)
        found, at = {}, 0
        while at < len(told):
            identity, received, writes = (int(n) for n in told[at : at + 3])
            pairs = told[at + 3 : at + 3 + 2 * writes]
            found[identity] = Sent(received, pairs[::2], pairs[1::2])
            at += 3 + 2 * writes
        return found


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its server saw it (monotonic ns): when it came, and around each write."""

    received_ns: int
    before_ns: Ints
    after_ns: Ints


def drive_paced(
    servers: list[NullServerProcess], pace: Pace, duration_s: float, workers: int
) -> tuple[DriveResult, RunRecords]:
    """Drive null servers at a pace, with everything on that a run has but the disk."""
    job = Job(
        pace.schedule(duration_s), [server.site for server in servers], PacedRequests(pace), LIMITS
    )
    sink = MemorySink()
    result = drive_with(workers, job, sink, SilentWatch())
    return result, records_from_requests(sink.requests)


def identities(records: RunRecords, users: int) -> Ints:
    """The identity that each request of a closed loop carried."""
    found = np.empty(len(records), dtype=np.int64)
    turns: dict[int, int] = {}
    for row, user in enumerate(records.user.astype(np.int64).tolist()):
        turn = turns.get(user, 0)
        found[row], turns[user] = user + turn * users, turn + 1
    return found


def stamp_errors_s(
    records: RunRecords, zero_ns: int, sent: dict[int, Sent], users: int
) -> tuple[Floats, Floats, int]:
    """How far TTFT and gaps lie outside what the server's own stamps allow (s), of whole replies;
    and how many successes the server knows nothing of, or another number of chunks.

    A chunk left in its write, between the stamp before it and the stamp after it. TTFT is held
    against the time from the request's arrival at the server, so that a late or wrong stamp of the
    sending counts, too.
    """
    first: list[float] = []
    wrong = 0
    gaps: list[Floats] = []
    known = identities(records, users).tolist()
    for row in np.flatnonzero(records.ok).tolist():
        true = sent.get(known[row])
        low, high = records.chunk_start[row : row + 2]
        at = records.chunk_ns[low:high] + zero_ns
        if true is None or len(at) == 0 or len(true.after_ns) != len(at):
            wrong += 1
            continue
        ttft = at[0] - zero_ns - int(records.sent_ns[row])
        least, most = true.before_ns[0] - true.received_ns, true.after_ns[0] - true.received_ns
        first.append(max(float(least - ttft), float(ttft - most), 0.0))
        gap = np.diff(at)
        over = gap - (true.after_ns[1:] - true.before_ns[:-1])
        under = (true.before_ns[1:] - true.after_ns[:-1]) - gap
        gaps.append(np.maximum(np.maximum(over, under), 0).astype(np.float64))
    none = np.empty(0)
    return np.array(first) / 1e9, (np.concatenate(gaps) if gaps else none) / 1e9, wrong


@dataclass(frozen=True, slots=True)
class Form:
    """How thoroughly the client is tried: levels of each kind, and how long (s)."""

    tries: int
    window_s: float
    most_s: float
    most_streams: int


SHORT = Form(TRIES, WINDOW_S, MOST_S, MOST_STREAMS)
LONG = Form(LONG_TRIES, LONG_WINDOW_S, LONG_MOST_S, LONG_MOST_STREAMS)


class SelfTest:
    """A client of `workers` processes beside as many null servers. A context manager.

    Raises EndpointError or BadInput (the file limit) where it cannot be done.
    """

    def __init__(self, streams: int, workers: int) -> None:
        self.streams = streams
        self._workers = workers
        self._stack = ExitStack()

    def __enter__(self) -> "SelfTest":
        ensure_open_files(self.streams)
        with ExitStack() as stack:
            self._servers = [stack.enter_context(NullServerProcess()) for _ in range(self._workers)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def level(self, kind: str, rate: float, window_s: float) -> ClientLevel:
        """Offer so many requests of one chunk, or chunks, per second, and compare stamps."""
        gap_ns = max(1, round(self.streams / rate * 1e9))
        chunks = 1
        if kind == "chunks":
            chunks = round(min(max(REQUEST_S * 1e9 / gap_ns, FEWEST_CHUNKS), MOST_CHUNKS))
        pace = Pace(self.streams, chunks, gap_ns)
        result, records = drive_paced(self._servers, pace, window_s, self._workers)
        sent: dict[int, Sent] = {}
        for server in self._servers:
            sent |= server.stamps()
        return _level(kind=kind, asked=rate, pace=pace, result=result, records=records, sent=sent)

    def search(
        self, kind: str, form: Form, tell: Callable[[ClientLevel], None]
    ) -> list[ClientLevel]:
        """Look for the highest load that is timed right: up by the CPU used, down on failure.

        A level that failed while the client's core was not full was disturbed by something else on
        the machine, so it is tried again before a lower one is.
        """
        rate = FIRST_RATE[kind] * self._workers
        levels: list[ClientLevel] = []
        until = time.monotonic() + form.most_s
        while len(levels) < form.tries and time.monotonic() < until:
            level = self.level(kind, rate, form.window_s)
            again = level.disturbed and not (levels and levels[-1].disturbed)
            levels.append(level)
            tell(level)
            if level.true and (level.filled_core or level.server_was_the_limit):
                break
            if level.true:
                failed = [x.asked_per_s for x in levels if not x.true and x.filled_core]
                rate *= max(LEAST_RISE, CORE_SHARE / max(level.cpu_share or CORE_SHARE, 0.1))
                rate = min([rate, *((level.asked_per_s + f) / 2 for f in failed)])
            elif not again:
                best = max((x.asked_per_s for x in levels if x.true), default=0.0)
                rate = max(LEAST_RATE, (best + rate) / 2)
        return levels


def _level(
    *,
    kind: str,
    asked: float,
    pace: Pace,
    result: DriveResult,
    records: RunRecords,
    sent: dict[int, Sent],
) -> ClientLevel:
    window, client = result.window, result.client
    ttft, itl, wrong = stamp_errors_s(records, result.zero_ns, sent, pace.streams)

    def rate_of(times: Floats | Ints) -> float:
        inside = (times >= window.start_ns) & (times < window.end_ns)
        return float(np.count_nonzero(inside)) / window.seconds

    requests, chunks = rate_of(records.sent_ns), rate_of(records.chunk_ns)
    reached = requests if kind == "requests" else chunks
    full = (client.cpu_share or 0.0) >= FULL_SHARE
    # how late a reply's last write was: all that went wrong before it has added up there
    lasts = [(int(s.before_ns[-1]), s.received_ns) for s in sent.values() if len(s.before_ns)]
    late = [wrote - received - pace.chunks * pace.gap_ns for wrote, received in lasts]
    server_late = float(np.median(late)) / 1e9 if late else None
    behind = reached < KEPT_UP * asked and (server_late or 0.0) > (1 - KEPT_UP) * pace.request_s
    return ClientLevel(
        kind=kind,
        asked_per_s=asked,
        requests_per_s=requests,
        chunks_per_s=chunks,
        compared=len(ttft) + len(itl),
        failed=wrong + int(np.count_nonzero(~records.ok)),
        ttft_error_p50_s=_quantile(ttft, 0.5),
        ttft_error_p99_s=_quantile(ttft, 0.99),
        itl_error_p50_s=_quantile(itl, 0.5),
        itl_error_p99_s=_quantile(itl, 0.99),
        send_lateness_p50_s=client.send_lateness_p50_s,
        send_lateness_p99_s=client.send_lateness_p99_s,
        loop_lag_p99_s=client.loop_lag_p99_s,
        cpu_share=client.cpu_share,
        server_lateness_p50_s=server_late,
        server_was_the_limit=behind and not full,
    )


def _quantile(values: Floats, share: float) -> float | None:
    return float(np.quantile(values, share, method="inverted_cdf")) if len(values) else None


def tried_streams(streams: float, form: Form = SHORT) -> int:
    """With how many streams the client is tried for a load of so many."""
    return round(min(max(streams, FEWEST_STREAMS), form.most_streams))


def calibrate_client(
    streams: float,
    workers: int,
    *,
    long: bool = False,
    tell: Callable[[ClientLevel], None] = lambda _: None,
) -> ClientCalibration:
    """What the client with so many workers can do here; about a second, with `long` ten or so.

    What goes wrong is told in the result: a client that could not be tried is not one that failed.
    """
    form = LONG if long else SHORT
    streams = tried_streams(streams, form)
    begun = time.monotonic()
    levels: list[ClientLevel] = []
    problem = None
    try:
        with SelfTest(streams, workers) as test:
            for kind in ("requests", "chunks"):
                levels += test.search(kind, form, tell)
    except RidgelineError as error:
        problem = str(error)
    return ClientCalibration(streams, workers, time.monotonic() - begun, tuple(levels), problem)
