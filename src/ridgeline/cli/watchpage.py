"""What `ridgeline watch` shows: a table where somebody looks, else a line for what has changed."""

from typing import TYPE_CHECKING, Any

from ridgeline.domain.numerals import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Group
    from rich.table import Table

    from ridgeline.diagnosis.finding import Finding
    from ridgeline.diagnosis.live import Now, Price

MANY = 24  # replicas, from which on the view shows only the worst of them
GAP = 2  # columns between two


def line(row: "Now") -> str:
    """One replica in one line: what is found, and its throughput."""
    twin = "TWIN " if row.evidence is not None and row.evidence.twin else ""
    return f"{twin}{row.name}: {_says(row)} | {_tokens(row)} output tokens/s"


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


def view(rows: "list[Now]", width: int, price: "Price | None" = None) -> "Group":
    """All replicas, or the worst MANY of them: a table of their figures, what is found of each on
    lines of its own, and what the figures rest on.

    Columns without any figure are left out, and of the others the less important ones where `width`
    columns do not hold them. SM and util: the hardware's share of active SMs, and what nvidia-smi
    calls utilisation (that a kernel ran). MBU, MFU: by the roofline, not measured.
    """
    from rich.console import Group  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = rows if len(rows) <= MANY else sorted(rows, key=_badness)[:MANY]
    names = _names(shown, width)
    found: list[Any] = [_table(shown, names, width, f"{sum(r.up for r in rows)} of {len(rows)}"
                                                    " replicas answer")]  # fmt: skip
    for row, name in zip(shown, names, strict=True):
        found.append(Text.assemble((name, "bold"), f"  {_says(row)}"))
    found += [Text(words) for words in _sums(rows)]
    found += [Padding(Text(words, "dim"), (0, 0)) for words in _rests_on(shown, price)]
    return Group(*found)


def _sums(rows: "list[Now]") -> "Iterable[str]":
    """Of each model its replicas together, where there are several models."""
    by: dict[str, list[Now]] = {}
    for row in rows:
        by.setdefault(row.model or "model not told", []).append(row)
    if len(by) < 2:
        return
    for model, own in by.items():
        made = [r.output_tokens_per_s for r in own if r.output_tokens_per_s is not None]
        counts = [f"{total} {word}" for word in ("running", "waiting")
                  if (total := _total(own, word)) is not None]  # fmt: skip
        told = [f"{sum(r.up for r in own)} of {len(own)} answer",
                *([f"{counted(sum(made))} output tokens/s"] if made else []), *counts]  # fmt: skip
        yield f"{model}: {', '.join(told)}"


def _total(rows: "list[Now]", name: str) -> str | None:
    told = [v.last for r in rows if r.evidence and (v := getattr(r.evidence, name)) is not None]
    return f"{sum(told):g}" if told else None


def _rests_on(rows: "list[Now]", price: "Price | None") -> "Iterable[str]":
    twins = sum(r.evidence is not None and r.evidence.twin for r in rows)
    if twins:
        yield (
            f"TWIN: {twins} of {len(rows)} are digital twins (`ridgeline twin`), no real engines"
        )
    if price is not None and price.per_gpu_hour is not None:
        said = dict.fromkeys(price.said(r.evidence) for r in rows if r.evidence is not None)
        wasted = [r.waste_usd_per_hour for r in rows if r.waste_usd_per_hour is not None]
        if said:
            yield f"priced at {price.per_gpu_hour:g} USD per GPU and hour: {'; '.join(said)}"
        if wasted:
            yield f"idle time costs {sum(wasted):.3g} USD an hour"


def _names(rows: "list[Now]", width: int) -> list[str]:
    """Names without the scheme; long ones lose their beginning: the port tells them apart."""
    most = max(12, width // 4)
    bare = [row.name.removeprefix("http://").removeprefix("https://") for row in rows]
    return [name if len(name) <= most else "…" + name[-(most - 1) :] for name in bare]


def _table(rows: "list[Now]", names: list[str], width: int, title: str) -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    columns = {name: [of(row) for row in rows] for name, of in _COLUMNS.items()}
    kept = {n: c for n, c in columns.items() if n not in _OPTIONAL or any(v != "-" for v in c)}
    kept = {"replica": names, **kept}
    for name in _FIRST_TO_GO:
        if sum(max(map(len, (n, *c))) + GAP for n, c in kept.items()) <= width:
            break
        kept.pop(name, None)
    found = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0),
                  pad_edge=False)  # fmt: skip
    for name in kept:
        found.add_column(name, no_wrap=True, justify="left" if name == "replica" else "right")
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
}
_OPTIONAL = ("MBU", "MFU", "bound", "util", "SM", "$/Mtok")
_FIRST_TO_GO = ("hit", "bound", "MFU", "util", "KV", "MBU", "SM", "ITL p95", "$/Mtok", "run")


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
