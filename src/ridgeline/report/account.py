"""Where a request's seconds went, as a table: the parts, how well they close, and what binds."""

from collections.abc import Sequence

from ridgeline.experiment.closing import ERRORS, RESOLUTIONS
from ridgeline.report import numbers
from ridgeline.report.model import ExperimentRow, StudyReport

# Parts of a twin's account and of a measured one, in the order in which a request passes them.
PARTS = {
    "client": "client",
    "front_end_in": "front end in",
    "network_http": "network and HTTP",
    "api_server": "API server",
    "outside_engine": "outside the engine",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "engine": "in the engine",
    "gpu_idle": "in the engine, GPU idle",
    "front_end_out": "front end out",
}
NOTE = (
    "Mean seconds of a request, by where it was; where the server tells its stages, of those that "
    "it finished between the first and the last reading, and what is left of the client's time of "
    "the same requests is the network's. They add up to the mean E2E beside them, the client's "
    'part lies before it. What speaks for them is "off by": the largest of how far the '
    "server's stages outlast its total or the client's time, before the first chunk or after it, "
    "and of how far its gauges are from the requests that waited and ran by the client's stamps "
    "(±: what so few readings of a gauge can tell). "
    '"Outside the engine" is from client to engine and back where the server '
    'does not tell network, HTTP and API server apart. "In the engine, GPU idle" is the time in '
    "which no kernel ran, by nvidia-smi's utilisation, and is in no other part. Closes within: "
    "Little's law on the client's stamps (requests in flight against rate times stay). Tokens: "
    "requests that stream at the client against the engine's own tokens a step. All three are of "
    "the worst repeat."
)


def account_table(report: StudyReport) -> tuple[list[str], list[Sequence[str]]] | None:
    """Head and rows of the experiments that have an account; None without any."""
    rows = [row for row in report.rows if row.ranked and _seconds(row)]
    if not rows:
        return None
    names = [name for name in PARTS if any(name in _seconds(row) for row in rows)]
    head = [
        "experiment",
        *(PARTS[n] for n in names),
        "mean E2E",
        "closes within",
        "tokens",
        *(["off by"] if (staged := any(_off_by(row) is not None for row in rows)) else []),
        "binds",
    ]
    return head, [_line(row, names, staged=staged) for row in rows]


def closes_within(report: StudyReport) -> tuple[float, str] | None:
    """The largest closure error of the report's experiments, and whose it is."""
    found = [
        (abs(error), row.name)
        for row in report.rows
        if row.ranked and (error := _step(row, "closure_error")) is not None
    ]
    return max(found, default=None)


def _line(row: ExperimentRow, names: Sequence[str], *, staged: bool) -> list[str]:
    assert row.summary is not None
    seconds = _seconds(row)
    return [
        row.name,
        *(numbers.duration(seconds.get(name)) for name in names),
        numbers.duration(_step(row, "account_e2e_s") or row.summary.e2e_s.mean),
        numbers.percent(_step(row, "closure_error"), signed=True),
        numbers.percent(_step(row, "decode_error"), signed=True),
        *([_off_by(row) or numbers.percent(None)] if staged else []),
        row.summary.binding_limit or "",
    ]


def _off_by(row: ExperimentRow) -> str | None:
    """The largest of the account's errors that nothing forces to be small."""
    found = [(error, name) for name in ERRORS if (error := _step(row, name)) is not None]
    if not found:
        return None
    error, name = max(found, key=lambda each: abs(each[0]))
    about = _step(row, RESOLUTIONS.get(name, ""))
    text = numbers.percent(error, signed=True)
    return text if about is None else f"{text} (±{numbers.percent(about)})"


def _seconds(row: ExperimentRow) -> dict[str, float]:
    return {} if row.summary is None else row.summary.accounting


def _step(row: ExperimentRow, name: str) -> float | None:
    return None if row.summary is None else row.summary.steps.get(name)
