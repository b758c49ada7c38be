"""Facts that several rules state, in the same words."""

from ridgeline.diagnosis.evidence import Evidence, Lagged, Level
from ridgeline.diagnosis.finding import Fact
from ridgeline.domain.numerals import significant

# of a change after which the model says other things
ANSWERS = "(it changes answers: check them with `ridgeline quality`)"


def level_fact(name: str, words: str, level: Level | None) -> list[Fact]:
    """A gauge: its mean, with its least and most."""
    if level is None:
        return []
    spread = f" ({level.low:g} to {level.high:g})" if level.high > level.low else ""
    return [Fact(name, level.mean, f"{words} {level.mean:.4g}{spread}", "", level.low, level.high)]


def queue_facts(e: Evidence) -> list[Fact]:
    """Requests running and waiting, and where that is from if not from the gauges."""
    if e.lagged is not None:
        return _by_littles_law(e, e.lagged)
    return [
        *level_fact("running", "requests running", e.running),
        *level_fact("waiting", "requests waiting", e.waiting),
    ]


def _by_littles_law(e: Evidence, gauges: Lagged) -> list[Fact]:
    assert e.running is not None
    assert e.waiting is not None
    running, waiting = e.running.mean, e.waiting.mean
    return [
        Fact("running", running, f"requests running {running:.3g}, by the time that they spent in"
             " prefill and decode (Little's law)"),
        Fact("waiting", waiting, f"requests waiting {waiting:.3g}, by the time that they spent in"
             " the queue"),
        Fact("gauges_lag", "histograms", f"the gauges lag: read at {e.scrapes} moments they say"
             f" {gauges.running:.3g} running and {gauges.waiting:.3g} waiting"),
    ]  # fmt: skip


def kv_facts(e: Evidence) -> list[Fact]:
    """KV cache in use, and preemptions."""
    found = []
    if e.kv_use is not None:
        level = e.kv_use
        found.append(Fact("kv_use", level.mean, f"KV cache {level.mean:.0%} in use (most"
                          f" {level.high:.0%})", "", level.low, level.high))  # fmt: skip
    if e.preemptions is not None:
        a_minute = (e.per_s(e.preemptions) or 0.0) * 60
        found.append(Fact("preemptions", e.preemptions,
                          f"preemptions +{e.preemptions:g} ({a_minute:.3g} a minute)"))  # fmt: skip
    return found


def ms(seconds: float) -> str:
    """Seconds as milliseconds with three digits."""
    return f"{significant(seconds * 1e3, 3)} ms"
