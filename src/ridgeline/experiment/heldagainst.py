"""A plan's predictions held against runs that were measured: is the twin to be believed here?"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ridgeline.domain.bands import LEVEL, TOKENS, Z, value_at
from ridgeline.domain.knobs import Configuration
from ridgeline.experiment.calibrating import PATHS, Observation, on_twin
from ridgeline.experiment.predicting import Predictor

# What is held against what was measured, by an observation's name for it.
HELD = ("output_tokens_per_s", "ttft_p95_s", "itl_p95_s")
FALSE_ALARM = 0.05  # how often a twin with true bands may be demoted, by each of two rules


@dataclass(frozen=True, slots=True)
class Held:
    """One figure of a measured experiment beside the twin's, and the twin's 90 % band.

    path: of the figure in a summary. refused: why the twin has none.
    """

    experiment: str
    path: str
    measured: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str | None = None

    @property
    def outside(self) -> bool | None:
        """Whether the measurement lies outside the band; None without one. What the twin refuses
        and an engine ran lies outside.
        """
        if self.low is None or self.high is None:
            return None if self.refused is None else True
        return not self.low <= self.measured <= self.high

    @property
    def sigmas(self) -> float:
        """How many standard deviations of its log-normal band it lies from the prediction; 0 when
        that is not known.
        """
        if not self.predicted or not self.low or not self.high or self.low >= self.high:
            return 0.0
        if self.measured <= 0:
            return math.inf
        error = abs(math.log(self.measured / self.predicted))
        return error / (math.log(self.high / self.low) / (2 * Z))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a twin's throughputs agree with measured ones.

    outside: of `known`, those outside their 90 % band, of which a tenth is expected there. demoted:
    that is too many for chance, or one is too far off for it, or one was refused and ran.
    """

    outside: int
    known: int
    demoted: bool

    @property
    def expected(self) -> float:
        """How many a twin with true bands has outside, on average."""
        return (1 - LEVEL) * self.known


def hold(
    observations: Iterable[Observation], predict: Predictor, base: Configuration
) -> tuple[Held, ...]:
    """Predict what was measured, with the constants of `base`, and put the two side by side."""
    found: list[Held] = []
    for observation in observations:
        configuration = replace(on_twin(observation), calibration=base.calibration)
        prediction = predict(configuration, observation.workload, {}, bands=True)
        for name in HELD:
            measured = observation.figures.get(name)
            if measured is None:
                continue
            path = PATHS[name]
            held = Held(observation.name, path, measured, refused=prediction.refused)
            if prediction.summary is not None:
                value = value_at(prediction.summary, path)
                band = prediction.summary.bands.get(path)
                if value is not None and band is not None:
                    held = replace(held, predicted=value, low=band.low, high=band.high)
            found.append(held)
    return tuple(found)


def agreement(held: Iterable[Held]) -> Agreement:
    """Whether the twin's ranking is to be relied on.

    An honest 90 % band leaves out one measurement of ten, so that one outside says little. The
    ranking is demoted when so many or more lie outside in less than FALSE_ALARM of the cases
    (binomial), or when the farthest one of so many would lie so far off in less than that.
    Both take the errors as independent: where all err together, they come more often.
    """
    known = [one for one in held if one.path == TOKENS and one.outside is not None]
    outside = sum(one.outside is True for one in known)
    refused = any(one.refused is not None for one in known)
    farthest = max((one.sigmas for one in known), default=0.0)
    one_so_far = math.erfc(farthest / math.sqrt(2))
    demoted = (
        refused
        or _at_least(outside, len(known), 1 - LEVEL) < FALSE_ALARM
        or one_so_far * len(known) < FALSE_ALARM
    )
    return Agreement(outside, len(known), bool(known) and demoted)


def _at_least(count: int, of: int, share: float) -> float:
    """Probability of `count` or more of `of` independent events that each have that share."""
    return math.fsum(
        math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count, of + 1)
    )
