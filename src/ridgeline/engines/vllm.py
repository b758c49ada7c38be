"""vLLM as an engine: one process per data-parallel replica, watched from start to end.

The start is over when a real completion came back, not when /health says 200. A start that fails
is known within a second of the process's end, with its class and the engine's own words.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.knobs import Configuration
from ridgeline.engines.base import Endpoint
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.vllm_args import serve_arguments
from ridgeline.engines.vllm_log import classify_failure, read_start_up

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """How to start a server. `command` is one argument a place; "{model}" stands for the model.

    `environment` is added to ours. `ready_s`: how long a start may take until a completion came
    back (a first start compiles for minutes on a slow host).
    """

    command: tuple[str, ...] = ("vllm", "serve", "{model}")
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log_folder: Path = Path("runs/engine-logs")
    ready_s: float = 900.0
    gpus: tuple[int, ...] | None = None  # which GPUs to use, in this order; None = from 0 on


@dataclass(slots=True)
class Replica:
    """One running server: its process, URL and what its start told."""

    process: EngineProcess
    port: int
    start: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Base URL without /v1."""
        return f"http://{HOST}:{self.port}"


def free_port() -> int:
    """A port that nobody listens on, not even with SO_REUSEPORT (vLLM 0.21 sets that)."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class VllmEngine:
    """Starts `vllm serve` for a configuration; see the Engine port."""

    name = "vllm"

    def __init__(self, launch: VllmLaunch | None = None) -> None:
        self._launch = launch or VllmLaunch()

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        """Start all replicas side by side; see Engine.start."""
        replicas: list[Replica] = []
        try:
            for number in range(configuration.knobs.data_parallel_size or 1):
                replicas.append(self._spawn(configuration, number))
            for replica in replicas:
                self._wait_ready(replica, configuration.model)
            from ridgeline.engines.endpoint import HttpEndpoint  # noqa: PLC0415  heavy

            yield HttpEndpoint(
                [r.url for r in replicas],
                model=configuration.model,
                server={"engine": "vllm", "replicas": [r.start for r in replicas]},
            )
        finally:
            for replica in replicas:
                replica.process.stop()

    def _spawn(self, configuration: Configuration, number: int) -> Replica:
        port = free_port()
        command = [part.replace("{model}", configuration.model) for part in self._launch.command]
        command += [*serve_arguments(configuration.knobs), *self._launch.arguments]
        command += ["--host", HOST, "--port", str(port), "--served-model-name", configuration.model]
        if shutil.which(command[0]) is None:
            raise RunFailed(
                f"there is no program {command[0]!r}",
                where="engine vllm",
                fix="install vLLM here, or name the command that starts it",
            )
        log = self._launch.log_folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{port}.log"
        environment = {"VLLM_NO_USAGE_STATS": "1", **self._launch.environment}
        if configuration.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices(configuration, number)
        return Replica(EngineProcess(command, log, environment), port)

    def _devices(self, configuration: Configuration, number: int) -> str:
        knobs = configuration.knobs
        per_replica = (knobs.tensor_parallel_size or 1) * (knobs.pipeline_parallel_size or 1)
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        names: list[str] = (
            [str(g) for g in self._launch.gpus]
            if self._launch.gpus is not None
            else listed.split(",")
            if listed
            else [str(g) for g in range(knobs.gpus)]
        )
        mine = names[number * per_replica : (number + 1) * per_replica]
        if len(mine) < per_replica:
            raise BadInput(
                f"the configuration needs {knobs.gpus} GPUs, {len(names)} are to be used",
                where="hardware",
                fix="lower data_parallel_size or tensor_parallel_size",
            )
        return ",".join(mine)

    def _wait_ready(self, replica: Replica, model: str) -> None:
        """Return once a completion came back; raises RunFailed with class and cause."""
        deadline = replica.process.started_s + self._launch.ready_s
        healthy_s: float | None = None
        while time.monotonic() < deadline:
            code = replica.process.poll()
            if code is not None:
                raise _start_failed(replica, code)
            if healthy_s is None and _get(replica.port, "/health") == 200:
                healthy_s = time.monotonic() - replica.process.started_s
            if healthy_s is not None and _complete(
                replica.port, model, deadline - time.monotonic()
            ):
                log = replica.process.log_text()
                replica.start = {
                    "healthy_s": round(healthy_s, 3),
                    "ready_s": round(time.monotonic() - replica.process.started_s, 3),
                    **{k: v for k, v in asdict(read_start_up(log)).items() if v is not None},
                }
                return
            time.sleep(0.1)
        raise RunFailed(
            f"hung: vLLM gave no completion within {self._launch.ready_s:g} s",
            where=str(replica.process.log),
            fix="see the log, or allow a longer start",
        )


def _start_failed(replica: Replica, code: int) -> RunFailed:
    failure = classify_failure(replica.process.log_text(), code)
    return RunFailed(
        f"{failure.kind}: vLLM ended with exit code {code} before it was ready: {failure.line}",
        where=str(replica.process.log),
        fix=failure.advice,
    )


def _get(port: int, path: str) -> int | None:
    """Status of a GET, None when nothing answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _complete(port: int, model: str, limit_s: float) -> bool:
    """True when one real token came back: a hung engine answers /health too."""
    body = json.dumps({"model": model, "prompt": "ready?", "max_tokens": 1})
    connection = http.client.HTTPConnection(HOST, port, timeout=max(limit_s, 0.1))
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
