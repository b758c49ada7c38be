"""What a calibration was fitted on, and whether a configuration is something else.

A calibration holds for a GPU on a host. Its launch times and its API server hardly know of the
model; its two shares of the GPU do. So it is applied to whatever runs on that GPU, and where that
is not what was measured, the result says so.
"""

from dataclasses import dataclass, replace

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration, Served
from ridgeline.domain.model import ModelShape
from ridgeline.domain.model import shape as find_shape

DEFAULT_RELEASE = "0.21"
# An aspect of what is served in words, and whether public rows say how a calibration carries over.
ASPECTS = {
    "model": ("model", True),
    "weights": ("weights", True),
    "tensor_parallel": ("tensor parallelism", False),
    "release": ("release", False),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a configuration is not what its calibration was fitted on.

    differs, unknown: names in ASPECTS; unknown are those that the calibration does not tell.
    """

    ours: Served
    nearest: Served | None
    differs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def wider(self) -> bool:
        """Whether the bands have to hold the error of carrying a calibration over."""
        return any(ASPECTS[name][1] for name in (*self.differs, *self.unknown))

    def notes(self) -> tuple[str, ...]:
        """For whoever reads the figures; none where it is what was fitted."""
        found = []
        if self.differs:
            apart = ", ".join(
                f"{ASPECTS[n][0]} {getattr(self.nearest, n)} (here {getattr(self.ours, n)})"
                for n in self.differs
            )
            found.append(f"the calibration was fitted on something else: {apart}")
        if self.unknown:
            words = ", ".join(
                f"{ASPECTS[n][0]} (here {getattr(self.ours, n)})" for n in self.unknown
            )
            found.append(
                f"the calibration's file does not say its {words}: write it anew with `ridgeline"
                " calibrate`"
            )
        return tuple(f"{text}; {self._worth()}" for text in found)

    def _worth(self) -> str:
        """What the bands are worth then."""
        asked = (*self.differs, *self.unknown)
        blank = [words for words, public in (ASPECTS[n] for n in asked) if not public]
        parts = []
        if self.wider:
            parts.append(
                "bands are wider by what carrying shares of a GPU over did on public rows, launch"
                " times and the API server were not validated elsewhere"
            )
        if blank:
            parts.append(f"bands are not validated for a change of {' or '.join(blank)}")
        return "; ".join(parts)


def served(configuration: Configuration, release: str | None = None) -> Served:
    """What a configuration serves. `release` where the engine told it.

    Raises what resolving its knobs raises.
    """
    gpu = configuration.device()
    assert gpu is not None
    version = release or configuration.engine_version or DEFAULT_RELEASE
    knobs = resolve(configuration.knobs, gpu, find_shape(configuration.model), version)
    return Served(configuration.model, knobs.weights, knobs.tensor_parallel, knobs.version)


def scope_of(configuration: Configuration) -> Scope | None:
    """How the configuration's calibration fits it; None without one that is of its GPU."""
    made, device = configuration.calibration, configuration.device()
    if made is None or device is None or made.gpu != device.name:
        return None
    ours = served(configuration)
    return min(
        (_against(ours, one) for one in made.fitted_on),
        key=lambda s: (len(s.differs), len(s.unknown)),
        default=Scope(ours, None, unknown=tuple(ASPECTS)),
    )


def _against(ours: Served, fitted: Served) -> Scope:
    differs, unknown = [], []
    for name in ASPECTS:
        theirs, mine = getattr(fitted, name), getattr(ours, name)
        if theirs is None:
            unknown.append(name)
        elif theirs != mine and not (name == "model" and _same_shape(theirs, mine)):
            differs.append(name)
    return Scope(ours, fitted, tuple(differs), tuple(unknown))


def _same_shape(one: str, other: str) -> bool:
    """A model is its shape here: a folder may have another name than the one on the hub."""
    try:
        first, second = find_shape(one), find_shape(other)
    except RidgelineError:
        return False
    return _physics(first) == _physics(second)


def _physics(shape: ModelShape) -> ModelShape:
    """Without what a step's time does not depend on (weights are an aspect of their own)."""
    return replace(
        shape, name="", model_type="", max_positions=0, weight_format=None, image_grid=None
    )


def scope_notes(configuration: Configuration) -> tuple[str, ...]:
    """What is to be said of the configuration's calibration; nothing where it fits or is none."""
    made, device = configuration.calibration, configuration.device()
    if made is None or device is None:
        return ()
    if made.gpu != device.name:
        return (f"the calibration is of {made.gpu}: {device.name} is predicted with its priors",)
    scope = scope_of(configuration)
    return () if scope is None else scope.notes()
