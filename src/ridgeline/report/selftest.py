"""What the load client can do on its host, in words and as a table."""

from typing import Any

from rich.table import Table

from ridgeline.domain.calibration import ClientCalibration, ClientLevel
from ridgeline.domain.summary import jsonable
from ridgeline.report import numbers

KINDS = ("requests", "chunks")
LEGEND = (
    "times: true: right to 1 ms at p99 and sent in time. late: not, with its core full: the"
    " client's own limit. busy: not, with time left: something else held its core."
)


def calibration_words(able: ClientCalibration) -> str:
    """One line: up to which rates time stamps were true, how true, and what it costs."""
    begin = f"{able.streams} streams, {able.workers} worker{'' if able.workers == 1 else 's'}"
    begin += f", {able.seconds:.1f} s"
    if able.problem is not None:
        return f"{begin}: not done: {able.problem}"
    return "; ".join([begin, *(_kind_words(able, kind) for kind in KINDS)])


def _kind_words(able: ClientCalibration, kind: str) -> str:
    most, best = able.most_per_s(kind), able.best(kind)
    if most is None:
        return f"{kind}/s not tried"
    if best is None:
        return f"no rate of {kind} was timed right"
    limit = "" if able.bounded(kind) else f" at least ({_unbounded(able, kind)})"
    cost = able.cost_s(kind)
    text = f"{numbers.grouped(f'{most:.0f}')} {kind}/s timed right{limit}, stamp errors at p99"
    text += f" TTFT {_ms(best.ttft_error_p99_s)}"
    if kind == "chunks":
        text += f" and ITL {_ms(best.itl_error_p99_s)}"
    return text + ("" if cost is None else f", {cost * 1e6:.0f} µs of CPU each")


def _unbounded(able: ClientCalibration, kind: str) -> str:
    """Why it is not known whether the client can do more."""
    levels = [level for level in able.levels if level.kind == kind]
    if any(level.disturbed for level in levels):
        return "above that something else on this machine held its core: free one to know more"
    if any(level.server_was_the_limit for level in levels):
        return "the null server sent no more"
    return "no higher rate was tried"


def level_words(level: ClientLevel) -> str:
    """One level as a line of progress."""
    verdict = "true" if level.true else "late, its core full"
    if level.disturbed:
        verdict = "late, as the machine was busy"
    if level.server_was_the_limit:
        verdict += ", the null server was the limit"
    return (
        f"{level.kind}: {numbers.grouped(f'{level.rate_per_s:.0f}')}/s of"
        f" {numbers.grouped(f'{level.asked_per_s:.0f}')}: {verdict}"
    )


def calibration_table(able: ClientCalibration) -> Table:
    """All levels that were tried."""
    titles = (
        "load",
        "req/s",
        "chunks/s",
        "TTFT err",
        "ITL err",
        "sent late",
        "lag",
        "CPU",
        "times",
    )
    table = Table(
        title="p50 and p99 of errors and of lateness, p99 of the loop's lag, in ms",
        box=None, pad_edge=False, padding=(0, 1), title_justify="left", caption=LEGEND,
        caption_justify="left",
    )  # fmt: skip
    for title in titles:
        left = title in ("load", "times")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for level in able.levels:
        table.add_row(
            level.kind,
            numbers.grouped(f"{level.requests_per_s:.0f}"),
            numbers.grouped(f"{level.chunks_per_s:.0f}"),
            _pair(level.ttft_error_p50_s, level.ttft_error_p99_s),
            _pair(level.itl_error_p50_s, level.itl_error_p99_s),
            _pair(level.send_lateness_p50_s, level.send_lateness_p99_s),
            _bare(level.loop_lag_p99_s),
            "-" if level.cpu_share is None else f"{level.cpu_share:.0%}",
            "true" if level.true else "busy" if level.disturbed else "late",
        )
    return table


def calibration_json(able: ClientCalibration) -> dict[str, Any]:
    """The form of `bench --calibrate --json`."""
    body: dict[str, Any] = jsonable(able)
    for level, plain in zip(able.levels, body["levels"], strict=True):
        plain["true"] = level.true
    for kind in KINDS:
        body[f"{kind}_per_s"] = able.most_per_s(kind)
        body[f"{kind}_limit_is_the_client"] = able.bounded(kind)
        body[f"cpu_s_per_{kind.removesuffix('s')}"] = able.cost_s(kind)
    return body


def _pair(first: float | None, second: float | None) -> str:
    return "-" if first is None else f"{_bare(first)} {_bare(second)}"


def _bare(seconds: float | None) -> str:
    """Milliseconds in at most four characters, where they are below ten seconds."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f} ms"
