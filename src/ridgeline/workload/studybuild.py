"""From the checked parts of a study file to the frozen `Study`, with the checks between keys."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.hardware import gpu as known_gpu
from ridgeline.domain.knobs import Calibration, Configuration, Knobs, Launch
from ridgeline.domain.model import shape
from ridgeline.domain.slo import Slo
from ridgeline.domain.vision import image_tokens
from ridgeline.domain.workload import Workload
from ridgeline.workload.calibrationfile import read_calibration
from ridgeline.workload.enginemodel import HardwarePart, KnobsPart, LaunchPart
from ridgeline.workload.gpufile import GPU_FILES, read_gpu
from ridgeline.workload.otherengine import (
    check_launch,
    launch_change,
    launch_values,
    model_at,
    on_its_engine,
)
from ridgeline.workload.poolbuild import pools_change, with_pools
from ridgeline.workload.study import (
    ExperimentSpec,
    Finding,
    Published,
    Statement,
    Study,
)
from ridgeline.workload.studyfile import Path_, Source, difference_text, explain
from ridgeline.workload.studymodel import ExperimentPart, FindingPart, RatioPart, StudyPart
from ridgeline.workload.tunebuild import build_tune
from ridgeline.workload.workloadbuild import build_slo, build_workload, limits_requests
from ridgeline.workload.workloadmodel import WorkloadPart

P = TypeVar("P", bound=BaseModel)

# Parts that hold one choice: an experiment that gives one replaces it and merges nothing.
ON_TWIN = ("twin", "vllm", "endpoint")  # engines whose figures the twin can predict
ROUND_ROBIN = "round-robin"
WHOLE = ("arrivals", "tokens", "output_tokens", "sessions")


def build_study(source: Source, text: str, folder: Path) -> Study:
    """Check a parsed file and build the study. Raises BadInput naming line and key."""
    part = _checked(StudyPart, source.body, source, ())
    names = _unique_names(source, part)
    as_ids = part.workload.prompts is not None and part.workload.prompts.as_ == "token_ids"
    if as_ids and part.api != "completions":
        what = "token ids can only be sent to completions"
        raise source.error(("workload", "prompts", "as"), what, "add api: completions")
    _refuse_images(source, part)
    if as_ids and part.workload.sessions is not None:
        what = "a session's next turn carries the reply's text: it cannot be sent as token ids"
        raise source.error(("workload", "prompts", "as"), what)
    workload = build_workload(source, part.workload, ("workload",))
    base = ExperimentSpec(
        part.baseline_name,
        "baseline",
        _base_configuration(source, part, workload, folder),
        workload,
        _lines(source, ("baseline",)),
    )
    _check_countable(source, base)
    if not part.experiments and part.findings:
        raise source.error(("findings",), "findings compare experiments, and there are none")
    specs = (base, *(_experiment(source, base, i, part, folder) for i in range(len(names) - 1)))
    slo = build_slo(source, part.slo, ("slo",))
    findings = tuple(_finding(source, i, f, names) for i, f in enumerate(part.findings))
    for i, finding in enumerate(findings):
        _check_judgeable(source, i, finding, {s.name: s for s in specs}, slo)
    return Study(
        name=part.name,
        model=base.configuration.model,
        engine=part.engine,
        experiments=specs,
        slo=slo,
        repeats=part.repeats,
        published=_published(source, part, names),
        findings=findings,
        text=text,
        equal_within=part.equal_within,
        api=part.api,
        calibration=None if part.engine == "twin" else _calibration(source, part, folder),
        tune=build_tune(
            source,
            part.tune,
            folder,
            partial(_one_knob, source),
            host_gpus=None if part.hardware is None else part.hardware.count,
        ),
    )


def _one_knob(source: Source, name: str, value: Any, path: Path_) -> Any:
    """A knob's value as a baseline may have it; raises BadInput with the line of `path`."""
    try:
        checked = KnobsPart.model_validate({name: value})
    except ValidationError as error:
        _, words, _ = explain(error.errors()[0], KnobsPart, ("tune", "space"))
        raise source.error(path, words) from None
    return _given(checked)[name] if value is not None else None


# Keys of the file that an engine may refuse, beside the knobs.
_GENERAL = (("model",), ("engine_version",), ("engine",), ("url",), ("hardware", "gpu"))


def _lines(source: Source, own: Path_) -> dict[str, int]:
    """The line of every key that decides an experiment's configuration; `own` is its part."""
    found = {".".join(map(str, path)): source.line(path, key=True) for path in _GENERAL}
    found |= _launch_lines(source, own)
    places: list[Path_] = [("baseline",), own, (*own, "set")]
    for path in places:
        body = source.body
        for step in path:
            body = body.get(step) if isinstance(body, Mapping) else body[step]
            if body is None:
                break
        if isinstance(body, Mapping):
            found |= {str(name): source.line((*path, name), key=True) for name in body}
    return found | {"": source.line(own, key=True)}


