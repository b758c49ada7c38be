"""The front of throughput against latency in words: for the terminal, the page and Markdown."""

from ridgeline.report.tunewords import STATES, has_targets, spread_words
from ridgeline.tuning.outcome import Point, TuneResult

AXIS_WORDS = {"ttft": "TTFT", "itl": "ITL"}
FRONT_TITLE = "Throughput against latency, of what is not shown to miss the targets"


def front_head() -> tuple[str, ...]:
    """Heads of `front_rows`."""
    return (
        "configuration",
        "output tokens/s per GPU",
        "p95 TTFT, ms",
        "p95 ITL, ms",
        "front",
        "by",
    )


def front_rows(result: TuneResult) -> list[tuple[str, ...]]:
    """One row a point, the most tokens first."""
    return [
        (
            p.words,
            spread_words(p.tokens),
            spread_words(p.ttft),
            spread_words(p.itl),
            _fronts(p),
            (
                f"duel, {p.runs} run{'s' * (p.runs != 1)}"
                if p.number is None
                else f"trial {p.number}"
            )
            + ("" if p.state == "feasible" or not has_targets(result) else _unsure(p)),
        )
        for p in result.front
    ]


def _unsure(point: Point) -> str:
    """What is open about its targets; a figure outside of them is said to be."""
    if not point.outside:
        return "; may miss the targets"
    return f"; outside by its figures ({', '.join(point.outside)}), not shown to miss the targets"


def _fronts(point: Point) -> str:
    parts = [f"on ({AXIS_WORDS[a]})" for a in point.on]
    parts += [f"not clearly off ({AXIS_WORDS[a]})" for a in point.near]
    return ", ".join(parts) or "behind"


def point_name(result: TuneResult, point: Point) -> str:
    """The duel's name of a contender, the number of a trial."""
    duelists = () if result.duel is None else result.duel.duelists
    named = next((d.experiment for d in duelists if d.change == point.change), None)
    return named or f"trial {point.number}"


def front_notes(result: TuneResult) -> tuple[str, ...]:
    """What a front is, and what was tried without being a point of it."""
    shown = {p.words for p in result.front}
    states: dict[str, str] = {}
    for t in result.trials:
        if t.words not in shown and states.get(t.words) != STATES["crashed"]:
            states[t.words] = STATES.get(t.state, t.state)
            if t.state in ("feasible", "unsure"):
                states[t.words] = "missed them in the duel"
    left = "; ".join(f"{words} ({state})" for words, state in states.items())
    note = (
        "On the front: no other point has more tokens and a lower latency; not clearly off: none"
        " has by whole intervals. The search goes for the most tokens, it does not fill the front."
    )
    return (note, *([f"States, no points: {left}."] if left else []))
