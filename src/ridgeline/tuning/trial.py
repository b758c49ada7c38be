"""What a search has tried: candidates, trials and the state that each is in.

A state is never a number: a configuration that crashed, was void or misses a target has no score
that another one could lose against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

State = Literal[
    "feasible",  # ran, and every limit is met with confidence
    "unsure",  # ran, and the intervals do not tell for every limit
    "infeasible",  # ran, and a limit is missed with confidence
    "void",  # ran, and the figures do not count (client, clocks, not steady, ...)
    "crashed",  # the engine did not start, died or stood still
    "refused",  # not started: a rule of the engine, of the memory plan or of the user
]


@dataclass(frozen=True)
class Candidate:
    """A configuration as its change from the baseline; the baseline itself has none.

    Values are plain (numbers, words, mappings), as in a study file; "routing" is a key like a knob.
    """

    change: Mapping[str, Any] = field(default_factory=dict)

    @cached_property  # a search asks for it a hundred thousand times
    def key(self) -> tuple[tuple[str, str], ...]:
        """Equal for candidates with the same change, whatever its order; may be hashed."""
        return tuple(sorted((name, repr(value)) for name, value in self.change.items()))

    @property
    def words(self) -> str:
        """The change as a person writes it: "max_num_seqs=64, enforce_eager=False"."""
        return ", ".join(f"{n}={v}" for n, v in self.change.items()) or "baseline"


@dataclass(frozen=True, slots=True)
class Miss:
    """One limit of a trial: its key as in an SLO, the value seen with its interval, met or not.

    Times in milliseconds, shares in 0..1, as the limit itself. None = not known.
    """

    key: str
    limit: float
    value: float | None
    low: float | None
    high: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of one candidate, or why there is none.

    number: from 1, in the order of measuring. value: the objective, larger is better, None without
    a figure; low, high: its 95 % interval within the run. window_s: seconds that were measured.
    gpu_s: GPU seconds that it took, its share of an engine start included. stopped: it was ended
    early because it could not meet the targets any more (`reason` says by which bound). beside: how
    many other trials were measured on other GPUs of the host at some time of it.
    """

    number: int
    candidate: Candidate
    state: State
    value: float | None = None
    low: float | None = None
    high: float | None = None
    limits: tuple[Miss, ...] = ()
    window_s: float = 0.0
    gpu_s: float = 0.0
    seed: int = 0
    stopped: bool = False
    reason: str | None = None
    run: str | None = None  # folder of the stored run in the study directory
    beside: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """All trials so far, in order. Immutable: a search is a function of it and of its seed."""

    trials: tuple[Trial, ...] = ()

    def with_trials(self, more: Sequence[Trial]) -> "History":
        """The history with more trials at its end."""
        return History((*self.trials, *more))

    def of(self, candidate: Candidate) -> tuple[Trial, ...]:
        """Trials of that candidate."""
        return tuple(t for t in self.trials if t.candidate.key == candidate.key)

    @property
    def gpu_s(self) -> float:
        """GPU seconds used."""
        return sum(t.gpu_s for t in self.trials)
