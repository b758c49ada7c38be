"""What a user takes away: the winner as a study file, as a command, and as a compose file; where
nothing was shown to meet the targets, what came nearest, under another name.
"""

import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.engines.vllm_args import serve_arguments
from ridgeline.store.files import write_atomically
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.workload.study import Study

WINNER, COMPOSE, COMMAND = "winner.yaml", "compose.yaml", "serve.sh"
NEAREST = "nearest.yaml"
PORT = 8000
COLUMNS = 96
_FILES = ("file", "trace", "calibration", "gpu", "prompts")  # keys that may name a file


def serve_words(configuration: Configuration, port: int = PORT) -> list[str]:
    """The command of one replica's server, as it was measured but for its port."""
    launch, knobs = configuration.launch or Launch(), configuration.knobs
    if configuration.engine == "llamacpp":
        from ridgeline.engines.llamacpp import LlamaCppDialect  # noqa: PLC0415

        dialect = LlamaCppDialect()
        program = launch.command or dialect.command()
        arguments = dialect.arguments(configuration, port)
    else:
        program = launch.command or ("vllm", "serve", "{model}")
        arguments = [*serve_arguments(knobs), "--port", str(port)]
    words = [w.replace("{model}", configuration.model) for w in program]
    return [*words, *arguments, *launch.arguments]


def serve_command(configuration: Configuration) -> str:
    """The same as one line; of several replicas the first one's."""
    return shlex.join(serve_words(configuration))


def serve_script(configuration: Configuration) -> str:
    """A shell script that starts what was measured: one server for each data-parallel replica.

    Each has its own GPUs and port; balancing over them is left to whatever stands before them, as
    it was the client's while measuring.
    """
    launch, knobs = configuration.launch or Launch(), configuration.knobs
    lines = ["#!/bin/sh"]
    for name, value in launch.environment.items():
        if value is None:
            lines.append(f': "${{{name}:?set it}}"')
        else:
            lines.append(f"export {name}={shlex.quote(value)}" if value else f"unset {name}")
    replicas = knobs.data_parallel_size or 1
    if replicas == 1:
        return "\n".join([*lines, f"exec {serve_command(configuration)}"]) + "\n"
    per = (knobs.tensor_parallel_size or 1) * (knobs.pipeline_parallel_size or 1)
    lines += [
        f"# one server for each of {replicas} replicas, measured with {configuration.routing}",
        "trap 'kill 0' EXIT INT TERM",
    ]
    for r in range(replicas):
        gpus = ",".join(str(g) for g in range(r * per, (r + 1) * per))
        command = shlex.join(serve_words(configuration, PORT + r))
        lines.append(f"CUDA_VISIBLE_DEVICES={gpus} {command} &")
    return "\n".join([*lines, "wait"]) + "\n"


def compose(study: Study, configuration: Configuration) -> str | None:
    """A docker compose file of the configuration, as `ridgeline export` writes it.

    None where there is none: another engine, no release that an image could be pinned by.
    """
    from ridgeline.engines.exporting.deployment import deployment_of  # noqa: PLC0415
    from ridgeline.engines.exporting.rendering import render  # noqa: PLC0415

    try:
        deployment = deployment_of(
            study.name, configuration, model=configuration.model,
            notes=[f"the winner of ridgeline tune on {study.name}"],
        )  # fmt: skip
    except BadInput:
        return None
    return render(deployment, "compose")


def write_winner(
    folder: Path, study: Study, file: Path, setting: Setting, won: Candidate, *, said: str = ""
) -> None:
    """winner.yaml, serve.sh and, where one can be, compose.yaml; raises StoreError.

    `said`: the tuning's answer, which stands at the head of winner.yaml.
    """
    (folder / NEAREST).unlink(missing_ok=True)
    served = setting.served(won)
    body = winner_study(study, file.parent, setting, won, said=said)
    write_atomically(folder / WINNER, body.encode())
    write_atomically(folder / COMMAND, serve_script(served).encode())
    text = compose(study, served)
    if text is None:
        (folder / COMPOSE).unlink(missing_ok=True)
    else:
        write_atomically(folder / COMPOSE, text.encode())


def write_nearest(
    folder: Path, study: Study, file: Path, setting: Setting, nearest: Candidate, *, said: str = ""
) -> None:
    """nearest.yaml, with its command, marked as not meeting the targets; raises StoreError."""
    head = (
        f"# NOT A WINNER: no configuration was shown to meet the targets of {study.name}.\n"
        f"# This one came nearest: {nearest.words}.\n"
        f"{_comment(said)}"
        f"# Its command: {serve_command(setting.served(nearest))}\n"
        f"# Measure it with: ridgeline study {NEAREST}\n"
    )
    body = _study_with(study, file.parent, setting, nearest, "nearest")
    write_atomically(folder / NEAREST, (head + body).encode())


def remove_winner(folder: Path) -> None:
    """Take away an earlier answer's files, where nothing has won any more."""
    for name in (WINNER, COMMAND, COMPOSE, NEAREST):
        (folder / name).unlink(missing_ok=True)


def winner_study(
    study: Study, folder: Path, setting: Setting, won: Candidate, *, said: str = ""
) -> str:
    """The study file with the winner as its baseline; the one before is an experiment of it."""
    head = (
        f"# The winner of `ridgeline tune` on {study.name}: {won.words}.\n"
        f"{_comment(said)}"
        "# Measure it with: ridgeline study winner.yaml\n"
        "# Serve it with:   ridgeline serve winner.yaml\n"
    )
    return head + _study_with(study, folder, setting, won, "winner")


def _comment(said: str) -> str:
    lines = textwrap.wrap(said, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def _study_with(study: Study, folder: Path, setting: Setting, won: Candidate, name: str) -> str:
    """The study file with that configuration as its baseline, under that name."""
    import yaml  # noqa: PLC0415

    body: dict[str, Any] = yaml.safe_load(study.text)
    for key in ("experiments", "findings", "published", "baseline", "baseline_name"):
        body.pop(key, None)
    body = _absolute(body, folder)
    body["model"] = study.model
    body["name"] = f"{study.name[:56]}-{name}"
    before, after = setting.configuration.knobs.given(), setting.served(won).knobs.given()
    body["baseline_name"] = name if won.change else "baseline"
    body["baseline"] = _plain(after)
    if "routing" in won.change:
        body["routing"] = won.change["routing"]
    differs = {n: v for n, v in before.items() if after.get(n) != v}
    undone = set(after) <= set(before)  # what a file cannot say is "as the engine does by itself"
    if won.change and undone and differs:
        body["experiments"] = [{"name": "before", "set": _plain(differs)}]
    dumped: str = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
    return dumped


def _plain(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {n: list(v) if isinstance(v, tuple) else v for n, v in knobs.items()}


def _absolute(body: Any, folder: Path, key: str = "") -> Any:
    """Files that the study names relative to itself, by where they are: it moves to the results."""
    if isinstance(body, dict):
        return {k: _absolute(v, folder, str(k)) for k, v in body.items()}
    if isinstance(body, list):
        return [_absolute(v, folder, key) for v in body]
    if key in _FILES and isinstance(body, str) and (folder / body).is_file():
        return str((folder / body).resolve())
    return body
