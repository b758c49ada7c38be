"""The knob catalogue: which options an installed vLLM takes, told by its own argument parser.

Importing vLLM takes seconds, so what it told is kept in the user's cache until the installation
changes. Where an installation cannot be asked, there is a reason instead of a catalogue.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.engines.knob_probe import MARK

ASK_S = 180.0  # a cold import of vLLM on a busy machine took 50 s
IDENTIFY_S = 30.0
_ELSEWHERE = ("docker", "podman", "ssh", "srun", "singularity", "apptainer", "enroot", "kubectl")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the engine. `kind`: switch (--x and --no-x), flag, int, float, text, size (a
    whole number, also 64M), size-or-auto, json, other. `nargs` as argparse has it.
    """

    flags: tuple[str, ...]
    name: str
    kind: str
    default: Any = None
    choices: tuple[Any, ...] | None = None
    nargs: str | int | None = None
    help: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All options of one installation; `folder` is where its vLLM lies."""

    version: str
    folder: str
    options: tuple[Option, ...]

    @property
    def flags(self) -> dict[str, Option]:
        """Every spelling that the parser knows."""
        return {flag: option for option in self.options for flag in option.flags}


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Why there is no catalogue, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class Questions:
    """Command lines that read the probe on their standard input: one for the identity of the
    installation (quick), one for its options. `place` names it in the cache.
    """

    identify: tuple[str, ...]
    ask: tuple[str, ...]
    place: str


def questions_for(command: Sequence[str], environment: Mapping[str, str]) -> Questions | NotAsked:
    """How the vLLM behind a launch command is asked: by the interpreter that would run it."""
    python = _python_behind(command, environment)
    if isinstance(python, NotAsked):
        return python
    return Questions((python, "-", "identify"), (python, "-"), python)


def catalogue(asked: Questions, environment: Mapping[str, str]) -> Catalogue | NotAsked:
    """The catalogue, from the cache where the installation is the one that was asked before."""
    identity = _run(asked.identify, environment, IDENTIFY_S)
    if isinstance(identity, NotAsked):
        return identity
    kept = _cache_file(asked, identity, environment)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _read(json.loads(kept.read_text("utf-8")))
    told = _run(asked.ask, environment, ASK_S)
    if isinstance(told, NotAsked):
        return told
    try:
        found = _read(told)
    except (KeyError, TypeError):
        return NotAsked("its answer cannot be read")
    _keep(kept, told)
    return found


@functools.cache
def _probe() -> str:
    """The program that the engine's interpreter is given."""
    return Path(__file__).with_name("knob_probe.py").read_text("utf-8")


def _python_behind(command: Sequence[str], environment: Mapping[str, str]) -> str | NotAsked:
    """The interpreter that a command such as `vllm serve` or `python -m vllm...` starts."""
    path = environment.get("PATH")
    if Path(command[0]).name in _ELSEWHERE:
        return NotAsked(f"{command[0]} starts it somewhere else")
    for i, word in enumerate(command):
        name = Path(word).name
        if re.fullmatch(r"python(\d(\.\d+)?)?", name):
            module = next((m for f, m in zip(command[i:], command[i + 1 :], strict=False)
                           if f == "-m"), "")  # fmt: skip
            if module.split(".")[0] != "vllm":
                return NotAsked(f"{name} is not told to run vLLM (-m vllm...)")
            return shutil.which(word, path=path) or word
        if name == "vllm":
            found = shutil.which(word, path=path)
            return NotAsked(f"there is no {word}") if found is None else interpreter_of(found, path)
    return NotAsked(f"what {command[0]} starts is not known")


def interpreter_of(script: str, path: str | None) -> str | NotAsked:
    """The interpreter that a script names in its first lines."""
    try:
        with Path(script).open("rb") as file:
            head = file.read(2048).decode("utf-8", "replace")
    except OSError as error:
        return NotAsked(f"{script} cannot be read ({error.strerror})")
    first = head.partition("\n")[0]
    words = first.removeprefix("#!").split()
    if words[:1] == ["/bin/sh"]:  # pip's way around a path that is too long or has spaces
        found = re.search(r"^'''exec' \"?([^\"\n]+?)\"? \"\$0\"", head, re.M)
        words = [found[1]] if found else []
    elif words and Path(words[0]).name == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        words = [shutil.which(words[0], path=path) or words[0]] if words else []
    if not first.startswith("#!") or not words or "python" not in Path(words[0]).name:
        return NotAsked(f"{script} is no Python program")
    return words[0]


def _run(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> dict[str, Any] | NotAsked:
    """What the probe answers, or why it does not."""
    merged = {**os.environ, **environment}
    kept = {k: v for k, v in merged.items() if v or k not in environment}
    try:
        done = subprocess.run(  # noqa: S603  the user's own engine
            list(command), input=_probe(), env=kept, cwd="/", capture_output=True, text=True,
            errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return NotAsked(f"{command[0]} gave no answer within {limit_s:g} s")
    except OSError as error:
        return NotAsked(f"{command[0]} cannot be run ({error.strerror})")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                answer = json.loads(line.removeprefix(MARK))
                if isinstance(answer, dict):
                    return answer
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return NotAsked(f"{command[0]}: {said[-1].strip()[:200] if said else 'no answer'}")


def _read(body: Mapping[str, Any]) -> Catalogue:
    """Raises KeyError or TypeError for what is no catalogue."""
    options = tuple(
        Option(
            tuple(row["flags"]), row["name"], row["kind"], row["default"],
            None if row["choices"] is None else tuple(row["choices"]), row["nargs"], row["help"],
        )
        for row in body["options"]
    )  # fmt: skip
    return Catalogue(str(body["version"]), str(body["folder"]), options)


def _cache_file(
    asked: Questions, identity: Mapping[str, Any], environment: Mapping[str, str]
) -> Path:
    """The name changes with the installation, the probe, and variables that vLLM looks at."""
    told = {k: v for k, v in {**os.environ, **environment}.items() if k.startswith("VLLM_")}
    key = json.dumps([asked.place, dict(identity), told, _probe()], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ridgeline" / "knobs" / f"{name}.json"


def _keep(file: Path, body: Mapping[str, Any]) -> None:
    """Write it whole or not at all; a cache that cannot be written costs time only."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(body), "utf-8")
        part.replace(file)
