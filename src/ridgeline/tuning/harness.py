"""Runs tasks of lm-evaluation-harness against an endpoint, by an interpreter that has it.

It is never a dependency of Ridgeline: it runs as its own process, without a network for data sets
and models. Only its per-document scores are taken over; the statistics are ours.
"""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.secrets import mask
from ridgeline.engines.probe import api_key_from_environment, probe
from ridgeline.load.address import parse_address
from ridgeline.tuning.quality_tasks import TaskComparison, compare_task

# Scores of 0 to 1 where more is better, the one to judge by first.
METRICS = ("exact_match", "acc_norm", "acc", "f1", "em", "pass@1")
INSTALL = 'make an environment with `pip install "lm-eval[api]" transformers`, and name its Python'
Scores = Mapping[tuple[str, str], Mapping[str, float]]  # (task, metric) -> document -> score


@dataclass(frozen=True, slots=True)
class Harness:
    """How lm-evaluation-harness is run. python: an interpreter that has it. tokenizer: a folder or
    name that transformers reads without a network. folder: of task files of the user's own.
    documents: the first ones of each task, None = all. timeout_s: for one endpoint.
    """

    python: str
    tasks: tuple[str, ...]
    tokenizer: str
    folder: Path | None = None
    documents: int | None = None
    timeout_s: float = 7200.0


def run_tasks(
    harness: Harness,
    reference_url: str,
    candidate_url: str,
    models: tuple[str | None, str | None] = (None, None),
) -> tuple[TaskComparison, ...]:
    """Ask both endpoints the same documents. Raises RunFailed with the harness's own last words.

    models: under which names they serve, None = the first one.
    """
    ours, theirs = (
        _scores(harness, url, model)
        for url, model in zip((reference_url, candidate_url), models, strict=True)
    )
    found = []
    for (task, metric), scores in ours.items():
        try:
            found.append(compare_task(task, metric, scores, theirs.get((task, metric), {})))
        except ValueError as error:
            raise RunFailed(str(error), where="lm_eval", fix="give another task") from None
    return tuple(found)


def _scores(harness: Harness, url: str, asked: str | None) -> Scores:
    key = api_key_from_environment()
    address = parse_address(url)
    model = probe(address, asked, key).model
    with tempfile.TemporaryDirectory(prefix="ridgeline-tasks-") as out:
        command = _command(harness, f"{address.url}/v1/completions", model, out)
        environment = {
            **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "OPENAI_API_KEY": key or "none",
        }  # fmt: skip
        _run(command, environment, harness.timeout_s)
        files = sorted(Path(out).rglob("samples_*.jsonl"))
        rows = [
            (file.name.removeprefix("samples_").rpartition("_")[0], json.loads(line))
            for file in files for line in file.read_text("utf-8").splitlines()
        ]  # fmt: skip
    if not rows:
        raise RunFailed("lm_eval wrote no scores", where=url, fix="try its command by hand")
    return read_scores(rows)


def _command(harness: Harness, url: str, model: str, out: str) -> list[str]:
    told = {
        "model": model, "base_url": url, "tokenizer_backend": "huggingface",
        "tokenizer": harness.tokenizer, "tokenized_requests": "True", "num_concurrent": "4",
        "max_retries": "2",
    }  # fmt: skip
    for name, value in told.items():
        if "," in value or "=" in value:
            raise BadInput(f"lm_eval cannot be given {value!r}", where=name)
    return [
        harness.python, "-m", "lm_eval", "--model", "local-completions",
        "--model_args", ",".join(f"{k}={v}" for k, v in told.items()),
        "--tasks", ",".join(harness.tasks), "--output_path", out, "--log_samples",
        *([] if harness.folder is None else ["--include_path", str(harness.folder)]),
        *([] if harness.documents is None else ["--limit", str(harness.documents)]),
    ]  # fmt: skip


def _run(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> None:
    try:
        done = subprocess.run(  # noqa: S603  the user's own interpreter
            list(command), env=dict(environment), capture_output=True, text=True, errors="replace",
            timeout=limit_s, check=False,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(f"cannot be run ({error.strerror})", where=command[0], fix=INSTALL) from None
    except subprocess.TimeoutExpired:
        raise RunFailed(f"did not end within {limit_s:g} s", where="lm_eval") from None
    if done.returncode == 0:
        return
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    last = mask(said[-1])[:300] if said else f"exit code {done.returncode}"
    if "No module named" in last and "lm_eval" in last:
        raise BadInput("has no lm_eval", where=command[0], fix=INSTALL)
    raise RunFailed(f"did not end well: {last}", where="lm_eval")


def read_scores(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Scores:
    """The scores of (task, row of a samples file): of each task the first metric of METRICS.

    Raises RunFailed for a task that has none of them.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for task, row in rows:
        document = f"{row.get('doc_id')} {row.get('filter', '')}"
        by_metric = found.setdefault(task, {})
        for metric in METRICS:
            value = row.get(metric)
            if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1:
                by_metric.setdefault(metric, {})[document] = float(value)
    chosen: dict[tuple[str, str], dict[str, float]] = {}
    for task, by_metric in found.items():
        if not by_metric:
            raise RunFailed(
                f"task {task} has none of the scores {', '.join(METRICS)}", where="lm_eval",
                fix="give another task",
            )  # fmt: skip
        metric = next(m for m in METRICS if m in by_metric)
        chosen[task, metric] = by_metric[metric]
    return chosen
