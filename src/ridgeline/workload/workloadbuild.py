"""From the checked workload of a study file to the frozen `Workload`; checks between its keys."""

import math
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from ridgeline.domain.errors import BadInput
from ridgeline.domain.numerals import counted
from ridgeline.domain.slo import Slo, slo_from_mapping
from ridgeline.domain.workload import (
    LONGEST_FIXED_WARMUP_S,
    WARMUP_LIMIT_S,
    WARMUP_SHARE,
    Arrivals,
    Client,
    Images,
    Lengths,
    LoadStep,
    Outputs,
    PromptFile,
    Prompts,
    RequestOptions,
    Sessions,
    SharedPrefix,
    Timeouts,
    Trace,
    TrafficClass,
    Workload,
    sessions_of,
)
from ridgeline.workload.classbuild import class_shares, with_rates
from ridgeline.workload.promptfiles import open_prompts
from ridgeline.workload.requestoptions import check_extra_body, check_headers, check_sampling
from ridgeline.workload.studyfile import Path_, Source
from ridgeline.workload.traces import open_trace, trace_window_s
from ridgeline.workload.workloadmodel import (
    ArrivalsPart,
    ClassPart,
    ClientPart,
    LengthsPart,
    OutputPart,
    PromptFilePart,
    PromptsPart,
    TimeoutsPart,
    TracePart,
    WorkloadPart,
)

DEFAULT_DURATION_S = 90.0
MOST_TURNS = 10_000


def build_workload(source: Source, part: WorkloadPart, path: Path_) -> Workload:
    """The workload of a part that stands at `path`. Raises BadInput naming line and key."""
    offered = with_rates(source, part, path)
    arrivals = _arrivals(source, offered, (*path, "arrivals"))
    if arrivals.trace is not None:
        _refuse_beside_trace(source, part, path)
    prompts = _prompts(source, part.prompts, (*path, "prompts"), Prompts())
    outputs = _outputs(source, part.output_tokens, (*path, "output_tokens"), Outputs())
    classes = _classes(source, part, path, prompts, outputs)
    sessions = _sessions(source, part, path, prompts, classes)
    return Workload(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        duration_s=_duration(source, part, arrivals, path),
        warmup_s=_warmup_s(source, part, path, arrivals),
        warmup_auto=part.warmup_s is None,
        requests=part.requests,
        seed=part.seed,
        classes=classes,
        sessions=sessions,
        client=_client(part.client),
        options=_options(source, part, path),
        salt=part.salt,
        token_ids=part.prompts is not None and part.prompts.as_ == "token_ids",
    )


def _refuse_beside_trace(source: Source, part: WorkloadPart, path: Path_) -> None:
    """A trace says lengths and what is shared: nothing else may."""
    output: OutputPart | None = part.output_tokens
    lengths = output is not None and output.model_fields_set - {"ignore_eos"}
    prompts = part.prompts
    drawn = prompts is not None and (prompts.tokens or prompts.shared_prefix or prompts.file)
    found = {"prompts": drawn, "output_tokens": lengths,
             "classes": part.classes, "sessions": part.sessions}  # fmt: skip
    for key, given in found.items():
        if given:
            what = f"{key} does not go with a trace, which says the lengths of every request"
            raise source.error((*path, key), what, "leave it out")


def _client(part: ClientPart | None) -> Client:
    if part is None:
        return Client()
    given = part.timeouts or TimeoutsPart()
    limits = Timeouts(
        given.connect_s,
        given.first_token_s or None,
        given.chunk_s or None,
        given.total_s or None,
        given.grace_s,
    )
    return Client(part.workers, limits)


def _duration(source: Source, part: WorkloadPart, arrivals: Arrivals, path: Path_) -> float:
    if arrivals.trace is not None and part.duration_s is None:
        return trace_window_s(arrivals.trace, _warmup_s(source, part, path, arrivals))
    if not arrivals.steps:
        return part.duration_s or DEFAULT_DURATION_S
    for key in ("duration_s", "requests"):
        if getattr(part, key) is not None:
            what = f"the steps of the load decide how long it lasts: {key} does not go with them"
            raise source.error((*path, key), what, "leave it out")
    return math.fsum(step.for_s for step in arrivals.steps)


def _options(source: Source, part: WorkloadPart, path: Path_) -> RequestOptions:
    """What goes with every request."""
    checks: dict[str, Callable[[Any], Any]] = {
        "sampling": check_sampling, "extra_body": check_extra_body, "headers": check_headers,
    }  # fmt: skip
    found = {}
    for key, check in checks.items():
        try:
            found[key] = check(getattr(part, key) or {})
        except BadInput as error:
            raise source.error((*path, key), f"{key}: {error.what}", error.fix) from None
    return RequestOptions(**found)


