"""Options that say where a running server's figures come from: of `doctor` and of `watch`."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.domain.errors import BadInput

Prometheus = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A Prometheus that scrapes the engines, instead of URLs."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--prometheus-token-file",
        metavar="FILE",
        help="Its bearer token [$RIDGELINE_PROMETHEUS_TOKEN].",
    ),
]
UserFile = Annotated[
    Path | None,
    typer.Option(
        "--prometheus-user-file", metavar="FILE", help="USER:PASSWORD, where it wants those."
    ),
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
Model = Annotated[
    str | None, typer.Option(metavar="M", help="The model served, where no study says it.")
]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="The GPU, where no study says it.")]


def check_prometheus_options(
    prometheus: str | None, selector: str | None, credentials: Path | None
) -> None:
    """Raises BadInput for options of a Prometheus without one."""
    if selector and not prometheus:
        raise BadInput("needs --prometheus URL", where="--match and --gpu-match")
    if credentials and not prometheus:
        raise BadInput(
            "needs --prometheus URL", where="--prometheus-token-file and --prometheus-user-file"
        )


def check_urls(urls: list[str] | None) -> None:
    """Raises BadInput for a file where a URL belongs: a second one behind --log, mostly."""
    for url in urls or []:
        if "://" not in url and Path(url).is_file():
            raise BadInput("is a file, and the URL of a server belongs here", where=url,
                           fix="--log and --from take one file each: repeat them")  # fmt: skip
