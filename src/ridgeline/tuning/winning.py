"""What a user takes away: the winner as a study file, as a command, and as a compose file."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.engines.vllm_args import serve_arguments
from ridgeline.store.files import write_atomically
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.workload.study import Study

WINNER, COMPOSE, COMMAND = "winner.yaml", "compose.yaml", "serve.sh"
IMAGE = "vllm/vllm-openai"
PORT = 8000
_FILES = ("file", "trace", "calibration", "gpu", "prompts")  # keys that may name a file


def serve_words(configuration: Configuration) -> list[str]:
    """`vllm serve` with every knob, as words of a command line."""
    launch, knobs = configuration.launch or Launch(), configuration.knobs
    replicas = knobs.data_parallel_size
    layout = [] if replicas is None else ["--data-parallel-size", str(replicas)]
    return ["vllm", "serve", configuration.model, *serve_arguments(knobs), *layout,
            *launch.arguments]  # fmt: skip


def serve_command(configuration: Configuration) -> str:
    """The same as one line; of an engine with another command line its own program and knobs."""
    if configuration.engine == "llamacpp":
        from ridgeline.engines.llamacpp import LlamaCppDialect  # noqa: PLC0415

        dialect = LlamaCppDialect()
        launch = configuration.launch or Launch()
        program = launch.command or dialect.command()
        words = [w.replace("{model}", configuration.model) for w in program]
        return shlex.join([*words, *dialect.arguments(configuration, PORT), *launch.arguments])
    return shlex.join(serve_words(configuration))


def compose(configuration: Configuration) -> str:
    """A docker compose file that serves the configuration; secrets come from the environment."""
    launch = configuration.launch or Launch()
    tag = configuration.engine_version
    image = launch.image or f"{IMAGE}:{'latest' if tag is None else f'v{tag}'}"
    words = serve_words(configuration)[2:]
    lines = [
        "services:", "  vllm:", f"    image: {image}", "    command:",
        *(f"      - {json.dumps(word)}" for word in words),
        "    ports:", f'      - "{PORT}:{PORT}"', "    ipc: host",
    ]  # fmt: skip
    local = Path(configuration.model).is_dir()
    cache = "~/.cache/huggingface:/root/.cache/huggingface"
    mount = f"{configuration.model}:{configuration.model}:ro" if local else cache
    lines += ["    volumes:", f"      - {json.dumps(mount)}"]
    if launch.environment:
        lines.append("    environment:")
        lines += [
            f"      {name}:" + ("" if value is None else f" {json.dumps(value)}")
            for name, value in launch.environment.items()
            if value != ""
        ]
    lines += [
        "    deploy:", "      resources:", "        reservations:", "          devices:",
        f"            - {{driver: nvidia, count: {configuration.gpus}, capabilities: [gpu]}}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def write_winner(folder: Path, study: Study, file: Path, setting: Setting, won: Candidate) -> None:
    """winner.yaml, serve.sh and compose.yaml in the folder; raises StoreError."""
    served = setting.served(won)
    body = winner_study(study, file.parent, setting, won)
    write_atomically(folder / WINNER, body.encode())
    write_atomically(folder / COMPOSE, compose(served).encode())
    text = f"#!/bin/sh\nexec {serve_command(served)}\n"
    write_atomically(folder / COMMAND, text.encode())


def winner_study(study: Study, folder: Path, setting: Setting, won: Candidate) -> str:
    """The study file with the winner as its baseline; the one before is an experiment of it."""
    import yaml  # noqa: PLC0415

    body: dict[str, Any] = yaml.safe_load(study.text)
    for key in ("experiments", "findings", "published", "baseline", "baseline_name"):
        body.pop(key, None)
    body = _absolute(body, folder)
    body["model"] = study.model
    body["name"] = f"{study.name[:56]}-winner"
    before, after = setting.configuration.knobs.given(), setting.served(won).knobs.given()
    body["baseline_name"] = "winner" if won.change else "baseline"
    body["baseline"] = _plain(after)
    if "routing" in won.change:
        body["routing"] = won.change["routing"]
    differs = {n: v for n, v in before.items() if after.get(n) != v}
    undone = set(after) <= set(before)  # what a file cannot say is "as the engine does by itself"
    if won.change and undone and differs:
        body["experiments"] = [{"name": "before", "set": _plain(differs)}]
    head = (
        f"# The winner of `ridgeline tune` on {study.name}: {won.words}.\n"
        "# Run it with: ridgeline study winner.yaml\n"
    )
    return head + yaml.safe_dump(body, sort_keys=False, allow_unicode=True)


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
