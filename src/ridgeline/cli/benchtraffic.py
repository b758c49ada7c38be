"""The traffic that `ridgeline bench` offers, from its options; what it refuses names the option."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.cli.clientoptions import LONGEST_TIME_S
from ridgeline.cli.loadoptions import images_of
from ridgeline.cli.options import LEAST_AUTO_S
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from ridgeline.domain.workload import (
        Arrivals,
        Lengths,
        Outputs,
        Prompts,
        RequestOptions,
        Sessions,
        TrafficClass,
        Workload,
    )

DEFAULT_DURATION_S = 30.0
LONGEST_S = 3600.0  # a run of --requests that has not ended by then ends with what it has
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1000.0
HIGHEST_PRICE = 1e6
AUTO = "auto"


def check_lengths(arrivals: "Arrivals", duration: float | None, requests: int | None) -> None:
    """Refuse lengths of a run that contradict each other or its arrivals; raises BadInput."""
    if duration is not None and requests is not None:
        raise BadInput("give --duration or --requests, not both")
    if arrivals.steps and (duration is not None or requests is not None):
        raise BadInput("the steps decide how long the run is: leave out --duration and --requests")
    if duration == 0:
        raise BadInput("--duration must be above 0 seconds")


def check_numbers(
    times: Mapping[str, float | None],
    *,
    spread: float,
    burstiness: float,
    price: float | None,
) -> None:
    """Refuse what is no sensible number; typer takes nan and inf for numbers within any bounds."""
    for name, seconds in times.items():
        if seconds is not None and not 0 <= seconds <= LONGEST_TIME_S:
            raise BadInput(f"{name} must be 0 to {LONGEST_TIME_S:g} seconds, not {seconds:g}")
    if times["--warmup-limit"] == 0:
        raise BadInput("--warmup-limit must be above 0 seconds", fix="--warmup 0 for none")
    if not 0 <= spread <= 1:
        raise BadInput(f"--spread must be 0 to 1, not {spread:g}")
    if not LEAST_BURSTINESS <= burstiness <= MOST_BURSTINESS:
        raise BadInput(
            f"--burstiness must be {LEAST_BURSTINESS:g} to {MOST_BURSTINESS:g}, not {burstiness:g}"
        )
    if price is not None and not 0 <= price <= HIGHEST_PRICE:
        raise BadInput(f"--price-per-gpu-hour must be 0 to {HIGHEST_PRICE:g}, not {price:g}")


def prompts_asked(
    lengths: "Lengths",
    images: str,
    file: "Path | None",
    form: str | None,
    history: str | None,
    *,
    salted: bool,
) -> "Prompts":
    """Drawn prompts, or those of a file; raises BadInput."""
    from ridgeline.domain.workload import Prompts  # noqa: PLC0415  --help is quick
    from ridgeline.workload.promptfiles import open_prompts  # noqa: PLC0415

    prompts = Prompts(lengths, images=images_of(images))
    if file is not None:
        found = open_prompts(file.resolve(), form, salted=salted, history=history)
        return replace(prompts, file=found)
    if history is not None:
        raise BadInput("--history belongs to a --prompt-file of sessions")
    return prompts


def sessions_asked(
    prompts: "Prompts", turns: int | None, think_time_s: float, classes: Sequence[str]
) -> "Sessions | None":
    """The sessions that --turns or a file of sessions asks for; raises BadInput."""
    from ridgeline.domain.workload import Lengths, Sessions, sessions_of  # noqa: PLC0415

    if (prompts.images or prompts.file) and turns is not None:
        raise BadInput("--turns goes with neither --prompt-file nor --images")
    if prompts.file is not None and prompts.file.history is not None:
        if classes or prompts.images:
            raise BadInput("a file of sessions goes with neither --class nor --images")
        return sessions_of(prompts.file, think_time_s)
    return None if turns is None else Sessions(Lengths(turns), think_time_s)


def workload_of(
    arrivals: "Arrivals",
    prompts: "Prompts",
    outputs: "Outputs",
    *,
    classes: "tuple[TrafficClass, ...]",
    sessions: "Sessions | None",
    duration: float | None,
    warmup: tuple[str | None, float | None],
    requests: int | None,
    seed: int,
) -> "Workload":
    """The traffic; `warmup` is its length and its limit as asked for."""
    from ridgeline.domain.workload import (  # noqa: PLC0415
        LONGEST_FIXED_WARMUP_S,
        WARMUP_LIMIT_S,
        WARMUP_SHARE,
        Workload,
    )

    measured = duration or (LONGEST_S if requests else DEFAULT_DURATION_S)
    if arrivals.steps:
        measured = sum(step.for_s for step in arrivals.steps)
    asked, limit = warmup
    if arrivals.trace is not None and duration is None:
        measured = arrivals.trace.seconds
    short = measured < LEAST_AUTO_S and limit is None
    timed = bool(arrivals.steps) or arrivals.trace is not None
    if asked is None and (short or timed):
        asked = str(min(WARMUP_SHARE * measured, LONGEST_FIXED_WARMUP_S))
    fixed = seconds_of(asked)
    if fixed is not None and limit is not None:
        raise BadInput("--warmup-limit belongs to --warmup auto", fix="leave one of them out")
    if fixed is None and timed:
        raise BadInput("--warmup auto goes with neither steps nor a trace: their times are fixed")
    if arrivals.trace is not None and duration is None:
        from ridgeline.workload.traces import trace_window_s  # noqa: PLC0415

        measured = trace_window_s(arrivals.trace, fixed or 0.0)
    seconds = fixed if fixed is not None else limit or WARMUP_LIMIT_S
    automatic = fixed is None
    return Workload(
        arrivals, prompts, outputs, measured, seconds, requests, seed, automatic, classes, sessions
    )


def request_options_of(
    sampling: Mapping[str, object], extra_body: str, headers: list[str]
) -> "RequestOptions":
    """What every request says besides its prompt; None in `sampling` is what was not given."""
    from ridgeline.domain.workload import RequestOptions  # noqa: PLC0415
    from ridgeline.workload.requestoptions import (  # noqa: PLC0415
        check_sampling,
        parse_extra_body,
        parse_headers,
    )

    return RequestOptions(
        check_sampling({k: v for k, v in sampling.items() if v is not None}, "bench"),
        parse_extra_body(extra_body or "{}", "--extra-body"),
        parse_headers(headers, "--header"),
    )


def seconds_of(warmup: str | None) -> float | None:
    """A fixed warm-up as a number, None for an automatic one."""
    if warmup in (None, AUTO):
        return None
    try:
        return float(warmup or "")
    except ValueError:
        raise BadInput(f"--warmup must be a number of seconds or {AUTO}, not {warmup!r}") from None


def known_gpu(gpu: str | None) -> str | None:
    """The catalogue's name of a GPU; raises BadInput for an unknown one."""
    from ridgeline.domain import hardware  # noqa: PLC0415

    try:
        return None if gpu is None else hardware.gpu(gpu).name
    except BadInput as error:
        raise BadInput(error.what, where="--gpu", fix=error.fix) from None
