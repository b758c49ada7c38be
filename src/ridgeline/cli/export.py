"""`ridgeline export`: a configuration as files for Compose, Kubernetes, SkyPilot or Modal."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output import GATE_FAILED, say
from ridgeline.domain.errors import BadInput, nearest

if TYPE_CHECKING:
    from ridgeline.domain.knobs import Configuration
    from ridgeline.engines.exporting.deployment import Deployment
    from ridgeline.experiment.results import ExperimentResult
    from ridgeline.workload.study import ExperimentSpec, Study

TARGETS = ("compose", "kubernetes", "skypilot", "modal")
LEAST_AT_ONCE = 64


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study file, or a winner.yaml.")],
    *,
    to: Annotated[
        list[str],
        typer.Option("--to", metavar="TARGET", help=f"{', '.join(TARGETS)}; may be repeated."),
    ],
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which experiment [the baseline].")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Results of the study: how long starts took, and what was measured, go with it.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="M", help="The model to serve, where the study measured its shape."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="The engine's image [vllm/vllm-openai of its version]."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="SHA", help="The model's revision at its hub.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("deploy"),
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="EXISTING",
            help="Write nothing: say what is wrong with this file of the one target; exit 1 if so.",
        ),
    ] = None,
) -> int:
    """Write FILE's configuration down for the platforms that run it; nothing is started.

    Servers listen on loopback or inside the cluster only, and want a key: files name it, no more.
    """
    from ridgeline.engines.exporting.deployment import is_pinned  # noqa: PLC0415
    from ridgeline.engines.exporting.rendering import files_of  # noqa: PLC0415
    from ridgeline.store.files import make_folder, write_atomically  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    for target in to:
        if target not in TARGETS:
            raise BadInput(f"unknown target {target!r}{nearest(target, TARGETS)}", where="--to")
    study = load_study(file)
    spec = study.baseline if experiment is None else study.experiment(experiment)
    found = None if runs is None else _measured(runs, spec)
    wanted = _deployments(
        study, spec, found, model=model, image=image, revision=revision, where=str(file)
    )
    if check is not None:
        return _check(check, to, wanted)
    texts = {name: text for t in to for name, text in files_of(wanted, t).items()}
    make_folder(out)
    first = wanted[0]
    gpus, servers = sum(d.gpus for d in wanted), sum(d.replicas for d in wanted)
    pools = f", {len(wanted)} pools in all," if len(wanted) > 1 else ""
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
        say(f"{out / name}: {gpus} GPUs, {servers} servers{pools} of {first.image}")
    if not is_pinned(first.image):
        say(
            f"note: the tag of {first.image} moves: name a version or a digest; --check says so too"
        )
    for note in dict.fromkeys(n for d in wanted for n in d.notes if n.startswith("measured ")):
        say(f"note: {note}")
    if revision is None and first.folder is None:
        say(f"note: the revision of {first.model} is not pinned; give --revision SHA")
    return 0


def _check(file: Path, to: list[str], wanted: "tuple[Deployment, ...]") -> int:
    from ridgeline.engines.exporting.checks import check_pools as checked  # noqa: PLC0415

    if len(to) != 1:
        raise BadInput("--check needs one target", where="--to")
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(file)) from None
    try:
        problems = checked(text, to[0], wanted)
    except BadInput as error:
        where = f"{file}: {error.where}" if error.where else str(file)
        raise BadInput(error.what, where=where, fix=error.fix) from None
    for problem in problems:
        say(f"{file}: {problem}")
    if not wanted[0].start.measured:
        say("note: probes are not held against a start's time: no run was given (--runs)")
    if not problems:
        say(f"{file}: nothing wrong was found")
    return GATE_FAILED if problems else 0


def _measured(folder: Path, spec: "ExperimentSpec") -> "ExperimentResult":
    """The results of this very configuration; raises BadInput with what the nearest differs in."""
    from ridgeline.experiment.results import load_results  # noqa: PLC0415

    results = load_results(folder)
    wanted = spec.configuration
    nearest_one: list[str] | None = None
    ranked = sorted(results.experiments, key=lambda e: e.name != spec.name)
    for one in ranked:
        if one.configuration is None:
            continue
        have = one.configuration
        differs = [
            f"{what} {theirs} instead of {ours}"
            for what, theirs, ours in (
                ("model", have.model, wanted.model),
                ("GPU", have.gpu, wanted.gpu),
                ("vLLM", have.engine_version, wanted.engine_version),
            )
            if theirs != ours
        ]
        if (have.knobs, have.pools) != (wanted.knobs, wanted.pools):
            differs.append(f"knobs of {one.name} instead of {spec.name}")
        if not differs:
            return one
        nearest_one = min(filter(None, (nearest_one, differs)), key=len)
    told = "; ".join(nearest_one or ["it holds no experiment"])
    raise BadInput(
        f"{folder} was not measured with this configuration: {told}", where="--runs",
        fix="name the results of this study, or leave --runs out",
    )  # fmt: skip


def _deployments(
    study: "Study",
    spec: "ExperimentSpec",
    found: "ExperimentResult | None",
    *,
    model: str | None,
    image: str | None,
    revision: str | None,
    where: str,
) -> "tuple[Deployment, ...]":
    from ridgeline.engines.exporting.deployment import ASSUMED, Start, deployments_of  # noqa: PLC0415
    from ridgeline.experiment.engines import start_seconds  # noqa: PLC0415

    configuration = spec.configuration
    notes = [f"{spec.name} of study {study.name} ({where}), written by ridgeline export"]
    start = ASSUMED
    if found is not None:
        starts = [s for run in found.stored if (s := start_seconds(run)) is not None]
        if starts:
            start = Start(max(starts), f"the longest of {len(starts)} measured runs' engines")
        whole = "all pools together: " if configuration.pools else ""
        notes += [whole + _figures(found), f"under this load: {_load(spec)}"]
    made = deployments_of(
        study.name if spec.name == study.baseline.name else f"{study.name}-{spec.name}",
        configuration,
        model=model, image=image, revision=revision, start=start,
        notes=notes,
    )  # fmt: skip
    users = spec.workload.arrivals.peak_users or 0
    return tuple(
        replace(
            one, origins=_origins(study, spec, one.pool),
            notes=(*one.notes, *_own_figures(found, configuration, one.pool)),
            # at the worst all users ask for the classes of one pool
            at_once=max(LEAST_AT_ONCE, 2 * -(-users // one.replicas)),
        )
        for one in made
    )  # fmt: skip


def _origins(study: "Study", spec: "ExperimentSpec", pool: str | None) -> dict[str, str]:
    """Knob -> where the value of a server's flag is from, for what the baseline has not."""
    configuration, start = spec.configuration, study.baseline.configuration
    shared = configuration.knobs.given()
    own, base = shared, start.knobs.given()
    if pool is not None:
        own = next(p.knobs for p in configuration.pools if p.name == pool).given()
    if spec is not study.baseline:  # else its pools are set against what they share
        base = next((p.knobs.given() for p in start.pools if p.name == pool), base)
    by = "" if spec is study.baseline else f"experiment {spec.name}"
    found = {}
    for name, value in own.items():
        if base.get(name) == value:
            continue
        of_pool = pool is not None and shared.get(name) != value
        told = " of ".join(w for w in (f"pool {pool}" if of_pool else "", by) if w) or "baseline"
        found[name] = f"{value}, by {told} (before: {base.get(name, 'the default')})"
    return found


