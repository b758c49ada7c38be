"""`ridgeline report` of what `ridgeline watch --record` kept: each replica over the whole time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ridgeline.diagnosis.recorded import Recorded, damaged, gone, summaries, twins
from ridgeline.domain.numerals import counted

GAP = 2  # terminal columns between two
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "output_tokens_per_s": ("tok/s", counted),
    "running": ("run", lambda v: f"{v:.3g}"),
    "waiting": ("wait", lambda v: f"{v:.3g}"),
    "kv_use": ("KV", lambda v: f"{v:.0%}"),
    "ttft_p95_s": ("TTFT p95", lambda v: f"{v * 1e3:.4g} ms"),
    "itl_p95_s": ("ITL p95", lambda v: f"{v * 1e3:.4g} ms"),
    "mbu": ("MBU", lambda v: f"{v:.0%}"),
    "mfu": ("MFU", lambda v: f"{v:.0%}"),
    "utilisation": ("util", lambda v: f"{v:.0%}"),
    "sm_active": ("SM", lambda v: f"{v:.0%}"),
    "gpus": ("GPUs", lambda v: f"{v:g}"),
    "usd_per_million_output_tokens": ("$/Mtok", lambda v: f"{v:.3g}"),
}


def watched_console(folder: Path) -> RenderableType:
    """The figures of the replicas, and what was found of each. Raises StoreError."""
    rows = summaries(folder)
    title = Text(f"{folder}: {len(rows)} replica{'' if len(rows) == 1 else 's'}, recorded over"
                 f" {_longest(rows):.0f} s")  # fmt: skip
    note = ("Means over the looks (of a p95: of the p95 of half a minute each). All readings:"
            " telemetry.parquet; the pages: `ridgeline doctor --from` the folder.")  # fmt: skip
    if twins(folder):
        note = f"TWIN: {TWIN_WORDS}. {note}"
    lost = filter(None, (gone_words(folder), lost_words(damaged(folder))))
    return Group(title, _Figures(rows), *map(Text, lost), Text(note, "dim"))


class _Figures:
    """A table as wide as the terminal: what has no room goes on below, and names that would take
    more than a third of the width are numbers, told below it. Nothing is cut and no figure wraps.
    """

    def __init__(self, rows: Sequence[Recorded]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        names = [row.name.removeprefix("http://").removeprefix("https://") for row in self._rows]
        told = max(map(len, names), default=0) <= width // 3
        labels = names if told else [str(n) for n, _ in enumerate(names, 1)]
        yield from _blocks([("replica" if told else "", *labels), *_columns(self._rows)], width)
        for label, row in zip(labels, self._rows, strict=True):
            said = label if told else f"{label}: {row.name}"
            yield Text(f"{said}: {findings_words(row)}")


def _columns(rows: Sequence[Recorded]) -> list[tuple[str, ...]]:
    """Of each figure that some replica has: its head, and a cell a replica."""
    shown = [m for m in FIGURES if any(m in row.means for row in rows)]
    return [("answered", *(f"{row.up} of {row.looks}" for row in rows))] + [
        (FIGURES[m][0], *(FIGURES[m][1](row.means[m]) if m in row.means else "-" for row in rows))
        for m in shown
    ]


def _blocks(columns: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """Tables of as many columns as `width` holds, each of them with the first one."""
    first, *rest = columns
    while rest:
        taken, room = 0, width - _wide(first)
        while taken < len(rest) and (_wide(rest[taken]) <= room or not taken):
            room -= _wide(rest[taken])
            taken += 1
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        for name, *_ in (first, *rest[:taken]):
            table.add_column(name, no_wrap=True, justify="left" if name == first[0] else "right")
        for cells in zip(*((c[1:]) for c in (first, *rest[:taken])), strict=True):
            table.add_row(*cells)
        yield table
        rest = rest[taken:]


def _wide(column: Sequence[str]) -> int:
    """Terminal columns that one takes, with the gap behind it."""
    return max(map(cell_len, column)) + GAP


TWIN_WORDS = "read from pages of a digital twin (`ridgeline twin`), no real engine's"


def gone_words(folder: Path) -> str:
    """What is said of what a bound took; "" of nothing. Raises StoreError."""
    what, seconds = gone(folder)
    parts = []
    if seconds:
        parts.append(f"the first {_time(seconds)} of the figures ({what.lines:,} lines)")
    if what.pages:
        parts.append(f"the {what.pages:,} oldest pages")
    if not parts:
        return ""
    return f"Dropped to hold the recording within {what.limit}: {' and '.join(parts)}."


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def lost_words(lines: int) -> str:
    """What is said of lines that cannot be read."""
    return f"{lines} damaged lines of figures.jsonl are left out" if lines else ""


def findings_words(row: Recorded) -> str:
    """What came first, and in how many of the looks."""
    told = ", ".join(f"{name} {share:.0%}" for name, share in row.first_findings.items())
    return told or "never answered"


def _longest(rows: Sequence[Recorded]) -> float:
    return max((row.seconds for row in rows), default=0.0)
