"""The load that `ridgeline bench` offers, from its options; mistakes are named by their option."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.cli.options import MOST_TOKENS, MOST_USERS
from ridgeline.domain.errors import BadInput, nearest

if TYPE_CHECKING:
    from ridgeline.domain.workload import (
        Arrivals,
        Images,
        LoadStep,
        Outputs,
        Prompts,
        Trace,
        TrafficClass,
    )

LEAST_RATE, MOST_RATE = 0.001, 1e6
LONGEST_S = 86_400.0
MOST_PRIORITY = 1_000_000
_CLASS_KEYS = ("share", "prompt_tokens", "output_tokens", "priority", "shared_prefix_tokens")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the options say about the load, as they were given."""

    users: int | None = None
    rate: float | None = None
    user_steps: str = ""
    rate_steps: str = ""
    process: str = "poisson"
    burstiness: float = 1.0
    think_time_s: float = 0.0
    think_time_law: str = "constant"
    ramp_s: float | None = None
    max_concurrency: int | None = None
    trace: Path | None = None
    trace_format: str | None = None
    trace_speed: float = 1.0
    trace_from_s: float = 0.0
    trace_to_s: float | None = None


def arrivals_of(options: LoadOptions) -> "Arrivals":
    """The arrivals; raises BadInput naming the option that is wrong."""
    from ridgeline.domain.workload import Arrivals  # noqa: PLC0415  --help is quick

    given = (options.users is not None, options.rate is not None,
             bool(options.user_steps), bool(options.rate_steps),
             options.trace is not None)  # fmt: skip
    if sum(given) != 1:
        raise BadInput(
            "give either --users or --rate (or --user-steps, --rate-steps, --trace)",
            fix="--users 16 or --rate 5",
        )
    if options.trace is not None:
        return Arrivals(trace=_trace(options), max_concurrency=options.max_concurrency)
    rate = options.rate
    if rate is not None:
        _check_rate(rate, "--rate")
    closed = options.users is not None or bool(options.user_steps)
    for_users = {"--think-time": options.think_time_s, "--ramp": options.ramp_s}
    for name, seconds in for_users.items():
        if seconds is not None and not 0 <= seconds <= LONGEST_S:
            raise BadInput(f"{name} must be 0 to {LONGEST_S:g} seconds, not {seconds:g}")
        if seconds and not closed:
            raise BadInput(f"{name} belongs to users, not to a rate")
    if closed and options.max_concurrency is not None:
        raise BadInput("--max-concurrency belongs to a rate: users never have more than one each")
    steps: tuple[LoadStep, ...] = ()
    if options.user_steps:
        steps = _steps(options.user_steps, "--user-steps")
    elif options.rate_steps:
        steps = _steps(options.rate_steps, "--rate-steps")
    return Arrivals(
        users=options.users,
        think_time_s=options.think_time_s,
        rate_per_s=rate,
        process=options.process,
        burstiness=options.burstiness,
        think_time=options.think_time_law,
        ramp_s=options.ramp_s,
        steps=steps,
        max_concurrency=options.max_concurrency,
    )


def _trace(options: LoadOptions) -> "Trace":
    from ridgeline.workload.traces import open_trace  # noqa: PLC0415

    assert options.trace is not None
    if options.think_time_s or options.ramp_s is not None:
        raise BadInput("--think-time and --ramp do not go with a trace")
    if not 0 < options.trace_speed <= 1e6:
        raise BadInput(f"--trace-speed must be above 0, not {options.trace_speed:g}")
    if not 0 <= options.trace_from_s < math.inf:
        raise BadInput(f"--trace-from must be 0 or more seconds, not {options.trace_from_s:g}")
    if options.trace_to_s is not None and not options.trace_to_s > options.trace_from_s:
        raise BadInput(f"--trace-to must be above --trace-from, not {options.trace_to_s:g}")
    return open_trace(
        options.trace.resolve(), options.trace_format, speed=options.trace_speed,
        from_s=options.trace_from_s, to_s=options.trace_to_s,
    )  # fmt: skip


def _check_rate(rate: float, where: str) -> None:
    if not rate > 0:
        raise BadInput(f"{where} must be above 0 requests per second, not {rate:g}")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise BadInput(
            f"{where} must be {LEAST_RATE:g} to {MOST_RATE:g} requests per second, not {rate:g}"
        )


