"""What the probe's own requests tell: no answer at all, or answers that are errors."""

import re
from collections.abc import Iterable

from ridgeline.diagnosis.evidence import EngineLevels, Evidence, ProbeResult
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.rules.alive import STALLED_S, health_facts
from ridgeline.diagnosis.wording import queue_facts

DENIED = ("401", "403")
_STATUS = re.compile(r"HTTP (\d{3})")


def unanswered(e: Evidence) -> Iterable[Finding]:
    """A small request of the probe's own got no answer, though the gauges show no queue.

    A gauge is what the engine core said last: of one that froze while idle it goes on saying 0.
    """
    for probe in _probes(e):
        engines = _behind(e, probe)
        if probe.silent_s is None or any(g.stood_still_s >= STALLED_S for g in engines):
            continue
        busy = any(g.waiting is not None and g.waiting.mean >= 1 for g in engines)
        said = f"no answer to a request of a few tokens in {probe.silent_s:.0f} s"
        facts = [Fact("silent_s", probe.silent_s, said, "s"), *queue_facts(e), *health_facts(e)]
        yield Finding(
            "unanswered", f"a small request{_whom(e, probe)} got no answer in"
            f" {probe.silent_s:.0f} s", "limit" if busy else "fault", 0.5 if busy else 1.0,
            "queue" if busy else "hung engine", tuple(facts), "medium" if busy else "high",
            (Try("restart", "the engine, after a stack dump (py-spy dump) of EngineCore", None,
                 why_no_gain="it does not answer at all"),),
            (Wont("any knob", "no step is taken"),) if not busy else (),
        )  # fmt: skip


def refused(e: Evidence) -> Iterable[Finding]:
    """Own requests were answered with an error, or with nothing whole."""
    for probe in _probes(e):
        if probe.silent or (probe.sent and probe.ok == probe.sent):
            continue
        why = probe.trouble or "no reason is told"
        status = _STATUS.search(why)
        denied = status is not None and status[1] in DENIED
        count = f"{probe.sent - probe.ok} of {probe.sent} small requests" if probe.sent else (
            "asking which model to ask")  # fmt: skip
        what = "RIDGELINE_API_KEY" if denied else "the server's log"
        how = "what it says of these requests: the engine's figures do not show them"
        if denied:
            how = "the key that the server was started with"
        yield Finding(
            "own-requests-fail", f"{count}{_whom(e, probe)} failed: {why}", "fault",
            1 - probe.ok / probe.sent if probe.sent else 1.0, "requests that fail",
            (Fact("answered", float(probe.ok), f"{probe.ok} of {probe.sent} answered"),
             *health_facts(e)), "high",
            (Try(what, how, None, why_no_gain="it is no question of speed"),),
        )  # fmt: skip


def _probes(e: Evidence) -> tuple[ProbeResult, ...]:
    return e.probes or (() if e.probe is None else (e.probe,))


def _behind(e: Evidence, probe: ProbeResult) -> list[EngineLevels]:
    """The engines of the server that was asked."""
    if probe.target is None:
        return list(e.engines)
    return [g for g in e.engines if g.name.partition("/")[0] == probe.target]


def _whom(e: Evidence, probe: ProbeResult) -> str:
    return "" if e.servers == 1 or probe.server is None else f" to {probe.server}"
