"""A Prometheus as the source of `ridgeline doctor` and `ridgeline watch`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.cli.output import say
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.diagnosis.evidence import Evidence, Known
    from ridgeline.diagnosis.stored import PrometheusServer, Stored


LOOPBACK = ("127.0.0.1", "::1", "localhost")


def source(
    url: str, match: str | None, gpu_match: str | None, token_file: Path | None,
    user_file: Path | None,
) -> "PrometheusServer":  # fmt: skip
    """The server of --prometheus. Raises BadInput."""
    from ridgeline.diagnosis.stored import PrometheusServer  # noqa: PLC0415
    from ridgeline.diagnosis.storedauth import credentials  # noqa: PLC0415
    from ridgeline.load.address import parse_address  # noqa: PLC0415

    address, found = parse_address(url), credentials(token_file, user_file)
    if found and address.scheme == "http" and address.host not in LOOPBACK:
        say(f"{address.url}: what it is told for authentication can be read on the way; use https")
    return PrometheusServer(address, found, match, gpu_match)


def evidence_of(
    server: "PrometheusServer", seconds: float | None, known: "Known", save: Path | None
) -> "tuple[Evidence, list[str]]":
    """What Prometheus has of the last `seconds` (LOOK_BACK_S), and the names of the targets."""
    from ridgeline.diagnosis.gathering import gather  # noqa: PLC0415
    from ridgeline.diagnosis.stored import LOOK_BACK_S, together  # noqa: PLC0415
    from ridgeline.diagnosis.targets import models_of  # noqa: PLC0415

    back = seconds or LOOK_BACK_S
    seen = server.look(back)
    for words in seen.said:
        say(f"{server.address.url}: {words}")
    one_model(list(models_of(seen.targets)), server.address.url)
    page = seen.gpu_page()
    gpus = [] if page is None else [page]
    evidence = replace(
        gather(together(seen.targets), known, gpus, stored=True), gpu_page=bool(gpus)
    )
    if not evidence.rates_known:
        say(f"{server.address.url}: {evidence.scrapes} reading in the last {back:g} s, and rates"
            " need two: look further back with --seconds")  # fmt: skip
    if seen.elsewhere:
        say(f"{server.address.url}: GPU counters of {', '.join(seen.elsewhere[:4])}, none of which"
            " is an engine's host; choose the engines' GPUs with --gpu-match")  # fmt: skip
    if save is not None:
        _keep(seen, save)
    return evidence, [target.name for target in seen.targets]


def one_model(served: "Sequence[tuple[str, list[str]]]", where: str, *, urls: bool = False) -> None:
    """Raises BadInput where servers of several models would be taken for replicas of one."""
    if len(served) < 2 or len({tuple(names) for _, names in served}) == 1:
        return  # one server with several names for what it serves
    words = "; ".join(f"{model} ({', '.join(names[:3])})" for model, names in served)
    fix = "give the URLs of one model at a time"
    if not urls:
        own = [m for m, _ in served]
        fix = "choose one: " + " or ".join(f"--match '{{model_name=\"{m}\"}}'" for m in own[:4])
    raise BadInput(f"has servers of {len(served)} models, and each has limits of its own: {words}",
                   where=where, fix=fix)  # fmt: skip


def _keep(seen: "Stored", folder: Path) -> None:
    """The pages of each target in a folder of its own, as `--from` reads them."""
    from ridgeline.diagnosis.saved import stamped  # noqa: PLC0415
    from ridgeline.diagnosis.stored import as_text  # noqa: PLC0415

    count = 0
    for place, target in enumerate(seen.targets):
        own = folder if len(seen.targets) == 1 else folder / f"replica-{place:03d}"
        own.mkdir(parents=True, exist_ok=True)
        for number, (at, page) in enumerate(target.pages):
            (own / f"metrics-{number:03d}.txt").write_text(stamped(as_text(page), at), "utf-8")
            count += 1
    say(f"kept: {count} pages in {folder} (secrets in labels masked)")
