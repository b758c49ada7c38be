"""Where a service stands, as a page that Prometheus scrapes; what is not known is left out."""

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.serving.states import State

_PREFIX = "ridgeline_serve_"
_REPLICA = (
    ("replica_up", "gauge", "1 while the replica is in rotation.", "up"),
    ("replica_restarts_total", "counter", "How often it was started again.", "restarts"),
    ("replica_probe_seconds", "gauge", "How long its last one-token completion took.", "answer_s"),
    ("replica_running_requests", "gauge", "Requests running and waiting in it.", "running"),
    ("replica_start_seconds", "gauge", "From its start to its first completion.", "ready_s"),
)
_ROUTER = (
    ("router_up", "gauge", "1 while the router runs and answers.", "up"),
    ("router_restarts_total", "counter", "How often the router was started again.", "restarts"),
)
_STATES = tuple(str(state) for state in State if state is not State.GONE)


def render(status: Sequence[dict[str, Any]]) -> str:
    """The page in Prometheus's text format, of what `Service.status` says."""
    lines: list[str] = []
    rows = [(pool["pool"], replica) for pool in status for replica in pool["replicas"]]
    for name, kind, text, field in _REPLICA:
        found = [
            (_labels(pool=pool, replica=row["replica"]), float(row[field]))
            for pool, row in rows
            if row[field] is not None
        ]
        lines += _family(name, kind, text, found)
    states = [
        (_labels(pool=pool, replica=row["replica"], state=state), float(row["state"] == state))
        for pool, row in rows
        for state in _STATES
    ]
    lines += _family("replica_state", "gauge", "1 for the state that the replica is in.", states)
    wanted = [(_labels(pool=pool["pool"]), float(pool["wanted"])) for pool in status]
    lines += _family("pool_replicas_wanted", "gauge", "Replicas that are to run.", wanted)
    for name, kind, text, field in _ROUTER:
        told = [
            (_labels(pool=pool["pool"]), float(pool["router"][field]))
            for pool in status
            if pool["router"] is not None
        ]
        lines += _family(name, kind, text, told)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    full = _PREFIX + name
    found = [f"{full}{labels} {value:.9g}" for labels, value in rows]
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *found] if found else []


def _labels(**labels: object) -> str:
    def quoted(text: object) -> str:
        return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{k}="{quoted(v)}"' for k, v in labels.items()) + "}"
