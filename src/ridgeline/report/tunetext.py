"""A tuning's result in words: for the terminal here, for the page by the same functions."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.report import numbers
from ridgeline.report.fronttext import FRONT_TITLE, front_head, front_notes, front_rows
from ridgeline.report.quality import figure
from ridgeline.report.tunewords import NO_FIGURE, STATES, has_targets
from ridgeline.tuning.objective import UNITS
from ridgeline.tuning.outcome import (
    NOT_SOAKED,
    Bought,
    Duelist,
    DuelResult,
    Judged,
    Line,
    Reach,
    Soaked,
    TuneResult,
)
from ridgeline.tuning.quality_stats import Figure
from ridgeline.tuning.saying import missed_words

NEAREST_SERVE = "what came nearest, which was not shown to meet the targets:"
PER_USD = UNITS["cost"]
SHORT = 90  # characters of a reason on the terminal


def tune_console(result: TuneResult) -> RenderableType:
    """The answer, the duel, the history, what each knob bought."""
    word = "TWIN" if result.source == "twin" else "MEASURED"
    head = Text()
    head.append(word, style="bold reverse")
    head.append(f" {result.study} · {trials_words(result)}, {spent(result)}")
    tone = "bold" if result.baseline.meets is not False or result.winner.change else "bold red"
    parts: list[RenderableType] = [head, Padding(Text(result.verdict, style=tone), (1, 0))]
    parts += [Text(line) for line in (manager(result), nearest(result)) if line]
    if result.duel is not None:
        parts.append(_table("The duel", duel_head(result), duel_rows(result)))
        ended = f"{_rounds(result.duel)}; ended: {result.duel.ended}. {DUEL_LEGEND}"
        parts.append(Text(ended, style="dim"))
    parts += [Text(soak_words(one)) for one in result.soak]
    if len(result.front) > 1:
        shown = [row for row, p in zip(front_rows(result), result.front, strict=True)
                 if p.on or p.near]  # fmt: skip
        parts.append(_table(FRONT_TITLE, front_head(), shown))
        parts += [Text(note, style="dim") for note in front_notes(result)]
    if result.judged:
        parts.append(Text(f"\n{JUDGED_TITLE}", style="bold"))
        parts += [Text(line) for line in judged_lines(result)]
    if result.ablation:
        parts.append(_table("What each knob bought", ABLATION_HEAD, ablation_rows(result.ablation)))
    parts += [Text(line) for line in envelope_lines(result)]
    parts += [Text(str(line)) for line in result.certificate.get("lines", ())]
    parts += [Text(f"quality: {line}") for line in result.quality]
    parts.append(_table("The search", history_head(result)[:5], _short_history(result)))
    parts.append(Text(f"the search ended: {result.ended}", style="dim"))
    parts += [Text(f"note: {note}", style="yellow") for note in result.notes]
    if result.recommended:
        parts += [Text("serve it with:", style="dim"), Text(result.winner.command)]
    if result.nearest is not None:
        parts += [Text(NEAREST_SERVE, style="dim"), Text(result.nearest.side.command)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page with what stands under it."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def sections(result: TuneResult) -> list[Section]:
    """The page's tables, in order."""
    found = []
    if result.duel is not None:
        rounds = f"{_rounds(result.duel)} with seeds that the search never had; ended:"
        notes = (f"{rounds} {result.duel.ended}.", DUEL_LEGEND, *map(soak_words, result.soak))
        title = "The duel: the baseline against the finalists"
        found.append(Section("duel", title, duel_head(result), duel_rows(result), notes))
    if result.judged:
        found.append(Section("quality", JUDGED_TITLE, JUDGED_HEAD, judged_rows(result),
                             (JUDGED_LEGEND,)))  # fmt: skip
    if result.front:
        found.append(Section("front", FRONT_TITLE, front_head(), front_rows(result),
                             front_notes(result)))  # fmt: skip
    if result.ablation:
        rows = ablation_rows(result.ablation)
        found.append(Section("bought", "What each knob bought", ABLATION_HEAD, rows))
    if result.envelope:
        found.append(
            Section("envelope", "How far the traffic may move", ENVELOPE_HEAD,
                    envelope_rows(result.envelope), tuple(envelope_lines(result)[:1]))
        )  # fmt: skip
    notes = (f"The search ended: {result.ended}.", *result.notes)
    title = f"The search: {trials_words(result)}, {spent(result)} in all"
    found.append(Section("search", title, history_head(result), history_rows(result), notes))
    return found


def _rounds(duel: DuelResult) -> str:
    return f"{duel.rounds} round{'s' * (duel.rounds != 1)}"


def trials_words(result: TuneResult) -> str:
    """How many trials it made, and of how many configurations where some were measured again."""
    count, of = len(result.trials), len({repr(sorted(t.change.items())) for t in result.trials})
    words = f"{count} trial{'s' * (count != 1)}"
    return words if of == count else f"{words} of {of} configuration{'s' * (of != 1)}"


