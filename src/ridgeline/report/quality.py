"""The quality gate's verdict as a table and as words."""

from collections.abc import Callable

from rich.table import Table

from ridgeline.report import numbers
from ridgeline.tuning.quality import QualityVerdict
from ridgeline.tuning.quality_divergence import TIE_NATS
from ridgeline.tuning.quality_figures import Comparison
from ridgeline.tuning.quality_stats import Figure

LEGEND = (
    "recovery: the reference's perplexity over the other's, on the same tokens. agreement: places"
    f" with the same likeliest token, or one that the reference held as likely within {TIE_NATS:g}"
    " nats. KL: a lower bound, over the listed tokens and one remainder. Intervals (95 %) are"
    " paired by prompt. short, long: on these prompts alone; repeated: the reference asked twice."
)


def quality_table(verdict: QualityVerdict) -> Table | None:
    """The figures of every comparison beside each other; None when nothing was compared."""
    columns = {
        "candidate": verdict.candidate,
        "short": verdict.short,
        "long": verdict.long,
        "repeated": verdict.repeat,
        "noise floor": verdict.floor,
    }
    shown = {name: found for name, found in columns.items() if found is not None}
    if not shown:
        return None
    table = Table(title="against the reference", title_justify="left", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in shown:
        table.add_column(name, min_width=len(name))
    for name, cell in _ROWS:
        table.add_row(name, *(cell(found) for found in shown.values()))
    return table


def verdict_lines(verdict: QualityVerdict) -> list[str]:
    """The outcome, each criterion, tasks and remarks, one line each."""
    lines = [f"quality: {verdict.outcome}", *(f"  {reason}" for reason in verdict.reasons)]
    for task in verdict.tasks:
        lines.append(
            f"  task {task.task}: {task.metric} {task.reference:.4f} -> {task.candidate:.4f},"
            f" recovery {figure(task.recovery)}, {task.flipped} of {task.documents} documents flip"
        )
    return [*lines, *(f"  note: {remark}" for remark in verdict.remarks)]


def figure(found: Figure) -> str:
    """An estimate with its interval."""
    if found.low is None or found.high is None:
        return f"{found.value:.4f}"
    return f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"


def _worst(found: Comparison) -> str:
    if found.kl_worst_prompt is None:
        return numbers.NOT_MEASURED
    return f"{found.kl_worst_prompt:.4f}, {found.worst_prompt}"


def _greedy(found: Comparison) -> str:
    greedy = found.greedy
    if greedy is None:
        return numbers.NOT_MEASURED
    near = f", {greedy.near_ties} near ties" if greedy.near_ties else ""
    return f"{greedy.same} of {greedy.prompts} the same{near}, {greedy.parted} part"


_ROWS: tuple[tuple[str, Callable[[Comparison], str]], ...] = (
    ("prompts, tokens", lambda c: f"{c.prompts}, {numbers.grouped(str(c.tokens))}"),
    ("NLL, nats a token", lambda c: f"{c.nll_reference:.4f} -> {c.nll_candidate:.4f}"),
    ("recovery", lambda c: figure(c.recovery)),
    ("agreement", lambda c: figure(c.agreement)),
    ("top-1", lambda c: figure(c.top1)),
    ("KL, nats a token", lambda c: figure(c.kl)),
    ("KL in decode", lambda c: "" if c.decode_kl is None else figure(c.decode_kl)),
    ("KL of the worst prompt", _worst),
    ("greedy answers", _greedy),
)
