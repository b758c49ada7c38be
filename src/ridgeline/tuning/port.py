"""The ports of the tuner: where it measures, and who decides what is measured next.

A search asks a `Ground` and cannot tell a GPU from a twin. Implementations of `Ground`: runs of a
study directory (`tuning.measuring`), recorded landscapes (`benchmarks/tuning`). A `Policy` is a
function of the history, so a search that was killed goes on by reading its history again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.tuning.trial import Candidate, History, Trial


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a candidate before it is measured.

    value: the objective, larger is better; low, high: its band (nine times of ten). feasible: the
    probability that every limit is met, 0..1. limits: what is expected of each limit's figure, by
    its key, in the limit's unit. refused: why it cannot run; then there are no values.
    """

    candidate: Candidate
    value: float | None = None
    low: float | None = None
    high: float | None = None
    feasible: float = 0.0
    refused: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a policy wants measured: candidates whose engines may be up side by side.

    One that is listed several times is started once and measured as often, under another seed each
    time: a start costs several windows. window_s: how long each is measured. why: one line for each
    candidate, for the report.
    """

    candidates: tuple[Candidate, ...]
    window_s: float
    why: tuple[str, ...]


class Ground(Protocol):
    """Where trials come from."""

    @property
    def places(self) -> int:
        """How many engines may be up side by side, at least 1."""

    @property
    def lasting(self) -> bool:
        """Whether engines stay up from one question to the next, as far as there are places: then
        measuring one again costs no start, and `cost_s` says so.
        """

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        """What the twin says of each, as calibrated by what was measured so far."""

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        """GPU seconds that measuring them together would take, engine starts included.

        One that is listed several times starts once.
        """

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        """Measure; trials are numbered from `first`. What goes wrong is a state, no exception.

        An engine that does not start gives one trial, however often it is listed.
        """


class Policy(Protocol):
    """Who decides what is measured next."""

    def ask(self, history: History, left_s: float) -> Ask | None:
        """The next measurement within `left_s` GPU seconds; None: nothing more is worth it."""
