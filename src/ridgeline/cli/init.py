"""`ridgeline init`: a study file to start from, out of a running command or a model's name."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import one_line, say
from ridgeline.domain.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from ridgeline.workload.serve_command import ServeCommand
    from ridgeline.workload.study import Study


def init(
    command: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="COMMAND", help="The command of a running server: 'vllm serve ...'."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="M", help="A model's name, or a folder with config.json.")
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="The GPU that it runs on.")] = "H100-SXM",
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to write it; '-' prints it.")
    ] = "study.yaml",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite FILE when it is there.")
    ] = False,
) -> int:
    """Write a study file from a running server's command line, or from a model and a GPU."""
    from ridgeline.domain.hardware import gpu as known_gpu  # noqa: PLC0415
    from ridgeline.workload.serve_command import (  # noqa: PLC0415
        ServeCommand,
        parse_serve_command,
    )

    if (command is None) == (model is None):
        raise BadInput("give either --from 'vllm serve ...' or --model M")
    found = ServeCommand(model or "") if command is None else parse_serve_command(command)
    try:
        hardware = known_gpu(gpu)
    except BadInput as error:
        raise BadInput(error.what, where="--gpu") from None
    text, told = _that_runs(found, hardware.name, fp8="fp8" in hardware.flops,
                            running=command is not None)  # fmt: skip
    for line in told:
        say(f"ridgeline: {line}")
    if found.unknown:
        say(f"ridgeline: not understood, kept as comments: {one_line(', '.join(found.unknown))}")
    _write(out, text, force=force)
    return 0


def _that_runs(
    found: "ServeCommand", gpu: str, *, fp8: bool, running: bool
) -> tuple[str, list[str]]:
    """A study file that its engine accepts, and what had to be changed for it, a line each.

    A running server's options are facts, so where the twin refuses them the engine is vllm. A model
    that is only a wish gets as many GPUs as it needs. An experiment that is refused is left out.
    """
    from ridgeline.experiment.engines import refusal  # noqa: PLC0415
    from ridgeline.workload.studyfile import parse_study  # noqa: PLC0415

    def made(knobs: Mapping[str, Any], engine: str = "twin", **more: Any) -> tuple[str, "Study"]:
        text = study_text(
            found.model, knobs, gpu, found.harmless, found.unknown, fp8=fp8, engine=engine, **more
        )
        return text, parse_study(text, "the study file made from the command")

    knobs, told = dict(found.knobs), []
    text, study = made(knobs)
    problem = refusal(study.baseline)
    if problem is not None and not running and isinstance(problem, RunFailed):
        for ranks in (2, 4, 8):
            more, wider = made({**knobs, "tensor_parallel_size": ranks})
            if refusal(wider.baseline) is None:
                told.append(f"the model does not fit on one {gpu}: tensor_parallel_size {ranks}")
                knobs["tensor_parallel_size"] = ranks
                text, study, problem = more, wider, None
                break
    if problem is not None:
        why = one_line(str(problem))
        told.append(f"the twin cannot run this ({why}); the file says engine: vllm")
        return made(knobs, "vllm", engine_why=why)[0], told
    left_out = {
        spec.name: one_line(str(error))
        for spec in study.experiments[1:]
        if (error := refusal(spec)) is not None
    }
    if left_out:
        told += [f"left out experiment {name}: {why}" for name, why in left_out.items()]
        text, _ = made(knobs, left_out=left_out)
    return text, told


def _write(out: str, text: str, *, force: bool) -> None:
    if out == "-":
        print(text, end="", flush=True)
        return
    try:
        with Path(out).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput("is there already", where=out, fix="give --force or another --out") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"cannot write ({reason})", where=out, fix="give another --out") from error
    say(f"ridgeline: wrote {out}; run it with: ridgeline study {out}")


