"""What `ridgeline watch` shows: a table where somebody looks, else a line for what has changed."""

from typing import TYPE_CHECKING, Any

from ridgeline.domain.numerals import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from ridgeline.diagnosis.finding import Finding
    from ridgeline.diagnosis.live import Now

MANY = 24  # replicas, from which on the view shows only the worst of them


def line(row: "Now") -> str:
    """One replica in one line: what is found, and its throughput."""
    return f"{row.name}: {_says(row)} | {_tokens(row)} output tokens/s"


def first_said(row: "Now") -> str:
    """What of the line is worth another one when it changes: not the numbers in it."""
    if not row.up:
        return f"no answer ({(row.trouble or '').rstrip('0123456789 s')})"
    firm = [f.id for f in row.findings if f.kind != "note"]
    moved = [f"drift {_answered(f)}" for f in row.findings if f.id == "drift" and f.tries]
    return " ".join((*firm[:1], *moved))


def _answered(finding: "Finding") -> str:
    """Whether the twin's answer is there, and what it is: a line more when it comes."""
    (change,) = finding.tries
    if not change.gain:
        return "not known"
    return "pays" if any(g.better for g in change.gain) else "not yet"


def _says(row: "Now") -> str:
    if not row.up:
        return f"no answer for {row.silent_s:.0f} s ({row.trouble})"
    firm = [f for f in row.findings if f.kind != "note"]
    # drift is a note, and what was asked for with --winner
    moved = [f for f in row.findings if f.id == "drift" and f.tries]
    return "; ".join(f.title for f in (*firm[:1], *moved)) or "no finding"


def _tokens(row: "Now") -> str:
    return "-" if row.output_tokens_per_s is None else f"{counted(row.output_tokens_per_s)}"


def table(rows: "list[Now]") -> "Table":
    """All replicas, or the worst MANY of them. Columns without any figure are left out.

    SM and util: the hardware's share of active SMs, and what nvidia-smi calls utilisation (that a
    kernel ran). MBU, MFU: by the roofline, not measured.
    """
    from rich.table import Table  # noqa: PLC0415

    shown = rows if len(rows) <= MANY else sorted(rows, key=_badness)[:MANY]
    columns = {name: [of(row) for row in shown] for name, of in _COLUMNS.items()}
    kept = {n: c for n, c in columns.items() if n not in _OPTIONAL or any(v != "-" for v in c)}
    found = Table(title=f"{sum(r.up for r in rows)} of {len(rows)} replicas answer", expand=True)
    for name in kept:
        found.add_column(name, overflow="ellipsis", no_wrap=name != "finding")
    for cells in zip(*kept.values(), strict=True):
        found.add_row(*cells)
    return found


def _usd(row: "Now") -> str:
    cost = row.usd_per_million_output_tokens
    return "-" if cost is None else f"{cost:.3g}"


def _share(row: "Now", name: str) -> str:
    """A share of the evidence: of the KV cache, of prompts, of the GPUs."""
    e = row.evidence
    if e is None:
        return "-"
    if name == "kv_use":
        return _percent(None if e.kv_use is None else e.kv_use.last)
    return _percent(e.hit_rate if name == "hit_rate" else e.gpu_mean(name))


_COLUMNS: "dict[str, Callable[[Now], str]]" = {
    "replica": lambda r: r.name.removeprefix("http://"),
    "tok/s": _tokens,
    "run": lambda r: _of(r.evidence, "running"),
    "wait": lambda r: _of(r.evidence, "waiting"),
    "KV": lambda r: _share(r, "kv_use"),
    "hit": lambda r: _share(r, "hit_rate"),
    "TTFT p95": lambda r: _seconds(r.ttft_s.get("p95")),
    "ITL p95": lambda r: _seconds(r.itl_s.get("p95")),
    "MBU": lambda r: _percent(r.mbu),
    "MFU": lambda r: _percent(r.mfu),
    "bound": lambda r: _percent(r.share_of_bound),
    "util": lambda r: _share(r, "utilisation"),
    "SM": lambda r: _share(r, "sm_active"),
    "$/Mtok": _usd,
    "finding": _says,
}
_OPTIONAL = ("MBU", "MFU", "bound", "util", "SM", "$/Mtok")


def _badness(row: "Now") -> tuple[int, float]:
    kinds = {f.kind for f in row.findings}
    rank = 0 if not row.up or "fault" in kinds else 1 if "limit" in kinds else 2
    return rank, -(row.output_tokens_per_s or 0.0)


def _of(e: Any, name: str) -> str:
    level = None if e is None else getattr(e, name)
    return "-" if level is None else f"{level.last:g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
