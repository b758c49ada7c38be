"""A knob is advised or advised against, never both: what several findings say is made to agree."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ridgeline.diagnosis.finding import Finding, Try, Wont

_WAYS = (" up", " down", " alone")  # of a knob in a "will not help"
_FIRM = ("limit", "fault")


def in_agreement(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by rank, in which no knob stands in both lists.

    What one of them tries is struck from every "will not help". Only a note's try gives way to
    what a finding that binds says against it.
    """
    against = {k for f in findings if f.kind in _FIRM for k in _refused(f)}
    firm = {_knob(t.knob) for f in findings if f.kind in _FIRM for t in f.tries}
    kept = [
        f if f.kind in _FIRM else replace(f, tries=tuple(_left(f.tries, against - firm)))
        for f in findings
    ]
    tried = {_knob(t.knob) for f in kept for t in f.tries}
    return tuple(replace(f, will_not_help=tuple(_struck(f.will_not_help, tried))) for f in kept)


def _left(tries: Iterable[Try], against: set[str]) -> Iterable[Try]:
    return (t for t in tries if _knob(t.knob) not in against)


def _struck(rows: Iterable[Wont], tried: set[str]) -> Iterable[Wont]:
    """Without the knobs that are tried: one row may name several."""
    for row in rows:
        names = row.knob.split(", ")
        left = [name for name in names if _knob(name) not in tried]
        if left:
            yield row if left == names else replace(row, knob=", ".join(left))


def _refused(finding: Finding) -> Iterable[str]:
    return (_knob(name) for w in finding.will_not_help for name in w.knob.split(", "))


def _knob(words: str) -> str:
    """The knob itself, without a value or a direction."""
    name = words.partition("=")[0].strip()
    for way in _WAYS:
        name = name.removesuffix(way)
    return name
