"""Several tools' measurements side by side: in Ridgeline's definitions, and as each prints them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.domain.metrics import output_tokens, take_sample
from ridgeline.domain.percentile import inverted_cdf, too_small
from ridgeline.domain.records import Floats
from ridgeline.report import numbers
from ridgeline.report.foreign import Printed, ToolResult
from ridgeline.store.run_directory import StoredRun

if TYPE_CHECKING:
    from rich.console import Group

DEFINITIONS = (
    ("TTFT", "ttft_s", "first chunk with content - sending"),
    ("ITL", "itl_s", "gaps between chunks, pooled over all requests"),
    ("TPOT", "tpot_s", "(last - first) / (output tokens - 1), one value a request"),
    ("E2E", "e2e_s", "last chunk with content - sending"),
)
SAME = "″"  # as in the line above
TOTAL_OVER_TOKENS = "E2E / n, which contains TTFT (GuideLLM's time_per_output_token)"
NOT_THERE = "not in the file"
CAVEAT = (
    "The time zero and the first chunk remain each tool's own; throughput is over each tool's own "
    "time, because a file rarely says when the load was steady."
)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The page's content: one column a measurement, then what each tool prints."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    printed: tuple[tuple[str, str, str, str], ...]
    notes: tuple[str, ...]


def of_run(run: StoredRun) -> ToolResult:
    """A run of Ridgeline as one of the measurements. Raises StoreError without its tables."""
    assert run.facts is not None
    assert run.summary is not None
    records = run.records()
    sample = take_sample(records, run.facts.window)
    samples = {name: sample.successes(name) for _, name, _ in DEFINITIONS}
    rows = sample.rows[sample.ok]
    tokens = output_tokens(records)[0][rows]
    e2e = sample.values["e2e_s"][sample.ok]
    samples["e2e_over_n_s"] = (e2e / tokens)[tokens > 0]
    summary, arrivals = run.summary, run.meta.workload.arrivals
    load = (
        f"{arrivals.users} users" if arrivals.closed_loop else f"{arrivals.rate_per_s:g} requests/s"
    )
    void = () if summary.verdict.valid else (f"void: {'; '.join(summary.verdict.reasons)}",)
    return ToolResult(
        tool="Ridgeline",
        version=run.meta.versions.get("ridgeline"),
        source=run.meta.run_id,
        model=run.meta.configuration.model,
        load=load,
        ok=summary.requests.ok,
        failed=summary.requests.failed,
        seconds=summary.window_s,
        tokens_per_s=summary.throughput.output_tokens_per_s,
        requests_per_s=summary.throughput.requests_per_s,
        samples=samples,
        printed=(
            Printed("throughput.output_tokens_per_s", summary.throughput.output_tokens_per_s,
                    "tokens/s", "inside the window, in the steady state"),
        ),
        notes=void,
    )  # fmt: skip


def side_by_side(results: Sequence[ToolResult]) -> SideBySide:
    """The tables of several measurements, in the order given."""
    rows: list[tuple[str, ...]] = [
        ("model", *(r.model or NOT_THERE for r in results)),
        ("load", *(r.load or NOT_THERE for r in results)),
        ("requests: ok, failed", *(f"{r.ok}, {r.failed}" for r in results)),
    ]
    for label, name, _ in DEFINITIONS:
        rows.append((f"{label} mean", *(_mean(r, name) for r in results)))
        for percent in (50, 95, 99):
            rows.append((f"{label} p{percent}", *(_percentile(r, name, percent) for r in results)))
        if label == "ITL":
            rows.append(("ITL largest", *(_largest(r) for r in results)))
    rows.append(("E2E / n mean", *(_e2e_over_n(r) for r in results)))
    rows.append(("output tokens/s", *(numbers.number(r.tokens_per_s) for r in results)))
    rows.append(("requests/s", *(numbers.number(r.requests_per_s) for r in results)))
    printed = tuple(
        (f"{_title(r)}", p.name, _printed(p), p.definition) for r in results for p in r.printed
    )
    notes = tuple(f"{_title(r)}: {note}" for r in results for note in r.notes)
    return SideBySide(tuple(_title(r) for r in results), tuple(rows), printed, notes)


def _title(result: ToolResult) -> str:
    version = f" {result.version}" if result.version else ""
    return f"{result.tool}{version} ({result.source})"


def _sample(result: ToolResult, name: str) -> Floats | str:
    values = result.samples.get(name)
    if values is None or not len(values):
        return result.why_not.get(name, NOT_THERE)
    return values


def _mean(result: ToolResult, name: str) -> str:
    values = _sample(result, name)
    return values if isinstance(values, str) else numbers.duration(float(values.mean()))


def _percentile(result: ToolResult, name: str, percent: int) -> str:
    values = _sample(result, name)
    if isinstance(values, str):
        return values
    # what carries a percentile of the gaps is requests: those of one reply go together
    n = min(len(values), result.ok) if name == "itl_s" else len(values)
    if too_small(percent, n) is not None:
        return f"n too small ({n})"
    return numbers.duration(inverted_cdf(values, (percent,))[0])


def _largest(result: ToolResult) -> str:
    values = _sample(result, "itl_s")
    return values if isinstance(values, str) else numbers.duration(float(values.max()))


def _e2e_over_n(result: ToolResult) -> str:
    """From the requests where they are known, else as the tool prints it."""
    values = result.samples.get("e2e_over_n_s")
    if values is not None and len(values):
        return numbers.duration(float(np.mean(values)))
    own = next((p for p in result.printed if p.name == "time_per_output_token_ms mean"), None)
    return NOT_THERE if own is None or own.value is None else numbers.duration(own.value / 1e3)


def printed_lines(found: SideBySide) -> tuple[tuple[str, ...], ...]:
    """The second table, where what one line shares with the line above is told by a mark."""
    lines: list[tuple[str, ...]] = []
    above = ("", "", "", "")
    for line in found.printed:
        tool, name, value, about = line
        lines.append((tool, name, value, SAME if about == above[3] else about))
        above = line
    return tuple(lines)


def _printed(figure: Printed) -> str:
    return "–" if figure.value is None else f"{numbers.significant(figure.value)} {figure.unit}"


def definitions() -> tuple[tuple[str, str], ...]:
    """What the rows of the first table mean."""
    return (*((label, about) for label, _, about in DEFINITIONS), ("E2E / n", TOTAL_OVER_TOKENS))


def console(found: SideBySide) -> "Group":
    """Both tables for the terminal."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    ours = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False,
                 title="In Ridgeline's definitions", title_justify="left")  # fmt: skip
    for title in ("", *found.titles):
        ours.add_column(title, overflow="fold", justify="right" if title else "left")
    for row in found.rows:
        ours.add_row(*row)
    theirs = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False,
                   title="As each tool prints it", title_justify="left")  # fmt: skip
    for title in ("tool", "figure", "value", "its definition"):
        theirs.add_column(title, overflow="fold", justify="right" if title == "value" else "left")
    for line in printed_lines(found):
        theirs.add_row(*line)
    about = [Text(f"{label}: {words}", style="dim") for label, words in definitions()]
    notes = [Text(f"note: {note}", style="yellow") for note in found.notes]
    return Group(ours, *about, Text(CAVEAT, style="dim"), *notes, Text(""), theirs)


