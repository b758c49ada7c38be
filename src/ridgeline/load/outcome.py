"""What a drive leaves besides its records, and how that of several drivers becomes one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.domain.records import RunEvent
from ridgeline.domain.run import ClientCheck, Warmup, Window
from ridgeline.domain.steadystate import STEADY
from ridgeline.load.check import CheckFigures, pooled


@dataclass(frozen=True, slots=True)
class Drove:
    """What one driver leaves besides its records; see `DriveResult`."""

    zero_ns: int
    window: Window
    check: CheckFigures
    interrupted: bool
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    warmup: Warmup | None = None


@dataclass(frozen=True, slots=True)
class DriveResult:
    """What a drive leaves besides its records. Times in ns from the run's zero.

    zero_ns: the run's zero on the monotonic clock. faults: what happened to the server that leaves
    the figures without meaning. warmup: how the window's start was found, None when it was fixed.
    """

    zero_ns: int
    window: Window
    client: ClientCheck
    interrupted: bool
    notes: tuple[str, ...]
    faults: tuple[str, ...] = ()
    warmup: Warmup | None = None


def result_of(parts: Sequence[Drove], client_faults: tuple[str, ...] = ()) -> DriveResult:
    """What a run leaves, from what each of its drivers left. The window ends with the first."""
    windows = [part.window for part in parts]
    end_ns = min(window.end_ns for window in windows)
    start_ns = min(end_ns, *(window.start_ns for window in windows))
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    faults = dict.fromkeys(fault for part in parts for fault in part.faults)
    return DriveResult(
        parts[0].zero_ns,
        Window(start_ns, end_ns),
        pooled([part.check for part in parts], client_faults),
        any(part.interrupted for part in parts),
        tuple(notes),
        tuple(faults),
        _common_warmup([part.warmup for part in parts], Window(start_ns, end_ns)),
    )


def _common_warmup(parts: Sequence[Warmup | None], window: Window) -> Warmup | None:
    """The warm-up of all: they were told of the same moment, and share the window."""
    known = [part for part in parts if part is not None]
    return replace(known[0], offered=window) if known else None


def steady_event(elapsed_ns: int) -> RunEvent:
    """What is told when a run has become steady."""
    return RunEvent(elapsed_ns, STEADY, f"the window opens after {elapsed_ns / 1e9:.1f} s")