def _launch_lines(source: Source, own: Path_) -> dict[str, int]:
    """Those of the launch's keys: the experiment's where it has them, else the study's."""
    lines: dict[str, int] = {}
    for path in (("launch",), (*own, "launch")):
        if isinstance(body := _at(source.body, path), Mapping):
            for key in body:
                lines[f"launch.{key}"] = source.line((*path, str(key)), key=True)
    return lines


def _at(body: Any, path: Path_) -> Any:
    """What stands at a path, None where it ends before."""
    for step in path:
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def _checked(
    kind: type[P], body: Any, source: Source, prefix: Path_, override: Path_ | None = None
) -> P:
    """Validate a part that stands at `prefix`; with `override`, at that place where it has it."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        found = error.errors()
        inner, words, at_key = explain(found[0], kind, prefix)
        places = [prefix + inner] if override is None else [override + inner, prefix + inner]
        place = max(places, key=lambda path: _depth(source.body, path))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise source.error(place, words + more, key=at_key) from None


def _depth(body: Any, path: Path_) -> int:
    """How many steps of the path exist in the file."""
    for depth, step in enumerate(path):
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(path)


def _refuse_images(source: Source, part: StudyPart) -> None:
    """Images go by chat and not into a talk; a twin must know how many tokens they are."""
    work = part.workload
    places: list[Path_] = [("workload", "prompts")]
    places += [("workload", "classes", name, "prompts") for name in work.classes or {}]
    parts = [work.prompts, *(one.prompts for one in (work.classes or {}).values())]
    for path, prompts in zip(places, parts, strict=True):
        if prompts is None or prompts.images is None:
            continue
        why = None
        if part.api != "chat":
            why = "images can only be sent to chat"
        elif work.sessions is not None:
            why = "images do not go with sessions"
        if why is not None:
            raise source.error((*path, "images"), why, "leave them out")


def _check_countable(source: Source, base: ExperimentSpec) -> None:
    """A twin prices an image by its tokens: they must be known."""
    pictures = [k.prompts.images for k in base.workload.kinds if k.prompts.images is not None]
    if base.configuration.engine != "twin" or not pictures:
        return
    known = shape(base.configuration.model)
    try:
        for images in pictures:
            image_tokens(images, known.image_grid, known.name)
    except BadInput as error:
        raise source.error(("workload", "prompts", "images"), error.what, error.fix) from None


def _unique_names(source: Source, part: StudyPart) -> list[str]:
    names = [part.baseline_name]
    for i, experiment in enumerate(part.experiments):
        if experiment.name in names:
            what = f"two experiments are called {experiment.name!r}"
            raise source.error(("experiments", i, "name"), what, "give each its own name")
        names.append(experiment.name)
    return names


def _base_configuration(
    source: Source, part: StudyPart, workload: Workload, folder: Path
) -> Configuration:
    if part.engine == "endpoint" and part.url is None and not part.pools:
        raise source.error(("engine",), "engine: endpoint needs the key 'url'")
    if part.engine != "endpoint" and part.url is not None:
        raise source.error(("url",), f"url belongs to engine: endpoint, not to {part.engine}")
    if part.url is not None:
        source.check_url(("url",), part.url)
    model = model_at(part.model, folder)
    knobs = _knobs(part.baseline)
    start = Configuration(
        model, knobs, part.engine, part.engine_version, url=part.url, launch=_launch(source, part),
        calibration=_calibration(source, part, folder) if part.engine == "twin" else None,
        routing=_routing(source, part.engine, part.routing, ("routing",)) or ROUND_ROBIN,
    )  # fmt: skip
    start = with_pools(source, start, part.pools, workload, ("pools",))
    here: Path_ = ("hardware",)
    found = _with_hardware(source, start, part.hardware or HardwarePart(), here, folder)
    if part.engine == "endpoint":
        _check_endpoint(source, found, part.hardware or HardwarePart(), ("hardware",))
    return found


def _check_endpoint(
    source: Source, configuration: Configuration, hardware: HardwarePart, path: Path_
) -> None:
    """What a server costs follows from the GPUs that it has, which only the file can tell."""
    knobs = configuration.knobs
    known = hardware.gpu is not None or hardware.price_per_gpu_hour is not None
    if known and hardware.count is None:
        what = "the GPUs of an endpoint must be counted: cost and figures per GPU depend on it"
        raise source.error(path, what, "add hardware.count")
    layout = (knobs.data_parallel_size, knobs.tensor_parallel_size, knobs.pipeline_parallel_size)
    if hardware.count is not None and any(layout) and knobs.gpus != hardware.count:
        what = f"the layout takes {knobs.gpus} GPUs, hardware.count is {hardware.count}"
        raise source.error(path, what, "give the server's own layout and count")


def _routing(source: Source, engine: str, rule: str | None, path: Path_) -> str | None:
    """Who balances must be us: an address is one server, whatever stands behind it."""
    if rule is not None and engine == "endpoint":
        what = "routing is the client's own balancing over replicas, and an endpoint is one address"
        raise source.error(path, what, "leave it out; what balances behind the address does so")
    return rule


def _launch(source: Source, study: StudyPart) -> Launch | None:
    part: LaunchPart | None = study.launch
    if part is None:
        return None
    if study.engine == "endpoint":
        raise source.error(
            ("launch",), "launch belongs to an engine that Ridgeline starts, not to endpoint"
        )
    if part.command is not None and not any("{model}" in word for word in part.command):
        raise source.error(
            ("launch", "command"), "the command says nowhere which model", "add '{model}' to it"
        )
    launch = Launch(**launch_values(part))
    check_launch(source, launch, ("launch",))
    return launch


def _calibration(source: Source, part: StudyPart, folder: Path) -> Calibration | None:
    if part.twin is None:
        return None
    if part.engine not in ON_TWIN:
        what = f"twin belongs to an engine that the twin models ({', '.join(ON_TWIN)})"
        raise source.error(("twin",), f"{what}, not to {part.engine}")
    try:
        return read_calibration(folder / part.twin.calibration)
    except BadInput as error:
        if source.stored:
            return None
        what = f"{part.twin.calibration} {error.what}"
        raise source.error(("twin", "calibration"), what, error.fix) from None


def _knobs(part: BaseModel | None) -> Knobs:
    return Knobs(**_given(part))


def _given(part: BaseModel | None) -> dict[str, Any]:
    """The knobs that stand in the file (a key without a value counts as not given)."""
    if part is None:
        return {}
    found = {name: getattr(part, name) for name in part.model_fields_set}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if v is not None}


def _with_hardware(
    source: Source, configuration: Configuration, part: HardwarePart, path: Path_, folder: Path
) -> Configuration:
    """GPU, price and the GPUs used: as many as the layout needs, at most those that there are."""
    name, figures = part.gpu, None
    if configuration.engine == "twin" and name is None:
        raise source.error(path, "the twin needs the key 'hardware.gpu'", "give a GPU's name")
    try:
        if name is not None and name.endswith(GPU_FILES):
            figures = _card(source, folder / name)
            name = Path(name).stem if figures is None else str(figures["name"])
        elif name is not None and configuration.engine == "twin":
            name = known_gpu(name).name
    except BadInput as error:
        raise source.error((*path, "gpu"), str(error)) from None
    used = configuration.layout_gpus
    if configuration.engine == "endpoint" and part.count is not None:
        used = part.count
    if part.count is not None and used > part.count:
        what = f"{used} GPUs are needed (data x tensor x pipeline parallel), count is {part.count}"
        raise source.error((*path, "count"), what, "raise hardware.count or lower the layout")
    return replace(
        configuration, gpu=name, gpu_figures=figures, gpus=used,
        price_per_gpu_hour=part.price_per_gpu_hour,
    )  # fmt: skip


def _card(source: Source, path: Path) -> dict[str, Any] | None:
    """A GPU's figures; None where a stored copy is read without its card: its runs have them."""
    try:
        return read_gpu(path)
    except BadInput:
        if source.stored:
            return None
        raise


