"""Speculation over the loads of a study in words."""

from ridgeline.experiment.crossover import crossover_words
from ridgeline.experiment.speculation import OverLoad


def speculation_words(one: OverLoad) -> tuple[str, ...]:
    """What a study's loads say about one way to speculate."""
    gains = "; ".join(
        f"{g.streams:g} user{'s' * (g.streams != 1)} × {g.ratio:.2f}"
        + ("" if g.low is None or g.high is None else f" ({g.low:.2f} to {g.high:.2f})")
        for g in one.found.gains
    )
    first, *more = crossover_words(one.name, one.found)
    lines = [f"{first} (tokens/s over without it: {gains})", *more]
    if one.asynchronous == (True, False):
        by = "the engine's log says so" if one.told_by == "log" else "as this release does"
        lines.append(
            f"{one.name}: the method turned asynchronous scheduling off ({by}), which is a part of"
            " its cost"
        )
    return tuple(lines)
