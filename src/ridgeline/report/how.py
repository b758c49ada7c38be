"""How a study was measured, in (label, text) pairs from what the runs recorded about themselves."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.domain.parts import load_text
from ridgeline.domain.run import RunFacts
from ridgeline.domain.secrets import mask_variables, mask_words
from ridgeline.domain.workload import Arrivals, Lengths, Trace, TrafficClass, Workload
from ridgeline.experiment.results import StudyResult
from ridgeline.report import numbers
from ridgeline.report.alike import kind_of, told_once
from ridgeline.report.selftest import calibration_words
from ridgeline.store.run_directory import StoredRun
from ridgeline.workload.otherengine import router_name

Facts = tuple[tuple[str, str], ...]
_ORDER_SHOWN = 8


def load_words(workload: Workload) -> str:
    """The offered load: "400 users", "50 requests/s (Poisson)"."""
    arrivals = workload.arrivals
    if arrivals.trace is not None:
        return _trace(arrivals.trace)
    if arrivals.steps:
        return f"{len(arrivals.steps)} steps: {', '.join(map(load_text, arrivals.steps))}"
    if arrivals.users is not None:
        noun = "user" if arrivals.users == 1 else "users"
        return f"{numbers.grouped(str(arrivals.users))} {noun}"
    return f"{numbers.number(arrivals.rate_per_s)} requests/s ({_process(arrivals)})"


def _trace(trace: Trace) -> str:
    """A replay in words: "replay of t.jsonl (mooncake), 2 × as fast"."""
    speed = "" if trace.speed == 1 else f", {trace.speed:g} × as fast"
    part = ""
    if trace.from_s or trace.to_s is not None:
        end = "its end" if trace.to_s is None else f"{trace.to_s:g} s"
        part = f", from {trace.from_s:g} s to {end}"
    lost = f", without {trace.left_out} rows of failed requests" if trace.left_out else ""
    return f"replay of {Path(trace.file).name} ({trace.format}{part}{lost}){speed}"


def how_measured(result: StudyResult, first: StoredRun | None) -> Facts:
    """All that section 9 of the page tells, in its order."""
    facts: list[tuple[str, str]] = []
    if first is not None:
        meta = first.meta
        facts += [
            ("Workload", _workload(meta.workload, meta.endpoint)),
            ("Arrivals", _arrivals(meta.workload)),
            ("Warm-up and window", _window(meta.workload, first)),
        ]
    facts.append(("Repeats and order", _repeats(result)))
    facts.append(("Comparison", _comparison(result)))
    if first is not None:
        meta = first.meta
        facts += [
            ("Client", _client(result)),
            ("Client calibration", _calibration(first.facts)),
            ("Engine", _engine(first)),
            ("Flags given", _flags(meta.configuration)),
            ("Started as", _launch(meta.configuration.launch)),
            ("Flags resolved", _resolved(first.facts)),
            ("Hardware", _hardware(meta.configuration, first.facts)),
            ("Host of Ridgeline", _plain(meta.host)),
            ("Versions", _plain(meta.versions)),
        ]
    facts += [("ITL", text) for text in _itl_notes(result)]
    facts += [("Warning", text) for text in _warnings(result)]
    facts += [("Note", text) for text in _notes(result)]
    return tuple((label, text) for label, text in facts if text)


def _process(arrivals: Arrivals) -> str:
    if arrivals.process == "gamma":
        return f"gamma, shape {numbers.number(arrivals.burstiness)}"
    return {"poisson": "Poisson"}.get(arrivals.process, arrivals.process)


def _lengths(lengths: Lengths) -> str:
    if lengths.low == lengths.high:
        return f"{numbers.grouped(str(lengths.low))} tokens"
    low, high = numbers.grouped(str(lengths.low)), numbers.grouped(str(lengths.high))
    return f"{low} to {high} tokens"


def _workload(workload: Workload, endpoint: str) -> str:
    talk = ""
    if workload.sessions is not None:
        turns = workload.sessions.turns
        turn = f"{turns.low}" if turns.low == turns.high else f"{turns.low} to {turns.high}"
        talk = f"; sessions of {turn} turns, each with the talk so far"
    if workload.arrivals.trace is not None:
        trace = workload.arrivals.trace
        mean = numbers.number(trace.mean_prompt_tokens), numbers.number(trace.mean_output_tokens)
        return f"{load_words(workload)}; {trace.rows} requests of {mean[0]} tokens and {mean[1]}"
    kinds = [_kind(kind, endpoint) for kind in workload.kinds]
    return f"{load_words(workload)}{talk}; " + "; ".join(kinds)


def _kind(kind: TrafficClass, endpoint: str) -> str:
    """One class of requests, or all of them where there are no classes."""
    prefix = kind.prompts.shared_prefix
    text = f"{kind.name} ({numbers.share(kind.share)}): " if kind.name else ""
    if kind.prompts.file is not None:
        file = kind.prompts.file
        salted = "each with a beginning of its own" if file.salted else "as they are"
        text += f"{file.rows} prompts of {Path(file.file).name} ({file.format}), {salted}"
    else:
        text += f"prompts of {_lengths(kind.prompts.tokens)}"
    if kind.prompts.images is not None:
        found = kind.prompts.images
        text += f" with {found.count} {found.format} of {found.width} x {found.height}"
    if prefix is not None:
        text += f" behind a shared prefix of {prefix.tokens} tokens in {prefix.groups} group(s)"
    elif kind.prompts.file is None:
        text += ", fresh in every run"
    exact = ", end of sequence ignored" if kind.outputs.ignore_eos else ""
    first = "" if kind.priority is None else f", priority {kind.priority}"
    asked = f"output of {_lengths(kind.outputs.tokens)} asked for{exact}{first}"
    return f"{text}; {asked}; {endpoint}"


def _arrivals(workload: Workload) -> str:
    arrivals = workload.arrivals
    if arrivals.closed_loop:
        mean = " on average (exponential)" if arrivals.think_time == "exponential" else ""
        think = ""
        if arrivals.think_time_s:
            think = f" after {numbers.duration(arrivals.think_time_s)}{mean}"
        return f"closed loop: each user sends again{think} as soon as a reply has ended"
    if arrivals.trace is not None:
        return "open loop, at the recorded times; TTFT limits are judged from intent"
    cap = ""
    if arrivals.max_concurrency is not None:
        cap = f", at most {arrivals.max_concurrency} at a time (the others wait for a slot)"
    return (
        f"open loop, {_process(arrivals)}{cap}, drawn once before the run; TTFT limits are judged"
        " from intent; a run whose requests left by another law is void"
    )


def _window(workload: Workload, first: StoredRun) -> str:
    window = numbers.duration(workload.duration_s)
    warmup = numbers.duration(workload.warmup_s)
    text = f"{warmup} of the same traffic, then {window} measured"
    if workload.warmup_auto:
        text = f"the same traffic until it is steady (at most {warmup}), then {window} measured"
    if workload.requests is not None:
        text += f" (or {numbers.grouped(str(workload.requests))} requests)"
    text += " without draining; requests sent inside are followed to their end"
    if first.facts is not None and first.facts.warmup is not None:
        text += f"; {first.meta.run_id}: {first.facts.warmup.reason}"
    return text


def _repeats(result: StudyResult) -> str:
    runs = {r: e for r, e in result.index.runs.items() if not e.outdated}
    repeats = max((entry.repeat for entry in runs.values()), default=0)
    if len(runs) <= 1:
        seeds = [str(entry.seed) for entry in runs.values()]
        return f"one run, seed {seeds[0]}" if seeds else ""
    names = list(dict.fromkeys(runs[run].experiment for run in result.index.order if run in runs))
    shown = ", ".join(names[:_ORDER_SHOWN]) + (", …" if len(names) > _ORDER_SHOWN else "")
    seeds = list(dict.fromkeys(str(entry.seed) for entry in runs.values()))
    turn = ", then backwards, and so on" if repeats > 1 else ""
    counts = Counter(entry.experiment for entry in runs.values())
    fewer = [f"{n} of {name}" for name, n in counts.items() if n < repeats]
    each = f"{repeats} each" + (f" ({', '.join(fewer)})" if fewer else "")
    text = f"{each}, in the order {shown}{turn}; seeds {', '.join(seeds)}"
    if any("not interleaved" in warning for warning in result.warnings):
        text += "; so planned, but not every pair was measured so: see the warnings"
    return text


def _comparison(result: StudyResult) -> str:
    if result.index.baseline is None or len(result.experiments) < 2:
        return ""
    return (
        "paired by repeat: a pair shares seed, arrivals and lengths, not the prompts' text; mean "
        "of the log ratios with Student's 95 % interval; for shares the plain difference, whose "
        "interval also covers Newcombe's of the pooled counts"
    )


def _client(result: StudyResult) -> str:
    """The worst figures over all experiments: what limits one run makes it void."""
    clients = [e.summary.client for e in result.experiments if e.summary is not None]
    if clients and all(client.receive_clock == "simulated" for client in clients):
        return "simulated clock: the client cannot be the limit"
    parts = []
    for words, name in (("send lateness", "send_lateness_p99_s"), ("loop lag", "loop_lag_p99_s")):
        values = [v for client in clients if (v := getattr(client, name)) is not None]
        if values:
            parts.append(f"{words} p99 at most {numbers.duration(max(values))}")
    shares = [client.cpu_share for client in clients if client.cpu_share is not None]
    if shares:
        parts.append(f"CPU at most {numbers.percent(max(shares))} of a core")
    clocks = list(dict.fromkeys(client.receive_clock for client in clients))
    known = [clock for clock in clocks if clock]
    if known:
        parts.append(f"chunks stamped by: {', '.join(known)}")
    return "; ".join(parts)


def _calibration(facts: RunFacts | None) -> str:
    """What the client was shown to be able to do before the runs."""
    able = None if facts is None else facts.calibration
    return "" if able is None else calibration_words(able)


def _engine(first: StoredRun) -> str:
    server = first.facts.server if first.facts is not None else {}
    configuration = first.meta.configuration
    if configuration.engine == "twin":
        parts = [f"digital twin of {server.get('models_engine', 'vLLM')}"]
        if "constants" in server:
            parts.append(f"constants: {server['constants']}")
        return "; ".join(parts)
    name = server.get("engine") or configuration.engine
    version = server.get("version") or configuration.engine_version
    return " ".join(str(part) for part in (name, version) if part)


def _flags(configuration: Configuration) -> str:
    given = configuration.knobs.given()
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _launch(launch: Launch | None) -> str:
    """What the engine was started with beyond its knobs; values of secrets are never shown."""
    if launch is None:
        return ""
    words: dict[str, Sequence[str]] = {
        "command": launch.command or (),
        "arguments": launch.arguments,
        "container options": launch.container,
    }
    router = launch.router
    if router is not None:
        words |= {"router's command": router.command, "router's arguments": router.arguments}
    parts = [
        f"{name} {shlex.join(mask_words(said))}".replace("'***'", "***")
        for name, said in words.items()
        if said
    ]
    if launch.environment:
        shown = mask_variables(launch.environment)
        taken = (n if v is None else f"{n}={v}" for n, v in shown.items())
        parts.append(f"environment {', '.join(taken)}")
    if launch.image is not None:
        parts.append(f"image {launch.image}")
    if launch.host is not None:
        parts.append(f"on {launch.host}" + ("" if launch.tunnel else ", without a tunnel"))
    if router is not None:
        parts.append(f"behind {router_name(router)}")
    return "; ".join(parts)


def _resolved(facts: RunFacts | None) -> str:
    knobs = facts.server.get("knobs") if facts is not None else None
    if not isinstance(knobs, Mapping):
        return ""
    return ", ".join(f"{name}={value}" for name, value in knobs.items() if value is not None)


def _hardware(configuration: Configuration, facts: RunFacts | None) -> str:
    if configuration.gpu is None:
        return "not known (the endpoint does not tell)"
    price = configuration.price_per_gpu_hour
    text = f"{configuration.gpus} × {configuration.gpu}"
    if price is not None:
        text += f" at {numbers.dollars(price)} per GPU hour"
    source = facts.server.get("gpu_figures") if facts is not None else None
    return f"{text}; figures from {source}" if source else text


def _plain(values: Mapping[str, Any]) -> str:
    shown = []
    for name, value in values.items():
        words = name.replace("_", " ").removesuffix(" bytes")
        text = numbers.si(value, "B") if name.endswith("_bytes") else str(value)
        shown.append(f"{words} {text}")
    return ", ".join(shown)


def _warnings(result: StudyResult) -> list[str]:
    found = [(e.name, e.summary.verdict.warnings) for e in result.experiments if e.summary]
    return [*result.warnings, *_gathered(result, found)]


def _itl_notes(result: StudyResult) -> list[str]:
    """Where gaps were finer than the client could tell apart."""
    found = [(e.name, (e.summary.itl_note,)) for e in result.experiments if e.summary]
    return _gathered(result, [(name, [t for t in texts if t]) for name, texts in found])


def _notes(result: StudyResult) -> list[str]:
    found = [(e.name, e.summary.notes) for e in result.experiments if e.summary]
    index = [("", (text,)) for text in result.index.notes]
    return _gathered(result, [*index, *found])


def _gathered(result: StudyResult, found: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Each kind of text once, with the experiments it is about unless it is about all."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, texts in found:
        for text in texts:
            kinds.setdefault(kind_of(text), []).append((name, text))
    everyone = len(result.experiments)
    lines = []
    for about in kinds.values():
        known = list(dict.fromkeys(name for name, _ in about if name))
        whom = "" if not known or len(known) == everyone else f"{', '.join(known)}: "
        lines.append(whom + told_once(text for _, text in about)[0])
    return lines
