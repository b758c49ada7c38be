"""An existing Prometheus as the source: the pages of the engines as it has stored them.

A range selector in an instant query answers with the raw samples and the times of their scrapes, so
that a page is put together again as it was read: nothing is interpolated, and nothing that a
restart or a gap would blur.
"""

import itertools
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from ridgeline.diagnosis.gathering import HTTP, WANTED, Snapshot
from ridgeline.diagnosis.saved import label_masked
from ridgeline.diagnosis.storedauth import Credentials
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.load.address import Address
from ridgeline.telemetry.dialects import PREFIXES
from ridgeline.telemetry.prometheus import Scrape, Series, merged

LOOK_BACK_S = 300.0  # twenty readings at the usual 15 s
TIMEOUT_S = 30.0
MOST_BYTES = 128 << 20
DENIED = (401, 403)
_BESIDE = ("process_cpu_seconds_total", "process_start_time_seconds", HTTP, "up")
_ENGINE = tuple(n for n in WANTED if any(n.startswith(p) for p in PREFIXES))
_ADDED = ("__name__", "job", "instance", "target")  # labels that are not the page's own
_SELECTOR = re.compile(r"^\{(.*)\}$", re.DOTALL)


@dataclass(slots=True)
class Target:
    """One scraped server: (job, instance), its pages by their times (s since 1970), oldest first.

    `down`: times at which Prometheus could not read it.
    """

    job: str
    instance: str
    pages: list[tuple[float, Scrape]] = field(default_factory=list)
    down: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As a person knows it."""
        return self.instance or self.job or "the target"

    @property
    def host(self) -> str:
        """Its machine, as its address says it."""
        return _host(self.instance)

    @property
    def apart_s(self) -> float | None:
        """The usual time between two readings; None with fewer than two."""
        times = [at for at, _ in self.pages]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        return statistics.median(gaps) if gaps else None

    def snapshots(self) -> list[Snapshot]:
        """Its readings, those in vain among them."""
        rows = [Snapshot(at, page) for at, page in self.pages]
        rows += [Snapshot(at, None) for at in self.down]
        return sorted(rows, key=lambda s: s.at_s or 0.0)


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
    those that were asked for. elsewhere: hosts of GPUs that are on no engine's host.
    """

    now_s: float
    targets: tuple[Target, ...]
    gpus: tuple[GpuSeries, ...] = ()
    elsewhere: tuple[str, ...] = ()

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

    def look(self, seconds: float) -> Stored:
        """The last so many seconds. Raises EndpointError, and BadInput without engines."""
        now = self._now()
        targets = self._targets(seconds, now)
        if not targets:
            which = "" if self._said is None else f" that match {self._said}"
            raise BadInput(
                f"has no series of vLLM, SGLang, TensorRT-LLM, llama.cpp or TGI{which} in the last"
                f" {seconds:g} s",
                where=self.address.url,
                fix="check --match and its list of targets, or look further back with --seconds",
            )
        return Stored(now, targets, *self._gpus(seconds, now, targets))

    def _targets(self, seconds: float, now: float) -> tuple[Target, ...]:
        rows = self._range(f'__name__=~"({"|".join(_ENGINE)}).*"{self._match}', seconds, now)
        instances = sorted({_labels(row).get("instance", "") for row in rows} - {""})
        if instances:
            chosen = "|".join(re.escape(i).replace("\\", "\\\\") for i in instances)
            more = f'__name__=~"{"|".join(_BESIDE)}",instance=~"{chosen}"'
            rows = [*rows, *self._range(more, seconds, now)]
        return _split(rows)

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
        rows: list[dict[str, Any]] = found["result"]
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


def _samples(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in row.get("values") or ()]


def _split(rows: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """Samples by target and time."""
    pages: dict[tuple[str, str], dict[float, dict[str, list[Series]]]] = {}
    targets: dict[tuple[str, str], Target] = {}
    for row in rows:
        labels = _labels(row)
        key = (labels.get("job", ""), labels.get("instance", ""))
        name = labels.get("__name__", "")
        own = {k: label_masked(k, v) for k, v in labels.items() if k not in _ADDED}
        engine = name.startswith(_ENGINE)
        if engine:
            targets.setdefault(key, Target(*key))
        for at, value in _samples(row):
            if name == "up":
                if key in targets and not value:
                    targets[key].down.append(at)
                continue
            pages.setdefault(key, {}).setdefault(at, {}).setdefault(name, []).append(
                Series(own, value)
            )
    for key, target in targets.items():
        target.pages = [
            (at, Scrape({n: tuple(s) for n, s in found.items()}))
            for at, found in sorted(pages[key].items())
            if any(name.startswith(_ENGINE) for name in found)
        ]
    return tuple(targets[key] for key in sorted(targets))


def _gpu_series(row: Mapping[str, Any]) -> GpuSeries:
    labels = _labels(row)
    hosts = {labels.get("Hostname", ""), _host(labels.get("instance", ""))} - {""}
    own = {k: label_masked(k, v) for k, v in labels.items() if k not in _ADDED}
    values = tuple(value for _, value in _samples(row))
    return GpuSeries(frozenset(hosts), labels.get("__name__", ""), own, values)


def _host(instance: str) -> str:
    return instance.rpartition(":")[0] or instance
