"""Figures of traffic classes and load steps as plain tables: page and console print these cells."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.domain.run import STALLED
from ridgeline.domain.summary import PartFigures, Percentiles, SloResult, Summary
from ridgeline.report import numbers
from ridgeline.report.model import StudyReport

_HEAD = ("requests", "p50 TTFT", "p95 TTFT", "p50 ITL", "p95 ITL", "output tokens/s", "failed")


@dataclass(frozen=True, slots=True)
class PartTable:
    """One table: its title, the heads of its columns and its rows, all in words."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def part_tables(report: StudyReport) -> list[PartTable]:
    """Tables of the classes and of the load steps, where the report's runs have some."""
    several = len(report.rows) > 1
    known = [(row.name if several else "", row.summary) for row in report.rows if row.summary]
    classes = [row for name, s in known for row in _class_rows(name, s, report)]
    steps = [row for name, s in known for row in _step_rows(name, s, report)]
    tables = []
    intent = "TTFT from intent. " if report.open_loop else ""
    if classes:
        head: tuple[str, ...] = ("class", *_HEAD, "SLO")
        tables.append(PartTable("Classes of requests", head, tuple(classes), intent.strip()))
    if steps:
        head = ("load", "from", *_HEAD, "steady")
        note = f"{intent}The first fifth of a step, at most 10 s, settles and is left out."
        tables.append(PartTable("Steps of the load", head, tuple(steps), note))
    return tables


def _class_rows(name: str, summary: Summary, report: StudyReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind, part in summary.classes.items():
        limits = [r for r in summary.slo if r.traffic_class == kind]
        met = sum(r.met is True for r in limits)
        judged = f"{_mark(limits)} {met} of {len(limits)}" if limits else "none"
        label = f"{name}: {kind}" if name else kind
        rows.append((label, *_cells(part, open_loop=report.open_loop), judged))
    return rows


def _mark(limits: Sequence[SloResult]) -> str:
    if any(r.met is False for r in limits):
        return "✗"
    return "✓" if all(r.met for r in limits) else "?"


def _step_rows(name: str, summary: Summary, report: StudyReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for step in summary.load_steps:
        label = f"{name}: {step.load}" if name else step.load
        cells = _cells(step.figures, open_loop=report.open_loop)
        rows.append((label, f"{step.from_s:g} s", *cells, _steady(step.notes)))
    return rows


def _steady(notes: Sequence[str]) -> str:
    """In a word or two; the reasons stand among the warnings."""
    if not notes:
        return "yes"
    if any(note.startswith(STALLED) for note in notes):
        return "✗ server stalled"
    return "not told" if all("too short" in note for note in notes) else "no"


def _cells(part: PartFigures, *, open_loop: bool) -> tuple[str, ...]:
    first = part.ttft_intent_s if open_loop else part.ttft_s
    counts = part.requests
    return (
        numbers.grouped(str(counts.sent)),
        *(_duration(first, p) for p in ("p50", "p95")),
        *(_duration(part.itl_s, p) for p in ("p50", "p95")),
        numbers.number(part.throughput.output_tokens_per_s),
        numbers.grouped(str(counts.failed)),
    )


def _duration(found: Percentiles, statistic: str) -> str:
    value = getattr(found, statistic)
    if value is None:
        return "n too small" if found.n else numbers.NOT_MEASURED
    return numbers.duration(value)
