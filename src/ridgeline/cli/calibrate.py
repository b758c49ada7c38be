"""`ridgeline calibrate`: fit the digital twin to a host's own measured runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output import say, show, write_json
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from ridgeline.experiment.calibrating import Calibration

NAMES = {
    "output_tokens_per_s": "output tokens/s",
    "itl_mean_s": "ITL mean", "itl_p50_s": "ITL p50", "itl_p95_s": "ITL p95",
    "ttft_mean_s": "TTFT mean", "ttft_p50_s": "TTFT p50", "ttft_p95_s": "TTFT p95",
    "tokens_per_chunk": "tokens a chunk",
}  # fmt: skip


def calibrate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Folders of measured runs, or of whole studies."),
    ] = None,
    *,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the calibration file; - is stdout.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a small study (under 3 minutes of GPU time) whose runs a calibration needs,"
            " and stop; - is stdout.",
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --plan: probe this study's baseline."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="With --plan: or this model ... With RUN: the model whose shape the runs served,"
            " where they name a folder that is not here.",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="... on this GPU.")] = None,
) -> int:
    """Fit the twin's host constants to measured runs and say how well they fit.

    A study file names the result: `twin: {calibration: FILE}`. No runs yet? `--plan probe.yaml`
    writes the study to run.
    """
    if plan is not None:
        if runs or json is not None:
            raise BadInput("--plan writes a study and fits nothing: give it no runs and no --json")
        return _plan(plan, study, model, gpu)
    if study is not None or gpu is not None:
        raise BadInput("--study and --gpu say what --plan is to probe; add --plan FILE")
    if not runs:
        raise BadInput(
            "there are no runs to fit to", fix="name their folders, or write a probe with --plan"
        )
    from ridgeline.experiment.calibrating import assumed, read_observations  # noqa: PLC0415
    from ridgeline.experiment.calibrating import (  # noqa: PLC0415
        calibrate as fitted,
    )

    observations = read_observations(runs, model)
    for line in assumed(observations):
        say(line)
    say(f"{len(observations)} configurations, {sum(o.repeats for o in observations)} runs")
    found = fitted(observations, say)
    write_json(json, found.to_json())
    show(_constants(found), _figures(found), to_stderr=json == "-")
    for line in _warnings(found):
        say(f"warning: {line}")
    if json not in (None, "-"):
        say(f"written: {json} (in a study file: `twin: {{calibration: {json}}}`)")
    return 0


def _warnings(found: "Calibration") -> list[str]:
    """Figures that the fit made worse, and what these runs cannot tell, each constant with the
    traffic that would.
    """
    from ridgeline.experiment.calibrating import worse_after  # noqa: PLC0415
    from ridgeline.experiment.probe import TOLD_BY  # noqa: PLC0415

    by_run: dict[str, list[str]] = {}
    for run, name, before, after in worse_after(found):
        by_run.setdefault(run, []).append(f"{NAMES[name]} {before:+.0%} -> {after:+.0%}")
    worse = [
        f"{run} is further off with the fitted constants than with the prior's"
        f" ({', '.join(figures)}): it pulls against the other runs; see whether it was disturbed,"
        " or fit without it"
        for run, figures in by_run.items()
    ]
    silent = [name for name in found.constants if name not in found.informed]
    if not silent:
        return worse
    lines = worse + [
        f"{name} stays at its prior: these runs do not tell it (its error would be"
        f" {found.errors[name]:.0%}); what would: {TOLD_BY[name]}"
        for name in silent
    ]
    of = len(found.constants)
    return [
        *lines,
        f"{len(silent)} of {of} constants are not calibrated: predictions that rest on them are the"
        " prior's; `ridgeline calibrate --plan FILE` writes the study that has these loads",
    ]


def _plan(out: str, study: Path | None, model: str | None, gpu: str | None) -> int:
    """Write the probe of a study's baseline, or of a model on a GPU."""
    import sys  # noqa: PLC0415

    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.experiment.probe import probe_study  # noqa: PLC0415

    if (study is None) == (model is None) or (model is None) != (gpu is None):
        raise BadInput("--plan needs either --study FILE or both --model M and --gpu NAME")
    if study is not None:
        from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

        configuration = load_study(study).baseline.configuration
    else:
        assert model is not None
        knobs = Knobs(max_num_seqs=256, max_model_len=4096, enable_prefix_caching=False)
        configuration = Configuration(model, knobs, gpu=gpu)
    text = probe_study(configuration)
    if out == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=out) from None
    say(f"written: {out}; run it with `ridgeline study {out} --out DIR` on the GPU, then")
    say("`ridgeline calibrate DIR --json host.json`")
    return 0


def _constants(found: "Calibration") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from ridgeline.report.numbers import significant  # noqa: PLC0415

    table = Table(title=f"Constants of {found.gpu}", title_justify="left", box=None, pad_edge=False)
    for head in ("constant", "value", "error", ""):
        table.add_column(head, justify="right" if head in ("value", "error") else "left")
    for name, value in found.constants.items():
        known = name in found.informed
        table.add_row(
            name,
            significant(value),
            f"{found.errors[name]:.0%}" if known else "-",
            "" if known else "not informed by these runs: the prior stays",
        )
    return table


def _figures(found: "Calibration") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    from ridgeline.experiment.calibrating import errors_of  # noqa: PLC0415

    table = Table(
        title="Mean error on the runs it was fitted to", title_justify="left", box=None,
        pad_edge=False,
    )  # fmt: skip
    for head in ("figure", "prior", "calibrated", "runs"):
        table.add_column(head, justify="left" if head == "figure" else "right")
    for name, (before, after, count, missing) in errors_of(found).items():
        errors = [f"{error:.0%}" if count else "-" for error in (before, after)]
        runs = f"{count} ({missing} more without a prediction)" if missing else str(count)
        table.add_row(NAMES[name], *errors, runs)
    return table
