"""All comparisons that a verdict rests on: of the candidate, in parts, and of the noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.domain.readings import Likelihoods, Reading, ServerReading
from ridgeline.tuning.quality_figures import Comparison, agreement_beyond_noise, compare
from ridgeline.tuning.quality_stats import Figure


@dataclass(frozen=True, slots=True)
class Figures:
    """candidate: against the reference on all prompts; short: on those that are not long, where
    there are long ones too; long: on the long ones alone. repeat: the reference asked twice. floor:
    other exact numerics. floor_is_candidate: the floor says the very numbers that the candidate
    says. cut: prompts of which a server read less than another.
    """

    candidate: Comparison
    agreement: Figure
    short: Comparison | None = None
    short_agreement: Figure | None = None
    long: Comparison | None = None
    repeat: Comparison | None = None
    floor: Comparison | None = None
    floor_is_candidate: bool = False
    cut: tuple[str, ...] = ()


def figures_of(
    reference: ServerReading,
    candidate: ServerReading,
    repeat: ServerReading | None,
    floor: ServerReading | None,
) -> Figures:
    """Raises ValueError when they did not read the same prompts as the same tokens."""
    servers = {"ours": reference, "theirs": candidate, "again": repeat, "exact": floor}
    given = {name: r.readings for name, r in servers.items() if r is not None}
    if len({len(readings) for readings in given.values()}) > 1:
        raise ValueError("the servers read different prompts")
    rows = [cut_alike(row) for row in zip(*given.values(), strict=True)]
    read = dict(zip(given, zip(*rows, strict=True), strict=True))
    ours, theirs, exact = read["ours"], read["theirs"], read.get("exact")
    long = [i for i, reading in enumerate(ours) if reading.prompt.long]
    short = [i for i, reading in enumerate(ours) if not reading.prompt.long] if long else []
    return Figures(
        compare(ours, theirs),
        agreement_beyond_noise(ours, theirs, exact),
        compare(_some(ours, short), _some(theirs, short)) if short else None,
        agreement_beyond_noise(
            _some(ours, short), _some(theirs, short), exact and _some(exact, short)
        ) if short else None,
        compare(_some(ours, long), _some(theirs, long), pieces=True) if long else None,
        None if repeat is None else compare(ours, read["again"]),
        None if exact is None else compare(ours, exact),
        exact is not None and compare(exact, theirs).identical,
        tuple(
            new[0].prompt.name for new, old in zip(rows, zip(*given.values(), strict=True),
            strict=True) if any(a is not b for a, b in zip(new, old, strict=True))
        ),
    )  # fmt: skip


def cut_alike(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Readings of one prompt by several servers. Where one with less context read the beginning
    only, the beginning of each: without the answers, which come after other tokens.
    """
    sizes = [len(reading.likelihoods.ids) for reading in readings]
    n = min(sizes)
    same = len({reading.likelihoods.ids[:n] for reading in readings}) == 1
    if len(set(sizes)) == 1 or not same or n < 2:
        return tuple(readings)
    return tuple(_beginning(reading, n) for reading in readings)


def _beginning(reading: Reading, n: int) -> Reading:
    told = reading.likelihoods
    first = Likelihoods(
        told.ids[:n], told.logprobs[: n - 1], told.top_ids[: n - 1], told.top_logprobs[: n - 1]
    )
    return replace(reading, likelihoods=first, answer=None, followed=None)


def _some(readings: Sequence[Reading], which: Sequence[int]) -> list[Reading]:
    return [readings[i] for i in which]
