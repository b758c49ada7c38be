"""`ridgeline quality`: does the candidate still answer as the reference does?"""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import (
    GATE_FAILED,
    NOT_COMPLETED,
    ensure_json_target,
    say,
    show,
    write_json,
)
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.tuning.harness import Harness
    from ridgeline.tuning.quality import Change
    from ridgeline.tuning.quality_tasks import TaskComparison

CODES = {
    "pass": 0, "fail": GATE_FAILED, "no-op": GATE_FAILED, "not applicable": NOT_COMPLETED,
    "unknown": NOT_COMPLETED,
}  # fmt: skip


def quality(
    reference_url: Annotated[
        str, typer.Argument(metavar="REFERENCE_URL", help="The server that is exact (bf16).")
    ],
    candidate_url: Annotated[
        str, typer.Argument(metavar="CANDIDATE_URL", help="The server to be judged.")
    ],
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own prompts, in any form of a study's prompt file; else 24 bundled texts."
            " Four long ones are added in either case.",
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.5, max=1.0, help="Recovery that must be shown, at 95 %."
        ),
    ] = 0.99,
    least_greedy: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Least share of greedy answers that do not part at a clear preference; else the"
            " threshold to the power of their tokens.",
        ),
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The same model in other exact numerics (--dtype float32): what it loses to the"
            " reference is rounding, and no loss of the candidate.",
        ),
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUE",
            help="What differs in the candidate, as kv_cache_dtype=fp8; may be repeated. A change"
            " that must show in the numbers and does not is called a no-op.",
        ),
    ] = None,
    dummy_weights: Annotated[
        bool, typer.Option("--dummy-weights", help="The servers have random weights.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="M", help="The reference's name; else the first served.")
    ] = None,
    candidate_model: Annotated[
        str | None, typer.Option(metavar="M", help="The candidate's name; else the first served.")
    ] = None,
    longest: Annotated[
        int, typer.Option(metavar="N", min=64, help="Tokens of a long prompt at most.")
    ] = 4096,
    answer_tokens: Annotated[
        int, typer.Option(metavar="N", min=0, help="Tokens of a greedy answer; 0 asks for none.")
    ] = 32,
    top: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=2,
            max=1000,
            help="Alternatives at each place; vLLM allows 20 unless it has --max-logprobs.",
        ),
    ] = 20,
    concurrency: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Prompts read at once. With more than one, servers of the same numbers may differ"
            " in the last digits, and a flag that did nothing may pass as one that did.",
        ),
    ] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=1.0, help="Seconds for one request.")
    ] = 300.0,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK", help="Also this task of lm-evaluation-harness; may be repeated."
        ),
    ] = None,
    tasks_folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Task files of your own.")
    ] = None,
    tasks_documents: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The first N documents of each task.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The model's folder, for the tasks' tokens."),
    ] = None,
    lm_eval: Annotated[
        str,
        typer.Option(
            "--lm-eval",
            metavar="PYTHON",
            show_default="Ridgeline's own",
            help="A Python that has lm_eval.",
        ),
    ] = sys.executable,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the verdict as JSON; - is stdout.")
    ] = None,
) -> int:
    """Judge whether the candidate still answers as the reference does.

    Both must be vLLM servers of one model: their prompt log-probabilities are compared on the same
    tokens, and their greedy answers. Exit code 0: pass, 1: fail or no-op, 2: wrong input, 3: it
    could not be judged. docs/quality.md defines every figure.
    """
    from ridgeline.engines.logprobs import Asking  # noqa: PLC0415  --help is quick
    from ridgeline.report.quality import LEGEND, quality_table, verdict_lines  # noqa: PLC0415
    from ridgeline.tuning.harness import run_tasks  # noqa: PLC0415
    from ridgeline.tuning.quality import Limits, judge_quality  # noqa: PLC0415
    from ridgeline.tuning.quality_prompts import prompts_from  # noqa: PLC0415

    ensure_json_target(json, Path.cwd())
    own = None if prompts is None else prompts_from(prompts)
    change = _change(changed or (), dummy_weights=dummy_weights)
    scored: tuple[TaskComparison, ...] = ()
    if tasks:
        harness = _harness(lm_eval, tasks, tokenizer, tasks_folder, tasks_documents)
        scored = run_tasks(harness, reference_url, candidate_url, (model, candidate_model))
    asking = Asking(
        top=top, longest=longest, answer_tokens=answer_tokens, concurrency=concurrency,
        timeout_s=timeout, model=model,
    )  # fmt: skip
    verdict = judge_quality(
        reference_url, candidate_url, prompts=own, change=change,
        limits=Limits(threshold, least_greedy), floor_endpoint_url=floor, asking=asking,
        candidate_model=candidate_model, tasks=scored, tell=say,
    )  # fmt: skip
    write_json(json, verdict.to_json())
    table = quality_table(verdict)
    if table is not None:
        show(table, to_stderr=json == "-")
        say(LEGEND)
    for line in verdict_lines(verdict):
        say(line)
    return CODES[verdict.outcome]


def _change(changed: "list[str] | tuple[()]", *, dummy_weights: bool) -> "Change":
    """What KNOB=VALUE says of the candidate; raises BadInput."""
    from ridgeline.domain.knobs import check_knob_names  # noqa: PLC0415
    from ridgeline.tuning.quality import change_of  # noqa: PLC0415

    knobs: dict[str, Any] = {}
    for text in changed:
        name, given, value = text.partition("=")
        if not given:
            raise BadInput(f"{text!r} has no value", where="--changed", fix="give it as KNOB=VALUE")
        try:
            knobs[name.strip().lstrip("-").replace("-", "_")] = jsonlib.loads(value)
        except ValueError:
            knobs[name.strip().lstrip("-").replace("-", "_")] = value
    check_knob_names(knobs, where="--changed")
    return change_of(knobs, None, dummy_weights=dummy_weights)  # no server tells its dtype


def _harness(
    python: str, tasks: list[str], tokenizer: str | None, folder: Path | None, documents: int | None
) -> "Harness":
    """How lm_eval is to be run; raises BadInput."""
    from ridgeline.tuning.harness import Harness  # noqa: PLC0415

    if tokenizer is None:
        raise BadInput(
            "the tasks need the model's tokenizer", where="--tasks",
            fix="give the model's folder in --tokenizer",
        )  # fmt: skip
    if folder is not None and not folder.is_dir():
        raise BadInput("is no folder", where=str(folder), fix="give another to --tasks-folder")
    return Harness(python, tuple(tasks), tokenizer, folder, documents)