def _experiment(
    source: Source, base: ExperimentSpec, index: int, study: StudyPart, folder: Path
) -> ExperimentSpec:
    part: ExperimentPart = study.experiments[index]
    path: Path_ = ("experiments", index)
    if part.repeats is not None and part.repeats > study.repeats:
        what = f"{part.repeats} repeats are more than the study's {study.repeats}"
        raise source.error(
            (*path, "repeats"), what, "a pair needs both sides: raise the study's repeats"
        )
    if part.url is not None and study.engine != "endpoint":
        raise source.error((*path, "url"), f"url belongs to engine: endpoint, not {study.engine}")
    if part.url is not None:
        source.check_url((*path, "url"), part.url)
    if study.engine == "endpoint" and _given(part.set) and part.url in (None, study.url):
        what = "engine options reach no server that runs already: this one is the baseline's"
        raise source.error(
            (*path, "set"), what, "start another server with them and give its url here"
        )
    start = on_its_engine(source, base.configuration, study, index, folder)
    configuration = replace(
        start,
        knobs=start.knobs.with_changes(_given(part.set)),
        url=part.url or start.url,
        routing=_routing(source, study.engine, part.routing, (*path, "routing"))
        or base.configuration.routing,
    )
    workload = base.workload
    if part.workload is not None:
        merged = _merge(source.body["workload"], part.workload)
        here: Path_ = (*path, "workload")
        checked = _checked(WorkloadPart, merged, source, ("workload",), here)
        workload = build_workload(source, checked, here)
    own = part.pools is not None
    pools, pools_at = (part.pools, (*path, "pools")) if own else (study.pools, ("pools",))
    configuration = with_pools(source, configuration, pools, workload, pools_at)
    hardware = (study.hardware or HardwarePart()).model_dump()
    hardware |= part.hardware.model_dump(exclude_unset=True) if part.hardware else {}
    place = (*path, "hardware") if part.hardware else (*path, "set")
    configuration = _with_hardware(source, configuration, HardwarePart(**hardware), place, folder)
    if study.engine == "endpoint":
        _check_endpoint(source, configuration, HardwarePart(**hardware), place)
    unshown: dict[str, Any] = {"knobs": Knobs(), "gpus": 0, "gpu_figures": None, "pools": ()}
    change = ", ".join(
        filter(
            None,
            (
                difference_text(base.configuration.knobs, configuration.knobs),
                difference_text(
                    replace(base.configuration, launch=None, **unshown),
                    replace(configuration, launch=None, **unshown),
                ),
                launch_change(base.configuration, configuration),
                pools_change(base.configuration, configuration),
                difference_text(base.workload, workload),
            ),
        )
    )
    return ExperimentSpec(
        part.name,
        change or "the same again",
        configuration,
        workload,
        _lines(source, path),
        part.repeats,
    )


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes: mappings merge by key, the parts of WHOLE are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if key not in WHOLE and isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _check_judgeable(
    source: Source, index: int, finding: Finding, specs: Mapping[str, ExperimentSpec], slo: Slo
) -> None:
    """Refuse a finding about a figure that no run of this study can have."""
    for i, statement in enumerate(finding.statements):
        path: Path_ = ("findings", index, "ratio", i, "metric")
        if statement.metric.startswith("cost."):
            for name in (finding.first, finding.second):
                if not specs[name].configuration.price_per_gpu_hour:
                    what = f"{statement.metric} needs a price, and {name} has none"
                    raise source.error(path, what, "add hardware.price_per_gpu_hour")
        if statement.metric.startswith("goodput.") and not limits_requests(slo):
            what = f"{statement.metric} counts requests inside the latency limits; there are none"
            raise source.error(path, what, "add one to slo, for example ttft_p95_ms")


