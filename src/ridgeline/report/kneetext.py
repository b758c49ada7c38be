"""Knee and capacity in words: a sentence for each, and the levels as a table."""

from typing import TYPE_CHECKING

from ridgeline.domain.knee import KNEE_SHARE, Estimate, KneeLevel, KneeResult
from ridgeline.domain.percentile import needed
from ridgeline.report import numbers

if TYPE_CHECKING:
    from rich.console import Group

UNITS = {"users": "users", "rate": "requests/s"}
HEAD = (
    "load", "output tokens/s", "done, requests/s", "p95 TTFT", "p95 ITL", "inside the SLO",
    "requests", "",
)  # fmt: skip


def knee_sentence(result: KneeResult) -> str:
    """Where the knee is, or why it is not known."""
    found, unit = result.knee, UNITS[result.load]
    if found.value is None:
        return f"No knee: {found.reason}."
    share = f"{KNEE_SHARE:.0%}".replace("%", " %")
    return (
        f"The knee is at {numbers.number(found.value)} {unit}{_range(found)}: there the throughput"
        f" reaches {share} of its plateau, {numbers.number(result.plateau_tokens_per_s)} output"
        f" tokens/s.{_doubt(found)}"
    )


def capacity_sentence(result: KneeResult) -> str | None:
    """How much load fits the targets, or why it is not known; None when there are none."""
    found, unit = result.capacity, UNITS[result.load]
    if found is None or result.target is None:
        return None
    limits = ", ".join(result.slo)
    if found.value is None:
        return f"No capacity within {limits}: {found.reason}."
    upper = "" if found.high is None else f" (below {numbers.number(found.high)})"
    stable = " and the queue is stable" if result.load == "rate" else ""
    return (
        f"The capacity is {'at least ' if found.reason else ''}{numbers.number(found.value)}"
        f" {unit}{upper}: by its lower bound at least {numbers.percent(result.target)} of the"
        f" requests are inside {limits}{stable}."
        f"{_doubt(found)}"
    )


def _range(found: Estimate) -> str:
    if found.low is None and found.high is None:
        return ""
    if found.low is None:
        return f" (at most {numbers.number(found.high)})"
    return f" ({numbers.number(found.low)} to {numbers.number(found.high)})"


def _doubt(found: Estimate) -> str:
    return f" Note: {found.reason}." if found.reason else ""


def _origin(result: KneeResult) -> str:
    """Where the figures come from: what answered over HTTP may itself be a twin."""
    if not result.measured:
        return "TWIN a prediction of the digital twin"
    if "twin" in (result.engine or ""):
        return f"MEASURED at the client; the server is a digital twin ({result.engine})"
    return "MEASURED by HTTP"


def level_cells(level: KneeLevel) -> tuple[str, ...]:
    """One level as a row under HEAD."""
    return (
        f"{level.load:g}",
        _with(level.tokens_per_s, level.tokens_low, level.tokens_high),
        numbers.number(level.requests_per_s),
        _latency(level, level.ttft_p95_s),
        _latency(level, level.itl_p95_s),
        _share(level),
        str(level.requests),
        "" if level.state == "valid" else level.state,
    )


def _latency(level: KneeLevel, seconds: float | None) -> str:
    if seconds is not None:
        return numbers.duration(seconds)
    # enough of them, and no number: the client read late, as the level's verdict says
    return "n too small" if level.requests < needed(95) else "not resolvable"


def _with(value: float | None, low: float | None, high: float | None) -> str:
    text = numbers.number(value)
    return text if low is None or high is None else f"{text} ({numbers.number_range(low, high)})"


def _share(level: KneeLevel) -> str:
    if level.attained is None:
        return "–"
    text = numbers.percent(level.attained)
    if level.attained_low is None or level.attained_high is None:
        return text
    return f"{text} ({numbers.percent_range(level.attained_low, level.attained_high)})"


def knee_console(result: KneeResult, *, wide: bool = True) -> "Group":
    """The sentences and the table, for the terminal; the intervals of levels only where `wide`."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    inside = result.target is not None
    for name in HEAD:
        if name == "inside the SLO" and not inside:
            continue
        head = UNITS[result.load] if name == "load" else name
        table.add_column(head, justify="left" if not name else "right", no_wrap=wide)
    for level in result.levels:
        cells = list(level_cells(level))
        if not wide:
            cells = [cell.split(" (")[0] for cell in cells]
        if not inside:
            del cells[HEAD.index("inside the SLO")]
        table.add_row(*cells, style=None if level.state == "valid" else "dim")
    parts: list[object] = [Text(f"{_origin(result)}: {result.name}", style="bold")]
    parts.append(Text(knee_sentence(result)))
    capacity = capacity_sentence(result)
    if capacity is not None:
        parts.append(Text(capacity))
    parts += [Text(""), table]
    said = knee_sentence(result)
    parts += [
        Text(f"note: {line}", style="yellow")
        for line in result.notes
        if (line.partition(": ")[2] or line) not in said  # why there is no knee is said once
    ]
    return Group(*parts)  # type: ignore[arg-type]
