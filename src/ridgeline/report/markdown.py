"""A study as a Markdown page for a repository: the answer, the table, findings, accounting.

The same words and numbers as the HTML page, without its charts. What a page should say before the
results (what differs from a published setting, say) is the comment at the head of the study file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.domain.means import known_mean
from ridgeline.domain.summary import Interval
from ridgeline.report import numbers
from ridgeline.report.account import NOTE, account_table
from ridgeline.report.figures import NO_PRICE, comparison_words, comparisons_words
from ridgeline.report.model import Difference, ExperimentRow, StudyReport
from ridgeline.report.sentence import answer
from ridgeline.report.tunetext import NEAREST_SERVE, sections
from ridgeline.store.run_directory import StoredRun
from ridgeline.tuning.outcome import TuneResult

MISSING = ""


def render(report: StudyReport, runs: Mapping[str, Sequence[StoredRun]]) -> str:
    """The page as text. `runs`: the stored valid runs of each experiment, for its accounting."""
    found = answer(report)
    parts = [
        f"# {report.name}",
        *_introduction(report.study_yaml),
        f"**{report.badge.word}**: {report.badge.explanation}",
        " ".join((found.text, *found.notes)),
        "## Experiments",
        _table(_EXPERIMENT_HEAD, [_experiment(row, report) for row in report.rows]),
        _legend(report),
    ]
    if report.tune is not None:
        parts += _tuning(report.tune)
    if report.router_costs:
        told = (f"- {cost[0].upper()}{cost[1:]}." for cost in report.router_costs)
        parts += ["## What the router costs", "\n".join(told)]
    if report.speculation:
        told = (f"- {line[0].upper()}{line[1:]}." for line in report.speculation)
        parts += ["## Speculation over load", "\n".join(told)]
    if report.findings:
        parts += ["## Findings", _findings(report)]
    account = account_table(report)
    if account is not None:
        parts += ["## Where a request's seconds went", _table(*account), NOTE]
    accounting = _accounting(report, runs)
    if accounting:
        parts += ["## What the engine and the GPU did", accounting, _ACCOUNTING_NOTE]
    cold = _cold(runs)
    if cold:
        parts += ["## Cold against warm", cold, _COLD_NOTE]
    lost = [
        f"- {line.run_id}: {line.state}: {'; '.join(line.reasons)}"
        for row in report.rows
        for line in row.runs
        if line.state != "valid"
    ]
    parts += ["## Runs not counted", "\n".join(lost) if lost else "None."]
    parts += [f"## How this was measured\n\n{_how(report)}"]
    return "\n\n".join(parts) + "\n"


def _legend(report: StudyReport) -> str:
    how = "paired by repeat" if report.tune is None else comparisons_words(report)
    how = f"{how[:1].lower()}{how[1:].rstrip('.')}" if how else "of single runs"
    return (
        "Each figure with its 95 % interval. Differences are of cost per million output tokens, "
        f"{how}. Bold limits are those of the SLO that were missed."
    )


def _tuning(result: TuneResult) -> list[str]:
    """What was tried and why, what each knob bought, how far it holds: the page's own tables."""
    found = []
    for section in sections(result):
        found += [f"## {section.title}", _table(section.head, section.rows)]
        found += [f"{note.rstrip('.:')}." for note in section.notes]
    lines = [str(line) for line in result.certificate.get("lines", ())]
    if lines:
        found += ["## How far from the bounds", *lines]
    if result.recommended:
        found += ["## Serve it", f"```\n{result.winner.command}\n```"]
    if result.nearest is not None:
        found += ["## What came nearest", NEAREST_SERVE, f"```\n{result.nearest.side.command}\n```"]
    return found


def write(report: StudyReport, runs: Mapping[str, Sequence[StoredRun]], path: Path) -> None:
    """Write the page; raises OSError."""
    path.write_text(render(report, runs))


_EXPERIMENT_HEAD = (
    "experiment", "change", "p95 TTFT", "p50 ITL", "p95 ITL", "output tokens/s", "$/Mtok",
    "against the baseline", "runs",
)  # fmt: skip
_ACCOUNTING_NOTE = (
    "Means over the valid runs. Steps are the engine's own output batches (steps that only carry "
    "unfinished prompt chunks are not among them). Activity is the hardware's own counter, sampled "
    "once a second; nvidia-smi's utilisation stands beside it and says only that some kernel was "
    "resident. An engine core polls, so its CPU share reads about one core under any load."
)
_COLD_NOTE = "Cold: the first traffic after the engine's start, kept apart and never merged."


