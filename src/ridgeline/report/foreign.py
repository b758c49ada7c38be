"""Result files of other tools: vllm bench serve, GuideLLM and AIPerf.

A file is read into what it says by its own definitions (`printed`) and, as far as it holds single
requests, into samples from which Ridgeline's own definitions can be applied (`samples`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.conversions import time_per_token
from ridgeline.domain.errors import BadInput
from ridgeline.domain.records import Floats

TOOLS = "vllm bench serve (--save-result), GuideLLM (json) or AIPerf (profile_export_aiperf.json)"


@dataclass(frozen=True, slots=True)
class Printed:
    """A figure as a tool prints it: its own name, the value, and its own definition."""

    name: str
    value: float | None
    unit: str
    definition: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One measurement by some tool.

    `samples`: by Ridgeline's names (ttft_s, itl_s, tpot_s, e2e_s), single values in seconds; a name
    that is missing cannot be had from the file. `why_not` says why. Rates are the tool's own.
    """

    tool: str
    version: str | None
    source: str
    model: str | None
    load: str
    ok: int
    failed: int
    seconds: float | None
    tokens_per_s: float | None
    requests_per_s: float | None
    samples: Mapping[str, Floats] = field(default_factory=dict)
    why_not: Mapping[str, str] = field(default_factory=dict)
    printed: tuple[Printed, ...] = ()
    notes: tuple[str, ...] = ()


