"""What `ridgeline plan` shows: memory, bound, ranked tables, and where the time goes."""

from math import isfinite
from typing import TYPE_CHECKING, Any

from ridgeline.domain.numerals import counted
from ridgeline.experiment.predicting import SAME
from ridgeline.report.figures import path_words
from ridgeline.report.numbers import (
    dollars,
    duration,
    duration_range,
    number,
    number_range,
    significant,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from ridgeline.domain.summary import Summary
    from ridgeline.experiment.capacity import Memory
    from ridgeline.experiment.planning import PlanResult, Prediction

NARROW = 110  # columns
PER_GPU = "throughput.per_gpu_output_tokens_per_s"
# The parts of a step's time in words, in the order of their chart.
PARTS = {
    "weights": "linear layers (weights)", "attention_decode": "attention of decodes",
    "attention_prefill": "attention of prompts", "head": "LM head",
    "launch": "waiting for kernel launches", "communication": "all-reduces",
    "sampler": "sampling", "cpu": "waiting for the engine's CPU",
}  # fmt: skip
READS = ("weights", "attention_decode", "head")  # what memory bandwidth is named for as a limit
STAYS = {
    "front_end_in": "API server, in", "queue": "waiting in the queue", "prefill": "its prompt",
    "decode": "its answer", "front_end_out": "API server, out",
}  # fmt: skip


def page(result: "PlanResult", name: str, *, width: int = 120) -> list[Any]:
    """The whole page but the explanation.

    Where the terminal is narrow the changes stand in a list below their numbered rows: the names
    of knobs are too long for a column.
    """
    base = result.baseline
    lines: list[Any] = [
        f"[bold]{name}[/bold]: predictions of the digital twin ({result.constants} constants);"
        " nothing was measured. In brackets: the band that holds a measurement nine times of ten as"
        " far as the twin's constants go, for one draw of the arrivals; near the knee another draw"
        " may lie outside.",
        "",
        *_memory(result.memory),
        *_bounds(result),
    ]
    if base.summary is not None and not base.void:
        share = base.per_gpu / result.own_bound.tokens_per_s_per_gpu
        lines.append(
            f"Baseline: {share:.0%} of the bound at its own settings,"
            f" {base.per_gpu / result.bound.tokens_per_s_per_gpu:.0%} of that over all."
            f" {_sentence(base.summary)}".rstrip()
        )
        if base.preemptions:
            lines.append(f"Preemptions predicted: {counted(base.preemptions)} in the run")
    if base.summary is not None:
        lines += [f"Baseline: void: {reason}" for reason in base.void]
        lines += [f"Baseline: careful: {text}" for text in base.summary.verdict.warnings]
        lines += [f"Baseline: {note}" for note in base.summary.notes]
    lines.append(_knee(result))
    narrow = width < NARROW
    lines += _against_measured(result)
    count = len(result.candidates)
    title = f"The baseline, then the {count} best candidates, best first"
    if count < 2:
        title = "The baseline and the one candidate" if count else "The baseline; no candidate"
    if result.demoted and count:
        title = "Candidates, in an order that measurements contradict: measure before you believe"
    lines += ["", table(title, [base, *result.candidates], numbered=narrow)]
    if narrow:
        lines += [f"{n}: {_change(row)}" for n, row in enumerate(result.candidates, 1)]
    lines += ["", *_left_out(result), *_price_missing(result)]
    lines.append(
        f"{result.looked_at} changes and combinations were looked at. Rows of one table err"
        " together: their differences are surer than the rows. None of them was started: each is a"
        " reason to measure, not a result."
    )
    lines += _notes_of(result)
    if result.hardware:
        lines += ["", table("What if: the baseline on other GPUs", [base, *result.hardware])]
        if result.baseline.configuration.price_per_gpu_hour is not None:
            lines.append(
                "The study's price is that of its own GPU; for the cost on another, plan again with"
                " that one's hardware.gpu and hardware.price_per_gpu_hour."
            )
    if any("fp8" in str(v) for p in result.candidates for v in p.change.values()):
        lines.append("FP8 changes the model's numbers: hold its answers against your own tests.")
    return lines


def _left_out(result: "PlanResult") -> list[str]:
    """What has no row because it reads as the baseline's."""
    if not result.alike:
        return []
    changes = "; ".join(_change(row) for row in result.alike)
    return [f"Predicted as the baseline is (within {SAME:.1%}), so without a row: {changes}"]


def _price_missing(result: "PlanResult") -> list[str]:
    """Why a column says "no price", and what to do."""
    asked = "give hardware.price_per_gpu_hour (USD) in the study file"
    if result.baseline.configuration.price_per_gpu_hour is None:
        return [
            f"No price of the {result.baseline.configuration.gpu} is given, so there is no cost per"
            f" token and rows are ranked by tokens/s per GPU: {asked}."
        ]
    return []


def _notes_of(result: "PlanResult") -> list[str]:
    """What is to be said of candidates and of other GPUs, beyond what is said of the baseline."""
    known = set(_said_of(result.baseline))
    told: dict[str, list[str]] = {}
    for row in (*result.candidates, *result.hardware):
        for note in _said_of(row):
            if note not in known:
                told.setdefault(note, []).append(_change(row))
    return [f"{'; '.join(rows)}: {note}" for note, rows in told.items()]


def _said_of(row: "Prediction") -> list[str]:
    if row.summary is None:
        return []
    careful = [f"careful: {text}" for text in row.summary.verdict.warnings]
    return [*(f"void: {reason}" for reason in row.void), *careful, *row.summary.notes]


def _bounds(result: "PlanResult") -> list[str]:
    """The roofline over all settings that are varied, and at the baseline's own."""
    best, own = result.bound, result.own_bound
    at = ", ".join(f"{k} {v}" for k, v in best.change.items())
    return [
        "Bound (roofline): no setting of batch, layout, weights and KV type that is looked at gives"
        f" more than {significant(best.tokens_per_s_per_gpu)} output tokens/s per GPU"
        f" ({f'{at}; ' if at else ''}steps of {significant(best.step_s * 1e3)} ms at batch"
        f" {counted(best.batch)}, the most that the load brings and memory holds)",
        f"Bound at the baseline's own settings: {significant(own.tokens_per_s_per_gpu)}"
        f" (steps of {significant(own.step_s * 1e3)} ms at batch {counted(own.batch)})",
    ]


def _against_measured(result: "PlanResult") -> list[Any]:
    """Predictions beside measurements; what lies outside its band first."""
    from rich.table import Table  # noqa: PLC0415

    if not result.held:
        return []
    title = "Held against measured runs"
    found = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("experiment", "figure"):
        found.add_column(head, overflow="fold")
    for head in ("measured", "predicted", "band", ""):
        found.add_column(head, justify="right")
    for one in sorted(result.held, key=lambda h: not h.outside):
        form = duration if one.path.endswith("p95") else number
        predicted = "-" if one.predicted is None else form(one.predicted)
        predicted = predicted if one.refused is None else f"none: {one.refused}"
        known = one.low is not None and one.high is not None
        band = f"{form(one.low)} to {form(one.high)}" if known else ""
        words = path_words(one.path)
        found.add_row(
            one.experiment, words, form(one.measured), predicted, band,
            {True: "✗ outside", False: "inside", None: "not known"}[one.outside],
        )  # fmt: skip
    lines: list[Any] = ["", found, *result.held_notes]
    agreed = result.agreement
    outside = [h for h in result.held if h.outside and h.path in agreed.against]
    told = [f"{out} of {of} {path_words(path)}" for path, (out, of) in agreed.counts.items()]
    count = f"{', '.join(told)} outside their 90 % bands, one of ten expected"
    if result.demoted:
        worst = ", ".join(dict.fromkeys(h.experiment for h in outside)) or "no experiment"
        lines.append(
            f"[bold]✗ The twin is contradicted[/bold]: {count} ({worst}). Its ranking below is"
            " demoted: calibrate it on these runs first (`ridgeline calibrate`), or measure the"
            " candidates."
        )
    elif agreed.counts:
        lines.append(f"Not contradicted: {count}.")
    else:
        lines.append("Not known whether the twin agrees: no figure has a band.")
    return lines


def _memory(memory: "Memory") -> list[str]:
    parts = memory.parts
    taken = ", ".join(
        f"{words} {significant(parts[what] / 1e9)}"
        for what, words in (
            ("weights", "weights"), ("activation", "activations"), ("graph", "graphs"),
            ("other", "other"), ("kv", "KV cache"),
        )
    )  # fmt: skip
    source = "by the engine's log" if memory.from_log else "planned, no engine's log was given"
    return [
        f"Memory of one GPU, GB: {taken}; the engine may use {significant(parts['budget'] / 1e9)}"
        f" of {significant(parts['total'] / 1e9)}",
        f"KV cache: {counted(memory.kv_tokens)} tokens ({source}):"
        f" {counted(memory.requests)} requests of mean length at their end,"
        f" {counted(memory.running)} half-way through their answers",
        f"Gives way first: {memory.first_limit}",
        *(f"Careful: {note}" for note in memory.notes),
    ]


def _knee(result: "PlanResult") -> str:
    knee, gpus = result.knee, result.baseline.configuration.gpus
    if knee is None:
        tried = [arrivals for arrivals, _, _ in result.loads]
        ends = f" from {_load(tried[0])} to {_load(tried[-1])}" if tried else ""
        return f"Knee of the baseline: none found among the loads that were tried{ends}"
    all_of, each = significant(knee.output_tokens_per_s), knee.output_tokens_per_s / gpus
    tokens = f"{all_of} output tokens/s in all, {significant(each)} per GPU"
    how = "little more is delivered above"
    if knee.seconds is not None:
        how = f"its queue does not grow in {knee.seconds:g} s, and little more is delivered above"
    return (
        f"Knee of the baseline: about {_load(knee.arrivals)} in all ({tokens}; p95 TTFT there"
        f" {duration(knee.ttft_p95_s)}): {how}. The study's load is {knee.share:.0%} of it."
    )


def _sentence(summary: "Summary") -> str:
    limit = summary.binding_limit
    return "" if not limit else f"Limit: {limit}"


def _load(arrivals: Any) -> str:
    peak = significant(arrivals.peak)
    return f"{peak} users" if arrivals.closed_loop else f"{peak} requests/s"


def _change(row: "Prediction") -> str:
    return ", ".join(f"{k} {v}" for k, v in row.change.items()) or "(baseline)"


def table(title: str, rows: "list[Prediction]", *, numbered: bool = False) -> "Table":
    """One row a configuration; below a figure the band that it is expected in."""
    from rich.table import Table  # noqa: PLC0415

    found = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=False)
    found.add_column("change", overflow="fold", max_width=44)
    for head in ("tokens/s/GPU", "$/Mtok", "TTFT p95", "ITL p95", "SLO"):
        found.add_column(head, justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        change = str(place) if numbered and place else _change(row)
        summary = row.summary
        if summary is None:
            found.add_row(change, f"refused: {row.refused}")
            continue
        if row.void:  # why stands beside the table: no figure of it is one to compare
            found.add_row(change, "void", "-", "-", "-", "-")
            continue
        cost = summary.cost.usd_per_million_output_tokens
        met = "-" if not summary.slo else f"misses {row.missed}" if row.missed else "met"
        found.add_row(
            change,
            number(row.per_gpu) + _band(summary, PER_GPU, number_range),
            "no price" if cost is None else dollars(cost),
            _latency(summary, "ttft_s"),
            _latency(summary, "itl_s"),
            met,
        )
    return found


def _latency(summary: "Summary", name: str) -> str:
    """The p95 with failures as infinite; only a finite one has a band."""
    value = summary.failures_as_infinite[name].p95
    known = value is not None and isfinite(value)
    return duration(value) + (_band(summary, f"{name}.p95", duration_range) if known else "")


def _band(summary: "Summary", path: str, words: "Callable[[float, float], str]") -> str:
    """The band's ends on a line of its own: it is not symmetric, so no ± would tell it."""
    band = summary.bands.get(path)
    return "" if band is None else f"\n({words(band.low, band.high)})"


def explained(result: "PlanResult") -> list[Any]:
    """Where the time goes, for the baseline and the best candidate, and the loads of the knee."""
    lines: list[Any] = []
    rows = [("the baseline", result.baseline)]
    rows += [("the best candidate", c) for c in result.candidates[:1]]
    for what, row in rows:
        if row.summary is not None and not row.void:
            lines += ["", f"[bold]Where the time goes: {what}[/bold]", _sentence(row.summary)]
            lines += [_steps(row.summary), _step_table(row.summary), _stay_table(row.summary)]
    if result.loads:
        lines += ["", _knee_table(result)]
    lines += ["", *result.notes]
    return lines


def _steps(summary: "Summary") -> str:
    steps = summary.steps
    return (
        f"Steps: {duration(steps.get('mean_step_s'))} on average with"
        f" {steps.get('mean_decode_batch', 0):.1f} decodes; {steps.get('full_graph_share', 0):.0%}"
        f" full graph, {steps.get('piecewise_graph_share', 0):.0%} piecewise,"
        f" {steps.get('no_graph_share', 0):.0%} without a graph"
        f" ({steps.get('no_graph_time_share', 0):.0%} of the time);"
        f" idle {steps.get('idle_share', 0):.0%}"
    )


def _step_table(summary: "Summary") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    mean = summary.steps.get("mean_step_s", 0.0)
    found = Table(title="A step's time", title_justify="left", box=None, pad_edge=False)
    for head in ("part", "share", "time"):
        found.add_column(head, justify="left" if head == "part" else "right")
    for name, words in PARTS.items():
        share = summary.steps.get(f"part.{name}", 0.0)
        found.add_row(words, f"{share:.1%}", duration(share * mean))
    bound = "memory bandwidth" if "by memory bandwidth" in (summary.binding_limit or "") else None
    if bound:
        share = sum(summary.steps.get(f"part.{name}", 0.0) for name in READS)
        words = f"{bound}: {', '.join(PARTS[name] for name in READS)} together"
        found.add_row(words, f"{share:.1%}", duration(share * mean))
    return found


def _stay_table(summary: "Summary") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    whole = sum(summary.accounting.values()) or 1.0
    found = Table(title="A request's time", title_justify="left", box=None, pad_edge=False)
    for head in ("part", "share", "time"):
        found.add_column(head, justify="left" if head == "part" else "right")
    for name, seconds in summary.accounting.items():
        found.add_row(STAYS.get(name, name), f"{seconds / whole:.1%}", duration(seconds))
    return found


def _knee_table(result: "PlanResult") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    knee = result.knee
    title = "The baseline under other loads, in short looks"
    found = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("load", "tokens/s", "TTFT p95", ""):
        found.add_column(head, justify="left" if head in ("load", "") else "right")
    rows = [(*one, "") for one in result.loads]
    if knee is not None:
        rows = [row for row in rows if row[0] is not knee.arrivals]
        rows.append((knee.arrivals, knee.output_tokens_per_s, knee.ttft_p95_s, "knee"))
    for arrivals, rate, wait, what in sorted(rows, key=lambda row: row[0].peak):
        found.add_row(_load(arrivals), number(rate), duration(wait), what)
    return found
