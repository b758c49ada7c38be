"""A run as the JSON that `vllm bench serve --save-result --save-detailed` writes.

Names and units are vLLM's; times in its lists are seconds, its statistics milliseconds with
linearly interpolated percentiles. What Ridgeline does not keep is left empty (generated texts) or
null.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.errors import BadInput
from ridgeline.domain.metrics import output_tokens, take_sample
from ridgeline.domain.records import Floats
from ridgeline.store.run_directory import StoredRun

PERCENTS = (50, 95, 99)


def to_vllm_bench(run: StoredRun) -> dict[str, Any]:
    """The run's requests of the window. Raises StoreError without its tables, BadInput for a run
    that measured nothing and for a trimmed copy.
    """
    if run.facts is None or run.summary is None:
        raise BadInput("measured nothing that could be exported", where=run.meta.run_id)
    if run.trimmed:
        raise BadInput(
            "has no gaps between tokens: the times of its chunks were left out of this copy",
            where=run.meta.run_id,
            fix="export another repeat, or from the whole results",
        )
    records, window, summary = run.records(), run.facts.window, run.summary
    sample = take_sample(records, window)
    rows, ok = sample.rows, sample.ok
    tokens, _ = output_tokens(records)
    gaps = [_gaps(records.chunk_ns[records.chunk_start[i] : records.chunk_start[i + 1]])
            for i in rows]  # fmt: skip
    outputs = [int(tokens[i]) if good else 0 for i, good in zip(rows, ok, strict=True)]
    inputs = [_int(records.prompt_tokens[i], records.planned_prompt_tokens[i]) for i in rows]
    arrivals = run.meta.workload.arrivals
    of_ok = [n for n, good in zip(inputs, ok, strict=True) if good]
    seconds = window.seconds
    body: dict[str, Any] = {
        "date": run.meta.started_at.replace("-", "").replace(":", "").replace("T", "-")[:15],
        "endpoint_type": "openai-chat" if run.meta.endpoint == "chat" else "openai",
        "backend": "openai-chat" if run.meta.endpoint == "chat" else "openai",
        "label": f"ridgeline {run.meta.versions.get('ridgeline', '')}".strip(),
        "model_id": run.meta.configuration.model,
        "tokenizer_id": None,
        "num_prompts": len(rows),
        "request_rate": "inf" if arrivals.closed_loop else arrivals.rate_per_s,
        "burstiness": arrivals.burstiness,
        "max_concurrency": arrivals.users,
        "duration": seconds,
        "completed": int(ok.sum()),
        "failed": int(len(rows) - ok.sum()),
        "total_input_tokens": sum(of_ok),
        "total_output_tokens": sum(outputs),
        "request_throughput": summary.throughput.requests_per_s,
        "request_goodput": summary.goodput.requests_per_s,
        "output_throughput": summary.throughput.output_tokens_per_s,
        "total_token_throughput": _sum(
            summary.throughput.output_tokens_per_s, summary.throughput.input_tokens_per_s
        ),
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": [_seconds(v, good) for v, good in zip(sample.values["ttft_s"], ok, strict=True)],
        "itls": [g if good else [] for g, good in zip(gaps, ok, strict=True)],
        "latencies": [
            _seconds(v, good) for v, good in zip(sample.values["e2e_s"], ok, strict=True)
        ],
        "start_times": [float(v) / 1e9 for v in sample.start_ns],
        "generated_texts": [""] * len(rows),
        "errors": [_error(records.text, i) for i in rows],
        "max_output_tokens_per_s": summary.throughput.peak_output_tokens_per_s,
    }
    for name, values in (
        ("ttft", sample.successes("ttft_s")),
        ("tpot", sample.successes("tpot_s")),
        ("itl", sample.gaps_s),
        ("e2el", sample.successes("e2e_s")),
    ):
        body |= _statistics(name, values * 1e3)
    return body


def write_vllm_bench(run: StoredRun, path: Path) -> None:
    """Write it; raises BadInput when the file cannot be written."""
    text = json.dumps(to_vllm_bench(run), allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot write ({(error.strerror or str(error)).lower()})", where=str(path),
            fix="give another file to --export-vllm",
        ) from None  # fmt: skip


def _statistics(name: str, values: Floats) -> dict[str, float]:
    """vLLM's own statistics (0.0 for an empty sample, as it writes)."""
    some = values if len(values) else np.zeros(1)
    found = {
        f"mean_{name}_ms": float(some.mean()),
        f"median_{name}_ms": float(np.median(some)),
        f"std_{name}_ms": float(some.std()),
    }
    return found | {f"p{p}_{name}_ms": float(np.percentile(some, p)) for p in PERCENTS}


def _gaps(stamps: Any) -> list[float]:
    return [float(gap) / 1e9 for gap in np.diff(stamps)]


def _seconds(value: float, good: bool) -> float:
    return float(value) if good and not math.isnan(value) else 0.0


def _int(value: float, planned: float) -> int:
    return int(planned if math.isnan(value) else value)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _error(text: dict[str, list[str | None]], row: int) -> str:
    kind, detail = text["failure"][row], text["failure_detail"][row]
    return ": ".join(part for part in (kind, detail) if part) if kind else ""
