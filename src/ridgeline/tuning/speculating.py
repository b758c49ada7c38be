"""Speculation in a tuning: at which loads it pays, looked at on the twin around the winner."""

import json
from dataclasses import replace

from ridgeline.experiment.crossover import Gain, crossover, crossover_words
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate

KNOB = "speculative_config"
USERS = (1, 4, 16, 64, 256)
BASIS = "by the twin, whose share of drafts that come true is a constant of its calibration"


def speculation_lines(session: Session, found: Found) -> tuple[str, ...]:
    """For each way to speculate that was tried, in a closed loop: the winner's other settings with
    and without it, at USERS.
    """
    load = session.setting.workload
    tried = {
        repr(value): value
        for t in found.told.history.trials
        if (value := t.candidate.change.get(KNOB)) is not None
    }
    if not tried or not session.oracle.known or load.arrivals.users is None:
        return ()
    rest = {n: v for n, v in found.winner.change.items() if n != KNOB}
    loads = [replace(load, arrivals=replace(load.arrivals, users=n)) for n in USERS]
    lines: list[str] = []
    for value in tried.values():
        pair = (Candidate({**rest, KNOB: value}), Candidate({**rest, KNOB: None}))
        looks = session.oracle.under([(c, w) for w in loads for c in pair])
        gains = [
            Gain(float(n), on.value / off.value)
            for n, on, off in zip(USERS, looks[::2], looks[1::2], strict=True)
            if on.value and off.value
        ]
        if len(gains) > 1:
            name = f"speculation {json.dumps(dict(value))} ({BASIS})"
            lines += crossover_words(name, crossover(gains))
    return tuple(lines)