def markdown(found: SideBySide) -> str:
    """Both tables as Markdown."""

    def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        cells = [head, ["---"] * len(head), *rows]
        return "\n".join(
            "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in row) + " |"
            for row in cells
        )

    parts = [
        "# Side by side",
        "## In Ridgeline's definitions",
        table(("", *found.titles), found.rows),
        "\n".join(f"- {label}: {about}" for label, about in definitions()),
        CAVEAT,
        "## As each tool prints it",
        table(("tool", "figure", "value", "its definition"), printed_lines(found)),
    ]
    if found.notes:
        parts.append("\n".join(f"- {note}" for note in found.notes))
    return "\n\n".join(parts) + "\n"


def html(found: SideBySide) -> str:
    """Both tables as one page without scripts; every text is escaped."""
    from ridgeline.report.html import fill  # noqa: PLC0415 - heavy

    return fill(
        "sidebyside.html.j2", found=found, printed=printed_lines(found), definitions=definitions(),
        caveat=CAVEAT,
    )  # fmt: skip


def write(found: SideBySide, *, page: Path | None, text: Path | None) -> None:
    """Write the page and the Markdown where they are asked for; raises OSError."""
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(html(found), encoding="utf-8")
    if text is not None:
        text.write_text(markdown(found), encoding="utf-8")
