"""The twin as an engine: no HTTP, a simulated clock; a 90-second run takes about a second."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.hostconstants import FREE
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.model import shape as find_shape
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import (
    ClientCheck,
    LiveFigures,
    RunFacts,
    Source,
    Warmup,
    Watch,
    Window,
)
from ridgeline.domain.steadystate import Onset, onset_of
from ridgeline.domain.workload import Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin_bands import Serving, doubt_of, prediction_errors
from ridgeline.engines.twin_records import HandIn
from ridgeline.engines.twin_scope import DEFAULT_RELEASE, applies, scope_notes
from ridgeline.twin.calibration import Fitted
from ridgeline.twin.calibration import fit as fit_constants
from ridgeline.twin.collector import collector_paused
from ridgeline.twin.constants import Constants, priors_for
from ridgeline.twin.fleet import Twin, build_twin
from ridgeline.twin.offer import Offer
from ridgeline.twin.pools import AnyFleet, fleet_of
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.results import Tally, server_counters
from ridgeline.twin.scheduler import Decision
from ridgeline.twin.uncertainty import Doubt, prior_doubt
from ridgeline.workload.schedule import Schedule

__all__ = [
    "DEFAULT_RELEASE", "FREE", "Fitted", "Twin", "TwinEndpoint", "TwinEngine", "calibrated",
    "constants_of", "fit_constants", "known_constants", "server_facts", "twin_of",
]  # fmt: skip

NO_BANDS = (
    "no bands: the twin could not be simulated with constants as far off as they are said to be"
)
SLICE_NS = 5_000_000_000  # simulated time between two looks at the watch


class TwinEngine:
    """Starts twins. Without `constants` each has the priors of its GPU."""

    name = "twin"

    def __init__(self, constants: Constants | None = None) -> None:
        self._constants = constants

    def start(self, configuration: Configuration) -> AbstractContextManager["TwinEndpoint"]:
        """A twin of the configuration.

        Raises BadInput for knobs that the engine refuses or the twin does not model, RunFailed
        with the engine's reason when it would not fit in memory.
        """
        return self._started(configuration)

    @contextmanager
    def _started(self, configuration: Configuration) -> Iterator["TwinEndpoint"]:
        twins = tuple(twin_of(part, self._constants) for part in configuration.parts)
        drafts = any(twin.knobs.drafts > 0 for twin in twins)
        doubt = doubt_of(configuration.parts[0], drafts=drafts)
        notes = [note for part in configuration.parts for note in scope_notes(part)]
        yield TwinEndpoint(
            twins[0], doubt, tuple(dict.fromkeys(notes)), pools=twins[1:], served=configuration
        )


def twin_of(configuration: Configuration, constants: Constants | None = None) -> Twin:
    """Resolve a configuration into everything that a simulation needs. Errors as in `start`."""
    gpu = configuration.device()
    if gpu is None:
        raise BadInput("a twin needs a GPU", where="hardware.gpu", fix="name one, e.g. H100-SXM")
    shape = find_shape(configuration.model)
    release = configuration.engine_version or DEFAULT_RELEASE
    knobs = resolve(configuration.knobs, gpu, shape, release)
    return build_twin(shape, gpu, knobs, constants or constants_of(configuration))


def constants_of(configuration: Configuration) -> Constants:
    """The configuration's calibration where it was made on this GPU, else the GPU's priors."""
    device, known = configuration.device(), configuration.calibration
    assert device is not None
    if known is None or not applies(configuration):
        return priors_for(device.name)
    return calibrated(configuration, known.constants)


def known_constants(configuration: Configuration) -> Constants:
    """What a calibration on that GPU starts from, named for what it becomes."""
    gpu = configuration.device()
    assert gpu is not None
    return replace(priors_for(gpu.name), name="calibrated")


def calibrated(configuration: Configuration, values: Mapping[str, float]) -> Constants:
    """The constants of a calibration on top of the GPU's own. Raises BadInput for a bad name."""
    base = known_constants(configuration)
    for name, value in values.items():
        if name not in FREE:
            raise BadInput(f"no constant to calibrate{nearest(name, FREE)}", where=name)
        if not value > 0:
            raise BadInput(f"must be above 0, not {value:g}", where=name)
    changes: dict[str, Any] = dict(values)
    return replace(base, **changes)


