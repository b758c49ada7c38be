"""What a tuning was asked, and how another question differs from it.

A folder's trials count only for the question that they were measured for. What changes the answer
is named before anything is done; another price changes no measurement and is worked in.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.store.codec import to_plain
from ridgeline.tuning.setting import Setting

NONE = "none"
MOST_NAMED = 4
_OWN_KEYS = ("knobs", "price_per_gpu_hour")  # told under the names of a study file


def question_of(setting: Setting) -> dict[str, Any]:
    """The question as plain values, by the names of a study file where it has some; no budget."""
    spec = setting.spec
    configuration = to_plain(replace(setting.configuration, price_per_gpu_hour=None))
    return {
        "baseline": _plain(setting.configuration.knobs.given()),
        "slo": {limit.key: limit.value for limit in setting.slo.limits},
        "workload": to_plain(setting.workload),
        "api": setting.api,
        "goal": setting.goal,
        "tune": {
            "objective": spec.objective,
            "risk": spec.risk,
            "only": spec.only,
            "finalists": spec.finalists,
            "window_s": spec.window_s,
            "space": {name: to_plain(choice) for name, choice in spec.space.items()},
            "quality": {
                "threshold": spec.quality_threshold,
                "prompts": _digest(spec.quality_prompts),
            },
        },
        **{k: v for k, v in configuration.items() if k not in _OWN_KEYS},
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Each difference as "slo.ttft_p95_ms: 500 -> 400", in the order of the question."""
    return _differ("", then, now)


def told(found: list[str]) -> str:
    """Differences in one line; of many the first ones."""
    more = len(found) - MOST_NAMED
    named = "; ".join(found[:MOST_NAMED])
    return f"{named}; and {more} more" if more > 0 else named


def _differ(name: str, then: Any, now: Any) -> list[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        found = []
        for key in dict.fromkeys([*now, *then]):
            path = f"{name}.{key}" if name else key
            found += _differ(path, then.get(key), now.get(key))
        return found
    if then == now:
        return []
    return [f"{name}: {_short(then)} -> {_short(now)}"]


def _short(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, Mapping):
        value = {k: v for k, v in value.items() if v not in (None, False, [], {})}
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _digest(file: str | None) -> str | None:
    """Of the user's own prompts what they say, wherever the file lies."""
    if file is None or not Path(file).is_file():
        return file
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from JSON, which has no tuples."""
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
