"""One pool at work: does what its supervisor decides, and tells it what happens."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Launch, Router
from ridgeline.engines.started import Dialect, ServerLaunch, free_port
from ridgeline.serving.events import EventLog
from ridgeline.serving.front import Front
from ridgeline.serving.keys import VARIABLE
from ridgeline.serving.places import Places
from ridgeline.serving.pulse import Limits
from ridgeline.serving.rotation import NoRotation, Rotation, RouterRotation
from ridgeline.serving.running import Running, contact
from ridgeline.serving.states import (
    Action,
    Drain,
    Enter,
    Hurry,
    Leave,
    Phase,
    Start,
    State,
    Stop,
    Tell,
    Wanted,
)
from ridgeline.serving.supervisor import Policy, Supervisor

OUTCOMES = ("changed", "unchanged", "rolled-back", "failed", "ended")  # of a change
LOOK_S = 0.25  # between two looks at the router's list


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool: its name, what its replicas serve, and where its one URL is.

    router None: nothing of ours stands in front: one replica has the URL itself, or `own_url` is a
    balancer that the user runs.
    """

    name: str
    configuration: Configuration
    host: str
    port: int
    router: Router | None
    own_url: str | None = None

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.own_url or f"http://{contact(self.host)}:{self.port}"

    def wanted(self, generation: int) -> Wanted:
        """What its supervisor is to keep up."""
        knobs = self.configuration.knobs
        each = (knobs.tensor_parallel_size or 1) * (knobs.pipeline_parallel_size or 1)
        gpu = self.configuration.gpu is not None
        return Wanted(generation, knobs.data_parallel_size or 1, each if gpu else 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """What all pools share. `dialect_of`: how an engine, by its name, is spoken to."""

    folder: Path
    dialect_of: Callable[[str], Dialect]
    key: str | None = None
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)