class TwinEndpoint:
    """A simulated endpoint. Each drive starts with an empty engine."""

    source: Source = "twin"

    def __init__(
        self,
        twin: Twin,
        doubt: Doubt | None = None,
        notes: tuple[str, ...] = (),
        *,
        pools: Sequence[Twin] = (),
        served: Configuration | None = None,
    ) -> None:
        """`doubt`: how well the constants are known, as those of the GPU's priors unless given.
        `notes`: what is to be said of them with every run. `pools`: the twins of further pools of
        the configuration `served`, which says what class goes where.
        """
        self.twin = twin
        self._twins = (twin, *pools)
        self._of = served
        self._notes = notes
        drafts = twin.knobs.drafts > 0
        self._doubt = prior_doubt(twin.gpu.name, drafts=drafts) if doubt is None else doubt

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        """Simulate the plan and pass every request that was sent, and the steps, to the sink."""
        workload = plan.schedule.workload
        onset = onset_of(workload, plan.schedule.user_start_ns)
        offer = Offer(plan.schedule) if onset is None else _CountingOffer(plan.schedule, onset)
        served = self._served(workload)
        fleet = fleet_of(served.twins, served.pool_of, offer, plan.routing)
        offer.begin(fleet)
        found = False
        hand = HandIn(fleet, offer, plan.timeouts, sink)
        with collector_paused():
            if isinstance(offer, _CountingOffer):
                found = _warm_up(fleet, offer)
            interrupted = _simulate(fleet, offer, watch, hand)
        window = Window(offer.window_start, offer.window_end)
        notes = (*self._notes, *hand.finish(watch))
        asked = plan.bands and not interrupted and hand.tally.stays > 0
        errors = self._errors(plan, hand.tally) if asked else {}
        if asked and not errors:
            notes += (NO_BANDS,)
        return RunFacts(
            source=self.source,
            window=window,
            client=ClientCheck(receive_clock="simulated"),
            counters=server_counters(fleet, hand.tally),
            server=self._facts(fleet),
            interrupted=interrupted,
            notes=notes,
            warmup=None if onset is None else Warmup(window, workload.warmup_s, found),
            errors=errors,
        )

    def _errors(self, plan: DrivePlan, seen: Tally) -> Mapping[str, float]:
        mean_s = seen.stay_ns / seen.stays / 1e9
        workload = plan.schedule.workload
        return prediction_errors(self._served(workload), workload, self._doubt, stay_s=mean_s)

    def _served(self, workload: Workload) -> Serving:
        kinds = [kind.name for kind in workload.classes]
        return Serving(self._twins, () if self._of is None else self._of.pool_of(kinds))

    def _facts(self, fleet: AnyFleet) -> Mapping[str, object]:
        """Of pools those of each, by name, beside the first one's."""
        facts = server_facts(self.twin, fleet)
        if self._of is None or not self._of.pools:
            return facts
        pairs = zip(self._of.pools, self._twins, strict=True)
        return {**facts, "pools": {pool.name: server_facts(twin) for pool, twin in pairs}}


def server_facts(twin: Twin, fleet: AnyFleet | None = None) -> Mapping[str, object]:
    """What is served, as plain values: resolved knobs, memory, constants."""
    memory = twin.memory
    facts: dict[str, object] = {
        "engine": "twin",
        "models_engine": f"vLLM {twin.knobs.version}",
        "constants": twin.constants.name,
        "gpu": twin.gpu.name,
        "gpu_figures": f"{twin.gpu.source} (confidence {twin.gpu.confidence})",
        "model": twin.shape.name,
        "routing": "round-robin" if fleet is None else fleet.routing,
        "answer_length": "as planned: a twin has no end-of-sequence token",
        "knobs": asdict(twin.knobs),
        "kv_blocks": memory.usable_blocks,
        "kv_tokens": memory.kv_tokens,
        "kv_blocks_from": "override" if twin.knobs.num_gpu_blocks_override else "memory plan",
        "max_concurrency": round(memory.max_concurrency, 2),
        "memory_bytes": {
            name: getattr(memory, f"{name}_bytes")
            for name in ("total", "budget", "weights", "activation", "graph", "other", "kv")
        },
    }
    if fleet is not None and fleet.now:
        facts["api_server_busy"] = [round(s.busy_ns / fleet.now, 4) for s in fleet.servers]
    return facts


class _CountingOffer(Offer):
    """Tells an Onset what is delivered, as long as it asks."""

    def __init__(self, schedule: Schedule, onset: Onset) -> None:
        super().__init__(schedule)
        self.onset = onset
        self.chunks = 0

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        self.chunks += decision.decodes + len(decision.firsts)

    def finished(self, request: Request) -> None:
        if request.last_ns is not None:
            self.onset.ended((request.last_ns - request.sent_ns) / 1e9)
        super().finished(request)


def _warm_up(fleet: AnyFleet, offer: _CountingOffer) -> bool:
    """Simulate until the run is steady and open the window there; False when it is not in time."""
    onset = offer.onset
    while fleet.next_ns is not None and (due := round(onset.next_s * 1e9)) < offer.window_start:
        fleet.run_until(due)
        if onset.look(offer.chunks, offer.in_flight):
            offer.open_window(due)
            return True
    return False


def _simulate(fleet: AnyFleet, offer: Offer, watch: Watch, hand: HandIn) -> bool:
    """Run to the end of the last request; True when the watch asked to stop early.

    Once it asks, nothing is simulated that the client would not have waited for.
    """
    time = fleet.now
    interrupted = False
    while time < offer.window_end and fleet.next_ns is not None:
        time += SLICE_NS
        fleet.run_until(min(time, offer.window_end))
        watch.live(_live(offer, min(time, offer.window_end), hand.ended()))
        if watch.stop_asked():
            interrupted = True
            offer.stop(fleet.now)
    while fleet.next_ns is not None:
        if watch.stop_asked():
            fleet.run_until(offer.window_end + hand.grace_ns)
            return interrupted or fleet.next_ns is not None
        fleet.run_until(fleet.next_ns + SLICE_NS)
    return interrupted


def _live(offer: Offer, now: int, ended: list[Request]) -> LiveFigures:
    """Figures of the last slice: tokens of the requests that ended in it, per second."""
    waits = [(r.first_ns - r.sent_ns) / 1e9 for r in ended if r.first_ns is not None]
    return LiveFigures(
        elapsed_s=now / 1e9,
        total_s=offer.window_end / 1e9,
        phase="warm-up" if now <= offer.window_start else "measuring",
        output_tokens_per_s=sum(r.produced for r in ended) / (SLICE_NS / 1e9),
        ttft_p95_s=float(np.quantile(waits, 0.95)) if waits else None,
        sent=offer.sent,
        failed=offer.failed,
        in_flight=offer.in_flight,
    )
