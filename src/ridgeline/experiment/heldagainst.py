"""A plan's predictions held against runs that were measured: is the twin to be believed here?"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ridgeline.domain.bands import TOKENS
from ridgeline.domain.knobs import Configuration
from ridgeline.experiment.calibrating import PATHS, Observation, on_twin
from ridgeline.experiment.predicting import Predictor

# What is held against what was measured, by an observation's name for it.
HELD = ("output_tokens_per_s", "ttft_p95_s", "itl_p95_s")


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
    def outside(self) -> bool:
        """True when the measurement lies outside the band, or there is no prediction."""
        if self.low is None or self.high is None:
            return self.refused is not None
        return not self.low <= self.measured <= self.high


def hold(
    observations: Iterable[Observation], predict: Predictor, base: Configuration
) -> tuple[Held, ...]:
    """Predict what was measured, with the constants of `base`, and put the two side by side."""
    found: list[Held] = []
    for observation in observations:
        configuration, workload = on_twin(observation)
        configuration = replace(configuration, calibration=base.calibration)
        prediction = predict(configuration, workload, {}, bands=True)
        for name in HELD:
            measured = observation.figures.get(name)
            if measured is None:
                continue
            path = PATHS[name]
            held = Held(observation.name, path, measured, refused=prediction.refused)
            if prediction.summary is not None:
                part, leaf = path.split(".")
                value = getattr(getattr(prediction.summary, part), leaf)
                band = prediction.summary.bands.get(path)
                if value is not None and band is not None:
                    held = replace(held, predicted=value, low=band.low, high=band.high)
            found.append(held)
    return tuple(found)


def demoted(held: Iterable[Held]) -> bool:
    """Whether the twin's ranking is not to be relied on: some throughput lies outside its band."""
    return any(one.outside for one in held if one.path == TOKENS)
