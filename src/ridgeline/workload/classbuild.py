"""The classes of a workload: what share of its requests each is, or at which rate it arrives."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.workload.workloadmodel import ArrivalsPart, ClassPart, WorkloadPart

if TYPE_CHECKING:
    from ridgeline.workload.studyfile import Path_, Source

SHARES_SLACK = 1e-6


def class_shares(source: "Source", part: WorkloadPart, path: "Path_") -> dict[str, float]:
    """The share of each class by name, which make 1; raises BadInput.

    Classes with rates of their own are independent Poisson processes: their sum is one too, and
    each arrival is of a class with the probability of that class's part of the sum.
    """
    classes: dict[str, ClassPart] = part.classes or {}
    here = (*path, "classes")
    if rates := class_rates(source, part, path):
        total = math.fsum(rates.values())
        return {name: rate / total for name, rate in rates.items()}
    shares = {}
    for name, one in classes.items():
        if one.share is None:
            what = f"the class {name!r} has neither a share nor a rate_per_s"
            raise source.error((*here, name), what, "add share: its part of the requests")
        shares[name] = one.share
    total = math.fsum(shares.values())
    if shares and abs(total - 1) > SHARES_SLACK:
        raise source.error(here, f"the shares of the classes make {total:g}, not 1")
    return shares


def class_rates(source: "Source", part: WorkloadPart, path: "Path_") -> Mapping[str, float]:
    """The rates of the classes, requests/s; all have one or none has. Raises BadInput."""
    classes: dict[str, ClassPart] = part.classes or {}
    here = (*path, "classes")
    rates = {n: one.rate_per_s for n, one in classes.items() if one.rate_per_s is not None}
    for name, one in classes.items() if rates else ():
        if one.rate_per_s is None or one.share is not None:
            what = "classes have either shares of the workload's arrivals or all a rate_per_s"
            raise source.error((*here, name), what, "give each a rate_per_s and no share")
    return rates


def with_rates(source: "Source", part: WorkloadPart, path: "Path_") -> ArrivalsPart:
    """The arrivals; those of classes with rates of their own are as many as all together.

    Raises BadInput where nothing says how much traffic there is, or two keys do.
    """
    given = part.arrivals
    rates = class_rates(source, part, path)
    if not rates:
        if given is None:
            here = ".".join(str(step) for step in (*path, "arrivals"))
            raise source.error(path, f"the key {here!r} is missing", key=True)
        return given
    for key, value in (given.model_dump() if given is not None else {}).items():
        if value is not None and not (key == "process" and value == "poisson"):
            if key == "max_concurrency":
                continue
            what = f"{key} does not go with classes that have a rate_per_s, Poisson, of their own"
            raise source.error((*path, "arrivals", key), what, "leave it out, or give shares")
    total = math.fsum(rates.values())
    return (given or ArrivalsPart()).model_copy(update={"rate_per_s": total})
