"""Where the window of an automatic warm-up starts, told from the whole run's records.

While a run goes on its window is opened as soon as it looks steady (domain/steadystate.Onset). The
whole run knows more: where MSER ends the warm-up later than that, the window starts there.
"""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.domain.records import Floats, RunRecords
from ridgeline.domain.run import RunFacts, Window
from ridgeline.domain.steadystate import BIN_S, observed, truncation
from ridgeline.domain.workload import Workload

LEAST_LEFT = 0.5  # share of the window that must be left; beyond it the run is not steady


def place_window(records: RunRecords, facts: RunFacts, workload: Workload) -> RunFacts:
    """The facts with the window where it belongs; as they are when the warm-up was fixed.

    A window that counts requests is not moved: it would hold fewer than were asked for.
    """
    warmup = facts.warmup
    if warmup is None:
        return facts
    offered = warmup.offered
    start_s, found = offered.start_ns / 1e9, "steady" if warmup.found else "not steady"
    ends = warmup_ends(records, offered.end_ns, open_loop=not workload.arrivals.closed_loop)
    known = [end for end in ends.values() if end is not None]
    steady_s = max(known) if len(known) == len(ends) and known else None
    reason = f"{found} after {start_s:.1f} s"
    if not warmup.found:
        reason = f"no steady state within the {warmup.limit_s:g} s that the warm-up could take"
    window = offered
    if steady_s is not None and steady_s > start_s:
        late = ", ".join(name for name, end in ends.items() if end == steady_s)
        moved = Window(round(steady_s * 1e9), offered.end_ns)
        if workload.requests is None and moved.seconds >= LEAST_LEFT * offered.seconds:
            window = moved
            reason += (
                f"; moved to {steady_s:.1f} s, where {late} had settled over the whole run:"
                f" {moved.seconds:.1f} s of the {offered.seconds:.1f} s after it are measured"
            )
        else:
            reason += f"; over the whole run {late} had settled only after {steady_s:.1f} s"
    elif steady_s is None:
        names = ", ".join(name for name, end in ends.items() if end is None)
        reason += f"; over the whole run no end of the warm-up shows in {names}"
    return replace(facts, window=window, warmup=replace(warmup, steady_s=steady_s, reason=reason))


def warmup_ends(records: RunRecords, end_ns: int, *, open_loop: bool) -> Mapping[str, float | None]:
    """When each series of the run had settled (s from its zero), None where it never had.

    Requests in flight settle by themselves in an open loop only. A series that is empty is left
    out.
    """
    series = observed(records, end_ns)
    if not open_loop:
        del series["requests in flight"]
    return {name: _end_s(values) for name, values in series.items() if len(values)}


def _end_s(values: Floats) -> float | None:
    cut = truncation(values)
    return None if cut is None else cut * BIN_S