def spent(result: TuneResult) -> str:
    """GPU time that it took, and what that cost is not known here."""
    minutes = result.gpu_s / 60
    simulated = " (as a GPU would have taken)" if result.source == "twin" else ""
    return f"{numbers.number(minutes)} GPU minutes{simulated}"


def manager(result: TuneResult) -> str | None:
    """GPUs and USD before and after, in one sentence; None where nothing changed."""
    before, after = result.baseline, result.winner
    if not after.change or not before.output_tokens_per_s_per_gpu:
        return None
    if not after.output_tokens_per_s_per_gpu:
        return None
    ten = 10 * before.output_tokens_per_s_per_gpu / after.output_tokens_per_s_per_gpu
    text = f"The tokens that take 10 GPUs now take {numbers.number(ten)}"
    old, new = before.usd_per_million_output_tokens, after.usd_per_million_output_tokens
    if old and new:
        text += (
            f", and a million of them costs {numbers.dollars(new)} instead of"
            f" {numbers.dollars(old)}"
        )
    return text + "."


def nearest(result: TuneResult) -> str | None:
    """The nearest miss, where nothing meets the targets and the verdict does not tell it."""
    if result.nearest_miss is None or result.nearest is not None:
        return None
    return f"No configuration meets the targets; nearest: {result.nearest_miss}."


def objective_head(result: TuneResult) -> str:
    """What the objective's column shows: of cost the price that people know."""
    return "$/Mtok" if result.unit == PER_USD else result.unit


def objective_words(
    result: TuneResult, value: float | None, low: float | None = None, high: float | None = None
) -> str:
    """An objective with its interval; tokens per USD as USD per million tokens."""
    if value is None:
        return "–"
    if result.unit == PER_USD:
        ends = (1e6 / v if v else None for v in (value, high, low))
        value, low, high = ends if value else (value, None, None)
    assert value is not None
    text = numbers.number(value)
    if low is None or high is None:
        return text
    return f"{text} ({numbers.number(low)} to {numbers.number(high)})"


DUEL_LEGEND = (
    "Each figure once, here as in the headline: by paired rounds, a finalist's shrunk towards the"
    " other finalists. Bounds against the baseline hold for all pairs and all looks of the duel"
    " together at 95 %; targets are judged by intervals, not by the point."
)


def duel_head(result: TuneResult) -> tuple[str, ...]:
    """Heads of `duel_rows`."""
    return ("contender", objective_head(result), "against the baseline", "targets", "pairs")


def duel_rows(result: TuneResult) -> list[tuple[str, ...]]:
    """One row a contender."""
    assert result.duel is not None
    return [
        (
            one.words,
            objective_words(result, one.value, one.value_low, one.value_high),
            one.verdict if one.ratio is None else f"{_against(result, one)}, {one.verdict}",
            meets_words(result, one.meets),
            (str(one.pairs) if one.change else "–")
            + (f"; not counted: {one.reason}" if one.reason else ""),
        )
        for one in result.duel.duelists
    ]


def _against(result: TuneResult, one: Duelist) -> str:
    """The ratio to the baseline; of cost that of the price."""
    ratio, low, high = one.ratio or 1.0, one.low, one.high
    if result.unit == PER_USD:
        ratio, low, high = 1 / ratio, 1 / high if high else None, 1 / low if low else None
    return _span(ratio, low, high)


def soak_words(one: Soaked) -> str:
    """The soak in a line."""
    if one.state == NOT_SOAKED:
        return f"{one.words} ({one.load}): {one.reason}"
    if not one.passed:
        return f"Soak of {one.words} ({one.load}): failed, {one.reason}"
    left = ""
    if one.margin_gib is not None:
        left = f"; {numbers.number(one.margin_gib)} GiB of the GPU left by {one.basis}"
    memory = "".join(f"; {line}" for line in one.memory)
    return f"Soak of {one.words} ({one.load}): survived{memory}{left}"


JUDGED_TITLE = "Quality: what is not exact, its answers against the baseline's"
JUDGED_LEGEND = (
    "Only what passes may win. Recovery: the baseline's perplexity over the candidate's, and"
    " agreement on the likeliest token; KL in nats a token, a lower bound."
)
JUDGED_HEAD = ("candidate", "verdict", "likelihood recovery", "agreement recovery",
               "on long prompts", "KL", "top-1", "greedy answers that part")  # fmt: skip


def judged_rows(result: TuneResult) -> list[tuple[str, ...]]:
    """One row a candidate that was judged."""
    return [
        (
            one.words,
            "; ".join((one.sentence(), *one.remarks)),
            _estimate(one, "candidate", "recovery"),
            _estimate(one, "agreement_recovery"),
            _estimate(one, "long", "recovery"),
            _estimate(one, "candidate", "kl"),
            _estimate(one, "candidate", "top1"),
            _parted(one),
        )
        for one in result.judged
    ]


def judged_lines(result: TuneResult) -> list[str]:
    """For the terminal: the verdict in a line, its figures in the next."""
    found: list[str] = []
    for words, verdict, *figures in judged_rows(result):
        named = zip(JUDGED_HEAD[2:], figures, strict=True)
        shown = "; ".join(f"{name} {text}" for name, text in named if text != NO_FIGURE)
        found += [f"{words}: {verdict}", *([f"  {shown}"] if shown else [])]
    return found


