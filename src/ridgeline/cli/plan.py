"""`ridgeline plan`: what a configuration will do, and which would do better, without a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import console, say, show, write_json
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.domain.knobs import Configuration
    from ridgeline.experiment.calibrating import Observation
    from ridgeline.experiment.capacity import Bound
    from ridgeline.experiment.planning import PlanResult, Prediction


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML).")],
    *,
    top: Annotated[
        int, typer.Option(metavar="N", min=1, max=50, help="Candidates to predict in full.")
    ] = 8,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say where steps and requests spend their time.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The start-up log of an engine with the baseline's settings: its KV cache size is"
            " taken instead of a planned one.",
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Measured runs or studies of this model and GPU: predictions are held against"
            " them, and a ranking that they contradict is not relied on. Repeatable.",
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan as JSON; - is stdout.")
    ] = None,
) -> int:
    """Predict FILE's baseline on the digital twin and rank configurations under its targets.

    Nothing is measured: memory, the roofline's bound, throughput and latencies are predictions.
    Where the workload has classes, one pool (fcfs, priority) and separate pools are priced, too.
    """
    from ridgeline.cli.plan_classes import classes_json, classes_page  # noqa: PLC0415
    from ridgeline.cli.plan_page import explained, page  # noqa: PLC0415
    from ridgeline.experiment.classplan import price_classes  # noqa: PLC0415
    from ridgeline.experiment.engines import refusal  # noqa: PLC0415
    from ridgeline.experiment.planning import plan as planned  # noqa: PLC0415
    from ridgeline.experiment.predicting import Predictor  # noqa: PLC0415
    from ridgeline.workload.study import on_twin  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = load_study(file)
    base = study.baseline
    if base.configuration.gpu is None:
        raise BadInput("a plan needs a GPU", where=str(file), fix="add hardware: {gpu: NAME}")
    if base.configuration.pools:
        raise BadInput(
            "a plan searches around a baseline of one pool", where=f"{file}: pools",
            fix="plan prices pools by itself where the workload has classes; leave them out",
        )  # fmt: skip
    base = replace(base, configuration=on_twin(base.configuration, study.calibration))
    refused = refusal(base)
    if refused is not None:
        raise refused
    read = None if log is None else (_text(log), str(log))
    measured = _measured(runs or [], base.configuration)
    with _progress() as said:
        result = planned(
            base.configuration, base.workload, study.slo,
            top=top, log=read, measured=measured, said=said,
        )  # fmt: skip
        others = [
            replace(e, configuration=on_twin(e.configuration, study.calibration))
            for e in study.experiments[1:]
        ]
        gpus = None if study.tune is None else study.tune.host_gpus
        ways = price_classes([base, *others], Predictor(study.slo), said, host_gpus=gpus)
    told = _to_json(result) | ({} if ways is None else {"classes": classes_json(ways)})
    write_json(json, told)
    to_stderr = json == "-"
    width = console(to_stderr=to_stderr).width
    show(*page(result, study.name, width=width), to_stderr=to_stderr)
    if ways is not None:
        show(*classes_page(ways), to_stderr=to_stderr)
    if explain:
        show(*explained(result), to_stderr=to_stderr)
    if result.baseline.summary is None:
        say(f"the baseline cannot be predicted: {result.baseline.refused}")
        return 3
    if result.baseline.void:
        say(f"the baseline is void: {'; '.join(result.baseline.void)}")
        return 3
    return 0


def _text(log: Path) -> str:
    try:
        return log.read_text("utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(log)) from None


def _measured(folders: list[Path], planned: "Configuration") -> "tuple[Observation, ...]":
    """What was measured, where it says something about the GPU that is planned for."""
    from ridgeline.domain.hardware import differing_rates  # noqa: PLC0415
    from ridgeline.experiment.calibrating import read_observations  # noqa: PLC0415

    if not folders:
        return ()
    found = read_observations(folders, planned.model, "--runs")
    gpu, ours = found[0].configuration.device(), planned.device()
    if gpu is None or ours is None or gpu.name != ours.name:
        what = (
            f"the runs are from {None if gpu is None else gpu.name}, the plan is for"
            f" {None if ours is None else ours.name}"
        )
    elif differing_rates(gpu, ours):
        what = f"the runs are from another GPU that is called {ours.name} too"
    else:
        return found
    raise BadInput(what, where="--runs", fix="give runs of the same GPU")


class _Progress:
    """How far the search is: a line that changes in place, or where nobody looks on one a part."""

    def __init__(self) -> None:
        self._console = console(to_stderr=True)
        self._status: Any = None
        self._part = ""

    def __enter__(self) -> "_Progress":
        if self._console.is_terminal:
            self._status = self._console.status("planning")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        if self._status is not None:
            self._status.update(f"{what}: {done + 1} of {of}")
        elif what != self._part:
            say(f"planning: {what}" + (f" ({of})" if of > 1 else ""))
        self._part = what


def _progress() -> _Progress:
    return _Progress()


def _bound_json(bound: "Bound") -> dict[str, Any]:
    return {
        "batch": bound.batch,
        "step_s": bound.step_s,
        "output_tokens_per_s_per_gpu": bound.tokens_per_s_per_gpu,
        "change": dict(bound.change),
    }


def _knee_json(result: "PlanResult") -> dict[str, Any] | None:
    knee = result.knee
    if knee is None:
        return None
    return {
        "users": knee.arrivals.users, "rate_per_s": knee.arrivals.rate_per_s,
        "gpus": result.baseline.configuration.gpus,
        "output_tokens_per_s": knee.output_tokens_per_s,
        "output_tokens_per_s_per_gpu":
            knee.output_tokens_per_s / result.baseline.configuration.gpus,
        "study_load_share": knee.share,
        "ttft_p95_s": _finite(knee.ttft_p95_s),
        "window_s": knee.seconds,
    }  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and value != float("inf") else None


def _to_json(result: "PlanResult") -> dict[str, Any]:
    from ridgeline.domain.bands import LEVEL  # noqa: PLC0415

    def one(row: "Prediction") -> dict[str, Any]:
        given = row.configuration.knobs.given()
        return {
            "change": dict(row.change),
            "configuration": {"model": row.configuration.model, "gpu": row.configuration.gpu,
                              "gpus": row.configuration.gpus, "knobs": given,
                              "routing": row.configuration.routing},
            "summary": None if row.summary is None else row.summary.to_json(),
            "binding_limit": None if row.summary is None else row.summary.binding_limit,
            "refused": row.refused,
            "preemptions": row.preemptions,
        }  # fmt: skip

    baseline = result.baseline.summary
    return {
        "schema": 1,
        "source": "twin",
        "constants": result.constants,
        "band_level": LEVEL,
        "baseline": None if baseline is None else baseline.to_json(),
        "candidates": [one(c) for c in result.candidates],
        "alike": [dict(c.change) for c in result.alike],
        "hardware": [one(c) for c in result.hardware],
        "memory": {**{f"{n}_bytes": v for n, v in result.memory.parts.items()},
                   "kv_tokens": result.memory.kv_tokens,
                   "mean_requests": result.memory.requests,
                   "running_requests": result.memory.running,
                   "from_log": result.memory.from_log,
                   "notes": list(result.memory.notes),
                   "first_limit": result.memory.first_limit},
        "bound": _bound_json(result.bound),
        "bound_of_baseline": _bound_json(result.own_bound),
        "knee": _knee_json(result),
        "loads": [{"users": a.users, "rate_per_s": a.rate_per_s, "output_tokens_per_s": rate,
                   "ttft_p95_s": _finite(wait)}
                  for a, rate, wait in result.loads],
        "measured": [{"experiment": h.experiment, "figure": h.path, "measured": h.measured,
                      "predicted": h.predicted, "low": h.low, "high": h.high,
                      "refused": h.refused, "outside": h.outside} for h in result.held],
        "measured_notes": list(result.held_notes),
        "throughputs_held": {"outside": result.agreement.outside,
                             "of": result.agreement.known,
                             "expected": result.agreement.expected},
        "figures_held": {
            path: {"outside": outside, "of": of, "contradicts": path in result.agreement.against}
            for path, (outside, of) in result.agreement.counts.items()
        },
        "ranking_demoted": result.demoted,
        "notes": list(result.notes),
    }  # fmt: skip
