"""Engines that are server processes of ours: one per data-parallel replica, watched to the end.

The start is over when a real completion came back, not when /health says 200. A start that fails
is known within a second of the process's end, with its class and the engine's own words. What is
particular to an engine is its `Dialect`; everything else is here, once.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ridgeline.domain.errors import GIVEN_UP, BadInput, RunFailed
from ridgeline.domain.knobs import Configuration, Launch, Router
from ridgeline.engines.beside import Replica, StartedEndpoint, ended
from ridgeline.engines.launching import (
    EVERY_ADDRESS,
    HOST,
    command_line,
    model_words,
    program_needed,
)
from ridgeline.engines.leftovers import Leftovers
from ridgeline.engines.process import EngineProcess, listening_beside
from ridgeline.engines.readiness import Answers, get_status
from ridgeline.engines.router import INSTALL as ROUTER_INSTALL
from ridgeline.engines.router import router_facts, router_words
from ridgeline.telemetry.gpu import GpuSampler, open_nvml
from ridgeline.telemetry.stalled import STALLED_CPU_S, STALLED_S
from ridgeline.workload.prompts import TokenFit


class Dialect(Protocol):
    """What one engine's server is started with. Implementations: VllmDialect, LlamaCppDialect.

    `install`: what to do when its program is not there. `environment`: for the server, beside ours.
    """

    name: str
    install: str
    environment: Mapping[str, str]

    def command(self) -> tuple[str, ...]:
        """The program and its first arguments; "{model}" stands for the model."""

    def arguments(self, configuration: Configuration, port: int, host: str = HOST) -> list[str]:
        """What follows the command: knobs, address, the name to serve under; raises BadInput."""

    def check(self, configuration: Configuration, command: Sequence[str]) -> str | None:
        """Hold the options against the installation that `command` starts; raises BadInput.

        Returns why they could not be checked, None when they were.
        """

    def read_start(self, log: str) -> dict[str, Any]:
        """What the log of a start that went well tells."""


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How to start a server where the configuration does not say it.

    `command` is one argument a place; "{model}" stands for the model; None: the dialect's own.
    `environment` is added to ours. `ready_s`: how long a start may take until a completion came
    back (a first start compiles for minutes on a slow host).
    """

    command: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    log_folder: Path = Path("runs/engine-logs")
    ready_s: float = 900.0
    # which GPUs to use, in this order, by number or identifier; None = from 0 on
    gpus: tuple[int | str, ...] | None = None


_ports_lock = threading.Lock()
_ports_given: set[int] = set()
_ports_share = (0, 1)


def share_ports(place: int, of: int) -> None:
    """From now on this process takes every `of`-th port only, from the `place`-th on.

    For processes that look for free ones at once: what nobody listens on yet is free for all.
    """
    global _ports_share  # noqa: PLW0603  as the ports that were given, one for the process
    _ports_share = (place, of)


def free_port() -> int:
    """A port that nobody listens on, not even with SO_REUSEPORT (vLLM 0.21 sets that).

    It is given once: engines that start side by side must not be given the same one.
    """
    with _ports_lock:
        while True:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                port: int = probe.getsockname()[1]
            place, of = _ports_share
            # by pairs: Linux hands out ports of one parity first
            if port not in _ports_given and port // 2 % of == place:
                _ports_given.add(port)
                return port


