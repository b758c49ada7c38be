"""What a run's late reads leave of its figures: each part by the lateness of its own requests."""

from ridgeline.domain.parts import named, select, step_windows
from ridgeline.domain.records import RunRecords
from ridgeline.domain.resolvable import (
    attainment_range,
    read_errors,
    withhold,
    withhold_attainment,
)
from ridgeline.domain.run import RunFacts
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Workload

Ranges = dict[str | None, tuple[float, float] | None]


def resolved(
    summary: Summary, records: RunRecords, facts: RunFacts, *, workload: Workload, slo: Slo
) -> Summary:
    """The summary without what the client's late reads leave open, of the whole and its parts."""
    late = read_errors(facts.client, records, facts.window)
    if late is None:
        return summary
    window, open_loop = facts.window, not workload.arrivals.closed_loop
    classes = {
        kind.name: read_errors(facts.client, select(records, named(records, kind.name)), window)
        for kind in workload.classes
    }
    steps = [
        read_errors(facts.client, records, part)
        for _, part in step_windows(workload.arrivals.steps, window)
    ]
    summary = withhold(
        summary,
        late,
        open_loop=open_loop,
        of_classes={name: found or late for name, found in classes.items()},
        of_steps=[found or late for found in steps],
    )
    return withhold_attainment(summary, attainment_ranges(records, facts, workload, slo))


def attainment_ranges(records: RunRecords, facts: RunFacts, workload: Workload, slo: Slo) -> Ranges:
    """`attainment_range` of all requests under None, and of each class under its name."""
    open_loop = not workload.arrivals.closed_loop
    found: Ranges = {None: attainment_range(records, facts.window, slo, open_loop=open_loop)}
    for kind in workload.classes:
        own = select(records, named(records, kind.name))
        found[kind.name] = attainment_range(own, facts.window, kind.slo, open_loop=open_loop)
    return found