def _own_figures(
    found: "ExperimentResult | None", configuration: "Configuration", pool: str | None
) -> list[str]:
    """What was measured of each class that a pool serves, a line each."""
    summary = None if found is None or found.void else found.summary
    if summary is None or pool is None:
        return []
    kinds = next(p.classes for p in configuration.pools if p.name == pool)
    lines = []
    for kind in kinds:
        one = summary.classes.get(kind)
        if one is None:
            continue
        rate = one.throughput.output_tokens_per_s
        parts = [
            f"{rate:.0f} output tokens/s" if rate else "",
            f"p95 TTFT {1000 * one.ttft_s.p95:.0f} ms" if one.ttft_s.p95 else "",
            f"p95 ITL {1000 * one.itl_s.p95:.1f} ms" if one.itl_s.p95 else "",
        ]
        lines.append(f"of this, {kind}: {', '.join(p for p in parts if p) or 'nothing known'}")
    return lines


def _figures(found: "ExperimentResult") -> str:
    """What was measured, in one line."""
    summary = found.summary
    if summary is None or found.void:
        return f"not measured validly: {found.failure}"
    rate, cost = summary.throughput.output_tokens_per_s, summary.cost.usd_per_million_output_tokens
    parts = [
        f"measured in {len(found.counted)} valid runs" if summary.source == "measured"
        else "predicted by the digital twin, not measured",
        f"{rate:.0f} output tokens/s" if rate else "",
        f"p95 TTFT {1000 * summary.ttft_s.p95:.0f} ms" if summary.ttft_s.p95 else "",
        f"p95 ITL {1000 * summary.itl_s.p95:.1f} ms" if summary.itl_s.p95 else "",
        f"${cost:.3f} per million output tokens" if cost else "",
    ]  # fmt: skip
    return ", ".join(p for p in parts if p)


def _load(spec: "ExperimentSpec") -> str:
    from ridgeline.report.how import load_words  # noqa: PLC0415

    tokens = spec.workload.mean_prompt_tokens
    return f"{load_words(spec.workload)}, prompts of {tokens:.0f} tokens in the mean"
