"""The protocol of one run: traffic, records, figures, verdict, all on disk.

A measured run writes its records to a journal as they come. A twin's run does not: it takes about a
second of computing and can be had again, so its records go to the tables at once.
"""

import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.accounting import Bounds
from ridgeline.domain.arrivalcheck import arrival_figures
from ridgeline.domain.bands import bands_of
from ridgeline.domain.calibration import ClientCalibration
from ridgeline.domain.defaults import WEIGHT_FORMATS
from ridgeline.domain.errors import BadInput, RidgelineError, StoreError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import summarise
from ridgeline.domain.model import shape
from ridgeline.domain.parts import with_parts
from ridgeline.domain.pricing import repriced
from ridgeline.domain.priorities import order_told
from ridgeline.domain.ramps import plateau_of, warmup_ttft
from ridgeline.domain.records import MemorySink, RecordSink, RunRecords, records_from_requests
from ridgeline.domain.resolvable import read_errors
from ridgeline.domain.run import ClientCheck, RunFacts, Source, Warmup, Watch, Window
from ridgeline.domain.steadystate import STEADY
from ridgeline.domain.summary import Summary, VerdictFigures
from ridgeline.domain.workload import Workload
from ridgeline.engines.base import DrivePlan, Engine
from ridgeline.engines.beside import Beside, WatchedEndpoint
from ridgeline.experiment.binding import measured_limit
from ridgeline.experiment.estimates import above_graphs_share, measured_roofline
from ridgeline.experiment.loadsteps import judged_steps
from ridgeline.experiment.measured import account_measured
from ridgeline.experiment.plan import PlannedRun, host_facts, utc_now
from ridgeline.experiment.resolving import resolved
from ridgeline.experiment.verdict import Evidence, judge
from ridgeline.experiment.windowing import place_window
from ridgeline.store.codec import from_plain, to_plain
from ridgeline.store.files import make_folder, write_atomically
from ridgeline.store.journal import Journal, JournalContent, is_being_written, read_journal
from ridgeline.store.run_directory import (
    ENGINE_LOG,
    JOURNAL_FILE,
    Failure,
    RunMeta,
    State,
    StoredRun,
    is_finished,
    read_run,
    write_records,
    write_run,
)
from ridgeline.store.tables import read_telemetry, write_telemetry
from ridgeline.telemetry.sampling import summarise_engine
from ridgeline.workload.schedule import draw_schedule

# What the client can do under such a load; called right before a run of a real server.
Calibrate = Callable[[Workload], ClientCalibration]


def carry_out(
    run: PlannedRun,
    folder: Path,
    engine: Engine,
    watch: Watch,
    *,
    known: Mapping[str, object] | None = None,
    notes: tuple[str, ...] = (),
    calibrate: Calibrate | None = None,
    tries: int = 1,
) -> StoredRun:
    """Do one run and store it. What goes wrong with the engine is a result: state "failed".

    `known` is kept with the facts about the server, `notes` with the run's own. What an engine of
    ours did beside the run (its telemetry and log) is stored in the run's folder. `calibrate` tells
    what the client can do; None: it is not tried. `tries`: how often it was measured, now included.

    Raises StoreError when it cannot be stored (a measured run's journal then stays readable), and
    lets KeyboardInterrupt through (likewise).
    """
    meta = replace(_meta(run), tries=tries)
    if engine.name == "twin":
        sink = MemorySink()
        driven = _drive(run, meta, sink, engine, watch)
        return finish(folder, meta, sink, driven.facts, driven.failure)
    make_folder(folder)
    path = folder / JOURNAL_FILE
    with Journal(path, to_plain(meta)) as journal:
        driven = _drive(run, meta, journal, engine, watch, calibrate=calibrate)
        facts, failure = driven.facts, driven.failure
        if facts is not None:
            server = {**facts.server, **(known or {})}
            facts = replace(facts, server=server, notes=(*facts.notes, *notes))
            journal.facts(to_plain(facts))
    _write_beside(folder, driven.beside)
    content = read_journal(path)
    sink = MemorySink(content.requests, content.events, content.steps)
    return finish(folder, meta, sink, facts, failure)


