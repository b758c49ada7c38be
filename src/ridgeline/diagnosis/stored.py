"""An existing Prometheus as the source: the pages of the engines as it has stored them.

A range selector in an instant query answers with the raw samples and the times of their scrapes, so
that a page is put together again as it was read: nothing is interpolated, and nothing that a
restart or a gap would blur.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ridgeline.diagnosis.gathering import HTTP, TWIN, Snapshot
from ridgeline.diagnosis.saved import label_masked
from ridgeline.diagnosis.storedauth import Credentials
from ridgeline.diagnosis.targets import ADDED, ENGINE, Target, host_of, samples, split
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.load.address import Address
from ridgeline.telemetry.prometheus import Scrape, Series, merged

LOOK_BACK_S = 300.0  # twenty readings at the usual 15 s
TIMEOUT_S = 30.0
MOST_BYTES = 128 << 20
DENIED = (401, 403)
_BESIDE = ("process_cpu_seconds_total", "process_start_time_seconds", "python_info", HTTP,
           TWIN, "up")  # fmt: skip
MOST_SAID = 200  # characters of a warning
_SELECTOR = re.compile(r"^\{(.*)\}$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """One series of dcgm-exporter: the names of its host, and its values."""

    hosts: frozenset[str]
    name: str
    labels: Mapping[str, str]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What one look found. now_s: by Prometheus's own clock. gpus: those of the engines' hosts, or
    those that were asked for. elsewhere: hosts of GPUs that are on no engine's host. said: what
    Prometheus warned of, and which servers it has twice. partial: a part of the series is missing.
    """

    now_s: float
    targets: tuple[Target, ...]
    gpus: tuple[GpuSeries, ...] = ()
    elsewhere: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    partial: bool = False

    def gpu_page(self, target: Target | None = None) -> Scrape | None:
        """All readings of the GPUs on one page (figures of GPUs are means); None without any.

        Of a target: the GPUs of its host; where only one is watched, all.
        """
        rows: Iterable[GpuSeries] = self.gpus
        if target is not None and len(self.targets) > 1:
            rows = [g for g in self.gpus if target.host in g.hosts]
        found: dict[str, list[Series]] = {}
        for row in rows:
            found.setdefault(row.name, []).extend(Series(row.labels, v) for v in row.values)
        return Scrape({name: tuple(series) for name, series in found.items()}) if found else None


