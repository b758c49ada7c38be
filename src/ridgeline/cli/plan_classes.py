"""What `ridgeline plan` shows of a mix of classes: the ways to serve it, and the cheapest."""

from typing import TYPE_CHECKING, Any

from ridgeline.domain.classways import URGENT
from ridgeline.report.numbers import dollars, duration, duration_range, number

if TYPE_CHECKING:
    from rich.table import Table

    from ridgeline.domain.summary import Summary
    from ridgeline.experiment.classplan import Alternative, ClassPlan


def classes_page(plan: "ClassPlan") -> list[Any]:
    """The table of the ways, which is the cheapest, and what priorities are not."""
    lines: list[Any] = ["", _table(plan)]
    for number_, one in enumerate(plan.alternatives, 1):
        why = "; ".join(f"void: {reason}" for reason in one.prediction.void)
        lines.append(f"{number_}: {_name(one)}{'; ' if why else ''}{why}")
    lines.append(_answer(plan))
    lines += [f"priority scheduling, {text}" for text in plan.cannot]
    return [*lines, *plan.notes]


def _answer(plan: "ClassPlan") -> str:
    best = plan.cheapest
    if not plan.limited:
        return "No class has a limit (slo), so no way is inside or outside: costs only."
    if best is None:
        return (
            f"[bold]No way is inside the limits[/bold] among {plan.looked_at} configurations of up"
            f" to {plan.most_gpus} GPUs that were looked at."
        )
    sure = f"its bands are inside, too, and so is it in {best.draws} other draws of the arrivals"
    if best.held < best.draws:
        failed = best.draws - best.held
        sure = (
            f"but in {failed} of {best.draws} other draws of the arrivals it is not: measure before"
            " you believe"
        )
    elif not best.surely:
        sure = "its 90 % bands reach over a limit, or it has none: measure before you believe"
    return f"[bold]Cheapest inside the limits: {_name(best)}[/bold]; {sure}."


def _name(one: "Alternative") -> str:
    return f"{one.way} ({one.words})"


def _table(plan: "ClassPlan") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    title = "Ways to serve the classes, by the twin (below a figure its 90 % band, for one draw)"
    found = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=False)
    found.add_column("way", justify="right")
    for head in ("GPUs", "$/Mtok"):
        found.add_column(head, justify="right", no_wrap=True)
    for head in _heads(plan):
        found.add_column(head, justify="right", overflow="fold")
    found.add_column("misses", justify="right", overflow="fold")
    for place, one in enumerate(plan.alternatives, 1):
        found.add_row(str(place), str(one.configuration.gpus), *_row(one, plan))
    return found


def _heads(plan: "ClassPlan") -> list[str]:
    """Of the urgent classes their latencies, of the others what they get done."""
    heads = []
    for kind, group in plan.group.items():
        urgent = group == URGENT
        heads += [f"{kind} TTFT p95", f"{kind} ITL p95"] if urgent else [f"{kind} tokens/s"]
    return heads


def _row(one: "Alternative", plan: "ClassPlan") -> list[str]:
    summary = one.prediction.summary
    if summary is None:
        return [f"refused: {one.prediction.refused}"]
    if one.prediction.void:
        return ["void"]
    usd = summary.cost.usd_per_million_output_tokens
    cells = ["-" if usd is None else dollars(usd)]
    for kind, group in plan.group.items():
        if group == URGENT:
            cells += [_wait(summary, kind, "ttft_s"), _wait(summary, kind, "itl_s")]
        else:
            cells.append(number(summary.classes[kind].throughput.output_tokens_per_s))
    missed = [
        " ".join(filter(None, (r.traffic_class, r.limit.partition("=")[0])))
        for r in summary.slo if r.met is not True
    ]  # fmt: skip
    return [*cells, ", ".join(missed) or "nothing"]


def _wait(summary: "Summary", kind: str, figure: str) -> str:
    value = getattr(summary.classes[kind], figure).p95
    band = summary.bands.get(f"classes.{kind}.{figure}.p95")
    ends = "" if band is None else f"\n({duration_range(band.low, band.high)})"
    return duration(value) + ends


def classes_json(plan: "ClassPlan") -> dict[str, Any]:
    """As it stands in the JSON of a plan."""
    best = plan.cheapest
    return {
        "groups": dict(plan.group),
        "alternatives": [_one(a) for a in plan.alternatives],
        "cheapest": None if best is None else {**_one(best), "summary": None},
        "looked_at": plan.looked_at,
        "cannot": list(plan.cannot),
        "notes": list(plan.notes),
    }


def _one(one: "Alternative") -> dict[str, Any]:
    found, configuration = one.prediction, one.configuration
    return {
        "way": one.way, "words": one.words, "gpus": configuration.gpus,
        "pools": [{"name": p.name, "classes": list(p.classes), "knobs": p.knobs.given()}
                  for p in configuration.pools],
        "knobs": configuration.knobs.given(),
        "inside": one.inside, "surely": one.surely,
        "other_draws": one.draws, "other_draws_inside": one.held, "void": list(found.void),
        "refused": found.refused,
        "summary": None if found.summary is None else found.summary.to_json(),
    }  # fmt: skip
