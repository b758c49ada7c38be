"""Options that say where a running server's figures come from: of `doctor` and of `watch`."""

from pathlib import Path
from typing import Annotated

import typer

Prometheus = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A Prometheus that scrapes the engines, instead of URLs."),
]
Match = Annotated[
    str | None,
    typer.Option(metavar="SELECTOR", help="Its series to take, such as '{job=\"vllm\"}'."),
]
GpuMatch = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR", help="Its dcgm-exporter series [those of the engines' hosts]."
    ),
]
Winner = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="A winner.yaml or a past study: has the traffic left it since?"
    ),
]