def _known_name(source: Source, name: str, names: list[str], path: Path_) -> str:
    if name not in names:
        raise source.error(path, f"there is no experiment {name!r}{nearest(name, names)}")
    return name


def _published(source: Source, part: StudyPart, names: list[str]) -> Published | None:
    if part.published is None:
        return None
    runs = {}
    for name, run in part.published.runs.items():
        _known_name(source, name, names, ("published", "runs", name))
        runs[name] = {k: v for k, v in run.model_dump().items() if v is not None}
    return Published(part.published.source, runs)


def _finding(source: Source, index: int, part: FindingPart, names: list[str]) -> Finding:
    path: Path_ = ("findings", index)
    first, second = (_known_name(source, n, names, (*path, "compare")) for n in part.compare)
    if first == second:
        raise source.error((*path, "compare"), f"{first} is compared with itself")
    if part.twin is not None and not part.because:
        raise source.error(path, "an expectation ('twin') needs its reason ('because')")
    statements = [_statement(source, r, (*path, "ratio", i)) for i, r in enumerate(part.ratio)]
    return Finding(
        part.id, part.claim, first, second, tuple(statements), part.twin, part.because,
        part.published,
    )  # fmt: skip


def _statement(source: Source, part: RatioPart, path: Path_) -> Statement:
    bounded = part.at_least is not None or part.at_most is not None
    if bounded == (part.is_ is not None):
        raise source.error(path, "a ratio needs either 'is' or 'at_least' and 'at_most'")
    if part.is_ is not None:
        low, high = (1.0, None) if part.is_ == "higher" else (None, 1.0)
        return Statement(part.metric, low, high)
    if part.at_least is not None and part.at_most is not None and part.at_least > part.at_most:
        raise source.error(path, f"at_least {part.at_least:g} is above at_most {part.at_most:g}")
    return Statement(part.metric, part.at_least, part.at_most)