def _warmup_s(source: Source, part: WorkloadPart, path: Path_, arrivals: Arrivals) -> float:
    """The warm-up, or the most that an automatic one may take."""
    if part.warmup_s is None:
        if arrivals.steps or arrivals.trace is not None:
            what = "warmup_s: auto does not go with steps or a trace: they begin at a fixed time"
            raise source.error((*path, "warmup_s"), what)
        return WARMUP_LIMIT_S if part.warmup_limit_s is None else part.warmup_limit_s
    if part.warmup_limit_s is not None:
        raise source.error((*path, "warmup_limit_s"), "warmup_limit_s belongs to warmup_s: auto")
    if arrivals.trace is not None and "warmup_s" not in part.model_fields_set:
        return min(LONGEST_FIXED_WARMUP_S, WARMUP_SHARE * arrivals.trace.seconds)
    return part.warmup_s


def _prompts(source: Source, part: PromptsPart | None, path: Path_, default: Prompts) -> Prompts:
    if part is None:
        return default
    shared = part.shared_prefix
    images = None if part.images is None else Images(**part.images.model_dump())
    if part.file is not None:
        for key, value in (("tokens", part.tokens), ("shared_prefix", shared), ("as", part.as_)):
            if value is not None:
                what = f"{key} does not go with a file, whose rows are whole prompts"
                raise source.error((*path, key), what, "leave it out")
        return Prompts(file=_prompt_file(source, part.file, (*path, "file")), images=images)
    return Prompts(
        _lengths(source, part.tokens, (*path, "tokens"), default.tokens),
        None if shared is None else SharedPrefix(shared.tokens, shared.groups),
        images=images,
    )


def _prompt_file(source: Source, part: PromptFilePart, path: Path_) -> PromptFile:
    try:
        found = (source.folder / part.file).resolve()
        return open_prompts(found, part.format, salted=part.salted, history=part.history)
    except BadInput as error:
        if source.stored:
            return PromptFile(part.file, part.format or "unknown", "")
        what = f"{error.where} {error.what}" if error.where else error.what
        raise source.error((*path, "file"), what, error.fix) from None


def _outputs(source: Source, part: OutputPart | None, path: Path_, default: Outputs) -> Outputs:
    if part is None:
        return default
    return Outputs(_lengths(source, part, path, default.tokens), part.ignore_eos)


def _classes(
    source: Source, part: WorkloadPart, path: Path_, prompts: Prompts, outputs: Outputs
) -> tuple[TrafficClass, ...]:
    """The classes; what one does not say is the workload's own."""
    parts: dict[str, ClassPart] = part.classes or {}
    here = (*path, "classes")
    for name, one in parts.items():
        if one.prompts is not None and one.prompts.as_ is not None:
            what = "'as' holds for all requests"
            raise source.error((*here, name, "prompts", "as"), what, "put it into workload.prompts")
    shares = class_shares(source, part, path)
    return tuple(
        TrafficClass(
            name,
            shares[name],
            _prompts(source, one.prompts, (*here, name, "prompts"), prompts),
            _outputs(source, one.output_tokens, (*here, name, "output_tokens"), outputs),
            build_slo(source, one.slo, (*here, name, "slo")),
            one.priority,
        )
        for name, one in parts.items()
    )


def _sessions(
    source: Source,
    whole: WorkloadPart,
    path: Path_,
    prompts: Prompts,
    classes: tuple[TrafficClass, ...],
) -> Sessions | None:
    """Drawn sessions, or those of a file of sessions."""
    part, here = whole.sessions, (*path, "sessions")
    files = [kind.prompts.file for kind in classes] if classes else [prompts.file]
    of_file = [file for file in files if file is not None and file.history is not None]
    if of_file and (classes or prompts.images):
        other = "classes" if classes else "images"
        raise source.error(path, f"a file of sessions does not go with {other}")
    if of_file:
        if part is not None and part.turns is not None:
            raise source.error((*here, "turns"), "the file says how many turns a session has",
                               "leave it out")  # fmt: skip
        if part is None:
            return sessions_of(of_file[0], 0.0)
        return sessions_of(of_file[0], part.think_time_s, part.think_time)
    if part is None:
        return None
    if any(file is not None for file in files):
        what = "sessions do not go with a file of prompts, whose rows are whole requests"
        raise source.error(here, what, "leave one of them out")
    if part.turns is None:
        raise source.error(here, f"'{'.'.join(map(str, here))}.turns' is missing", "turns: 4")
    turns = _lengths(source, part.turns, (*here, "turns"), Lengths(1))
    if turns.high > MOST_TURNS:
        what = f"a session has at most {counted(MOST_TURNS)} turns, not {counted(turns.high)}"
        raise source.error((*here, "turns"), what)
    return Sessions(turns, part.think_time_s, part.think_time)