class Pool:
    """Runs one pool. `post` hands a step over to the thread that owns the supervisor.

    All methods but those that are posted belong to that thread.
    """

    def __init__(
        self, spec: PoolSpec, settings: Settings, places: Places, events: EventLog,
        post: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self.spec = spec
        self._settings, self._events, self._post = settings, events, post
        self._generations = {0: spec}
        self.supervisor = Supervisor(settings.policy, spec.wanted(0), places, random.Random())
        self._running: dict[int, Running] = {}
        self._stopping: dict[int, Running] = {}
        self._ports: dict[int, int] = {}
        self._wished: dict[int, str] = {}
        self._version = 0
        self._inside: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._wake, self._over = threading.Event(), threading.Event()
        self.front: Front | None = None
        self._rotation: Rotation = NoRotation()
        if spec.router is not None:
            logs = settings.folder / "logs"
            self.front = Front(
                spec.router, spec.host, spec.port, url=spec.url, logs=logs, tell=self._tell
            )
            self._rotation = RouterRotation(spec.url)
        self._thread = threading.Thread(target=self._rotate, name="rotation", daemon=True)
        self._at_once = False
        # whose change is under way, which its events bear; how the last change came out
        self._request: str | None = None
        self.outcome: str | None = None

    def begin(self) -> None:
        """Start the replicas."""
        self._thread.start()
        self._do(self.supervisor.begin(time.monotonic()))

    def look(self) -> None:
        """Look after everything once; called several times a second."""
        for number, running in list(self._running.items()):
            trouble = running.trouble()
            watcher = running.watcher
            if trouble is not None:
                self._do(self.supervisor.lost(number, trouble, time.monotonic()))
            elif running.draining and watcher is not None and watcher.idle():
                self._do(self.supervisor.idle(number, time.monotonic()))
        if self.front is not None and self._front_due():
            self.front.keep(self._wished.values())
            if self.front.failure is not None and self.supervisor.failure is None:
                self.supervisor.failure = self.front.failure
                self._do(self.supervisor.stop_now(time.monotonic()))
        self._do(self.supervisor.tick(time.monotonic()))

    def check(self, spec: PoolSpec) -> None:
        """Raises BadInput for what cannot be changed while it runs."""
        where = f"pool {spec.name}"
        if spec.router != self.spec.router:
            raise BadInput(
                "another router or other arguments of it need it started again, which cuts what"
                " runs through it", where=where, fix="stop and start `ridgeline serve`",
            )  # fmt: skip
        if spec.configuration.model != self.spec.configuration.model:
            raise BadInput(
                f"the model would become {spec.configuration.model}, and clients ask for"
                f" {self.spec.configuration.model}", where=where,
                fix="start another `ridgeline serve` for it",
            )  # fmt: skip

    def change(self, spec: PoolSpec, request: str | None) -> None:
        """Go over to another configuration, which was checked, for `request`.

        `outcome` is None until it is known.
        """
        if self.supervisor.phase is not Phase.SERVING:
            words = f"no change while the pool is {self.supervisor.phase}"
            self._events.tell("ignored", words, pool=self.spec.name, request=request)
            self.outcome = "ignored"
            return
        self._request, self.outcome = request, None
        current = self._generations[self.supervisor.wanted.generation]
        if spec.configuration == current.configuration:
            self._tell("unchanged", "the file says what runs already")
            return
        generation = max(self._generations) + 1
        self._generations[generation] = spec
        self._do(self.supervisor.change(spec.wanted(generation), time.monotonic()))

    def stop(self, *, now: bool) -> None:
        """End it: with the requests that run, or at once."""
        self._at_once = self._at_once or now
        stop = self.supervisor.stop_now if now else self.supervisor.stop
        self._do(stop(time.monotonic()))

    def ended(self) -> bool:
        """True once no replica is left, and no router; it does not wait for that."""
        if self.supervisor.phase is not Phase.ENDED:
            return False
        self._over.set()
        self._wake.set()
        return self.front is None or self.front.end(kill=self._at_once)

    def status(self) -> dict[str, object]:
        """Where it stands, as plain values."""
        rows = []
        for replica in self.supervisor.replicas:
            running = self._running.get(replica.number)
            held = running or self._stopping.get(replica.number)
            watcher = None if running is None else running.watcher
            up = replica.state is State.UP
            rows.append({
                "replica": replica.number, "state": str(replica.state), "up": up,
                "url": None if running is None else running.url,
                "gpus": list(replica.gpus), "restarts": replica.restarts,
                "configuration": replica.generation,
                "process": None if held is None else held.pid,
                "running": None if watcher is None else watcher.running(),
                "answer_s": None if watcher is None else watcher.answer_s(),
                "ready_s": None if running is None else running.ready_s,
            })  # fmt: skip
        front = self.front
        router = None if front is None else {
            "up": front.up, "restarts": max(front.restarts, 0), "metrics": front.metrics_url,
        }  # fmt: skip
        return {
            "pool": self.spec.name, "url": self.spec.url, "phase": str(self.supervisor.phase),
            "wanted": self.supervisor.wanted.count, "replicas": rows, "router": router,
            "failure": self.supervisor.failure,
        }  # fmt: skip

    def _front_due(self) -> bool:
        """The router starts once every first replica answers, so that it knows all of them."""
        phase = self.supervisor.phase
        if phase is Phase.ENDED:
            return False
        return phase is not Phase.OPENING or (0 < self.supervisor.wanted.count <= len(self._wished))

    def _tell(self, event: str, words: str, replica: int | None = None, **facts: object) -> None:
        self._events.tell(
            event, words, pool=self.spec.name, replica=replica, request=self._request, **facts
        )
        if replica is None and event in OUTCOMES:
            self.outcome, self._request = event, None

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Tell(event, words, number, facts):
                    self._tell(event, words, number, **facts)
                case Start(number, generation, gpus):
                    self._start(number, generation, gpus)
                case Enter(number):
                    self._wish(number, self._running[number].url)
                case Leave(number):
                    self._wish(number, None)
                case Drain(number):
                    self._drain(number)
                case Stop(number, kill):
                    self._stop(number, kill=kill)
                case Hurry(number):
                    self._stopping[number].hurry()

    def _start(self, number: int, generation: int, gpus: tuple[str, ...]) -> None:
        spec = self._generations[generation]
        at = self._place(number)
        launch = self._launch(spec.configuration, gpus)
        dialect = self._settings.dialect_of(spec.configuration.engine)
        running = Running(
            dialect, spec.configuration, launch, at=at, key=self._settings.key,
            limits=self._settings.limits,
        )  # fmt: skip
        self._running[number] = running
        supervisor, clock = self.supervisor, time.monotonic

        def ready() -> None:
            self._tell("ready", f"a completion came back from {running.url}", number,
                       url=running.url, ready_s=running.ready_s)  # fmt: skip
            self._do(supervisor.ready(number, clock()))

        def lost(words: str) -> None:
            # the port may be what was wrong
            self._ports.pop(number, None)
            self._do(supervisor.lost(number, words, clock()))

        running.start(lambda: self._post(ready), lambda words: self._post(lambda: lost(words)))

    def _place(self, number: int) -> tuple[str, int]:
        """Where a replica listens: behind a router always on the loopback, on a port of its own.

        It keeps the port when it is started again, so that what knows its URL need not learn it.
        """
        if self.spec.router is None and self.spec.own_url is None:
            return self.spec.host, self.spec.port
        if number not in self._ports:
            self._ports[number] = free_port()
        return "127.0.0.1", self._ports[number]

    def _launch(self, configuration: Configuration, gpus: tuple[str, ...]) -> ServerLaunch:
        given = configuration.launch or Launch()
        key = self._settings.key
        environment = {**given.environment, **({} if key is None else {VARIABLE: key})}
        return ServerLaunch(
            command=given.command, arguments=given.arguments, environment=environment,
            log_folder=self._settings.folder / "logs", ready_s=given.ready_s, gpus=gpus or None,
        )  # fmt: skip

    def _stop(self, number: int, *, kill: bool) -> None:
        running = self._stopping[number] = self._running.pop(number)

        def stopped(left: Sequence[str]) -> None:
            self._stopping.pop(number, None)
            for line in left:
                self._tell("left-behind", line, number)
            self._do(self.supervisor.stopped(number, time.monotonic()))

        running.stop(kill, lambda left: self._post(lambda: stopped(left)))

    def _drain(self, number: int) -> None:
        running = self._running[number]
        running.draining = True
        if running.watcher is not None:
            running.watcher.wait_for_idle()

    def _wish(self, number: int, url: str | None) -> None:
        if url is None:
            self._wished.pop(number, None)
        else:
            self._wished[number] = url
        self._version += 1
        self._wake.set()

    def _rotate(self) -> None:
        """Hold the router's list against the wishes, again and again."""
        while not self._over.is_set():
            self._wake.wait(LOOK_S)
            self._wake.clear()
            version, wished = self._version, dict(self._wished)
            if self.front is not None and not self.front.up:
                continue
            try:
                inside, strangers = self._rotation.settle(set(wished.values()))
            except OSError:
                continue  # the front's silence is what tells
            except Exception as error:  # what an answer can do wrong has no end
                words = f"the router's answer: {type(error).__name__}: {error}"
                self._post(partial(self._odd, words))
                continue

            def settled(
                version: int = version, inside: frozenset[str] = inside,
                strangers: tuple[str, ...] = strangers,
            ) -> None:  # fmt: skip
                self._settled(version, inside, strangers)

            self._post(settled)

    def _odd(self, words: str) -> None:
        """Told once each."""
        if words not in self._told:
            self._told.add(words)
            self._tell("router-odd", words)

    def _settled(self, version: int, inside: frozenset[str], strangers: tuple[str, ...]) -> None:
        for url in strangers:
            words = f"{url} was added to the router by somebody else; it was taken out"
            self._tell("stranger", words)
        if version != self._version:
            return
        for replica in self.supervisor.replicas:
            running = self._running.get(replica.number)
            if running is None:
                continue
            if replica.state is State.ENTERING and running.url in inside:
                self._do(self.supervisor.entered(replica.number, time.monotonic()))
            elif replica.state is State.LEAVING and running.url not in inside:
                self._do(self.supervisor.left(replica.number, time.monotonic()))
