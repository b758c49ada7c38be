"""How far a twin's prediction may be off: short runs of it with other constants."""

import math
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain.bands import LATENCIES, TOKENS, of_class
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import Sample, take_sample, throughput
from ridgeline.domain.parts import named, select
from ridgeline.domain.records import MemorySink, RunRecords
from ridgeline.domain.run import Window
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin_records import client_limits
from ridgeline.engines.twin_scope import scope_of
from ridgeline.twin.collector import collector_paused
from ridgeline.twin.constants import Constants
from ridgeline.twin.fleet import Twin
from ridgeline.twin.offer import Offer
from ridgeline.twin.pools import fleet_of
from ridgeline.twin.results import request_record, step_table
from ridgeline.twin.uncertainty import (
    Doubt,
    calibrated_doubt,
    design,
    elsewhere,
    prior_doubt,
    spread,
)
from ridgeline.workload.schedule import draw_schedule

LEAST_S = 5.0  # window of a short run
MOST_NS = 1e15  # eleven days: no clock of a simulation goes on for thousands of such steps
MOST_KEPT = 256  # results of earlier calls: a study asks for each configuration once a repeat
_known: dict[str, dict[str, float]] = {}


def doubt_of(configuration: Configuration, *, drafts: bool = False) -> Doubt:
    """What is not known about the constants that the configuration's twin computes with.

    drafts: it drafts tokens.
    """
    device = configuration.device()
    name = "" if device is None else device.name
    made, scope = configuration.calibration, scope_of(configuration)
    if made is None or scope is None:
        return prior_doubt(name, drafts=drafts)
    if made.covariance:
        known = made.names, made.covariance, made.residuals
        doubt = calibrated_doubt(name, *known, drafts=drafts)
    else:
        doubt = prior_doubt(name, drafts=drafts)
    return elsewhere(doubt) if scope.wider else doubt


@dataclass(frozen=True, slots=True)
class Serving:
    """What answers: a twin, or several as pools; `pool_of`: the place of each class's."""

    twins: tuple[Twin, ...]
    pool_of: tuple[int, ...] = ()

    def under(self, constants: Constants) -> "Serving":
        """The same with other constants."""
        return replace(self, twins=tuple(replace(t, constants=constants) for t in self.twins))


def prediction_errors(
    served: Serving, workload: Workload, doubt: Doubt, *, stay_s: float
) -> dict[str, float]:
    """Standard errors (logarithms) of the figures by path; empty where short runs show nothing.

    One replica with its share of the load stands for several; pools stand for themselves. Figures
    of classes have theirs, too (`bands.of_class`). `stay_s` is how long a request stays
    (mean E2E): a window must outlast it. It is taken up to the next half octave, so that the
    repeats of an experiment ask the same question and are answered once.
    """
    load = _short(workload, _half_octave(stay_s))
    if len(served.twins) == 1:
        one, load = one_replica(served.twins[0], load)
        served = replace(served, twins=(one,))
    known = [(t.shape, t.gpu, t.knobs, t.constants) for t in served.twins]
    key = repr((known, served.pool_of, doubt, load))
    if key not in _known:
        if len(_known) >= MOST_KEPT:
            _known.clear()
        _known[key] = _errors(served, load, doubt)
    return _known[key]


def _half_octave(value: float) -> float:
    """The next power of the root of two, value itself where it is not above 0."""
    return 2.0 ** (math.ceil(2 * math.log2(value)) / 2) if value > 0 else value


def _errors(served: Serving, load: Workload, doubt: Doubt) -> dict[str, float]:
    sets = design(served.twins[0].constants, doubt.directions)
    moved = {name for direction in doubt.directions for name in direction}
    if any(getattr(constants, name) > MOST_NS for constants in sets for name in moved):
        return {}
    try:
        seen = [figures_of(served.under(constants), load) for constants in sets]
    except (RidgelineError, ArithmeticError):  # constants that no clock can be run with
        return {}
    errors = spread([found[""] for found in seen], doubt)
    for kind in load.classes:
        own = spread([found[kind.name] for found in seen], doubt)
        errors |= {of_class(kind.name, path): error for path, error in own.items()}
    return errors


def _short(load: Workload, stay_s: float) -> Workload:
    """A stepped load at its busiest step; a warm-up of fixed length."""
    window, before = max(LEAST_S, 2 * stay_s), max(LEAST_S / 2, 1.5 * stay_s)
    arrivals = load.arrivals
    if arrivals.steps:
        users, rate = arrivals.peak_users, arrivals.peak_rate_per_s
        arrivals = replace(arrivals, steps=(), users=users, rate_per_s=None if users else rate)
    return replace(
        load,
        arrivals=arrivals,
        warmup_auto=False,
        duration_s=min(load.duration_s, window),
        warmup_s=min(load.warmup_s, before),
        seed=0,
    )


