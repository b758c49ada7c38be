"""The port between experiments and whatever answers requests, twin or real."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Source, Watch
from ridgeline.domain.workload import Timeouts
from ridgeline.workload.schedule import Schedule

__all__ = ["DrivePlan", "Endpoint", "Engine", "Timeouts"]


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """One run's traffic: the schedule, and what makes its prompts fresh.

    `salt` goes into every prompt; runs with different salts share no prefix (unless the workload
    declares sharing). `endpoint` is "chat" or "completions". `routing`: how the requests are
    spread over several replicas, a rule of `domain.routing`. `bands`: a prediction is to say how
    far it may be off (`RunFacts.errors`), which costs a twin some short runs more.
    """

    schedule: Schedule
    salt: str
    endpoint: str = "chat"
    timeouts: Timeouts = Timeouts()  # noqa: RUF009  a frozen value
    routing: str = "round-robin"
    bands: bool = False


class Endpoint(Protocol):
    """Something that answers: a URL, or a twin."""

    source: Source

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        """Offer the plan's traffic, pass every ended request to `sink`, return what is known.

        Requests sent before the window's end are followed to their end (or to the grace time).
        Ctrl-C reaches it as `watch.stop_asked()`. Raises EndpointError when nothing answers.
        """


class Engine(Protocol):
    """Turns a configuration into a running endpoint, and takes it down again."""

    name: str

    def start(self, configuration: Configuration) -> AbstractContextManager[Endpoint]:
        """Start it; the endpoint is ready when the context is entered.

        Raises RunFailed with the engine's own words when it cannot start.
        """
