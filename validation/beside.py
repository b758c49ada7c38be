"""AIConfigurator on the same rows: its stored predictions, or made anew."""

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ridgeline.domain.errors import BadInput, RunFailed

VERSION = "0.12.0"
STORED = Path(__file__).parent / "data" / f"aiconfigurator-{VERSION}.csv"
SCRIPT = Path(__file__).parents[1] / "scripts" / "aiconfigurator_rows.py"


def read(path: Path = STORED) -> Mapping[str, tuple[float, float]]:
    """(TTFT, TPOT) in ms by the row's id."""
    lines = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    return {r["id"]: (float(r["ttft_ms"]), float(r["tpot_ms"])) for r in lines}


def make(rows: Path, out: Path = STORED) -> None:
    """Predict the rows with AIConfigurator in an environment of its own, and store them.

    The environment (about 500 MB) is kept in the user's cache. Raises RunFailed with the tool's own
    words when it cannot be made or run.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"
    folder = cache / f"aiconfigurator-{VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    seal = folder / ".ridgeline-complete"
    if not seal.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", f"aiconfigurator=={VERSION}"])
        seal.touch()
    text = _run([str(python), "-P", str(SCRIPT), str(rows.resolve())])
    if len(text.splitlines()) < 2:
        raise BadInput("AIConfigurator has no data for any row", where=str(rows))
    out.write_text(text, encoding="utf-8")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"{command[0]}: {last}", where="AIConfigurator")
    return done.stdout
