"""What the rules of a verdict look at, and what they find."""

from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Bools, Floats, RunRecords
from ridgeline.domain.run import RunFacts, Window
from ridgeline.domain.slo import Limit, Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a rule may look at."""

    records: RunRecords
    facts: RunFacts
    summary: Summary
    workload: Workload
    slo: Slo

    @property
    def window(self) -> Window:
        """The measured part."""
        return self.facts.window

    @property
    def limits(self) -> tuple[Limit, ...]:
        """All limits, those of single classes of requests too."""
        own = (limit for kind in self.workload.classes for limit in kind.slo.limits)
        return (*self.slo.limits, *own)

    @property
    def start_ns(self) -> Floats:
        """When each request was sent; where it was not, when it was meant to be."""
        sent, intended = self.records.sent_ns, self.records.intended_ns
        return np.where(np.isnan(sent), intended, sent)

    @property
    def inside(self) -> Bools:
        """The requests that belong to the window."""
        start = self.start_ns
        return (start >= self.window.start_ns) & (start < self.window.end_ns)

    def median_s(self, until: str, since: str = "sent_ns") -> float | None:
        """Median time between two stamps of the window's successes, None without any."""
        known = self.records.ok & self.inside
        spans = (getattr(self.records, until) - getattr(self.records, since))[known] / 1e9
        spans = spans[~np.isnan(spans)]
        return float(np.median(spans)) if len(spans) else None


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a rule found. void: the run cannot be used; otherwise it is a warning."""

    text: str
    void: bool = True


def ms(seconds: float) -> str:
    """A short time in words."""
    return f"{seconds * 1e3:.3g} ms"