def _introduction(study_yaml: str | None) -> list[str]:
    """The study file's leading comment as paragraphs."""
    lines = []
    for line in (study_yaml or "").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").removeprefix(" ")
        lines.append(f"    {text.strip()}" if text.startswith("  ") else text)  # a command
    text = "\n".join(lines).strip()
    return [text] if text else []


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [list(head)]
    cells.append(["---"] * len(cells[0]))
    cells += [[c.replace("|", "\\|").replace("\n", " ") for c in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def _experiment(row: ExperimentRow, report: StudyReport) -> list[str]:
    s = row.summary
    if s is None:
        return [row.name, row.change, row.failure or "no result", *[MISSING] * 6]
    missed = {result.limit.split("=")[0] for result in s.slo if result.met is False}

    def figure(path: str, value: float | None, form: Callable[[float | None], str]) -> str:
        text = form(value) + _range(s.intervals.get(path), form)
        key = path.replace("_s.", "_") + "_ms"
        return f"**{text}**" if key in missed else text

    count = sum(line.state == "valid" for line in row.runs)
    tries = sum(line.tries for line in row.runs)
    other = row.other_workload and row.name != report.baseline
    return [
        row.name,
        f"{row.change} (other workload)" if other else row.change,
        figure("ttft_s.p95", s.ttft_s.p95, numbers.duration),
        figure("itl_s.p50", s.itl_s.p50, numbers.duration),
        figure("itl_s.p95", s.itl_s.p95, numbers.duration),
        figure("throughput.output_tokens_per_s", s.throughput.output_tokens_per_s, numbers.number),
        NO_PRICE
        if s.cost.usd_per_million_output_tokens is None
        else numbers.dollars(s.cost.usd_per_million_output_tokens),
        "baseline"
        if row.name == report.baseline
        else _difference(row.against_baseline.get("cost.usd_per_million_output_tokens")),
        f"{count} of {len(row.runs)}" + (f" in {tries} tries" if tries > len(row.runs) else ""),
    ]


def _range(interval: Interval | None, form: Callable[[float | None], str]) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return MISSING
    return f" ({form(interval.low)} to {form(interval.high)})"


def _difference(found: Difference | None) -> str:
    if found is None or found.delta is None or found.low is None or found.high is None:
        return "not compared" if found is None else found.reason or "not compared"
    delta, between = numbers.percent_between(found.delta, found.low, found.high, signed=True)
    return f"{delta} ({between}), {comparison_words(found)}"


def _findings(report: StudyReport) -> str:
    rows = [
        [f.claim, f.published or "", f"**{f.mark or 'not judged'}**", f.ours, f.reason]
        for f in report.findings
    ]
    return _table(("claim", "published", "here", "ratio found", "why"), rows)


def _accounting(report: StudyReport, runs: Mapping[str, Sequence[StoredRun]]) -> str | None:
    """Engine, GPU and host readings of measured runs; None where nothing was sampled."""
    rows = [row for row in report.rows if any(map(_telemetry, runs.get(row.name, ())))]
    if not rows:
        return None
    head = [
        "experiment", "running", "waiting", "step", "tokens a step", "SM active", "tensor active",
        "DRAM active", "nvidia-smi", "power", "engine core", "API server",
    ]  # fmt: skip
    return _table(head, [[row.name, *_readings(row, runs[row.name])] for row in rows])


def _telemetry(run: StoredRun) -> Mapping[str, Any]:
    found = run.facts.server.get("telemetry") if run.facts is not None else None
    return found if isinstance(found, dict) else {}


def _readings(row: ExperimentRow, runs: Sequence[StoredRun]) -> list[str]:
    """Means over the runs: what the summary has of the engine's steps and the GPU, the rest from
    the readings themselves.
    """
    told = [t for t in map(_telemetry, runs) if t]
    gpus = [g for t in told for g in t.get("gpus", ())]
    steps = row.summary.steps if row.summary is not None else {}
    power = known_mean(g.get("power_mean_w") for g in gpus)
    return [
        numbers.number(_whole(steps.get("mean_running"), runs)),
        numbers.number(_whole(steps.get("mean_waiting"), runs)),
        numbers.duration(steps.get("mean_step_s")),
        numbers.number(steps.get("tokens_per_step")),
        *(numbers.percent(steps.get(f"gpu_{part}_active")) for part in ("sm", "tensor", "dram")),
        numbers.percent(known_mean(g.get("utilisation") for g in gpus)),
        MISSING if power is None else f"{power:.0f} W",
        _cores(told, "engine core"),
        _cores(told, "api server"),
    ]


def _whole(of_replica: float | None, runs: Sequence[StoredRun]) -> float | None:
    """What is known of one replica, over all of them."""
    replicas = runs[0].meta.configuration.replicas
    return None if of_replica is None else of_replica * replicas


def _cores(told: Sequence[Mapping[str, Any]], process: str) -> str:
    value = known_mean(
        reading.get("cpu_cores_mean")
        for t in told
        for name, reading in t.get("host", {}).items()
        if name.endswith(process)
    )
    return MISSING if value is None else f"{value:.2f} cores"


def _cold(runs: Mapping[str, Sequence[StoredRun]]) -> str | None:
    rows = []
    for name, stored in runs.items():
        for run in stored:
            cold = run.facts.server.get("cold") if run.facts is not None else None
            if not isinstance(cold, dict) or cold.get("experiment") != name:
                continue
            warm = known_mean(
                r.summary.throughput.output_tokens_per_s for r in stored if r.summary is not None
            )
            first = cold.get("output_tokens_per_s")
            ratio = warm / first - 1 if warm and first else None
            rows.append(
                [
                    name,
                    numbers.number(first),
                    numbers.number(warm),
                    numbers.percent(ratio, signed=True),
                ]
            )
            break
    head = ("experiment", "cold, output tokens/s", "warm, output tokens/s", "warm over cold")
    return _table(head, rows) if rows else None


def _how(report: StudyReport) -> str:
    lines = [f"- {label}: {text}" for label, text in report.how]
    if report.reproduce:
        lines.append(f"- Reproduce: `{report.reproduce}`")
    return "\n".join(lines)