def _meta(run: PlannedRun) -> RunMeta:
    # A fresh salt for every try: prompts of an earlier one may still sit in a prefix cache.
    fresh = run.run_id if run.configuration.engine == "twin" else secrets.token_hex(6)
    salt = run.workload.salt or fresh
    return RunMeta(
        run_id=run.run_id,
        study=run.study,
        experiment=run.experiment,
        repeat=run.repeat,
        configuration=run.configuration,
        workload=run.workload,
        slo=run.slo,
        salt=salt,
        fingerprint=run.fingerprint,
        started_at=utc_now(),
        endpoint=run.endpoint,
        versions=run.versions,
        host=host_facts(),
    )


def _drive(
    run: PlannedRun,
    meta: RunMeta,
    sink: RecordSink,
    engine: Engine,
    watch: Watch,
    *,
    calibrate: Calibrate | None = None,
) -> "_Driven":
    driven = _Driven()
    try:
        schedule = draw_schedule(run.workload)
        with engine.start(run.configuration) as endpoint:
            limits = run.workload.client.timeouts
            routing = meta.configuration.routing
            plan = DrivePlan(schedule, meta.salt, run.endpoint, limits, routing, bands=True)
            able = None if calibrate is None else calibrate(run.workload)
            try:
                driven.facts = replace(endpoint.drive(plan, sink, watch), calibration=able)
            finally:
                if isinstance(endpoint, WatchedEndpoint):
                    driven.beside = endpoint.beside()
    except StoreError:
        raise
    except RidgelineError as error:
        kind = _class_of(error)  # engines name it in their message too: once is enough here
        driven.failure = Failure(kind, str(error).replace(f"{kind}: ", "", 1))
    return driven


@dataclass(slots=True)
class _Driven:
    """What came of a drive."""

    facts: RunFacts | None = None
    failure: Failure | None = None
    beside: Beside = field(default_factory=Beside)


def _write_beside(folder: Path, beside: Beside) -> None:
    if beside.telemetry:
        write_telemetry(folder, beside.telemetry)
    if beside.log:
        write_atomically(folder / ENGINE_LOG, beside.log.encode())


def _class_of(error: RidgelineError) -> str:
    """The failure's class: the engine's own when it gives one, else by kind of error."""
    given = getattr(error, "failure_class", None)
    if isinstance(given, str):
        return given
    return "refused" if isinstance(error, BadInput) else "could not be completed"


def finish(
    folder: Path,
    meta: RunMeta,
    sink: MemorySink,
    facts: RunFacts | None,
    failure: Failure | None = None,
    *,
    must_store: bool = True,
) -> StoredRun:
    """Turn what a run left behind into figures and a verdict, and store it all.

    must_store False: where nothing can be written the run is only held in memory (`unsaved`).
    The sink's requests are let go: beside the columns and what the figures need they would be
    held twice.
    """
    unsaved = None
    known = facts or rebuilt_facts(meta, sink)  # before the requests are let go
    try:
        records = write_records(folder, sink.requests, sink.step_table)
    except StoreError:
        if must_store or not sink.requests:  # emptied: they are on the disk
            raise
        records = unsaved = records_from_requests(sink.requests, sink.step_table)
        sink.requests.clear()
    if known is not None:
        known = place_window(records, known, meta.workload)
    measured = known is not None and known.window.seconds > 0  # not so when stopped in warm-up
    summary = figures(meta, records, known) if known is not None and measured else None
    run = StoredRun(
        folder=folder,
        meta=meta,
        state=_state(known, summary, failure),
        facts=known,
        summary=summary,
        failure=failure,
        events=tuple(sink.events),
        ended_at=utc_now(),
        unsaved=unsaved,
    )
    if unsaved is None:
        write_run(run)
    return run


