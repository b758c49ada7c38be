"""An experiment on another engine, another installation of it, or one that is started otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.workload.enginemodel import LaunchPart
from ridgeline.workload.studymodel import ExperimentPart, StudyPart

if TYPE_CHECKING:
    from ridgeline.workload.studyfile import Source


def on_its_engine(
    source: "Source", base: Configuration, study: StudyPart, index: int, folder: Path
) -> Configuration:
    """The baseline's configuration on the experiment's engine, version, model and launch.

    Another engine takes none of the baseline's knobs (they are of its own engine) and none of its
    command, arguments and environment. Raises BadInput for engines that cannot be compared.
    """
    part: ExperimentPart = study.experiments[index]
    kinds = [_kind(study.engine), _kind(part.engine or study.engine)]
    path = ("experiments", index)
    if kinds[0] != kinds[1]:
        what = f"{part.engine} cannot be compared with {study.engine}: it is measured otherwise"
        raise source.error((*path, "engine"), what, "compare engines that Ridgeline starts")
    if part.launch is not None and kinds[1] != "started":
        what = f"launch belongs to an engine that Ridgeline starts, not to {study.engine}"
        raise source.error((*path, "launch"), what)
    other = part.engine not in (None, study.engine)
    return replace(
        base,
        knobs=Knobs() if other else base.knobs,
        engine=part.engine or base.engine,
        engine_version=part.engine_version or (None if other else base.engine_version),
        model=base.model if part.model is None else model_at(part.model, folder),
        launch=_launch(base.launch, part.launch, other=other),
    )


def model_at(text: str, folder: Path) -> str:
    """A model's name, or its path, which counts from the study file's folder on."""
    return str((folder / text).resolve()) if text.startswith(("./", "../")) else text


def launch_change(base: Configuration, configuration: Configuration) -> str:
    """What differs in how it is started, in words; empty when nothing does."""
    return "" if base.launch == configuration.launch else "started by another launch"


def _kind(engine: str) -> str:
    return engine if engine in ("twin", "endpoint") else "started"


def _launch(base: Launch | None, part: LaunchPart | None, *, other: bool) -> Launch | None:
    if base is not None and other:
        base = replace(base, command=None, arguments=(), environment={})
    if part is None:
        return base
    given: dict[str, Any] = {name: getattr(part, name) for name in part.model_fields_set}
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value
    return replace(base or Launch(), **given)
