"""What a watched pool comes to, as a page that Prometheus scrapes.

What is not known is left out, never 0.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ridgeline.diagnosis.live import Now
from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import mask

# name (after ridgeline_replica_) -> (help, value of a replica)
_GAUGES: dict[str, tuple[str, Callable[[Now], float | None]]] = {
    "up": ("1 when its page of metrics was read.", lambda n: float(n.up)),
    "silent_seconds": ("Since its page was last read.", lambda n: n.silent_s),
    "stalled_seconds": ("Requests are in it and nothing moves.",
                        lambda n: None if n.evidence is None else n.evidence.stood_still_s),
    "running_requests": ("Requests running.", lambda n: _last(n, "running")),
    "waiting_requests": ("Requests waiting.", lambda n: _last(n, "waiting")),
    "kv_use_ratio": ("KV cache in use, 0 to 1.", lambda n: _last(n, "kv_use")),
    "prefix_hit_ratio": ("Looked-up prompt tokens that the prefix cache had, 0 to 1.",
                         lambda n: None if n.evidence is None else n.evidence.hit_rate),
    "preemptions_per_second": ("Requests preempted a second.", lambda n: n.preemptions_per_s),
    "output_tokens_per_second": ("Output tokens a second.", lambda n: n.output_tokens_per_s),
    "requests_per_second": ("Requests answered a second.", lambda n: n.requests_per_s),
    "idle_ratio": ("Share of the time in which no step is taken.", lambda n: n.idle),
    "share_of_bound_ratio": ("The mean step on the roofline over its true time.",
                             lambda n: n.share_of_bound),
    "mbu_ratio": ("Share of the memory bandwidth used, by the roofline.", lambda n: n.mbu),
    "mfu_ratio": ("Share of the FLOPs used, by the roofline.", lambda n: n.mfu),
    "waste_usd_per_hour": ("What the idle time costs, USD an hour.",
                           lambda n: n.waste_usd_per_hour),
    "usd_per_million_output_tokens": ("Cost of a million output tokens, USD.",
                                      lambda n: n.usd_per_million_output_tokens),
    "slo_attainment_ratio": ("Least share of the requests inside the TTFT limit.",
                             lambda n: n.attainment),
}  # fmt: skip
_SUMS = ("output_tokens_per_second", "requests_per_second", "running_requests",
         "waiting_requests", "waste_usd_per_hour", "up")  # fmt: skip
_QUANTILES = {"ttft": ("time to first token", "ttft_s"), "itl": ("time between tokens", "itl_s")}
_SHARES = ("p50", "p95")
_PREFIX, _POOL = "ridgeline_replica_", "ridgeline_pool_"


def names() -> frozenset[str]:
    """Every metric that the page can have."""
    quantiles = (f"{name}_{share}_seconds" for name in _QUANTILES for share in _SHARES)
    own = (*_GAUGES, *quantiles, "finding_info", "model_info")
    return frozenset({_PREFIX + n for n in own} | {_POOL + n for n in (*_SUMS, "replicas")})


def _last(now: Now, name: str) -> float | None:
    level = None if now.evidence is None else getattr(now.evidence, name)
    return None if level is None else float(level.last)


def render(replicas: Sequence[Now], *, whole: bool = True) -> str:
    """The page in Prometheus's text format. whole: all replicas are there; else no sums are.

    Sums are of the replicas of one model: what two models do is not one figure.
    """
    lines: list[str] = []
    sums: dict[str, list[tuple[str, float]]] = {}
    for name, (text, value) in _GAUGES.items():
        told = [(n, v) for n in replicas if (v := value(n)) is not None]
        rows = [(_labels(replica=n.name), v) for n, v in told]
        lines += _family(_PREFIX + name, text, rows)
        if told and name in _SUMS and whole:
            sums[name] = _by_model(told)
    for name, (text, field) in _QUANTILES.items():
        for share in _SHARES:
            told = [(n, v) for n in replicas if (v := getattr(n, field).get(share)) is not None]
            rows = [(_labels(replica=n.name), value) for n, value in told]
            lines += _family(f"{_PREFIX}{name}_{share}_seconds", f"The {share} {text}.", rows)
    rows = [
        (_labels(replica=n.name, id=f.id, kind=f.kind), 1.0) for n in replicas for f in n.findings
    ]
    lines += _family(_PREFIX + "finding_info", "What `ridgeline doctor` would say of it.", rows)
    rows = [(_labels(replica=n.name, model=n.model or ""), 1.0) for n in replicas]
    lines += _family(_PREFIX + "model_info", "Which model it serves, as its page says.", rows)
    for name, rows in sums.items():
        what = f"Sum over the replicas of a model: {_GAUGES[name][0]}"
        lines += _family(_POOL + name, what, rows)
    rows = _by_model([(n, 1.0) for n in replicas])
    lines += _family(_POOL + "replicas", "Replicas of a model that are watched.", rows)
    return mask("\n".join(lines) + "\n")


def _by_model(told: Iterable[tuple[Now, float]]) -> list[tuple[str, float]]:
    """Sums by the label of their model; of those that never told theirs one without it."""
    found: dict[str, float] = {}
    for n, value in told:
        labels = "" if n.model is None else _labels(model=n.model)
        found[labels] = found.get(labels, 0.0) + value
    return list(found.items())


def _family(name: str, text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    found = [f"{name}{labels} {value:.9g}" for labels, value in rows]
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *found] if found else []


def _labels(**labels: str) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{k}="{quoted(v)}"' for k, v in labels.items()) + "}"


class Exporter:
    """Serves the page on a port of this machine until closed. Raises BadInput for a taken port."""

    def __init__(self, port: int, page: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.split("?")[0] in ("/metrics", "/")
                body = page().encode() if known else b"not found\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be had ({(error.strerror or str(error)).lower()})",
                where="--serve",
                fix="give another one",
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