def _state(facts: RunFacts | None, summary: Summary | None, failure: Failure | None) -> State:
    if failure is not None:
        return "failed"
    if facts is None or summary is None or facts.interrupted:
        return "interrupted"
    return "done" if summary.verdict.valid else "void"


def figures(meta: RunMeta, records: RunRecords, facts: RunFacts) -> Summary:
    """The summary of a run with its verdict."""
    summary = summarise(
        records,
        facts.window,
        facts=facts,
        configuration=meta.configuration,
        slo=meta.slo,
        open_loop=not meta.workload.arrivals.closed_loop,
        bounds=bounds_of(meta.configuration),
    )
    summary = with_parts(summary, records, facts.window, meta.workload, meta.configuration.gpus)
    late = read_errors(facts.client, records, facts.window)
    summary = resolved(summary, records, facts, workload=meta.workload, slo=meta.slo)
    summary = replace(summary, plateau=plateau_of(records, facts.window))
    if late is None:  # else the client may have made part of it
        summary = replace(summary, warmup_ttft_s=warmup_ttft(records, facts.window))
    if not summary.steps:  # a twin has its own, exact
        summary = _accounted(summary, meta.configuration, records, facts)
    summary = replace(summary, bands=bands_of(summary, facts.errors))
    if not meta.workload.arrivals.closed_loop:
        summary = replace(summary, arrivals=arrival_figures(records, facts.window))
    evidence = Evidence(records, facts, summary, meta.workload, meta.slo)
    found = judge(evidence)
    if summary.load_steps:
        summary = replace(summary, load_steps=judged_steps(evidence))
    order = order_told(meta.configuration, meta.workload.classes)
    judged = VerdictFigures(found.valid, found.reasons, (*found.warnings, *order))
    return replace(summary, verdict=judged)


def _accounted(
    summary: Summary, configuration: Configuration, records: RunRecords, facts: RunFacts
) -> Summary:
    """The summary of a measured run with its account of seconds and what binds."""
    account = account_measured(records, facts, configuration, summary.e2e_s.mean)
    steps, rates = account.steps, summary.throughput
    if rates.input_tokens_per_s and rates.requests_per_s:
        prompt_tokens = rates.input_tokens_per_s / rates.requests_per_s
        above = above_graphs_share(steps, configuration, prompt_tokens)
        steps |= {} if above is None else {"above_graphs_share": above}
    return replace(
        summary,
        steps=steps,
        accounting=account.seconds,
        roofline=measured_roofline(steps, configuration, bounds_of(configuration), summary),
        binding_limit=measured_limit(steps, configuration, account.seconds),
    )


def judge_again(run: StoredRun) -> StoredRun:
    """Figures and verdict of a stored run by today's formulas and rules; stores what changed.

    A run that failed or measured nothing stays as it is, and so does a copy whose chunks were left
    out: without them it would look like one that got no answer. Raises StoreError, also for a run
    of which a table is missing.
    """
    facts = run.facts
    if facts is None or run.summary is None or run.trimmed:
        return run
    records = run.records()
    facts = _engine_again(place_window(records, facts, run.meta.workload), run.folder)
    summary = figures(run.meta, records, facts)
    judged = replace(run, facts=facts, summary=summary, state=_state(facts, summary, run.failure))
    if judged != run:
        write_run(judged)
    return judged


def priced(run: StoredRun, meta: RunMeta) -> StoredRun:
    """A stored run at the price that `meta` has: what needs none of its records. Stores nothing."""
    if run.summary is None:
        return replace(run, meta=meta)
    errors = {} if run.facts is None else run.facts.errors
    return replace(run, meta=meta, summary=repriced(run.summary, meta.configuration, errors))