class ServerEngine:
    """Starts a dialect's server for a configuration; see the Engine port."""

    def __init__(self, dialect: Dialect, launch: ServerLaunch | None = None) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._launch = launch or ServerLaunch()
        self._abandoned = threading.Event()
        self._fits: dict[tuple[str, str], TokenFit] = {}  # of all its servers, by model
        self._leftovers = Leftovers()

    def log_to(self, folder: Path) -> None:
        """Write the logs of coming starts there."""
        self._launch = replace(self._launch, log_folder=folder)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What engines that were stopped have left on this machine, a line each."""
        return self._leftovers.told

    def abandon(self) -> None:
        """Give up the starts that are going on in other threads; they end with RunFailed."""
        self._abandoned.set()

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[StartedEndpoint]:
        """Start all replicas side by side, then a router where one is asked for; one a pool."""
        launch = self._launch_of(configuration)
        replicas: list[Replica] = []
        routers: list[Replica] = []
        far = configuration.launch is not None and configuration.launch.host is not None
        self._leftovers.starting(on_gpu=configuration.gpu is not None and not far)
        try:
            for part, gpu in _servers(configuration):
                used = configuration.layout_gpus
                replicas.append(spawn(self._dialect, part, launch, gpu, gpus_used=used))
            for replica in replicas:
                self._wait_ready(replica, configuration.model, launch.ready_s)
                replica.start |= self._dialect.read_start(replica.process.log_text())
            wanted = None if configuration.launch is None else configuration.launch.router
            if wanted is not None:
                for mine in _by_pool(configuration, replicas):
                    router = _spawn_router(wanted, [r.url for r in mine], launch)
                    routers.append(router)
                    self._wait_ready(router, configuration.model, launch.ready_s, "the router")
                    router.start |= router_facts(wanted)
            yield self._endpoint(configuration, replicas, routers)
        finally:
            processes = [r.process for r in (*routers, *replicas)]
            for process in processes:
                process.stop()
            self._leftovers.stopped([pid for process in processes for pid in process.left])

    def _endpoint(
        self, configuration: Configuration, replicas: Sequence[Replica], routers: Sequence[Replica]
    ) -> StartedEndpoint:
        from ridgeline.engines.endpoint import HttpEndpoint  # noqa: PLC0415  heavy

        urls = [r.url for r in replicas]
        server: dict[str, object] = {"engine": self.name, "replicas": [r.start for r in replicas]}
        if routers:
            server["router"] = routers[0].start
        fronts = routers or replicas
        classes: dict[str, tuple[int, ...]] | None = None
        if configuration.pools:
            asked = [[r] for r in routers] if routers else _by_pool(configuration, replicas)
            classes, pools = {}, {}
            for pool, mine in zip(configuration.pools, asked, strict=True):
                places = tuple(fronts.index(front) for front in mine)
                classes |= dict.fromkeys(pool.classes, places)
                pools[pool.name] = [front.url for front in mine]
            server["pools"] = pools
        http_endpoint = HttpEndpoint(
            [front.url for front in fronts], model=configuration.model, server=server,
            fits=self._fits, servers=urls, classes=classes,
        )  # fmt: skip
        given = None if configuration.launch is None else configuration.launch.stalled_s
        usual = STALLED_CPU_S if configuration.gpu is None else STALLED_S
        limit_s = usual if given is None else given
        return StartedEndpoint(http_endpoint, replicas, _gpus(configuration), routers, limit_s)

    def _launch_of(self, configuration: Configuration) -> ServerLaunch:
        given = configuration.launch
        if given is None:
            return self._launch
        return replace(
            self._launch,
            command=given.command or self._launch.command,
            arguments=given.arguments,
            environment=given.environment,
            ready_s=given.ready_s,
        )

    def _wait_ready(
        self, replica: Replica, model: str, limit_s: float, name: str | None = None
    ) -> None:
        answers = Answers(replica.url, model)
        wait_ready(replica, answers, limit_s, name or self.name, self._abandoned.is_set)


def wait_ready(
    replica: Replica, answers: Answers, limit_s: float, name: str, given_up: Callable[[], bool]
) -> None:
    """Return once a completion came back; raises RunFailed with class and cause.

    `given_up` is asked all the time; `name` is what an error calls the server.
    """
    deadline = replica.process.started_s + limit_s
    healthy_s: float | None = None

    def waiting() -> bool:
        """True while the start may go on; raises RunFailed when it is over."""
        code = replica.process.poll()
        if code is not None:
            raise ended(replica, code, "before it was ready")
        if given_up():
            raise RunFailed(GIVEN_UP, where=str(replica.process.log))
        return time.monotonic() < deadline

    while waiting():
        if healthy_s is None and get_status(replica.url, "/health") == 200:
            healthy_s = time.monotonic() - replica.process.started_s
        if healthy_s is not None and answers.ask(waiting):
            _refuse_shared_port(replica)
            replica.start = {
                "healthy_s": round(healthy_s, 3),
                "ready_s": round(time.monotonic() - replica.process.started_s, 3),
            }
            return
        if answers.refused:
            what = f"{name} refuses completions: {answers.last}"
            raise _failed("refused", what, replica, answers.fix)
        time.sleep(0.1)
    what = f"{name} gave no completion within {limit_s:g} s"
    if answers.last is not None:
        what += f", last it answered {answers.last}"
    raise _failed("hung", what, replica, "see the log, or allow a longer start")


def _failed(kind: str, what: str, replica: Replica, fix: str) -> RunFailed:
    error = RunFailed(f"{kind}: {what}", where=str(replica.process.log), fix=fix)
    error.failure_class = kind  # type: ignore[attr-defined]
    return error


def _refuse_shared_port(replica: Replica) -> None:
    """Raise RunFailed when a process that is not ours listens on the port as well.

    SO_REUSEPORT allows it (vLLM 0.21 sets it), and the kernel then deals requests out to both.
    """
    if not replica.ours:
        return
    strangers = listening_beside(urlsplit(replica.url).port or 0, replica.process.pid)
    if strangers:
        pids = ", ".join(map(str, strangers))
        what = f"another server (process {pids}) listens on the same port: {replica.url}"
        raise _failed("port", what, replica, "end it, or start again: another port is taken")


def missing_program(command: Sequence[str], environment: Mapping[str, str | None]) -> str | None:
    """The program of a launch command when it is not on this machine, else None."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    return command[0] if found is None else None