class PrometheusServer:
    """The HTTP API of one Prometheus. match, gpu_match: selectors like {job="vllm"}."""

    def __init__(
        self, address: Address, credentials: Credentials, match: str | None = None,
        gpu_match: str | None = None,
    ) -> None:  # fmt: skip
        self.address = address
        self._credentials = credentials
        self._match = _inside(match, "--match")
        self._gpu_match = None if gpu_match is None else _inside(gpu_match, "--gpu-match")
        self._said = match
        self._warned: dict[str, None] = {}  # in order, each once

    def look(self, seconds: float) -> Stored:
        """The last so many seconds. Raises EndpointError, and BadInput without engines."""
        self._warned.clear()
        now = self._now()
        targets, said = self._targets(seconds, now)
        if not targets:
            which = "" if self._said is None else f" that match {self._said}"
            raise BadInput(
                f"has no series of vLLM, SGLang, TensorRT-LLM, llama.cpp or TGI{which} in the last"
                f" {seconds:g} s",
                where=self.address.url,
                fix="check --match and its list of targets, or look further back with --seconds",
            )
        gpus = self._gpus(seconds, now, targets)
        warned = [f"warns that the answer may be a part of it: {w}" for w in self._warned]
        return Stored(now, targets, *gpus, (*said, *warned), bool(warned))

    def _targets(self, seconds: float, now: float) -> tuple[tuple[Target, ...], tuple[str, ...]]:
        rows = self._range(f'__name__=~"({"|".join(ENGINE)}).*"{self._match}', seconds, now)
        instances = sorted({_labels(row).get("instance", "") for row in rows} - {""})
        if instances:
            chosen = "|".join(re.escape(i).replace("\\", "\\\\") for i in instances)
            more = f'__name__=~"{"|".join(_BESIDE)}",instance=~"{chosen}"'
            rows = [*rows, *self._range(more, seconds, now)]
        return split(rows)

    def _gpus(
        self, seconds: float, now: float, targets: Sequence[Target]
    ) -> tuple[tuple[GpuSeries, ...], tuple[str, ...]]:
        rows = self._range(f'__name__=~"DCGM_FI_.*"{self._gpu_match or ""}', seconds, now)
        found = tuple(_gpu_series(row) for row in rows)
        hosts = {t.host for t in targets}
        mine = tuple(g for g in found if self._gpu_match is not None or g.hosts & hosts)
        others = {min(g.hosts, default="?") for g in found}
        return mine, () if mine else tuple(sorted(others))

    def _range(self, selector: str, seconds: float, now: float) -> list[dict[str, Any]]:
        found = self._ask(f"{{{selector}}}[{max(1, round(seconds * 1e3))}ms]", now)
        if found.get("resultType") != "matrix":
            raise EndpointError("its answer is no matrix", where=self.address.url)
        rows = found.get("result")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise EndpointError("its answer holds no series", where=self.address.url)
        try:
            for row in rows:
                dict(row.get("metric") or {})
                samples(row)
        except (TypeError, ValueError):
            raise EndpointError("its answer holds no numbers", where=self.address.url) from None
        return rows

    def _now(self) -> float:
        """Its own clock: that of this machine may differ."""
        found = self._ask("time()", None)
        try:
            return float(found["result"][0])
        except (KeyError, IndexError, TypeError, ValueError):
            raise EndpointError("tells no time", where=self.address.url) from None

    def _ask(self, query: str, at_s: float | None) -> dict[str, Any]:
        words = {"query": query} if at_s is None else {"query": query, "time": f"{at_s:.3f}"}
        path = f"/api/v1/query?{urlencode(words)}"
        status, _, body = self.address.get(path, self._credentials.headers, TIMEOUT_S, MOST_BYTES)
        if status in DENIED:
            raise self._denied(status)
        if len(body) >= MOST_BYTES:
            raise BadInput(
                "answers with more than 128 MiB", where=self.address.url,
                fix="choose fewer series with --match, or a shorter --seconds",
            )  # fmt: skip
        try:
            reply = json.loads(body)
            succeeded = reply["status"] == "success"
            data: dict[str, Any] = reply.get("data") or {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise EndpointError(
                f"is no Prometheus (HTTP {status} for its query API)", where=self.address.url,
                fix="give the base URL of a Prometheus, such as http://127.0.0.1:9090",
            ) from None  # fmt: skip
        for words in reply.get("warnings") or ():
            self._warned[self._credentials.masked(str(words))[:MOST_SAID]] = None
        if not succeeded:
            told = self._credentials.masked(str(reply.get("error") or "no reason given"))
            why = told.splitlines()[0]
            raise BadInput(f"refuses the query ({why})", where=self.address.url,
                           fix="check --match and --gpu-match")  # fmt: skip
        return data

    def _denied(self, status: int) -> BadInput:
        if not self._credentials:
            return BadInput(
                f"wants authentication (HTTP {status})", where=self.address.url,
                fix="give --prometheus-token-file, --prometheus-user-file or"
                " RIDGELINE_PROMETHEUS_TOKEN",
            )  # fmt: skip
        return BadInput(
            f"refuses the token or password that it was given (HTTP {status})",
            where=self.address.url, fix="check it, and what it is allowed to read",
        )  # fmt: skip


def together(targets: Sequence[Target]) -> list[Snapshot]:
    """Several targets as one reading each time: the nearest of each to those of the slowest one.

    A counter may so be up to half a scrape interval off, of the whole span.
    """
    return side_by_side([target.snapshots() for target in targets])


def side_by_side(series: Sequence[Sequence[Snapshot]]) -> list[Snapshot]:
    """Readings of several servers as those of one; see `together`. One alone stays as it is."""
    if len(series) == 1:
        return list(series[0])
    told = [
        rows for one in series
        if (rows := [(s.at_s, s.page) for s in one if s.at_s is not None and s.page is not None])
    ]  # fmt: skip
    found = []
    for at, _ in min(told, key=len, default=[]):
        near = [min(rows, key=lambda row: abs(row[0] - at))[1] for rows in told]
        found.append(Snapshot(at, merged(near)))
    return found


def as_text(page: Scrape) -> str:
    """A page in the text format, for keeping."""
    lines = []
    for name, rows in page.samples.items():
        for row in rows:
            inside = ",".join(f'{k}="{_escaped(v)}"' for k, v in row.labels.items())
            lines.append(f"{name}{{{inside}}} {row.value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _inside(selector: str | None, where: str) -> str:
    """What is between the braces, as more matchers behind others."""
    if selector is None:
        return ""
    found = _SELECTOR.match(selector.strip())
    if found is None:
        raise BadInput("is no selector", where=where, fix="write it as '{job=\"vllm\"}'")
    inside = found[1].strip().rstrip(",")
    return f",{inside}" if inside else ""


def _labels(row: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = row.get("metric") or {}
    return found


def _gpu_series(row: Mapping[str, Any]) -> GpuSeries:
    labels = _labels(row)
    hosts = {labels.get("Hostname", ""), host_of(labels.get("instance", ""))} - {""}
    own = {k: label_masked(k, v) for k, v in labels.items() if k not in ADDED}
    values = tuple(value for _, value in samples(row))
    return GpuSeries(frozenset(hosts), labels.get("__name__", ""), own, values)
