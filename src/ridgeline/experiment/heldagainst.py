"""A plan's predictions held against runs that were measured: is the twin to be believed here?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.domain.bands import LEVEL, TOKENS, Z, value_at
from ridgeline.domain.knobs import Configuration
from ridgeline.experiment.calibrating import PATHS, Observation, on_twin
from ridgeline.experiment.predicting import Prediction, Predictor

# What is held against what was measured, by an observation's name for it.
HELD = ("output_tokens_per_s", "ttft_p95_s", "itl_p95_s")
# How often a twin with true bands may be demoted, by each of two rules and over all figures.
FALSE_ALARM = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """One figure of a measured experiment beside the twin's, and the twin's 90 % band.

    path: of the figure in a summary. refused: why the twin has none. too_few: it has none because
    fewer requests fell into its window than such a percentile needs.
    """

    experiment: str
    path: str
    measured: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str | None = None
    too_few: bool = False

    @property
    def outside(self) -> bool | None:
        """Whether the measurement lies outside the band; None without one. What the twin has none
        of, or nothing, and an engine had lies outside.
        """
        if self.too_few:
            return None
        if not self.predicted:
            return self.refused is not None or self.measured > 0
        if self.low is None or self.high is None:
            return None
        return not self.low <= self.measured <= self.high

    @property
    def sigmas(self) -> float:
        """How many standard deviations of its log-normal band it lies from the prediction; 0 when
        that is not known, infinite for one that is missed and has no width.
        """
        if self.outside is None:
            return 0.0
        if not self.predicted or not self.low or not self.high or self.low >= self.high:
            return math.inf if self.outside else 0.0
        if self.measured <= 0:
            return math.inf
        error = abs(math.log(self.measured / self.predicted))
        return error / (math.log(self.high / self.low) / (2 * Z))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a twin's figures agree with measured ones.

    counts: by a figure's path, (how many lie outside their 90 % band, of how many with one).
    against: the figures that contradict the twin: more of them lie outside than chance explains,
    one is too far off for it, or one was refused and ran.
    """

    counts: Mapping[str, tuple[int, int]]
    against: tuple[str, ...] = ()

    @property
    def demoted(self) -> bool:
        """Whether the twin's ranking is not to be relied on."""
        return bool(self.against)

    @property
    def outside(self) -> int:
        """Throughputs outside their bands."""
        return self.counts.get(TOKENS, (0, 0))[0]

    @property
    def known(self) -> int:
        """Throughputs whose bands are known."""
        return self.counts.get(TOKENS, (0, 0))[1]

    @property
    def expected(self) -> float:
        """How many of these a twin with true bands has outside, on average."""
        return (1 - LEVEL) * self.known


def hold(
    observations: Iterable[Observation], predict: Predictor, base: Configuration
) -> tuple[Held, ...]:
    """Predict what was measured, with the constants of `base`, and put the two side by side.

    Prompts are as long as the server counted them (the chat template comes on top).
    """
    found: list[Held] = []
    for observation in observations:
        configuration = replace(on_twin(observation), calibration=base.calibration)
        prediction = predict(
            configuration,
            observation.workload,
            {},
            bands=True,
            prompt_extra=observation.prompt_extra,
        )
        for name in HELD:
            measured = observation.figures.get(name)
            if measured is None:
                continue
            path = PATHS[name]
            found.append(_beside(Held(observation.name, path, measured), prediction))
    return tuple(found)


def _beside(held: Held, prediction: Prediction) -> Held:
    """What was measured with the prediction, or with the reason why there is none."""
    summary = prediction.summary
    if summary is None or prediction.void:
        return replace(held, refused=prediction.refused or "; ".join(prediction.void))
    value, band = value_at(summary, held.path), summary.bands.get(held.path)
    if value is None:
        return replace(held, too_few=True)
    if band is None:
        return replace(held, predicted=value)
    return replace(held, predicted=value, low=band.low, high=band.high)


def agreement(held: Iterable[Held]) -> Agreement:
    """Whether the twin's figures, and the ranking that is made of them, are to be relied on.

    An honest 90 % band leaves out one measurement of ten, so that one outside says little. A figure
    speaks against the twin when so many or more of it lie outside in less than a share of the cases
    (binomial), or when the farthest one of so many would lie so far off in less than that. Both
    take experiments as independent: where all err together, they come more often. The share is
    FALSE_ALARM over the number of figures (Bonferroni), which holds however figures of one
    experiment hang together: throughput and ITL mostly err as one.
    """
    known = [one for one in held if one.outside is not None]
    figures = {path: [h for h in known if h.path == path] for path in map(PATHS.__getitem__, HELD)}
    figures = {path: ones for path, ones in figures.items() if ones}
    return Agreement(
        {path: (_outside(ones), len(ones)) for path, ones in figures.items()},
        tuple(p for p, ones in figures.items() if _against(ones, FALSE_ALARM / len(figures))),
    )


def _outside(ones: Sequence[Held]) -> int:
    return sum(one.outside is True for one in ones)


def _against(ones: Sequence[Held], chance: float) -> bool:
    """Whether one figure of so many experiments is less likely than `chance`, by either rule."""
    if any(one.refused is not None for one in ones):
        return True
    one_so_far = math.erfc(max(one.sigmas for one in ones) / math.sqrt(2))
    return (
        _at_least(_outside(ones), len(ones), 1 - LEVEL) < chance or one_so_far * len(ones) < chance
    )


def _at_least(count: int, of: int, share: float) -> float:
    """Probability of `count` or more of `of` independent events that each have that share."""
    return math.fsum(
        math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count, of + 1)
    )
