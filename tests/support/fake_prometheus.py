"""A small fake of Prometheus's query API: range selectors over samples that it is given.

It holds matchers and times against its series as Prometheus does (full matches, a half-open range
of time that ends at `time`), and knows no function but time().
"""

import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ridgeline.telemetry.prometheus import parse_metrics
from support.serving import serving

_QUERY = re.compile(r"^\{(.*)\}\[(\d+)ms\]$", re.DOTALL)
_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')


@dataclass
class FakePrometheus:
    """Series by their labels: (time, value). `now_s` is its clock."""

    now_s: float
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = field(
        default_factory=dict
    )
    queries: list[str] = field(default_factory=list)

    def scraped(self, page: str, at_s: float, labels: Mapping[str, str]) -> None:
        """Keep a page as if it had been read from a target with these labels."""
        for name, rows in parse_metrics(page).samples.items():
            for row in rows:
                key = tuple(sorted({"__name__": name, **row.labels, **labels}.items()))
                self.series.setdefault(key, []).append((at_s, row.value))

    def answer(self, query: str) -> dict[str, Any]:
        """The body of an instant query."""
        self.queries.append(query)
        if query == "time()":
            return _good("scalar", [self.now_s, str(self.now_s)])
        found = _QUERY.match(query)
        if found is None:
            return {"status": "error", "errorType": "bad_data", "error": f"parse error: {query}"}
        matchers = list(_MATCHER.finditer(found[1]))
        if sum(len(m[0]) for m in matchers) != len(found[1]):
            return {"status": "error", "errorType": "bad_data", "error": "parse error: matchers"}
        since = self.now_s - int(found[2]) / 1e3
        rows = []
        for key, samples in self.series.items():
            labels = dict(key)
            values = [[at, str(v)] for at, v in samples if since < at <= self.now_s]
            if values and all(_holds(m, labels) for m in matchers):
                rows.append({"metric": labels, "values": values})
        return _good("matrix", rows)


def _holds(matcher: re.Match[str], labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(matcher[1], ""), matcher[3].replace("\\\\", "\\")
    if matcher[2] == "=~":
        return re.fullmatch(wanted, value) is not None
    return (value == wanted) == (matcher[2] == "=")


def _good(kind: str, result: Sequence[Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


@contextmanager
def served(
    fake: FakePrometheus, wanted: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Its base URL. wanted: the Authorization header without which it answers 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if wanted is not None and self.headers.get("Authorization") != wanted:
                self.send_error(401)
                return
            parts = urlsplit(self.path)
            known = parts.path == "/api/v1/query"
            body = fake.answer(parse_qs(parts.query)["query"][0]) if known else {}
            text = json.dumps(body).encode()
            good = known and body["status"] == "success"
            self.send_response(200 if good else 400 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler, tls) as url:
        yield url
