"""The knee of a plan's baseline: the most load that its twin carries.

Of users it is the lowest load near the plateau of the throughput. A rate has no plateau to stand
on: above the capacity the queue grows for as long as one looks, and a look is too short to see it.
There it is 95 % of what an overloaded run as long as the study's delivers, or the next rate below
at which no queue grows in such a run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.experiment.evidence import Doubt, Evidence
from ridgeline.experiment.loadsteps import of_steps
from ridgeline.experiment.predicting import Prediction, Predictor
from ridgeline.experiment.steady import class_queue_grew, not_steady

LOADS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the study's load
PLATEAU = 0.95
CARRIED = 0.9  # of the highest of LOADS: more than that delivered, and the knee is not among them
OVERLOAD = 1.5  # of what a look delivers: certainly more than is carried
APART = 1.05  # from a load that is not carried to the next below it
MOST_RUNS = 10
MOST_FAILED = 0.01  # of the requests: what turns more away has no growing queue, and no room either
Point = tuple[Arrivals, float, float | None]
Said = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Knee:
    """The load of the knee and what is delivered there: all replicas together, tokens/s.

    share: of it the study's own load is. ttft_p95_s: there, failures as infinite. seconds: the
    window in which an open loop's queue was looked at; None for users.
    """

    arrivals: Arrivals
    output_tokens_per_s: float
    share: float
    ttft_p95_s: float | None = None
    seconds: float | None = None


def knee_of(points: Sequence[Point]) -> Arrivals | None:
    """The lowest load that reaches 95 % of the highest throughput seen; None where all are 0."""
    best = max((rate for _, rate, _ in points), default=0.0)
    return next((a for a, rate, _ in points if 0 < rate >= PLATEAU * best), None)


def knee_found(
    points: Sequence[Point], configuration: Configuration, load: Workload, predict: Predictor,
    said: Said,
) -> Knee | None:  # fmt: skip
    """The knee by short looks (`points`, ascending loads) and, of a rate, by runs in full.

    None where no load that was tried is carried, or the highest of LOADS still is.
    """
    best = max((rate for _, rate, _ in points), default=0.0)
    own = load.arrivals
    if not best or not own.peak:
        return None
    if own.closed_loop:
        at = knee_of(points)
        if at is None:
            return None
        rate, wait = next((r, w) for a, r, w in points if a is at)
        return Knee(at, rate, own.peak / at.peak, wait)
    tokens = load.mean_output_tokens * own.peak
    return _Search(configuration, load, predict, said).result(best / tokens if tokens else 1.0)


class _Search:
    """Finds the knee of an open loop, with factors of the study's load."""

    def __init__(
        self, configuration: Configuration, load: Workload, predict: Predictor, said: Said
    ) -> None:
        self.configuration, self.load = configuration, load
        self.predict, self.said = predict, said
        self.tokens = load.arrivals.peak * load.mean_output_tokens  # per second, as offered
        self.runs = 0

    def result(self, guess: float) -> Knee | None:
        """`guess`: what an overloaded look delivered; one in full then says it better."""
        if not CARRIED * LOADS[-1] > guess:
            return None
        summary = self._run(min(LOADS[-1], OVERLOAD * guess)).summary
        most = None if summary is None else summary.throughput.output_tokens_per_s
        factor = PLATEAU * (most or 0.0) / self.tokens
        while factor >= LOADS[0] and self.runs < MOST_RUNS:
            found = self._run(factor)
            if found.summary is not None and _carried(found):
                wait = found.summary.failures_as_infinite["ttft_s"].p95
                arrivals, seconds = self.load.arrivals.scaled(factor), self.load.duration_s
                return Knee(arrivals, factor * self.tokens, 1 / factor, wait, seconds)
            factor /= APART
        return None

    def _run(self, factor: float) -> Prediction:
        self.said("the knee", self.runs, MOST_RUNS)
        self.runs += 1
        load = replace(self.load, arrivals=self.load.arrivals.scaled(factor))
        return self.predict(self.configuration, load, {}, also=(piles_up,))


def _carried(found: Prediction) -> bool:
    """Whether nothing piles up, and hardly anything is turned away instead."""
    if found.summary is None or found.void:
        return False
    counts = found.summary.requests
    return counts.failed <= MOST_FAILED * counts.sent


def piles_up(e: Evidence) -> Iterator[Doubt]:
    """A run that is not steady, or one step of a stepped load that is not."""
    parts = [own for _, own in of_steps(e)] if e.workload.arrivals.steps else [e]
    for part in parts:
        yield from not_steady(part)
    yield from class_queue_grew(e)
