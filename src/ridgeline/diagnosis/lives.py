"""Which life of which server a page is of: restarts, and one address for several servers."""

from collections.abc import Mapping, Sequence

from ridgeline.diagnosis.stillness import engine_name
from ridgeline.telemetry.prometheus import COUNTERS, STARTED, Scrape, Series

_RUNNING = "vllm:num_requests_running"
RETURNS = 2  # times that a count must fall: one fall is a restart


def without_ended(before: Scrape, after: Scrape) -> Scrape:
    """The earlier page without the series of those servers whose process has begun anew since.

    Series that fell are for whoever takes a difference: their neighbours on a page of several
    servers may be of one that ran on.
    """
    old, new = _begun(before), _begun(after)
    ended = {target for target in new if target in old and old[target] != new[target]}
    if not ended:
        return before
    return Scrape({
        name: kept for name, series in before.samples.items()
        if (kept := tuple(s for s in series if _target(s) not in ended))
    })  # fmt: skip


def same_process(before: Scrape, after: Scrape) -> bool:
    """Whether two pages tell the same start times."""
    begun = _begun(before)
    return bool(begun) and begun == _begun(after)


def cut_short(first: Scrape, last: Scrape, name: str) -> bool:
    """Whether one of two pages of a running server lacks series of a count that the other has.

    vLLM shows every series from its start to its end; of an engine that one of the pages does not
    show at all nothing is amiss.
    """
    there = [{engine_name(s) for s in page.series(_RUNNING)} for page in (first, last)]
    both = there[0] & there[1] if all(there) else there[0] | there[1]
    one, other = (
        {_identity(s) for s in page.series(name) if engine_name(s) in both or not both}
        for page in (first, last)
    )
    return one != other


def _identity(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(series.labels.items()))


def in_turn(pages: Sequence[Scrape]) -> bool:
    """True when the pages of one address are of several servers: start times or counts that go back
    and forth, as behind a load balancer.
    """
    begun: dict[str, list[frozenset[float]]] = {}
    for page in pages:
        for target, times in _begun(page).items():
            told = begun.setdefault(target, [])
            if not told or told[-1] != times:
                told.append(times)
    if any(len(told) > len(set(told)) for told in begun.values()):
        return True
    return any(_back_and_forth(values) for values in _counts(pages).values())


def _back_and_forth(values: Sequence[float]) -> bool:
    """Whether a count falls again and again to where it had been before, and is regained.

    One that was restarted falls to next to nothing; another server's goes on from its last value.
    """
    falls = [i for i in range(1, len(values)) if min(values[:i]) <= values[i] < values[i - 1]]
    regained = any(v >= values[i - 1] for i in falls for v in values[i:])
    return len(falls) >= RETURNS and regained


def _counts(pages: Sequence[Scrape]) -> Mapping[object, list[float]]:
    found: dict[object, list[float]] = {}
    for page in pages:
        for name in COUNTERS:
            for series in page.series(name):
                key = (name, _identity(series))
                found.setdefault(key, []).append(series.value)
    return found


def _begun(page: Scrape) -> dict[str, frozenset[float]]:
    found: dict[str, set[float]] = {}
    for series in page.series(STARTED):
        found.setdefault(_target(series), set()).add(series.value)
    return {target: frozenset(times) for target, times in found.items()}


def _target(series: Series) -> str:
    return series.labels.get("target", "")
