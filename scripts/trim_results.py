#!/usr/bin/env python3
"""Copy a study's results without the bulk of their raw data, for a repository.

usage: trim_results.py DIR OUT
       trim_results.py --mark DIR    mark the runs of a copy that an older version trimmed

Every run keeps its record (figures, verdict, facts), its requests and its telemetry. The times of
single chunks, nine tenths of the data, stay with the first valid repeat of each experiment only:
the charts of a report show that one. The run.json of the others says what was left out: a table
that is missing without that is damage. Engine logs and earlier, void tries stay behind. Of absolute
paths in the command that index.json keeps, the last part is left: a folder of the measuring host
says nothing to a reader. A study in which a variable or option that is named like a secret has a
value is refused: Ridgeline refuses such studies, but results may be older. Standard library only.
"""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

KEPT = ("run.json", "requests.parquet", "telemetry.parquet", "steps.parquet")
RUN, CHUNKS = "run.json", "chunks.parquet"
TUNING = (
    "tune.jsonl",
    "tune.json",
    "winner.yaml",
    "nearest.yaml",
    "serve.sh",
    "compose.yaml",
    "calibration.json",
)
INSIDE = ("trials", "soak")  # studies of a tuning's own
SECRET = re.compile(  # HF_TOKEN: value, "API_KEY": "value", --api-key value, "--api-key", "value"
    r"""\b([A-Z][A-Z0-9_]*_?(?:TOKEN|KEY|SECRET|PASSWORD))["']?\s*[:=]\s*(?!null\b|~|["']{2}|"\*|["']?\$)["'\w]"""
    r"""|(--(?:api[-_]key|hf[-_]token))["']?(?:\s*,\s*|\s+|=)["']?(?![-*$"'\s\]])\S"""
)


def trim(source: Path, target: Path) -> int:
    """Copy what is kept; returns the bytes copied."""
    copied = sum(_copy(source / name, target / name) for name in TUNING)
    copied += sum(trim(source / n, target / n) for n in INSIDE if (source / n).is_dir())
    if not (source / "index.json").is_file():  # a tuning that has not come to its duel
        return copied + _copy(source / "study.yaml", target / "study.yaml")
    index = json.loads((source / "index.json").read_text(encoding="utf-8"))
    target.mkdir(parents=True, exist_ok=True)
    if "command" in index:
        index["command"] = _without_folders(index["command"])
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    copied += (target / "index.json").stat().st_size
    copied += _copy(source / "study.yaml", target / "study.yaml")
    shown: set[str] = set()
    for run_id in index["order"]:
        entry = index["runs"][run_id]
        first = entry["state"] == "done" and entry["experiment"] not in shown
        if first:
            shown.add(entry["experiment"])
        copied += _run(source / run_id, target / run_id, chunks=first)
    for cold in sorted((source / "cold").glob("*")):
        copied += _run(cold, target / "cold" / cold.name, chunks=False)
    return copied


def secret_in(source: Path) -> str | None:
    """File and name of the first secret among what is kept as text, None when there is none."""
    texts = [source / n for n in ("study.yaml", "index.json", *TUNING)]
    for file in (*texts, *sorted(source.rglob("run.json"))):
        found = SECRET.search(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found is not None:
            return f"{file}: {found[1] or found[2]}"
    return None


def _without_folders(command: str) -> str:
    words = shlex.split(command)
    return shlex.join(Path(w).name if Path(w).is_absolute() else w for w in words)


def _run(source: Path, target: Path, *, chunks: bool) -> int:
    names = (*KEPT, CHUNKS) if chunks else KEPT
    copied = sum(_copy(source / name, target / name) for name in names)
    if not chunks and (source / CHUNKS).is_file():
        mark(target / RUN)
    return copied


def mark(path: Path) -> None:
    """Say in a run.json that its chunks were left out."""
    if not path.is_file():
        return
    body = json.loads(path.read_text(encoding="utf-8"))
    body["left_out"] = sorted({*body.get("left_out", ()), CHUNKS})
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def mark_copies(folder: Path) -> int:
    """Mark every run below whose chunks are not there, as a copy made before there were marks.

    A twin's runs keep the steps instead. Returns how many were marked.
    """
    found = [
        path
        for path in sorted(folder.rglob(RUN))
        if not any((path.parent / name).is_file() for name in (CHUNKS, "steps.parquet"))
        and CHUNKS not in json.loads(path.read_text(encoding="utf-8")).get("left_out", ())
    ]
    for path in found:
        mark(path)
    return len(found)


def _copy(source: Path, target: Path) -> int:
    if not source.is_file():
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target.stat().st_size


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: trim_results.py DIR OUT | trim_results.py --mark DIR")
    if sys.argv[1] == "--mark":
        print(f"{sys.argv[2]}: {mark_copies(Path(sys.argv[2]))} runs marked")
        sys.exit()
    folder = Path(sys.argv[1])
    if not any((folder / name).is_file() for name in ("index.json", "tune.jsonl")):
        sys.exit(f"trim_results.py: {folder} holds no study (no index.json)")
    if found := secret_in(folder):
        sys.exit(f"trim_results.py: {found} holds a secret; take its value out of the file first")
    print(f"{sys.argv[2]}: {trim(folder, Path(sys.argv[2])) / 1e6:.1f} MB")