def _servers(configuration: Configuration) -> Iterator[tuple[Configuration, int]]:
    """Each server's configuration, and the first of its GPUs among those that are used."""
    first = 0
    for part in configuration.parts:
        replicas = part.knobs.data_parallel_size or 1
        for _ in range(replicas):
            yield part, first
            first += part.knobs.gpus // replicas


def _by_pool(configuration: Configuration, replicas: Sequence[Replica]) -> list[list[Replica]]:
    """The replicas of each pool; all of them where there are none."""
    left, found = list(replicas), []
    for part in configuration.parts:
        count = part.knobs.data_parallel_size or 1
        found.append(left[:count])
        left = left[count:]
    return found


def spawn(
    dialect: Dialect,
    configuration: Configuration,
    launch: ServerLaunch,
    first_gpu: int = 0,
    *,
    gpus_used: int | None = None,
    at: tuple[str, int] | None = None,
) -> Replica:
    """Start one replica; it is not ready yet.

    Its first GPU is the `first_gpu`-th of the launch's, or of the `gpus_used` (None: the
    layout's). `at`: where it listens; None: a free port of the loopback (of every address on
    another host without a tunnel). Raises RunFailed when its program is not there, BadInput for too
    few GPUs.
    """
    given = configuration.launch or Launch()
    port = free_port() if at is None else at[1]
    program = launch.command or dialect.command()
    model = model_words(configuration.model, given)
    words = [part.replace("{model}", model) for part in program]
    host = EVERY_ADDRESS if given.host is not None and not given.tunnel else HOST
    host = host if at is None else at[0]
    words += [*dialect.arguments(configuration, port, host), *launch.arguments]
    needed = program_needed(given, program)
    if missing_program([needed], launch.environment) is not None:
        fix = dialect.install if needed == program[0] else f"install {needed} here"
        raise RunFailed(f"there is no program {needed!r}", where=f"engine {dialect.name}", fix=fix)
    environment = {**dialect.environment, **launch.environment}
    gpus = None
    if configuration.gpu is not None:
        used = configuration.layout_gpus if gpus_used is None else gpus_used
        gpus = _devices(configuration, launch, first_gpu, used)
    near_port = free_port() if given.host is not None and given.tunnel else None
    line = command_line(words, environment, given, port, gpus=gpus, near_port=near_port)
    process = EngineProcess(
        line.command, _log(launch, port), line.environment, cleanup=line.cleanup,
        holds_input=line.holds_input,
    )  # fmt: skip
    return Replica(process, line.url, ours=line.ours)


def _spawn_router(router: Router, urls: Sequence[str], launch: ServerLaunch) -> Replica:
    if missing_program(router.command, {}) is not None:
        what = f"there is no program {router.command[0]!r}"
        raise RunFailed(what, where="launch.router", fix=ROUTER_INSTALL)
    port = free_port()
    words = router_words(router, port, free_port(), urls)
    return Replica(EngineProcess(words, _log(launch, port)), f"http://{HOST}:{port}")


def _log(launch: ServerLaunch, port: int) -> Path:
    return launch.log_folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{port}.log"


def _devices(
    configuration: Configuration, launch: ServerLaunch, first: int, used: int
) -> list[str]:
    """The GPUs of one replica, from the `first` of those that are `used` on."""
    knobs = configuration.knobs
    per_replica = (knobs.tensor_parallel_size or 1) * (knobs.pipeline_parallel_size or 1)
    far = configuration.launch is not None and configuration.launch.host is not None
    listed = None if far else os.environ.get("CUDA_VISIBLE_DEVICES")
    names: list[str] = (
        [str(g) for g in launch.gpus]
        if launch.gpus is not None
        else listed.split(",")
        if listed
        else [str(g) for g in range(used)]
    )
    mine = names[first : first + per_replica]
    if len(mine) < per_replica:
        raise BadInput(
            f"the configuration needs {used} GPUs, {len(names)} are to be used",
            where="hardware",
            fix="lower data_parallel_size or tensor_parallel_size",
        )
    return mine


def _gpus(configuration: Configuration) -> tuple[GpuSampler, range] | None:
    """The sampler and the GPUs used (places in the list of visible ones); None without a driver."""
    far = configuration.launch is not None and configuration.launch.host is not None
    if configuration.gpu is None or far:
        return None
    sampler = open_nvml()
    return None if sampler is None else (sampler, range(configuration.layout_gpus))
