"""vLLM as an engine: `vllm serve` with the knobs of a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.engines.knob_check import check_against_engine
from ridgeline.engines.launching import HOST
from ridgeline.engines.started import ServerEngine, ServerLaunch
from ridgeline.engines.vllm_args import serve_arguments
from ridgeline.engines.vllm_log import read_start_up


class VllmDialect:
    """See Dialect."""

    name = "vllm"
    install = "install vLLM here, or name the command that starts it (launch.command)"
    environment: Mapping[str, str] = MappingProxyType({"VLLM_NO_USAGE_STATS": "1"})

    def command(self) -> tuple[str, ...]:
        """`vllm serve MODEL`."""
        return ("vllm", "serve", "{model}")

    def arguments(self, configuration: Configuration, port: int, host: str = HOST) -> list[str]:
        """Knobs by their own names; one replica, served under the model's name."""
        address = ["--host", host, "--port", str(port)]
        name = ["--served-model-name", configuration.model]
        return [*serve_arguments(configuration.knobs), *address, *name]

    def check(self, configuration: Configuration, command: Sequence[str]) -> str | None:
        """By vLLM's own argument parser, asked once for each installation."""
        return check_against_engine(configuration, command)

    def read_start(self, log: str) -> dict[str, Any]:
        """Resolved numbers and phases of the start."""
        return {k: v for k, v in asdict(read_start_up(log)).items() if v is not None}


class VllmEngine(ServerEngine):
    """Starts `vllm serve` for a configuration; see the Engine port."""

    def __init__(self, launch: ServerLaunch | None = None) -> None:
        super().__init__(VllmDialect(), launch)
