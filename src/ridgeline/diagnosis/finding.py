"""What a diagnosis says: findings, each with its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

# limit: holds requests back now. fault: something is broken. note: true, but not what binds.
# fine: nothing is wrong.
Kind = Literal["limit", "fault", "note", "fine"]
Confidence = Literal["high", "medium", "low"]
DOCS = "docs/doctor.md"


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure with its unit; `low` and `high`: what it lies between, where it has an interval.

    `words` says it for a person.
    """

    name: str
    value: float | str | None
    words: str
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is not known is left out."""
        found = {"name": self.name, "value": self.value, "unit": self.unit, "low": self.low,
                 "high": self.high, "words": self.words}  # fmt: skip
        return {k: v for k, v in found.items() if v not in (None, "") and not _endless(v)}


def _endless(value: object) -> bool:
    """JSON has no infinity: the end of a histogram's last bucket is left out."""
    return isinstance(value, float) and not isfinite(value)


@dataclass(frozen=True, slots=True)
class Gain:
    """What the twin predicts of a change: `metric` becomes `ratio` times what it is.

    low, high: the band in which the ratio is expected to lie, nine times of ten.
    """

    metric: str
    ratio: float
    low: float
    high: float
    better: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"metric": self.metric, "ratio": self.ratio, "low": self.low, "high": self.high,
                "better": self.better, "source": "twin"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Try:
    """One change: the knob under the engine's name, its value, and what to expect.

    `change`: as a study file has it, where the twin can be asked; None for what is no knob.
    `metric`: the figure that it is about. `expect`: what arithmetic says of it, where no twin is
    needed for that. `why_no_gain`: why no gain is predicted.
    """

    knob: str
    value: str
    change: Mapping[str, Any] | None = None
    metric: str = "output_tokens_per_s"
    expect: str = ""
    gain: tuple[Gain, ...] = ()
    why_no_gain: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        gain = [g.to_json() for g in self.gain] or None
        found: dict[str, Any] = {"knob": self.knob, "value": self.value, "expected_gain": gain}
        if self.expect:
            found["expect"] = self.expect
        return found if self.why_no_gain is None or gain else {**found, "no_gain": self.why_no_gain}


@dataclass(frozen=True, slots=True)
class Wont:
    """A popular knob that does not help here, and why."""

    knob: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"knob": self.knob, "why": self.why}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is so. `share`: of a request's time, or of what the GPUs could do, 0..1.

    `binds`: what binds, in a few words; empty for what does not.
    """

    id: str
    title: str
    kind: Kind
    share: float
    binds: str = ""
    evidence: tuple[Fact, ...] = ()
    confidence: Confidence = "medium"
    tries: tuple[Try, ...] = ()
    will_not_help: tuple[Wont, ...] = field(default=())

    @property
    def docs(self) -> str:
        """Where it is explained."""
        return f"{DOCS}#{self.id}"

    def to_json(self) -> dict[str, Any]:
        """As design.md and the published schema have it; `try` is the first change, if any."""
        first = self.tries[0].to_json() if self.tries else None
        return {
            "id": self.id, "title": self.title, "kind": self.kind, "binds": self.binds,
            "share": round(self.share, 4),
            "evidence": [fact.to_json() for fact in self.evidence],
            "confidence": self.confidence, "try": first,
            "more_tries": [t.to_json() for t in self.tries[1:]],
            "will_not_help": [w.to_json() for w in self.will_not_help],
            "docs": self.docs,
        }  # fmt: skip
