"""`ridgeline plan`: what a configuration will do, and which would do better, without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import say, show, write_json
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from ridgeline.experiment.planning import PlanResult, Prediction


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML).")],
    *,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, max=50, help="Candidates to predict in full.")
    ] = 8,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say where steps and requests spend their time.")
    ] = False,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan as JSON; - is stdout.")
    ] = None,
) -> int:
    """Predict FILE's baseline on the digital twin and rank configurations under its targets.

    Nothing is measured: memory, the roofline's bound, throughput and latencies are predictions.
    """
    from ridgeline.experiment.planning import plan as planned  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = load_study(file)
    base = study.baseline
    if base.configuration.gpu is None:
        raise BadInput("a plan needs a GPU", where=str(file), fix="add hardware: {gpu: NAME}")
    with _progress() as said:
        result = planned(base.configuration, base.workload, study.slo, top=top, said=said)
    write_json(json, _to_json(result))
    to_stderr = json == "-"
    show(*_page(result, study.name), to_stderr=to_stderr)
    if explain:
        show(*_explained(result), to_stderr=to_stderr)
    if result.baseline.summary is None:
        say(f"the baseline cannot be predicted: {result.baseline.refused}")
        return 3
    return 0


class _Progress:
    """A line that tells how far the search is; only where somebody looks."""

    def __init__(self) -> None:
        from ridgeline.cli.output import console  # noqa: PLC0415

        self._console = console(to_stderr=True)
        self._status: Any = None

    def __enter__(self) -> "_Progress":
        if self._console.is_terminal:
            self._status = self._console.status("planning")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        if self._status is not None:
            self._status.update(f"{what}: {done + 1} of {of}")


def _progress() -> _Progress:
    return _Progress()


def _page(result: "PlanResult", name: str) -> list[Any]:
    from ridgeline.experiment.planning import BANDS, knee_of  # noqa: PLC0415
    from ridgeline.report.numbers import number, significant  # noqa: PLC0415

    memory, bound, base = result.memory, result.bound, result.baseline
    gigabytes = ", ".join(
        f"{what} {significant(memory.parts[what] / 1e9)} GB"
        for what in ("weights", "activation", "graph", "kv")
    )
    lines: list[Any] = [
        f"[bold]{name}[/bold]: predictions of the digital twin ({result.constants} constants);"
        " nothing was measured",
        f"memory per GPU: {gigabytes} of {significant(memory.parts['total'] / 1e9)} GB;"
        f" {number(memory.kv_tokens)} KV tokens, {significant(memory.requests)} mean requests",
        f"first limit: {memory.first_limit}",
        f"roofline bound: {significant(bound.tokens_per_s_per_gpu)} output tokens/s per GPU"
        f" (steps of {significant(bound.step_s * 1e3)} ms at batch {bound.batch})",
    ]
    if base.summary is not None:
        share = base.per_gpu / bound.tokens_per_s_per_gpu
        lines.append(f"baseline: {share:.0%} of that bound; limit: {base.summary.binding_limit}")
    knee = knee_of(result.knee)
    if knee is not None:
        load = (
            f"{knee.users} users" if knee.users is not None else f"{knee.rate_per_s:g} requests/s"
        )
        best = max(rate for _, rate, _ in result.knee)
        lines.append(f"knee of the baseline: about {load} ({significant(best)} tokens/s at most)")
    lines.append(_table("Candidates, best first", [base, *result.candidates]))
    lines.append(
        f"{result.looked_at} changes and combinations were looked at. Expect priors to be off by"
        f" {BANDS['output_tokens_per_s']:.0%} in tokens/s, {BANDS['itl_p95']:.0%} in p95 ITL and"
        f" {BANDS['ttft_p95']:.0%} in p95 TTFT; differences between rows are surer than the rows."
    )
    if result.hardware:
        lines.append(_table("The baseline's knobs on other GPUs", [base, *result.hardware]))
    if any("fp8" in str(v) for p in result.candidates for v in p.change.values()):
        lines.append("FP8 changes the model's numbers: hold its answers against your own tests.")
    return lines


def _table(title: str, rows: "list[Prediction]") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from ridgeline.report.numbers import dollars, duration, number  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("change", overflow="fold", max_width=44)
    for head in ("tokens/s/GPU", "USD/M tok", "TTFT p95", "ITL p95", "SLO"):
        table.add_column(head, justify="right")
    for row in rows:
        change = ", ".join(f"{k} {v}" for k, v in row.change.items()) or "(baseline)"
        if row.summary is None:
            table.add_row(change, f"refused: {row.refused}")
            continue
        worst = row.summary.failures_as_infinite
        met = "-" if not row.summary.slo else f"misses {row.missed}" if row.missed else "met"
        table.add_row(
            change,
            number(row.per_gpu),
            dollars(row.summary.cost.usd_per_million_output_tokens),
            duration(worst["ttft_s"].p95),
            duration(worst["itl_s"].p95),
            met,
        )
    return table


def _explained(result: "PlanResult") -> list[Any]:
    """Where the time goes, for the baseline and the best candidate."""
    from ridgeline.report.numbers import duration  # noqa: PLC0415

    lines: list[Any] = []
    for what, row in (("baseline", result.baseline), *(("best", c) for c in result.candidates[:1])):
        if row.summary is None:
            continue
        steps = row.summary.steps
        parts = {n.removeprefix("part."): v for n, v in steps.items() if n.startswith("part.")}
        spent = ", ".join(
            f"{n} {v:.0%}" for n, v in sorted(parts.items(), key=lambda p: -p[1]) if v >= 0.005
        )
        request = ", ".join(f"{n} {duration(v)}" for n, v in row.summary.accounting.items())
        lines += [
            f"[bold]{what}[/bold]: {row.summary.binding_limit}",
            f"  step time: {spent}",
            f"  a request's time: {request}",
            f"  steps: {duration(steps.get('mean_step_s'))} on average,"
            f" {steps.get('mean_decode_batch', 0):.1f} decodes;"
            f" {steps.get('full_graph_share', 0):.0%} full graph,"
            f" {steps.get('piecewise_graph_share', 0):.0%} piecewise,"
            f" {steps.get('no_graph_share', 0):.0%} without a graph"
            f" ({steps.get('no_graph_time_share', 0):.0%} of the time)",
        ]
    return lines


def _to_json(result: "PlanResult") -> dict[str, Any]:
    from ridgeline.experiment.planning import BANDS, knee_of  # noqa: PLC0415

    def one(row: "Prediction") -> dict[str, Any]:
        given = row.configuration.knobs.given()
        return {
            "change": dict(row.change),
            "configuration": {"model": row.configuration.model, "gpu": row.configuration.gpu,
                              "gpus": row.configuration.gpus, "knobs": given},
            "summary": None if row.summary is None else row.summary.to_json(),
            "binding_limit": None if row.summary is None else row.summary.binding_limit,
            "refused": row.refused,
        }  # fmt: skip

    baseline = result.baseline.summary
    knee = knee_of(result.knee)
    return {
        "schema": 1,
        "source": "twin",
        "constants": result.constants,
        "bands": dict(BANDS),
        "baseline": None if baseline is None else baseline.to_json(),
        "candidates": [one(c) for c in result.candidates],
        "hardware": [one(c) for c in result.hardware],
        "memory": {**{f"{n}_bytes": v for n, v in result.memory.parts.items()},
                   "kv_tokens": result.memory.kv_tokens,
                   "mean_requests": result.memory.requests,
                   "first_limit": result.memory.first_limit},
        "bound": {"batch": result.bound.batch, "step_s": result.bound.step_s,
                  "output_tokens_per_s_per_gpu": result.bound.tokens_per_s_per_gpu},
        "knee": None if knee is None else {"users": knee.users, "rate_per_s": knee.rate_per_s},
        "loads": [{"users": a.users, "rate_per_s": a.rate_per_s, "output_tokens_per_s": rate,
                   "ttft_p95_s": wait if wait is not None and wait != float("inf") else None}
                  for a, rate, wait in result.knee],
        "notes": list(result.notes),
    }  # fmt: skip