def study_text(
    model: str,
    knobs: Mapping[str, Any],
    gpu: str,
    harmless: tuple[str, ...] = (),
    unknown: tuple[str, ...] = (),
    *,
    fp8: bool,
    engine: str = "twin",
    engine_why: str | None = None,
    left_out: Mapping[str, str] | None = None,
) -> str:
    """The commented study file as text.

    engine_why: what stands against the twin. left_out: experiments to be commented out, with why.
    """
    from ridgeline.engines.twin import DEFAULT_RELEASE  # noqa: PLC0415

    hint = "predicts, needs no GPU; `vllm` measures on real ones"
    if engine_why is not None:
        hint = f"needs the GPUs; the twin cannot run this: {engine_why}"
    lines = [
        "# A Ridgeline study: what is compared, under which traffic, against which limits.",
        "# `ridgeline schema` prints its JSON Schema for editors.",
        f"name: {_value(_name(model))}",
        f"model: {_value(model)}",
        f"engine: {engine}  # {hint}",
        f'engine_version: "{DEFAULT_RELEASE}.0"  # yours: `vllm --version`; export pins its image',
        "hardware:",
        f"  gpu: {gpu}",
        "  # price_per_gpu_hour: 3.95  # USD; without a price there is no cost per token",
        "",
        "workload:  # put in your traffic: the answer depends on it more than on anything else",
        "  arrivals: {users: 100}  # each sends one request after another; or {rate_per_s: 20}",
        *_lengths(knobs.get("max_model_len")),
        "  # several kinds: classes: {chat: {share: 0.8, priority: 0}, batch: {share: 0.2}}, each",
        "  #   with lengths and slo of its own; pools: {chat: {}, batch: {}} gives each servers",
        "  warmup_s: 20",
        "  duration_s: 90",
        "  seed: 7",
        "",
        "slo: {ttft_p95_ms: 2000, itl_p95_ms: 50, error_rate: 0.001}",
        "",
        *_baseline(knobs),
    ]
    quantised = re.search(r"fp8|fp4|awq|gptq|int[48]|w[48]a", model, re.IGNORECASE)
    if harmless:
        lines += ["  # options that do not change the speed:"]
        lines += [f"  #   {one_line(option)}" for option in harmless]
    if unknown:
        lines += ["  # options that Ridgeline does not know; they are left out:"]
        lines += [f"  #   {one_line(option)}" for option in unknown]
    tries = _experiments(knobs, left_out or {}, fp8=fp8 and not quantised)
    lines += ["", *tries, "", "repeats: 5"]
    return "\n".join(lines) + "\n"


def _lengths(limit: int | None) -> list[str]:
    """Prompt and output lengths that the model's context takes, the longest of both together."""
    mean, low, high = 256, 64, 192
    if limit is not None and limit < 576:
        mean, low, high = max(1, limit // 3), max(1, limit // 12), max(1, limit // 4)
    return [
        f"  prompts: {{tokens: {{mean: {mean}, spread: 0.5}}}}"
        f"  # {mean // 2} to {mean + mean // 2} tokens, all equally likely",
        "  # prompts that begin alike: {tokens: 64, shared_prefix: {tokens: 1024, groups: 8}}",
        f"  output_tokens: {{min: {low}, max: {high}}}",
    ]


def _name(model: str) -> str:
    """A study name out of a model's: its last part, in letters that a folder's name may have."""
    last = re.split(r"[/\\]", model.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:64] or "study"


def _value(value: Any) -> str:
    """A value as YAML: JSON is a part of it, and plain words need no quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value):
        special = value.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
        return json.dumps(value) if special else value
    return json.dumps(value)


def _baseline(knobs: Mapping[str, Any]) -> list[str]:
    from ridgeline.domain.defaults import NOT_MODELLED  # noqa: PLC0415

    if not knobs:
        return ["baseline: {}  # the engine's own defaults"]
    lines = ["baseline:"]
    for name, value in knobs.items():
        what = NOT_MODELLED.get(name)
        hint = f"  # the twin does not model {what}" if what else ""
        lines.append(f"  {name}: {_value(value)}{hint}")
    return lines


def _experiments(knobs: Mapping[str, Any], left_out: Mapping[str, str], *, fp8: bool) -> list[str]:
    """What is worth trying first from this starting point, each with its reason."""
    tries: list[tuple[str, str, str]] = []
    seqs = knobs.get("max_num_seqs")
    if knobs.get("enforce_eager"):
        tries.append(
            ("graphs", "{enforce_eager: false}", "one graph launch instead of many kernels")
        )
    if seqs is not None:
        tries.append(
            (f"seqs-{2 * seqs}", f"{{max_num_seqs: {2 * seqs}}}", "more rows share a weight read")
        )
    captured = knobs.get("max_cudagraph_capture_size") or min(512, 2 * (seqs or 256))
    eager = knobs.get("enforce_eager") or "cudagraph_capture_sizes" in knobs
    if not eager and captured < 1024 and knobs.get("max_num_batched_tokens", 1024) >= 1024:
        tries.append(
            (
                "capture-1024",
                "{max_cudagraph_capture_size: 1024}",
                f"a step above {captured} tokens runs without a CUDA graph",
            )
        )
    if fp8 and "quantization" not in knobs:
        tries.append(
            ("fp8", "{quantization: fp8}", "half the bytes; check your quality before you keep it")
        )
    if not tries:
        tries.append(
            ("budget-4096", "{max_num_batched_tokens: 4096}", "shorter steps while prompts come in")
        )
    some = any(name not in left_out for name, _, _ in tries)
    head = "experiments:" if some else "experiments: []"
    lines = [f"{head}  # each is one change from the baseline"]
    for name, change, why in tries:
        one = f"- {{name: {name}, set: {change}}}"
        refused = left_out.get(name)
        lines.append(f"  {one}  # {why}" if refused is None else f"  # {one}  refused: {refused}")
    return lines