def _engine_again(facts: RunFacts, folder: Path) -> RunFacts:
    """What the engine's page told, from the stored readings and over the window as it is now."""
    told = facts.server.get("telemetry")
    if not isinstance(told, Mapping) or not told.get("engine"):
        return facts
    engine = summarise_engine(read_telemetry(folder), facts.window)
    if not engine:
        return facts
    return replace(facts, server={**facts.server, "telemetry": {**told, "engine": engine}})


def bounds_of(configuration: Configuration) -> Bounds | None:
    """What one GPU of the configuration can do at most, None when the GPU is not known."""
    try:
        found = configuration.device()
        if found is None:
            return None
        return Bounds(
            found.peak_flops(weight_precision(configuration)), found.bandwidth_bytes_per_s
        )
    except BadInput:
        return None


# Quantisations of real engines beyond those that the twin models: what their linear layers compute
# in. Weights that are only stored small (AWQ, GPTQ) are multiplied in 16 bits.
_COMPUTES_IN = {
    "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8",
    "awq": "bf16", "awq_marlin": "bf16", "gptq": "bf16", "gptq_marlin": "bf16",
    "bitsandbytes": "bf16", "gguf": "bf16",
}  # fmt: skip


def weight_precision(configuration: Configuration) -> str:
    """Precision that the linear layers compute in: "bf16", "fp8" or "fp4", however it is spelled.

    Raises BadInput for a quantisation whose arithmetic is not known.
    """
    method = configuration.knobs.quantization
    if method is None:
        with contextlib.suppress(BadInput):  # a model that is only a name at an endpoint
            method = shape(configuration.model).weight_format
    if method is None:
        return "bf16"
    if method in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[method][0]
    if method in _COMPUTES_IN:
        return _COMPUTES_IN[method]
    raise BadInput(f"what {method} computes in is not known", where="quantization")


def rebuilt_facts(meta: RunMeta, sink: MemorySink) -> RunFacts | None:
    """What can be said about a run that was cut off: its window up to the last thing seen.

    None when nothing was seen after the warm-up.
    """
    seen = [t for r in sink.requests for t in (r.sent_ns, r.end_ns) if t is not None]
    start = round(meta.workload.warmup_s * 1e9)
    opened = next((event.at_ns for event in sink.events if event.kind == STEADY), None)
    start = start if opened is None else opened
    planned_end = start + round(meta.workload.duration_s * 1e9)
    end = min(planned_end, max(seen, default=0))
    if end <= start:
        return None
    source: Source = "twin" if meta.configuration.engine == "twin" else "measured"
    kernel = all(r.read_timed in (None, 0) for r in sink.requests)
    return RunFacts(
        source=source,
        window=Window(start, end),
        client=ClientCheck("kernel" if kernel else "read"),
        interrupted=True,
        notes=("cut off: figures are from the records that were on disk",),
        warmup=Warmup(Window(start, end), meta.workload.warmup_s, opened is not None)
        if meta.workload.warmup_auto
        else None,
    )


def recover(folder: Path) -> StoredRun | None:
    """The finished run in a folder; a run that was killed is finished from its journal first.

    None when there is nothing yet, or when a living process is still writing it. Where nothing
    can be written the recovered run is only held in memory.
    """
    if is_finished(folder):
        return read_run(folder)
    path = folder / JOURNAL_FILE
    if not path.exists() or is_being_written(path):
        return None
    content = read_journal(path)
    if not content.head:
        return None
    return finish_content(folder, content)


def finish_content(folder: Path, content: JournalContent) -> StoredRun:
    """A run from its journal, stored where that is possible."""
    where = str(folder / JOURNAL_FILE)
    meta = from_plain(RunMeta, content.head, where)
    facts = None if content.facts is None else from_plain(RunFacts, content.facts, where)
    sink = MemorySink(content.requests, content.events, content.steps)
    return finish(folder, meta, sink, facts, must_store=False)