def _number(text: str, what: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{what} must be a number, not {text!r}", where=where)
    return value


def _whole(text: str, what: str, where: str, low: int, high: int) -> int:
    value = _number(text, what, where)
    if value != int(value) or not low <= value <= high:
        raise BadInput(f"{what} must be a whole number from {low} to {high}, not {text}",
                       where=where)  # fmt: skip
    return int(value)


def _steps(text: str, where: str) -> "tuple[LoadStep, ...]":
    """ "5:30,10:30": 5 for 30 seconds, then 10 for 30 seconds."""
    from ridgeline.domain.workload import LoadStep  # noqa: PLC0415

    steps = []
    for part in text.split(","):
        load, colon, seconds = part.strip().partition(":")
        if not colon:
            raise BadInput(f"{part.strip()!r} is not LOAD:SECONDS", where=where, fix="5:30,10:30")
        for_s = _number(seconds, "a step's length", where)
        if not 0 < for_s <= LONGEST_S:
            raise BadInput(f"a step lasts above 0 to {LONGEST_S:g} seconds, not {for_s:g}",
                           where=where)  # fmt: skip
        if where == "--user-steps":
            users = _whole(load, "users", where, 1, MOST_USERS)
            steps.append(LoadStep(for_s, users=users))
        else:
            rate = _number(load, "a rate", where)
            _check_rate(rate, where)
            steps.append(LoadStep(for_s, rate_per_s=rate))
    return tuple(steps)


def images_of(text: str) -> "Images | None":
    """ "2:512x512": two images of 512 x 512 pixels; None for an empty text."""
    from ridgeline.domain.workload import Images  # noqa: PLC0415

    if not text:
        return None
    found = re.fullmatch(r"(?:(\d{1,2}):)?(\d{1,4})x(\d{1,4})(?::(png|jpeg))?", text)
    if found is None:
        raise BadInput(f"{text!r} is not N:WIDTHxHEIGHT", where="--images", fix="1:512x512")
    count, width, height = int(found[1] or 1), int(found[2]), int(found[3])
    if not (1 <= count <= 64 and 1 <= width <= 8192 and 1 <= height <= 8192):
        raise BadInput("1 to 64 images of 1 to 8192 pixels a side", where="--images")
    return Images(count, width, height, found[4] or "png")


def classes_of(
    texts: Sequence[str], prompts: "Prompts", outputs: "Outputs"
) -> "tuple[TrafficClass, ...]":
    """Classes such as "chat:share=0.8,prompt_tokens=256,priority=0,ttft_p95_ms=500".

    What one does not say is as in the other options; a key of the SLO is a limit of that class.
    """
    classes = tuple(_class(text, prompts, outputs) for text in texts)
    total = math.fsum(kind.share for kind in classes)
    if classes and abs(total - 1) > 1e-6:
        raise BadInput(f"the shares of the classes make {total:g}, not 1", where="--class")
    names = [kind.name for kind in classes]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"the class {name!r} is given twice", where="--class")
    return classes


def _class(text: str, prompts: "Prompts", outputs: "Outputs") -> "TrafficClass":
    from ridgeline.domain.slo import SLO_KEYS, slo_from_mapping  # noqa: PLC0415
    from ridgeline.domain.workload import Lengths, SharedPrefix, TrafficClass  # noqa: PLC0415

    name, colon, rest = text.partition(":")
    if not colon or not name.strip():
        raise BadInput(
            f"{text!r} is not NAME:share=0.8,...", where="--class",
            fix="--class chat:share=0.8,prompt_tokens=256 --class batch:share=0.2,priority=10",
        )  # fmt: skip
    where = f"--class {name}"
    values: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in (*_CLASS_KEYS, *SLO_KEYS):
            hint = nearest(key, (*_CLASS_KEYS, *SLO_KEYS))
            raise BadInput(f"{part!r} is not KEY=VALUE of a class{hint}", where=where)
        if key in values:
            raise BadInput(f"{key} is given twice", where=where)
        values[key] = value
    if "share" not in values:
        raise BadInput("a class needs its share", where=where, fix="share=0.8")
    share = _number(values.pop("share"), "share", where)
    if not 0 < share <= 1:
        raise BadInput(f"share must be above 0 and at most 1, not {share:g}", where=where)

    def tokens(key: str) -> int | None:
        return _whole(values.pop(key), key, where, 1, MOST_TOKENS) if key in values else None

    prompt, output, shared = (tokens(f"{k}_tokens") for k in ("prompt", "output", "shared_prefix"))
    if prompt is not None:
        prompts = replace(prompts, tokens=Lengths(prompt, prompts.tokens.spread))
    if shared is not None:
        prompts = replace(prompts, shared_prefix=SharedPrefix(shared))
    if output is not None:
        outputs = replace(outputs, tokens=Lengths(output, outputs.tokens.spread))
    priority = None
    if "priority" in values:
        most = MOST_PRIORITY
        priority = _whole(values.pop("priority"), "priority", where, -most, most)
    limits = {key: _number(value, key, where) for key, value in values.items()}
    return TrafficClass(
        name.strip(), share, prompts, outputs, slo_from_mapping(limits, where), priority
    )
