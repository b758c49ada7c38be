"""The engine of a name: a top-level function, so that worker processes can be given it."""

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.engines.base import Engine
from ridgeline.workload.study import ENGINES


def engine_named(name: str) -> Engine:
    """The engine that serves configurations of this name; raises BadInput for one that is not
    built in.
    """
    if name == "twin":
        from ridgeline.engines.twin import TwinEngine  # noqa: PLC0415  only what is asked for

        return TwinEngine()
    if name == "endpoint":
        from ridgeline.engines.endpoint import EndpointEngine  # noqa: PLC0415

        return EndpointEngine()
    if name == "vllm":
        from ridgeline.engines.vllm import VllmEngine  # noqa: PLC0415

        return VllmEngine()
    if name in ENGINES:
        raise BadInput(
            f"Ridgeline cannot start {name} by itself yet",
            fix="start it and measure it with `ridgeline bench URL`",
        )
    raise BadInput(f"unknown engine {name!r}{nearest(name, ENGINES)}")
