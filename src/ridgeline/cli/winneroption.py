"""--winner: the configuration that a tuning or a study chose, and for which traffic."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.diagnosis.drift import Edge, Tuned
    from ridgeline.diagnosis.evidence import Known
    from ridgeline.domain.knobs import Configuration
    from ridgeline.tuning.outcome import Reach, TuneResult
    from ridgeline.workload.study import Study

WINNER = "winner.yaml"


def tuned_from(path: Path) -> "Tuned":
    """A winner.yaml, the folder of a tuning, or that of a study (its baseline). Raises BadInput."""
    from ridgeline.diagnosis.drift import Tuned  # noqa: PLC0415
    from ridgeline.tuning.outcome import read_result  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    folder = path if path.is_dir() else path.parent
    result = None
    if not path.is_dir():
        study = load_study(path)
        result = read_result(folder) if path.name == WINNER else None
    elif (path / WINNER).is_file():
        study, result = load_study(path / WINNER), read_result(path)
    else:
        ended = read_result(path)
        if ended is not None and not ended.recommended:
            raise BadInput(
                "is a tuning that recommends nothing", where=str(path),
                fix="tune again, or give a winner.yaml",
            )  # fmt: skip
        study = _stored(path)
    base = study.baseline
    moved = () if result is None else result.envelope
    edges = tuple(_edge(reach) for reach in moved if not reach.share)
    others = [(e.name, e.configuration) for e in study.experiments[1:]]
    met, unasked = _finalists(folder, result)
    others += [row for row in met if row[1].knobs not in [c.knobs for _, c in others]]
    return Tuned(str(path), base.configuration, base.workload, edges, tuple(others), study.slo,
                 unasked)  # fmt: skip


def known_of(known: "Known", tuned: "Tuned", *, given: bool) -> "Known":
    """What is known, with the winner's configuration where none else was given."""
    from ridgeline.diagnosis.known import with_configuration  # noqa: PLC0415

    if given:
        return known
    return with_configuration(known, tuned.configuration, tuned.workload, tuned.name)


def _stored(path: Path) -> "Study":
    from ridgeline.experiment.results import load_study_copy  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    directory = StudyDirectory(path)
    study = load_study_copy(directory) if directory.exists() else None
    if study is None:
        raise BadInput(
            f"holds neither {WINNER} nor a study", where=str(path),
            fix="give a winner.yaml, or the folder of `ridgeline tune` or `study`",
        )  # fmt: skip
    return study


def _finalists(
    folder: Path, result: "TuneResult | None"
) -> "tuple[list[tuple[str, Configuration]], int]":
    """Those that met the winner in the duel, and how many of them cannot be told.

    Their changes are of the tuning's own baseline, whose study file lies in its folder.
    """
    if result is None or result.duel is None:
        return [], 0
    met = [one for one in result.duel.duelists if dict(one.change) != dict(result.winner.change)]
    start = _start(folder)
    if start is None:
        return [], len(met)
    found = []
    for one in met:
        change: dict[str, Any] = {k: v for k, v in one.change.items() if k != "routing"}
        knobs = start.knobs.with_changes(change)
        found.append((one.words, replace(start, knobs=knobs)))
    return found, 0


def _start(folder: Path) -> "Configuration | None":
    """The baseline of the study that was tuned; None where its folder does not hold it."""
    from ridgeline.experiment.results import load_study_copy  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    study = load_study_copy(StudyDirectory(folder))
    return None if study is None else study.baseline.configuration


def _edge(reach: "Reach") -> "Edge":
    """With the factors next to those that lose: between the two it was not tried."""
    from ridgeline.diagnosis.drift import LOAD, Edge  # noqa: PLC0415
    from ridgeline.tuning.envelope import LENGTHS, LOADS  # noqa: PLC0415

    tried = (*(LOADS if reach.what == LOAD else LENGTHS), 1.0)
    down, up = reach.down or 0.0, reach.up or float("inf")
    return Edge(
        reach.what, reach.down, min(f for f in tried if f > down), max(f for f in tried if f < up),
        reach.up, reach.to,
    )  # fmt: skip