def _arrivals(source: Source, part: ArrivalsPart, path: Path_) -> Arrivals:
    given = [part.users is not None, part.rate_per_s is not None, part.steps is not None,
             part.trace is not None]  # fmt: skip
    if sum(given) != 1:
        what = "arrivals need either 'users' or 'rate_per_s' (or 'steps', or a 'trace')"
        raise source.error(path, what)
    steps = _steps(source, part, (*path, "steps"))
    of_users = {"think_time_s": part.think_time_s, "think_time": part.think_time,
                "ramp_s": part.ramp_s}  # fmt: skip
    of_rates = {"process": part.process, "burstiness": part.burstiness,
                "max_concurrency": part.max_concurrency}  # fmt: skip
    closed = part.users is not None or bool(steps and steps[0].users is not None)
    if part.trace is not None:
        drawn = {**of_users, "process": part.process, "burstiness": part.burstiness}
        for key, value in drawn.items():
            if value is not None:
                what = f"{key} does not go with a trace: it says when requests start"
                raise source.error((*path, key), what)
        trace = _trace(source, part.trace, (*path, "trace"))
        return Arrivals(trace=trace, max_concurrency=part.max_concurrency)
    for key, value in (of_rates if closed else of_users).items():
        if value is not None:
            kinds = ("rate_per_s", "users") if closed else ("users", "a rate")
            raise source.error((*path, key), f"{key} belongs to {kinds[0]}, not to {kinds[1]}")
    process = part.process or "poisson"
    if part.burstiness is not None and process != "gamma":
        raise source.error((*path, "burstiness"), "burstiness needs process: gamma")
    return Arrivals(
        users=part.users,
        think_time_s=part.think_time_s or 0.0,
        rate_per_s=part.rate_per_s,
        process=process,
        burstiness=part.burstiness or 1.0,
        think_time=part.think_time or "constant",
        ramp_s=part.ramp_s,
        steps=steps,
        max_concurrency=part.max_concurrency,
    )


def _trace(source: Source, part: TracePart, path: Path_) -> Trace:
    """The trace, read and described."""
    if part.to_s is not None and part.to_s <= part.from_s:
        raise source.error((*path, "to_s"), f"to_s must be above from_s ({part.from_s:g})")
    try:
        return open_trace(
            (source.folder / part.file).resolve(), part.format,
            speed=part.speed, from_s=part.from_s, to_s=part.to_s,
        )  # fmt: skip
    except BadInput as error:
        if source.stored:
            return Trace(part.file, part.format or "unknown", "")
        what = f"{error.where} {error.what}" if error.where else error.what
        raise source.error((*path, "file"), what, error.fix) from None


def _steps(source: Source, part: ArrivalsPart, path: Path_) -> tuple[LoadStep, ...]:
    """The steps of a load, all of one kind."""
    steps = part.steps or []
    for i, step in enumerate(steps):
        if (step.users is None) == (step.rate_per_s is None):
            raise source.error((*path, i), "a step needs either 'users' or 'rate_per_s'")
        if (step.users is None) != (steps[0].users is None):
            raise source.error((*path, i), "steps are all of users or all of rates")
    return tuple(LoadStep(s.for_s, s.users, s.rate_per_s) for s in steps)


def _lengths(source: Source, part: LengthsPart | None, path: Path_, default: Lengths) -> Lengths:
    """mean with spread, or min to max (max alone: always that long)."""
    if part is None:
        return default
    by_range = part.min is not None or part.max is not None
    by_mean = part.mean is not None or part.spread is not None
    if by_range and by_mean:
        raise source.error(path, "give a length by mean and spread or by min and max, not by both")
    if by_range:
        if part.max is None:
            raise source.error(path, "min needs max", "add max")
        low = part.max if part.min is None else part.min
        if low > part.max:
            raise source.error(path, f"min ({low}) is above max ({part.max})")
        return Lengths((low + part.max) / 2, (part.max - low) / (part.max + low))
    if part.mean is None:
        if not by_mean:
            return default
        raise source.error(path, "spread needs mean", "add mean")
    return Lengths(part.mean, part.spread or 0.0)


def build_slo(source: Source, part: BaseModel | None, path: Path_) -> Slo:
    """The limits of a part that stands at `path`."""
    if part is None:
        return Slo()
    slo = slo_from_mapping({k: v for k, v in part.model_dump().items() if v is not None})
    if slo.get("attainment") is not None and not limits_requests(slo):
        raise source.error(
            (*path, "attainment"),
            "attainment is the share of the requests inside the latency limits, and there are none",
            "add one, for example ttft_p95_ms",
        )
    return slo


def limits_requests(slo: Slo) -> bool:
    """Whether a single request can be inside or outside."""
    return any(limit.statistic is not None for limit in slo.limits)
