"""What a calibration was fitted on, and whether a configuration is something else.

A calibration holds for a GPU on a host. Its launch times and its API server hardly know of the
model; its two shares of the GPU do. So it is applied to whatever runs on that GPU, and where that
is not what was measured, the result says so.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import differing_rates
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

    All that was fitted counts: its constants are pooled over it. differs, unknown: names in
    ASPECTS in which any of it is something else, or which the file does not tell of any.
    same: some of it is just what the configuration serves.
    """

    ours: Served
    fitted: tuple[Served, ...] = ()
    differs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    same: bool = False

    @property
    def wider(self) -> bool:
        """Whether the bands have to hold the error of carrying a calibration over."""
        return any(ASPECTS[name][1] for name in (*self.differs, *self.unknown))

    def notes(self) -> tuple[str, ...]:
        """For whoever reads the figures; none where it is what was fitted."""
        found = []
        if self.differs:
            apart = ", ".join(
                f"{ASPECTS[n][0]} {self._theirs(n)} (here {getattr(self.ours, n)})"
                for n in self.differs
            )
            too = " too" if self.same else ""
            found.append(f"the calibration was fitted on something else{too}: {apart}")
        if self.unknown:
            words = ", ".join(
                f"{ASPECTS[n][0]} (here {getattr(self.ours, n)})" for n in self.unknown
            )
            found.append(
                f"the calibration's file does not say its {words}: write it anew with `ridgeline"
                " calibrate`"
            )
        return tuple(f"{text}; {self._worth()}" for text in found)

    def _theirs(self, name: str) -> str:
        """The values of an aspect that are not ours."""
        values = (getattr(one, name) for one in self.fitted if name in _apart(self.ours, one))
        return ", ".join(dict.fromkeys(map(str, values)))

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
    made = configuration.calibration
    if made is None or not applies(configuration):
        return None
    ours, rows = served(configuration), made.fitted_on
    if not rows:
        return Scope(ours, unknown=tuple(ASPECTS))
    apart = {n for row in rows for n in _apart(ours, row)}
    blank = {n for row in rows for n in ASPECTS if getattr(row, n) is None}
    return Scope(
        ours,
        rows,
        tuple(n for n in ASPECTS if n in apart),
        tuple(n for n in ASPECTS if n in blank),
        any(not _apart(ours, row) and None not in astuple(row) for row in rows),
    )


def applies(configuration: Configuration) -> bool:
    """Whether the configuration has a calibration that was made on its GPU: by name and figures.

    Of a card whose figures its file does not tell the name alone has to do.
    """
    made, device = configuration.calibration, configuration.device()
    if made is None or device is None or made.gpu != device.name:
        return False
    theirs = made.device()
    return theirs is None or not differing_rates(theirs, device)


def _apart(ours: Served, fitted: Served) -> tuple[str, ...]:
    """Aspects in which the two are known to differ."""
    found = []
    for name in ASPECTS:
        theirs, mine = getattr(fitted, name), getattr(ours, name)
        if theirs not in (None, mine) and not (name == "model" and same_shape(theirs, mine)):
            found.append(name)
    return tuple(found)


def same_shape(one: str, other: str) -> bool:
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
    theirs, scope = made.device(), scope_of(configuration)
    if scope is not None:
        said = scope.notes()
        if theirs is None:
            said += (f"the calibration's file does not say the figures of {made.gpu}",)
        return said
    assert theirs is not None
    apart = ", ".join(
        f"{n} {_words(getattr(theirs, n))}, here {_words(getattr(device, n))}"
        for n in differing_rates(theirs, device)
    )
    return (
        f"the calibration is of another GPU that is called {made.gpu} too ({apart}): this one is"
        " predicted with its priors",
    )


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_words(v)}" for name, v in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
