"""From the checked `tune:` part of a study file to its plain value."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import nearest
from ridgeline.domain.knobs import KNOB_NAMES
from ridgeline.domain.routing import ROUTINGS
from ridgeline.workload.study import Choice, Span, TuneSpec
from ridgeline.workload.tunemodel import FIXED, ROUTING, TunePart

if TYPE_CHECKING:
    from ridgeline.workload.studyfile import Path_, Source

# Checks one knob's value as in a baseline: (knob, value, its place in the file); raises BadInput.
CheckKnob = Callable[[str, Any, "Path_"], Any]


def build_tune(
    source: "Source",
    part: TunePart | None,
    folder: Path,
    check: CheckKnob,
    *,
    host_gpus: int | None = None,
) -> TuneSpec:
    """The section as a value, its defaults where the file has none. Raises BadInput.

    `host_gpus`: as the file counts them.
    """
    if part is None:
        return TuneSpec(host_gpus=host_gpus)
    path: Path_ = ("tune", "space")
    space = {
        name: _choice(source, name, given, (*path, name), check)
        for name, given in part.space.items()
    }
    if part.only and not any(choice is not None for choice in space.values()):
        what = "only leaves nothing to tune: no option of space has values"
        raise source.error(("tune", "only"), what, "name some, or leave only out")
    prompts = part.quality.prompts
    if prompts is not None and not source.stored and not (folder / prompts).is_file():
        raise source.error(("tune", "quality", "prompts"), f"there is no file {prompts}")
    return TuneSpec(
        objective=part.objective,
        risk=part.risk,
        space=space,
        only=part.only,
        finalists=part.finalists,
        window_s=part.window_s,
        quality_prompts=None if prompts is None else str(folder / prompts),
        quality_threshold=part.quality.threshold,
        side_by_side=part.side_by_side,
        host_gpus=host_gpus,
    )


def _choice(source: "Source", name: str, given: Any, path: "Path_", check: CheckKnob) -> Choice:
    known = (*KNOB_NAMES, ROUTING)
    if name not in known:
        what = f"unknown key {name!r} in tune.space{nearest(name, known)}"
        raise source.error(path, what, key=True)
    if given == FIXED:
        return None
    if isinstance(given, Mapping):
        return _span(source, name, given, path, check)
    if not isinstance(given, list) or not given:
        what = f"tune.space.{name} must be a list of values, {{min, max}} or fixed"
        raise source.error(path, what)
    if name == ROUTING:
        for i, value in enumerate(given):
            if value not in ROUTINGS:
                what = f"routing must be one of {', '.join(ROUTINGS)}, not {value!r}"
                raise source.error((*path, i), what)
        return tuple(given)
    return tuple(check(name, value, (*path, i)) for i, value in enumerate(given))


def _span(
    source: "Source", name: str, given: Mapping[str, Any], path: "Path_", check: CheckKnob
) -> Span:
    if set(given) != {"min", "max"} or name == ROUTING:
        raise source.error(path, f"tune.space.{name} needs min and max, and nothing else")
    low, high = (check(name, given[end], (*path, end)) for end in ("min", "max"))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or low > high:
        what = f"tune.space.{name} must go from a number to a larger one, not {low} to {high}"
        raise source.error(path, what)
    return Span(low, high)