def _estimate(one: Judged, *path: str) -> str:
    """A figure of the verdict with its interval; a dash where it has none."""
    found: Any = one.verdict
    for name in path:
        found = None if found is None else found.get(name)
    if found is None:
        return NO_FIGURE
    return figure(Figure(found["value"], found["low"], found["high"]))


def _parted(one: Judged) -> str:
    greedy = (one.verdict.get("candidate") or {}).get("greedy")
    if greedy is None:
        return NO_FIGURE
    parted = greedy["prompts"] - greedy["same"] - greedy["near_ties"]
    return f"{parted} of {greedy['prompts']}"


ABLATION_HEAD = ("knob of the winner", "the winner over the winner without it", "by")


def ablation_rows(bought: tuple[Bought, ...]) -> list[tuple[str, ...]]:
    """One row a knob."""
    return [
        (
            f"{one.knob}={one.value}",
            one.note or "not known"
            if one.ratio is None
            else _span(one.ratio, one.low, one.high) + (f"; {one.note}" if one.note else ""),
            "measured" if one.by == "measured" else "predicted by the twin",
        )
        for one in bought
    ]


def envelope_lines(result: TuneResult) -> list[str]:
    """How far the traffic may move, a line each."""
    if not result.envelope:
        return []
    by = f" against {result.envelope_by}" if result.envelope_by else ""
    return [f"Where the winner holds{by}, on the twin:", *map(reach_words, result.envelope)]


ENVELOPE_HEAD = ("of the traffic", "the winner holds", "below that", "above that")
LOOK_ENDS = "not looked at"


def envelope_rows(reaches: tuple[Reach, ...]) -> list[tuple[str, ...]]:
    """One row a property of the traffic."""
    return [
        (
            one.what,
            _held(one),
            LOOK_ENDS if one.down is None else f"at {_at(one, one.down)}: {one.down_why or one.to}",
            LOOK_ENDS if one.up is None else f"at {_at(one, one.up)}: {one.up_why or one.to}",
        )
        for one in reaches
    ]


def _at(one: Reach, value: float) -> str:
    return f"{value:.0%}" if one.share else f"× {value:g}"


def _held(one: Reach) -> str:
    """Over what it holds: up to an end that was seen, or as far as was looked."""
    low = f"from {_at(one, one.least)}" if one.down is None else f"above {_at(one, one.down)}"
    high = f"to {_at(one, one.most)}" if one.up is None else f"below {_at(one, one.up)}"
    today = f" (today {one.at:.0%})" if one.share else ""
    return f"{low} {high}{today}" if one.down is None else f"{low}, {high}{today}"


def reach_words(one: Reach) -> str:
    """One property of the traffic."""
    ends = [
        f"at {_at(one, value)} {why or one.to}"
        for value, why in ((one.down, one.down_why), (one.up, one.up_why))
        if value is not None
    ]
    end = "; ".join(ends) or "which is as far as was looked"
    return f"{one.what}: {_held(one)}; {end}"


def history_head(result: TuneResult) -> tuple[str, ...]:
    """Heads of `history_rows`."""
    return ("#", "change", objective_head(result), "state", "GPU s", "why")


def history_rows(result: TuneResult) -> list[tuple[str, ...]]:
    """One row a trial."""
    return [
        (
            str(t.number),
            t.words,
            objective_words(result, t.value, t.low, t.high),
            state_words(t),
            numbers.number(t.gpu_s),
            t.why,
        )
        for t in result.trials
    ]


def _short_history(result: TuneResult) -> list[tuple[str, ...]]:
    """For the terminal: what the page has at length is cut."""
    return [
        (*row[:3], row[3] if len(row[3]) <= SHORT else f"{row[3][:SHORT]}…", row[4])
        for row in history_rows(result)
    ]


def state_words(line: Line) -> str:
    """The state with its reason."""
    words = STATES.get(line.state, line.state)
    if line.state == "feasible" and not line.limits:
        words = "✓ ran"
    if line.stopped:
        words += ", ended early"
    if line.beside:
        words += f", beside {line.beside} other{'s' * (line.beside > 1)}"
    missed = [m for m in line.limits if m.met is False and m.value is not None]
    if missed and not line.stopped and line.state == "infeasible":
        words += f": {', '.join(map(missed_words, missed))}"
    return f"{words}: {line.reason}" if line.reason else words


def _span(ratio: float, low: float | None, high: float | None) -> str:
    def change(value: float) -> str:
        return f"{100 * (value - 1):+.1f} %".replace("-", "−")

    if low is None or high is None:
        return change(ratio)
    return f"{change(ratio)} ({change(low)} to {change(high)})"


def meets_words(result: TuneResult, meets: bool | None) -> str:
    """How a contender stands to the targets."""
    if not has_targets(result):
        return "none set"
    return {True: "✓ met", False: "✗ missed", None: "? not decided"}[meets]


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> RenderableType:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for name in head:
        table.add_column(Text(name, style="dim"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return Padding(table, (1, 0, 0, 0))
