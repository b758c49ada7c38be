"""`ridgeline report` of what `ridgeline watch --record` kept: each replica over the whole time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.diagnosis.recorded import Recorded, damaged, summaries, twins
from ridgeline.domain.numerals import counted

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
    """A table of the replicas. Raises StoreError."""
    rows = summaries(folder)
    shown = [m for m in FIGURES if any(m in row.means for row in rows)]
    table = Table(title=f"{folder}: {len(rows)} replicas, recorded over {_longest(rows):.0f} s")
    for name in ("replica", "answered", *(FIGURES[m][0] for m in shown)):
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [FIGURES[m][1](row.means[m]) if m in row.means else "-" for m in shown]
        table.add_row(row.name, f"{row.up} of {row.looks}", *cells)
    found = [Text(f"{row.name}: {findings_words(row)}") for row in rows]
    note = ("Means over the looks (of a p95: of the p95 of half a minute each). All readings:"
            " telemetry.parquet; the pages: `ridgeline doctor --from` the folder.")  # fmt: skip
    if twins(folder):
        note = f"TWIN: {TWIN_WORDS}. {note}"
    lost = lost_words(damaged(folder))
    return Group(table, *found, *([Text(lost)] if lost else []), Text(note, "dim"))


TWIN_WORDS = "read from pages of a digital twin (`ridgeline twin`), no real engine's"


def lost_words(lines: int) -> str:
    """What is said of lines that cannot be read."""
    return f"{lines} damaged lines of figures.jsonl are left out" if lines else ""


def findings_words(row: Recorded) -> str:
    """What came first, and in how many of the looks."""
    told = ", ".join(f"{name} {share:.0%}" for name, share in row.first_findings.items())
    return told or "never answered"


def _longest(rows: Sequence[Recorded]) -> float:
    return max((row.seconds for row in rows), default=0.0)
