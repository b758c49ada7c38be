"""What is known about a run besides its records: its window, how the client fared, who answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ridgeline.domain.calibration import ClientCalibration
from ridgeline.domain.records import RunEvent

Source = Literal["twin", "measured"]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run: [start_ns, end_ns) on the run's own clock."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class ClientCheck:
    """How well the client itself kept up. None = not measured.

    receive_clock: "kernel" (SO_TIMESTAMPNS), "read" (time of the read) or "simulated".
    send_lateness: sent - intended. backlog: kernel receive time to read time. stamp_error: how far
    a chunk's time may be too late because the client read late; 0 for a chunk that was alone in its
    read and carries the kernel's time, else how long the client had not looked. first_error: the
    same of each reply's first chunk alone, which is what TTFT is made of.
    workers: processes that drove the load; loop lag and CPU share are the worst one's. faults: what
    happened to the client itself that leaves the figures without meaning (a worker died).
    host_load: processes that ran or wanted to, on the client's machine, as a mean over the last
    minute of the run; host_cores: the cores that the client may use.
    """

    receive_clock: str
    loop_lag_p99_s: float | None = None
    loop_lag_max_s: float | None = None
    send_lateness_p50_s: float | None = None
    send_lateness_p99_s: float | None = None
    send_lateness_max_s: float | None = None
    backlog_p99_s: float | None = None
    cpu_share: float | None = None
    connections: int | None = None
    stamp_error_p95_s: float | None = None
    stamp_error_p99_s: float | None = None
    stamp_error_p999_s: float | None = None
    stamp_error_max_s: float | None = None
    first_error_p95_s: float | None = None
    first_error_p99_s: float | None = None
    first_error_max_s: float | None = None
    workers: int | None = None
    host_load: float | None = None
    host_cores: int | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Differences of the server's own counters over everything that the run sent.

    None = the server does not export it. Tokens and requests are counts. output_events: how often
    the server sent something after a first token, each time one or more tokens.
    """

    requests_ok: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    preemptions: float | None = None
    ttft_mean_s: float | None = None
    tpot_mean_s: float | None = None
    output_events: float | None = None


STALLED = "the server stalled"  # how a fault of RunFacts begins that ended a stepped load


@dataclass(frozen=True, slots=True)
class Warmup:
    """How the start of the window was found, where the warm-up was automatic.

    offered: the window as it was while the run went on; the run's own may start later, never
    earlier. limit_s: the most that the warm-up could take. found: False when that was reached.
    steady_s: where MSER ends the warm-up, over the whole run; None when it finds no end. reason: in
    words.
    """

    offered: Window
    limit_s: float
    found: bool
    steady_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What an endpoint reports about one drive. `server` holds versions, limits and the like.

    `interrupted` is set when the user stopped it early: the window then ends where it was stopped.
    `gpus_seen` and the like are added by telemetry. `extra_requests` are those sent outside the
    records (calibration), so that client and server counts can be compared exactly.
    `server_faults`: what happened to the server that leaves the figures without meaning (it was
    restarted, it is gone), each in one line. `warmup`: None when its length was fixed. `errors`: of
    a twin's figures, by their path in a Summary, as standard deviations of logarithms.
    `calibration`: what the client was shown to be able to do before the run; None: not tried.
    """

    source: Source
    window: Window
    client: ClientCheck
    counters: ServerCounters | None = None
    server: Mapping[str, object] = field(default_factory=dict)
    interrupted: bool = False
    extra_requests: int = 0
    extra_prompt_tokens: int = 0
    extra_output_tokens: int = 0
    notes: tuple[str, ...] = ()
    server_faults: tuple[str, ...] = ()
    warmup: Warmup | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    calibration: ClientCalibration | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """valid, or void with reasons; `warnings` do not void."""

    valid: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """What the progress line shows, about twice a second. None = not known yet.

    ttft_p50_s is of the `ttft_seen` requests that ended lately, since the window began once it has.
    waiting: requests in the engine's queues; kv_use: the fullest KV cache (0..1); both by its own
    page, of engines that Ridgeline started.
    """

    elapsed_s: float
    total_s: float
    phase: str  # "warm-up", "measuring", "draining"
    output_tokens_per_s: float | None
    ttft_p95_s: float | None
    sent: int
    failed: int
    in_flight: int
    chunks: int | None = None  # received until now
    ttft_p50_s: float | None = None
    ttft_seen: int = 0
    waiting: float | None = None
    kv_use: float | None = None


class Watch(Protocol):
    """Follows a run while it goes on. Implementations: the CLI's progress line, `SilentWatch`."""

    def live(self, figures: LiveFigures) -> None:
        """Take the current figures."""

    def event(self, event: RunEvent) -> None:
        """Take something worth telling."""

    def stop_asked(self) -> bool:
        """True once the user wants the run to end early; what was measured is kept."""


class SilentWatch:
    """A watch that shows nothing and never stops a run."""

    def live(self, figures: LiveFigures) -> None:
        """Ignore the figures."""

    def event(self, event: RunEvent) -> None:
        """Ignore the event."""

    def stop_asked(self) -> bool:
        """Never."""
        return False
