"""A stepped load judged step by step: the whole is not steady on purpose, each step has to be."""

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.domain.parts import load_text, step_windows
from ridgeline.domain.run import STALLED
from ridgeline.domain.summary import LoadStepFigures
from ridgeline.domain.workload import Arrivals, LoadStep
from ridgeline.experiment.evidence import Doubt, Evidence
from ridgeline.experiment.steady import not_steady


def of_steps(e: Evidence) -> list[tuple[LoadStep, Evidence]]:
    """Each step that was begun, with the evidence of its own time as if it were the whole load."""
    found = []
    arrivals = e.workload.arrivals
    for step, window in step_windows(arrivals.steps, e.window):
        alone: Arrivals = replace(arrivals, users=step.users, rate_per_s=step.rate_per_s, steps=())
        workload = replace(e.workload, arrivals=alone, duration_s=step.for_s)
        facts = replace(e.facts, window=window)
        found.append((step, replace(e, facts=facts, workload=workload)))
    return found


def judged_steps(e: Evidence) -> tuple[LoadStepFigures, ...]:
    """The figures of the steps, each with what speaks against its being steady."""
    ended = e.window.start_ns
    figures = []
    steps = zip(of_steps(e), e.summary.load_steps, strict=True)
    for (step, evidence), found in steps:
        notes = [doubt.text for doubt in not_steady(evidence)]
        ended += round(step.for_s * 1e9)
        if ended > e.window.end_ns:
            missing = (ended - e.window.end_ns) / 1e9
            notes.insert(0, f"cut short by {missing:.3g} s")
            notes[:0] = [fault for fault in e.facts.server_faults if fault.startswith(STALLED)]
        figures.append(replace(found, notes=tuple(notes)))
    return tuple(figures)


def unsteady(e: Evidence) -> Iterator[Doubt]:
    """Drifts of a run; those inside the steps of a stepped load are told, and void nothing."""
    arrivals = e.workload.arrivals
    if not arrivals.steps:
        for doubt in not_steady(e):  # a replay is as it was recorded
            yield replace(doubt, void=doubt.void and arrivals.trace is None)
        return
    for step, evidence in of_steps(e):
        for doubt in not_steady(evidence):
            yield Doubt(f"load step {load_text(step)}: {doubt.text}", void=False)


def steps_not_reached(e: Evidence) -> Iterator[Doubt]:
    """A stepped load that ended before its last step."""
    steps = e.workload.arrivals.steps
    begun = len(step_windows(steps, e.window))
    if begun < len(steps):
        missing = ", ".join(load_text(step) for step in steps[begun:])
        yield Doubt(f"not every step of the load was reached: no figures for {missing}")
