"""An experiment on another engine, another installation of it, or one that is started otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.domain.secrets import looks_secret, secret_in_words, secret_name
from ridgeline.workload.enginemodel import LaunchPart, RouterPart
from ridgeline.workload.studymodel import ExperimentPart, StudyPart

if TYPE_CHECKING:
    from ridgeline.workload.studyfile import Source

OURS = ("--host", "--port", "--uds", "--served-model-name", "--alias")


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
    launch = _launch(base.launch, part.launch, other=other)
    if part.launch is not None and launch is not None:
        check_launch(source, launch, (*path, "launch"))
    return replace(
        base,
        knobs=Knobs() if other else base.knobs,
        engine=part.engine or base.engine,
        engine_version=part.engine_version or (None if other else base.engine_version),
        model=base.model if part.model is None else model_at(part.model, folder),
        launch=launch,
    )


def model_at(text: str, folder: Path) -> str:
    """A model's name, or its path, which counts from the study file's folder on."""
    return str((folder / text).resolve()) if text.startswith(("./", "../")) else text


def launch_change(base: Configuration, configuration: Configuration) -> str:
    """What differs in how it is started, in words; empty when nothing does."""
    before, after = base.launch or Launch(), configuration.launch or Launch()
    words = []
    if before.router != after.router:
        words.append("no router" if after.router is None else f"behind {router_name(after.router)}")
    if before.image != after.image and after.image is not None:
        words.append(f"in {after.image}")
    if before.host != after.host and after.host is not None:
        words.append(f"on {after.host}")
    told = replace(before, router=after.router, image=after.image, host=after.host)
    return ", ".join(words if told == after else [*words, "started by another launch"])


def router_name(router: Router) -> str:
    """The router's program and rule, for people."""
    name = Path(router.command[-1]).name
    return name if router.policy is None else f"{name} ({router.policy})"


def _kind(engine: str) -> str:
    return engine if engine in ("twin", "endpoint") else "started"


def _launch(base: Launch | None, part: LaunchPart | None, *, other: bool) -> Launch | None:
    if base is not None and other:
        base = replace(base, command=None, arguments=(), environment={})
    if part is None:
        return base
    return replace(base or Launch(), **launch_values(part))


def launch_values(part: LaunchPart) -> dict[str, Any]:
    """What a launch part gives, as the fields of a `Launch`."""
    given: dict[str, Any] = {name: getattr(part, name) for name in part.model_fields_set}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
        elif isinstance(value, RouterPart):
            given[name] = Router(tuple(value.command), value.policy or None, tuple(value.arguments))
    return given


def check_launch(source: "Source", launch: Launch, path: tuple[str | int, ...]) -> None:
    """Refuse parts of a launch that contradict each other; raises BadInput."""
    if launch.container and launch.image is None:
        what = "container gives words to docker run, and there is no image"
        raise source.error((*path, "container"), what, "add launch.image")
    if not launch.tunnel and launch.host is None:
        what = "tunnel belongs to an engine on another host, and there is none"
        raise source.error((*path, "tunnel"), what, "add launch.host")
    if not source.stored:  # what was stored before must stay readable
        _refuse_secrets(source, launch, path)
    for word in launch.arguments:
        if word.split("=")[0].replace("_", "-") in OURS:
            what = f"{word.split('=')[0]} is Ridgeline's to give: it must know who answers where"
            raise source.error((*path, "arguments"), what, "leave it out")


def _refuse_secrets(source: "Source", launch: Launch, path: tuple[str | int, ...]) -> None:
    """Raise BadInput for a key or password among what results keep; its value is not repeated."""
    for name, value in launch.environment.items():
        if value and (secret_name(name) or looks_secret(value)):
            what = f"the value of {name} looks like a secret, and results keep it"
            fix = f"write {name}: null, it is then taken from the environment"
            raise source.error((*path, "environment"), what, fix)
    router = launch.router
    given = {"command": launch.command or (), "arguments": launch.arguments}
    given["container"] = launch.container
    given["router"] = () if router is None else (*router.command, *router.arguments)
    for key, words in given.items():
        found = secret_in_words(words)
        if found is not None:
            what = f"{found} holds what looks like a secret, and results keep it"
            fix = "give it as a variable that the engine reads, as in environment: {HF_TOKEN: null}"
            raise source.error((*path, key), what, fix)