def read_results(path: Path) -> list[ToolResult]:
    """The measurements in a file. Raises BadInput that names the file and what is wrong with it."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"cannot be read ({reason})", where=str(path)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"is no JSON ({error})", where=str(path), fix=f"give a file of {TOOLS}") \
            from None  # fmt: skip
    reader = _reader(body)
    if reader is None:
        raise BadInput(
            "is no result file that is known", where=str(path), fix=f"give one of {TOOLS}"
        )
    try:
        return reader(body, path)
    except KeyError as error:
        raise BadInput(
            f"lacks {error.args[0]!r}: another version of the tool?", where=str(path)
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"is damaged or of another version ({error})", where=str(path)) from None


def _reader(body: Any) -> Callable[[Any, Path], list[ToolResult]] | None:
    if not isinstance(body, dict):
        return None
    if "aiperf_version" in body:
        return _aiperf
    if isinstance(body.get("benchmarks"), list) and "guidellm_version" in (
        body.get("metadata") or {}
    ):
        return _guidellm
    if "mean_ttft_ms" in body and "request_throughput" in body:
        return _vllm
    return None


# -- vllm bench serve

_VLLM = {
    "ttft": "from inside the request function, after the slot of --max-concurrency, to the first"
    " chunk (in 0.21 of any kind, the role chunk included)",
    "tpot": "(E2E - TTFT) / (output tokens - 1), one value a request",
    "itl": "gaps between chunks, pooled; tokens that came together count as one gap",
    "e2el": "from inside the request function to the last chunk",
}


def _vllm(body: Mapping[str, Any], path: Path) -> list[ToolResult]:
    printed = [
        Printed(f"{statistic}_{name}_ms", _number(body.get(f"{statistic}_{name}_ms")), "ms", about)
        for name, about in _VLLM.items()
        for statistic in ("mean", "median", "p50", "p95", "p99")
        if f"{statistic}_{name}_ms" in body
    ]
    whole = "over the whole time from the first request to the last, ramp and drain included"
    printed.append(
        Printed("output_throughput", _number(body["output_throughput"]), "tokens/s", whole)
    )
    users, rate = body.get("max_concurrency"), body.get("request_rate")
    load = f"{rate} requests/s" if rate not in (None, "inf") else "all at once"
    samples, why = _vllm_samples(body)
    return [
        ToolResult(
            tool="vllm bench serve",
            version=None,
            source=path.name,
            model=_text(body.get("model_id")),
            load=f"{load}, at most {users} at a time" if users else load,
            ok=int(body["completed"]),
            failed=int(body.get("failed") or 0),
            seconds=_number(body["duration"]),
            tokens_per_s=_number(body["output_throughput"]),
            requests_per_s=_number(body["request_throughput"]),
            samples=samples,
            why_not=why,
            printed=tuple(printed),
            notes=("failed requests are left out of every figure",) if body.get("failed") else (),
        )
    ]


def _vllm_samples(body: Mapping[str, Any]) -> tuple[dict[str, Floats], dict[str, str]]:
    if not all(key in body for key in ("ttfts", "itls", "output_lens", "errors")):
        lacks = "the file has no single requests: write it with --save-detailed"
        return {}, dict.fromkeys(("ttft_s", "itl_s", "tpot_s", "e2e_s"), lacks)
    rows = [
        (float(ttft), [float(gap) for gap in gaps], int(tokens))
        for ttft, gaps, tokens, error in zip(
            body["ttfts"], body["itls"], body["output_lens"], body["errors"], strict=True
        )
        if not error
    ]
    tpots = [time_per_token(t + sum(gaps), t, n) for t, gaps, n in rows]
    found = {
        "ttft_s": np.array([t for t, _, _ in rows]),
        "itl_s": np.array([gap for _, gaps, _ in rows for gap in gaps]),
        "tpot_s": np.array([t for t in tpots if t is not None]),
        "e2e_s": np.array([t + sum(gaps) for t, gaps, _ in rows]),
    }
    return found, {}


# -- GuideLLM

_GUIDE = (
    ("time_to_first_token_ms", 1.0,
     "from just before the HTTP call to the first chunk with content"),
    ("inter_token_latency_ms", 1.0,
     "mean of each request, (last - first) / (n - 1), weighted by its tokens: hides stalls"),
    ("time_per_output_token_ms", 1.0, "(last - start) / n, which contains TTFT"),
    ("request_latency", 1e3, "from just before the HTTP call to the end of the stream"),
)  # fmt: skip


def _guidellm(body: Mapping[str, Any], path: Path) -> list[ToolResult]:
    version = _text(body["metadata"]["guidellm_version"])
    return [_guidellm_one(benchmark, version, path) for benchmark in body["benchmarks"]]


def _guidellm_one(benchmark: Mapping[str, Any], version: str | None, path: Path) -> ToolResult:
    metrics, totals = benchmark["metrics"], benchmark["metrics"]["request_totals"]
    printed = []
    for name, factor, about in _GUIDE:
        ok = metrics[name]["successful"]
        for statistic in ("mean", "p50", "p95", "p99"):
            value = ok["mean"] if statistic == "mean" else ok["percentiles"][statistic]
            printed.append(Printed(f"{name} {statistic}", _scaled(value, factor), "ms", about))
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    spread = "tokens of a request spread evenly over its time, in the measured part"
    name = "output_tokens_per_second mean"
    printed.append(Printed(name, _number(rate), "tokens/s", spread))
    strategy = (benchmark.get("config") or {}).get("strategy") or {}
    words = {"streams": "streams", "rate": "requests/s"}
    known = [key for key in words if isinstance(strategy.get(key), int | float)]
    load = _text(strategy.get("type_")) or ""
    if known:
        load = f"{strategy[known[0]]:g} {words[known[0]]}"
    backend = (benchmark.get("config") or {}).get("backend") or {}
    return ToolResult(
        tool="GuideLLM",
        version=version,
        source=path.name,
        model=_text(backend.get("model")),
        load=load,
        ok=int(totals["successful"]),
        failed=int(totals["errored"]),
        seconds=_number(benchmark.get("duration")),
        tokens_per_s=_number(rate),
        requests_per_s=_number(metrics["requests_per_second"]["successful"]["mean"]),
        samples=_guidellm_samples(benchmark),
        why_not={"itl_s": "the file has no time of single chunks"},
        printed=tuple(printed),
        notes=tuple(
            f"its own warning: {warning['message']}" for warning in benchmark.get("warnings") or ()
        ),
    )


def _guidellm_samples(benchmark: Mapping[str, Any]) -> dict[str, Floats]:
    ttft, tpot, e2e = [], [], []
    for request in (benchmark.get("requests") or {}).get("successful") or ():
        times = request["info"]["timings"]
        start, first = times["request_start"], times["first_token_iteration"]
        last = times["last_token_iteration"]
        if None in (start, first, last):
            continue
        ttft.append(first - start)
        e2e.append(last - start)
        tokens = int((request.get("output_metrics") or {}).get("text_tokens") or 0)
        each = time_per_token(last - start, first - start, tokens)
        if each is not None:
            tpot.append(each)
    found = {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}
    return {name: np.array(values) for name, values in found.items() if values}


# -- AIPerf

_AIPERF = (
    ("time_to_first_token", "from before a client object is built to the first content"),
    ("inter_token_latency", "(E2E - TTFT) / (n - 1), one value a request: Ridgeline calls it TPOT"),
    ("inter_chunk_latency", "gaps between chunks, pooled: Ridgeline calls it ITL"),
    ("request_latency", "from before a client object is built to the last content"),
)
AIPERF_RECORDS = "profile_export.jsonl"


def _aiperf(body: Mapping[str, Any], path: Path) -> list[ToolResult]:
    printed = []
    for name, about in _AIPERF:
        for statistic in ("avg", "p50", "p95", "p99", "max"):
            if statistic in (body.get(name) or {}):
                printed.append(Printed(f"{name} {statistic}", _number(body[name][statistic]),
                                       body[name].get("unit", "ms"), about))  # fmt: skip
    whole = "from the first start to the last response, ramp and drain included"
    rate = _number(body["output_token_throughput"]["avg"])
    printed.append(Printed("output_token_throughput avg", rate, "tokens/s", whole))
    samples, why = _aiperf_samples(path.with_name(AIPERF_RECORDS))
    config = body.get("input_config") or {}
    models = (config.get("models") or {}).get("items") or [{}]
    phases = [p for p in config.get("phases") or () if isinstance(p, dict)]
    concurrency = next((p["concurrency"] for p in phases if p.get("concurrency")), None)
    failed = sum(int(e.get("count") or 0) for e in body.get("error_summary") or ())
    return [
        ToolResult(
            tool="AIPerf",
            version=_text(body["aiperf_version"]),
            source=path.name,
            model=_text(models[0].get("name") if isinstance(models[0], dict) else models[0]),
            load="" if concurrency is None else f"concurrency {concurrency}",
            ok=int(body["request_count"]["avg"]),
            failed=failed,
            seconds=_number((body.get("benchmark_duration") or {}).get("avg")),
            tokens_per_s=rate,
            requests_per_s=_number(body["request_throughput"]["avg"]),
            samples=samples,
            why_not=why,
            printed=tuple(printed),
        )
    ]


def _aiperf_samples(path: Path) -> tuple[dict[str, Floats], dict[str, str]]:
    """From the records beside the summary, a request a line."""
    if not path.exists():
        lacks = f"{AIPERF_RECORDS} is not beside the file"
        return {}, dict.fromkeys(("ttft_s", "itl_s", "tpot_s", "e2e_s"), lacks)
    values: dict[str, list[float]] = {"ttft_s": [], "itl_s": [], "tpot_s": [], "e2e_s": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        metrics = row["metrics"]
        if row.get("error") or row["metadata"].get("benchmark_phase") not in (None, "profiling"):
            continue
        ttft = metrics["time_to_first_token"]["value"] / 1e3
        e2e = metrics["request_latency"]["value"] / 1e3
        values["ttft_s"].append(ttft)
        values["e2e_s"].append(e2e)
        values["itl_s"] += [gap / 1e3 for gap in metrics["inter_chunk_latency"]["value"]]
        each = time_per_token(e2e, ttft, int(metrics["output_sequence_length"]["value"]))
        if each is not None:
            values["tpot_s"].append(each)
    return {name: np.array(found) for name, found in values.items() if found}, {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _scaled(value: Any, factor: float) -> float | None:
    found = _number(value)
    return None if found is None else found * factor


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
