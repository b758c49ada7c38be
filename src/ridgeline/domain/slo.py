"""Latency targets: parsing their names, nothing else. Judging them is in `attainment.py`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.domain.errors import BadInput, nearest

METRICS = ("ttft", "ttft_intent", "itl", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCY_KEYS = tuple(f"{m}_{s}_ms" for m in METRICS for s in STATISTICS)
SHARE_KEYS = ("error_rate", "attainment")
SLO_KEYS = LATENCY_KEYS + SHARE_KEYS


@dataclass(frozen=True, slots=True)
class Limit:
    """One target. `value` in milliseconds for latencies (upper limit), a share in 0..1 else.

    error_rate is an upper limit, attainment a lower one.
    """

    key: str
    value: float

    @property
    def metric(self) -> str:
        """The measured quantity: ttft, ttft_intent, itl, tpot, e2e, error_rate or attainment."""
        return self.key if self.key in SHARE_KEYS else self.key.rsplit("_", 2)[0]

    @property
    def statistic(self) -> str | None:
        """mean, p50, p90, p95 or p99; None for shares."""
        return None if self.key in SHARE_KEYS else self.key.rsplit("_", 2)[1]

    def __str__(self) -> str:
        return f"{self.key}={self.value:g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """All targets of a study; empty when none were given."""

    limits: tuple[Limit, ...] = ()

    def get(self, key: str) -> float | None:
        """The value of `key`, None when it is not limited."""
        return next((limit.value for limit in self.limits if limit.key == key), None)


def slo_from_mapping(values: Mapping[str, float], where: str | None = None) -> Slo:
    """Build an Slo from key/value pairs; raises BadInput on unknown keys and bad ranges."""
    limits = []
    for key, value in values.items():
        if key not in SLO_KEYS:
            raise BadInput(f"unknown SLO key {key!r}{nearest(key, SLO_KEYS)}", where=where)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise BadInput(f"{key} must be a number >= 0, not {value!r}", where=where)
        if math.isinf(value):
            raise BadInput(f"{key} must be finite", where=where, fix="leave it out for no limit")
        if key in SHARE_KEYS and value > 1:
            raise BadInput(f"{key} is a share between 0 and 1, not {value:g}", where=where)
        limits.append(Limit(key, float(value)))
    return Slo(tuple(limits))


def parse_slo(text: str) -> Slo:
    """Parse "ttft_p95_ms=2000,itl_p95_ms=20"; raises BadInput that names the bad part."""
    values: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"([a-z0-9_]+)\s*=\s*(\S+)", part)
        if match is None:
            raise BadInput(f"{part!r} is not KEY=NUMBER", where="--slo")
        if match[1] in values:
            raise BadInput(f"{match[1]} is given twice", where="--slo")
        try:
            values[match[1]] = float(match[2])
        except ValueError:
            raise BadInput(f"{match[1]}: {match[2]!r} is not a number", where="--slo") from None
    return slo_from_mapping(values, where="--slo")