def one_replica(twin: Twin, load: Workload) -> tuple[Twin, Workload]:
    """One engine with its share of the load, where each has an API server of its own."""
    copies = twin.knobs.data_parallel
    if copies == 1 or twin.knobs.api_servers != copies:
        return twin, load
    knobs = replace(twin.knobs, data_parallel=1, api_servers=1)
    return replace(twin, knobs=knobs), replace(load, arrivals=load.arrivals.scaled(1 / copies))


def figures(twin: Twin, load: Workload) -> dict[str, float]:
    """The figures of a run by path, as its client has them; those above 0 that its sample has."""
    return figures_of(Serving((twin,)), load)[""]


def figures_of(served: Serving, load: Workload) -> dict[str, dict[str, float]]:
    """As `figures`: of the whole run as "", and of each class by its name."""
    records, window = simulated(served, load)
    found = {"": _figures(records, window)}
    for kind in load.classes:
        found[kind.name] = _figures(select(records, named(records, kind.name)), window)
    return found


def simulated(served: Serving, load: Workload) -> tuple[RunRecords, Window]:
    """The requests of a run as its client has them, and the run's window.

    What comes after the client has given up on everything is not simulated: under a load that
    piles up it is most of the run. Those that failed for that may have another name of failure
    than in a whole run, or, waiting for a slot of the client, no record.
    """
    offer = Offer(draw_schedule(load))
    fleet = fleet_of(served.twins, served.pool_of, offer)
    with collector_paused():
        offer.begin(fleet)
        fleet.run_until(offer.window_end)  # which a count of requests moves forward
        limits = client_limits(load.client.timeouts, offer.window_end)
        fleet.run_until(None if limits.cancel_ns is None else limits.cancel_ns + 1)
    sink = MemorySink()
    for request, item in (*offer.take_ended(), *offer.take_open()):
        record = request_record(request, fleet.replicas[request.replica], limits)
        kind = item.planned.traffic_class
        if kind is not None:
            record = replace(record, traffic_class=load.classes[kind].name)
        sink.request(record)
    sink.steps(step_table(fleet))
    return sink.records(), Window(offer.window_start, offer.window_end)


def _figures(records: RunRecords, window: Window) -> dict[str, float]:
    sample = take_sample(records, window)
    found = {path: _statistic(sample, *path.split(".")) for path in LATENCIES}
    found[TOKENS] = throughput(records, sample, 1).output_tokens_per_s or 0.0
    return {n: v for n, v in found.items() if v > 0}


def _figures_once(twin: Twin, load: Workload) -> dict[str, float]:
    """The figures, kept: of several changes each is held against the same twin."""
    key = "paired " + repr((twin.shape.name, twin.gpu.name, twin.knobs, twin.constants, load))
    if key not in _known:
        if len(_known) >= MOST_KEPT:
            _known.clear()
        _known[key] = figures(twin, load)
    return _known[key]


def _statistic(sample: Sample, name: str, statistic: str) -> float:
    """Also of samples that are too small for an honest percentile: it is only compared."""
    values = sample.successes(name)
    if not len(values):
        return 0.0
    if statistic == "mean":
        return float(values.mean())
    return float(np.quantile(values, float(statistic[1:]) / 100))


@dataclass(frozen=True, slots=True)
class Paired:
    """A change on the twin: figures before it by path, and of each its ratio and that one's
    standard error (of the logarithm).
    """

    before: dict[str, float]
    ratios: dict[str, tuple[float, float]]


def paired_ratios(before: Twin, after: Twin, load: Workload, doubt: Doubt) -> Paired:
    """What a change does to each figure.

    Both twins see the same arrivals under each set of constants, so that what is wrong with the
    constants in the same way for both cancels. Raises what the changed twin raises.
    """
    sets = [before.constants, *design(before.constants, doubt.directions)]
    pairs = [
        (
            _figures_once(replace(before, constants=constants), load),
            figures(replace(after, constants=constants), load),
        )
        for constants in sets
    ]
    found = {}
    for path in pairs[0][0]:
        logs = [math.log(b[path] / a[path]) for a, b in pairs if path in a and path in b]
        if len(logs) == len(pairs):
            found[path] = (math.exp(logs[0]), float(np.std(logs[1:])))
    return Paired(pairs[0][0], found)
