"""Whether priority scheduling has something to order, and puts first what has a limit."""

from collections.abc import Sequence

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import TrafficClass


def order_told(configuration: Configuration, classes: Sequence[TrafficClass]) -> tuple[str, ...]:
    """What is odd about the order of classes under `scheduling_policy: priority`, a line each.

    Of each pool that serves several classes. vLLM serves the smaller value first, and a request
    without one has 0.
    """
    if not configuration.pools:
        return _told("", configuration.knobs, classes)
    found: list[str] = []
    for pool in configuration.pools:
        own = [kind for kind in classes if kind.name in pool.classes]
        found += _told(f"pool {pool.name}: ", pool.knobs, own)
    return tuple(found)


def _told(where: str, knobs: Knobs, classes: Sequence[TrafficClass]) -> tuple[str, ...]:
    if knobs.scheduling_policy != "priority" or len(classes) < 2:
        return ()
    values = {kind.name: kind.priority or 0 for kind in classes}
    if len(set(values.values())) == 1:
        none = all(kind.priority is None for kind in classes)
        why = "no class has a priority" if none else "all classes have the same priority"
        return (
            f"{where}scheduling_policy priority orders nothing: {why}, so requests are served first"
            " come first served; give the classes a priority (smaller is earlier)",
        )
    limited = [kind.name for kind in classes if kind.slo.limits]
    others = [kind.name for kind in classes if not kind.slo.limits]
    return tuple(
        f"{where}{other} (priority {values[other]}, no limit) goes before {name} (priority"
        f" {values[name]}, which has one): vLLM serves the smaller priority first"
        for name in limited
        for other in others
        if values[other] < values[name]
    )
