"""The steps of an engine's scheduler as plain lines: written by the twin, read from a real engine.

One line is one call of the scheduler's `schedule`, with what happened since the call before:

    step       number of the call, from 0
    updated    steps whose outputs were processed since the last call
    finished   requests that left with them
    arrived    requests that were taken in since the last call, each with its id, its length in
               tokens (prompt, output: the most it may generate), priority, time of arrival in
               seconds, and short hashes of its prompt's full blocks where prefixes are cached
    scheduled  tokens of this step by request, in the engine's order
    hits       tokens found in the prefix cache by each request that was admitted (again)
    preempted  requests that gave way in this step
    running, waiting, free_blocks    counts after the step was decided

A first line holds the settings that decide. `scripts/vllm_step_log.py` writes this form inside
vLLM. `replay` gives the twin's scheduler the arrivals of a log, in the same order relative to its
steps, and yields the twin's own lines; `difference` says in words where two lines part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.domain.defaults import VERSIONS, ResolvedKnobs
from ridgeline.domain.errors import BadInput
from ridgeline.twin.decision import Decision
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Scheduler

STEP_LOG = 1  # version of the form


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the scheduler took it in."""

    id: str
    prompt: int
    output: int
    priority: int = 0
    arrival_s: float = 0.0
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepLine:
    """One call of `schedule`. `scheduled` is empty when nothing could run."""

    step: int
    updated: tuple[int, ...]
    finished: frozenset[str]
    scheduled: Mapping[str, int]
    hits: Mapping[str, int]
    preempted: frozenset[str]
    running: int
    waiting: int
    free_blocks: int
    arrived: tuple[Arrival, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The line as a JSON object."""
        arrived: list[dict[str, Any]] = []
        for a in self.arrived:
            one = {"id": a.id, "prompt": a.prompt, "output": a.output, "priority": a.priority,
                   "arrival": a.arrival_s}  # fmt: skip
            arrived.append({**one, "blocks": list(a.blocks)} if a.blocks else one)
        return {
            "step": self.step,
            "updated": list(self.updated),
            "finished": sorted(self.finished),
            "arrived": arrived,
            "scheduled": dict(self.scheduled),
            "hits": dict(self.hits),
            "preempted": sorted(self.preempted),
            "running": self.running,
            "waiting": self.waiting,
            "free_blocks": self.free_blocks,
        }


@dataclass(frozen=True, slots=True)
class StepLog:
    """One engine's life: its settings and its steps."""

    settings: Mapping[str, Any]
    lines: tuple[StepLine, ...]


def read_step_logs(objects: Iterable[tuple[str, Any]]) -> tuple[StepLog, ...]:
    """The logs in decoded JSON lines, each given with the place that an error names.

    A header begins a log; one file may hold several. Raises BadInput for a line of another form.
    """
    logs: list[tuple[Mapping[str, Any], list[StepLine]]] = []
    for where, line in objects:
        if not isinstance(line, dict):
            raise BadInput("is no JSON object", where=where)
        if "step_log" in line:
            if line["step_log"] != STEP_LOG:
                raise BadInput(f"is of form {line['step_log']!r}, not {STEP_LOG}", where=where)
            logs.append((line, []))
        elif not logs:
            raise BadInput("has no header", where=where, fix="log with scripts/vllm_step_log.py")
        else:
            try:
                logs[-1][1].append(_line(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadInput(f"is no step: {error!r}", where=where) from None
    return tuple(StepLog(settings, tuple(lines)) for settings, lines in logs)


def _line(line: Mapping[str, Any]) -> StepLine:
    return StepLine(
        step=int(line["step"]),
        updated=tuple(map(int, line["updated"])),
        finished=frozenset(line["finished"]),
        scheduled={str(r): int(n) for r, n in line["scheduled"].items()},
        hits={str(r): int(n) for r, n in line["hits"].items()},
        preempted=frozenset(line["preempted"]),
        running=int(line["running"]),
        waiting=int(line["waiting"]),
        free_blocks=int(line["free_blocks"]),
        arrived=tuple(
            Arrival(
                str(a["id"]), int(a["prompt"]), int(a["output"]), int(a.get("priority", 0)),
                float(a.get("arrival", 0.0)), tuple(a.get("blocks", ())),
            )
            for a in line["arrived"]
        ),
    )  # fmt: skip


def scheduler_of(settings: Mapping[str, Any]) -> Scheduler:
    """A tracing scheduler with a log's settings. Raises BadInput for what the twin lacks."""
    where = "step log"
    if settings.get("num_speculative_tokens"):
        raise BadInput(
            "speculative decoding cannot be replayed: which drafts were right is not logged",
            where=where,
        )
    version = ".".join(str(settings.get("version")).split(".")[:2])
    if version not in VERSIONS:
        raise BadInput(
            f"the twin knows the engine's releases {', '.join(VERSIONS)},"
            f" not {settings.get('version')}",
            where=where,
        )
    try:
        tokens, seqs = int(settings["max_num_batched_tokens"]), int(settings["max_num_seqs"])
        blocks = int(settings["num_gpu_blocks"]) - 1  # the engine keeps one
        knobs = ResolvedKnobs(
            version=version,
            max_num_seqs=seqs,
            max_num_active_seqs=int(settings.get("max_num_active_seqs", seqs)),
            max_num_batched_tokens=tokens,
            max_num_scheduled_tokens=int(settings.get("max_num_scheduled_tokens", tokens)),
            max_model_len=int(settings["max_model_len"]),
            chunked_prefill=bool(settings["enable_chunked_prefill"]),
            long_prefill_token_threshold=int(settings.get("long_prefill_token_threshold", 0)),
            reserve_full_isl=bool(settings.get("scheduler_reserve_full_isl", True)),
            async_depth=2 if settings["async_scheduling"] else 1,
            watermark=float(settings.get("watermark", 0.0)),
            prefix_caching=bool(settings["enable_prefix_caching"]),
            block_size=int(settings["block_size"]),
            scheduling_policy=str(settings.get("scheduling_policy", "fcfs")),
            prefill_schedule_interval=int(settings.get("prefill_schedule_interval", 1)),
            **_NO_PART_IN_SCHEDULING,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the header lacks a setting: {error!r}", where=where) from None
    return Scheduler(knobs, blocks, trace=True)


_NO_PART_IN_SCHEDULING: dict[str, Any] = {
    "kv_cache_dtype": "auto", "kv_element_bytes": 2.0, "gpu_memory_utilization": 0.92,
    "kv_cache_memory_bytes": None, "num_gpu_blocks_override": None, "eager": True,
    "capture_sizes": (), "full_graphs": False, "piecewise_graphs": False, "weights": "bf16",
    "weight_bytes": 2.0, "data_parallel": 1, "tensor_parallel": 1, "api_servers": 1,
}  # fmt: skip


class _Names:
    """Requests of a log as the twin's: numbers for ids."""

    def __init__(self, block_size: int) -> None:
        self.ids: list[str] = []
        self._block_size = block_size

    def request(self, arrival: Arrival) -> Request:
        number = len(self.ids)
        self.ids.append(arrival.id)
        return Request(
            number,
            arrival.prompt,
            arrival.output,
            chain=tuple(
                (self._block_size * n, int(name, 16)) for n, name in enumerate(arrival.blocks, 1)
            )
            or None,
            sent_ns=round(arrival.arrival_s * 1e9),
            priority=arrival.priority,
        )


def replay(log: StepLog) -> Iterator[StepLine]:
    """The twin's own line for each of a log's, from the log's arrivals and updates alone."""
    scheduler = scheduler_of(log.settings)
    names = _Names(scheduler.knobs.block_size)
    flights: dict[int, Decision] = {}
    for line in log.lines:
        finished: set[str] = set()
        for step in line.updated:
            if (done := flights.pop(step, None)) is not None:
                finished.update(names.ids[r.number] for r in done.finished)
                scheduler.update(done)
        for arrival in line.arrived:
            scheduler.add(names.request(arrival))
        before = set(scheduler.running)
        decision = scheduler.schedule()
        if decision is not None:
            flights[line.step] = decision
        yield StepLine(
            step=line.step,
            updated=line.updated,
            finished=frozenset(finished),
            arrived=line.arrived,
            **_decided(scheduler, decision, before, names.ids.__getitem__),
        )


def _decided(
    scheduler: Scheduler, decision: Decision | None, before: set[Request], ids: Callable[[int], str]
) -> dict[str, Any]:
    """What the scheduler's last call decided, as fields of a line; `before`: who ran then."""
    trace = {} if decision is None else decision.trace or {}
    prefills = () if decision is None else decision.prefills
    return {
        "scheduled": {ids(n): tokens for n, tokens in trace.items()},
        "hits": {ids(r.number): start for r, start, _ in prefills if r not in before},
        "preempted": frozenset(ids(r.number) for r in scheduler.last_preempted),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "free_blocks": scheduler.pool.free,
    }


class Recorder:
    """Stands before a tracing scheduler in an engine loop and tells `hear` each call as a line."""

    def __init__(self, scheduler: Scheduler, hear: Callable[[StepLine], None]) -> None:
        self._scheduler = scheduler
        self._hear = hear
        self._calls = 0
        self._step_of: dict[int, int] = {}  # call number by the scheduler's step number
        self._updated: list[int] = []
        self._finished: list[str] = []
        self._arrived: list[Arrival] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def add(self, request: Request) -> None:
        """Take in a request."""
        self._scheduler.add(request)
        at = request.sent_ns if request.queued_ns is None else request.queued_ns
        size = self._scheduler.pool.block_size
        shared = min(request.shared_tokens, request.prompt) // size
        self._arrived.append(
            Arrival(
                _id(request.number), request.prompt, request.output, request.priority, at / 1e9,
                tuple(_name(request.block_key(place, size)) for place in range(shared)),
            )
        )  # fmt: skip

    def schedule(self) -> Decision | None:
        """Decide the next step and tell it."""
        before = set(self._scheduler.running)
        decision = self._scheduler.schedule()
        line = StepLine(
            step=self._calls,
            updated=tuple(self._updated),
            finished=frozenset(self._finished),
            arrived=tuple(self._arrived),
            **_decided(self._scheduler, decision, before, _id),
        )
        if decision is not None:
            self._step_of[decision.step] = self._calls
        self._calls += 1
        self._updated, self._finished, self._arrived = [], [], []
        self._hear(line)
        return decision

    def update(self, decision: Decision) -> None:
        """Take note of a step's end."""
        self._updated.append(self._step_of.pop(decision.step))
        self._finished += [_id(r.number) for r in decision.finished]
        self._scheduler.update(decision)


def _name(key: tuple[int, int]) -> str:
    """A block's key as hexadecimal digits: the piece, then the place in it."""
    piece, place = key
    return f"{piece % (1 << 63):x}{place:08x}"


def _id(number: int) -> str:
    return f"r{number}"


def header(knobs: ResolvedKnobs, usable_blocks: int) -> dict[str, Any]:
    """The first line of a twin's log."""
    return {
        "step_log": STEP_LOG,
        "engine": "twin",
        "version": knobs.version,
        "async_scheduling": knobs.async_depth > 1,
        "scheduling_policy": knobs.scheduling_policy,
        "max_model_len": knobs.max_model_len,
        "block_size": knobs.block_size,
        "num_gpu_blocks": usable_blocks + 1,
        "enable_prefix_caching": knobs.prefix_caching,
        "num_speculative_tokens": knobs.drafts,
        "max_num_batched_tokens": knobs.max_num_batched_tokens,
        "max_num_seqs": knobs.max_num_seqs,
        "max_num_scheduled_tokens": knobs.max_num_scheduled_tokens,
        "max_num_active_seqs": knobs.max_num_active_seqs,
        "long_prefill_token_threshold": knobs.long_prefill_token_threshold,
        "enable_chunked_prefill": knobs.chunked_prefill,
        "prefill_schedule_interval": knobs.prefill_schedule_interval,
        "scheduler_reserve_full_isl": knobs.reserve_full_isl,
        "watermark": knobs.watermark,
    }


def difference(engine: StepLine, twin: StepLine) -> str | None:
    """Where two lines of the same step part, in words; None when they agree."""
    for name in ("finished", "preempted", "hits", "scheduled", "running", "waiting", "free_blocks"):
        was, found = getattr(engine, name), getattr(twin, name)
        if was != found:
            return f"step {engine.step}: {name}: {_apart(was, found)}"
    return None


def _apart(was: Any, found: Any) -> str:
    if isinstance(was, Mapping):
        keys = [k for k in dict.fromkeys((*was, *found)) if was.get(k) != found.get(k)]
        shown = ", ".join(f"{k} {was.get(k, 0)} / {found.get(k, 0)}" for k in keys[:4])
        return f"{shown} (engine / twin){' and more' if len(keys) > 4 else ''}"
    if isinstance(was, frozenset):
        return f"engine {sorted(was)}, twin {sorted(found)}"
    return f"engine {was}, twin {found}"
