"""The decisions of a tuner, one JSON line each, on the disk before they are acted upon.

`tune.jsonl` beside the runs is only ever appended to. Whatever ends the process, reading it again
gives the history so far and the question that was open; the runs themselves are the study store's.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from ridgeline.domain.errors import StoreError
from ridgeline.store.codec import from_plain, to_plain
from ridgeline.store.files import clear_errors, make_folder, sync
from ridgeline.tuning.beating import Beat
from ridgeline.tuning.outcome import Judged
from ridgeline.tuning.trial import Candidate, History, Trial

JOURNAL = "tune.jsonl"
FALLEN = "fallen"  # the line of a duel in which every finalist fell
REOPENED = "reopened"  # that of a duel which a search with a larger budget leaves behind
AIM = "aim"  # how many rounds the budget holds for a duel, and by what noise it is judged
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was put: candidates to be measured, numbered from `first`.

    phase: "search", "soak" or "ablation". at: seconds since the epoch.
    """

    first: int
    candidates: tuple[Candidate, ...]
    window_s: float
    why: tuple[str, ...]
    phase: str = "search"
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a journal tells. `question`: as it was put, None in one from before that; `price`: per
    GPU hour, of all that is in here. `bounds`: by run folder, why it was ended early.

    `lost_s`: GPU seconds of processes that were killed before they could book them; `other_s`:
    those of what is no trial (duel, thinking, quality); `unbooked_s`: of trials whose question is
    not booked yet. `held_s`: of a question that is measured side by side, until the last change of
    `held_gpus`, which it holds since. `start_s`, `longest_start_s`: of an engine, the last and the
    longest. `judged`: candidates that are not exact. `before`: the lines of duels that the search
    went on after, by their `kind`, `dueled` their runs as trials. `aims`:
    of all duels, before their first round. `last_at`: when the last line was
    written up to which all GPU time is accounted for.
    """

    fingerprint: str | None = None
    question: Mapping[str, Any] | None = None
    price: float | None = None
    trials: tuple[Trial, ...] = ()
    asked: tuple[Asked, ...] = ()
    bounds: Mapping[str, str] = field(default_factory=dict)
    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost_s: float = 0.0
    other_s: float = 0.0
    unbooked_s: float = 0.0
    held_s: float = 0.0
    held_gpus: int = 0
    start_s: float | None = None
    longest_start_s: float | None = None
    notes: tuple[str, ...] = ()
    judged: tuple[Judged, ...] = ()
    before: tuple[Mapping[str, Any], ...] = ()
    dueled: tuple[Trial, ...] = ()
    aims: tuple[Mapping[str, Any], ...] = ()
    last_at: float = 0.0

    @property
    def history(self) -> History:
        """The search's trials."""
        searched = {
            n
            for a in self.asked
            if a.phase == "search"
            for n in range(a.first, a.first + len(a.candidates))
        }
        return History(tuple(t for t in self.trials if t.number in searched))

    @property
    def fallen(self) -> tuple[Mapping[str, Any], ...]:
        """Of the duels that the search went on after those in which every finalist fell."""
        return tuple(line for line in self.before if line["kind"] == FALLEN)

    @property
    def known(self) -> History:
        """All that the search goes by: its trials, and the runs of duels that it went on after."""
        found = (*self.history.trials, *self.dueled)
        return History(tuple(sorted(found, key=lambda t: t.number)))

    @property
    def why(self) -> dict[int, str]:
        """By a trial's number, why it was asked for."""
        return {a.first + i: text for a in self.asked for i, text in enumerate(a.why)}

    @property
    def open(self) -> Asked | None:
        """The last question, as far as it is not answered."""
        if not self.asked:
            return None
        last, known = self.asked[-1], {t.number for t in self.trials}
        missing = any(last.first + i not in known for i in range(len(last.candidates)))
        return last if missing else None


class TuneJournal:
    """Appends to a tuner's journal, and holds it against other processes while it is open."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError when another process tunes into this folder."""
        make_folder(folder)
        self.path = folder / JOURNAL
        self.beat = Beat(folder)
        self._written = False
        with clear_errors(self.path):
            self._file: IO[bytes] = self.path.open("a+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                raise StoreError(
                    "another Ridgeline is tuning into this folder",
                    where=str(folder),
                    fix="wait for it or choose another folder with --out",
                ) from None
            self._drop_torn_line()

    def close(self) -> None:
        """Let go of it."""
        self.beat.stop()
        self._file.close()

    def __enter__(self) -> "TuneJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def told(self) -> Told:
        """What it tells so far."""
        return read_journal(self.path)

    def down(self) -> None:
        """The engines are down: what comes from here on takes no GPU. Told only where something
        was: a finished tuning that is looked at again keeps its journal as it is.
        """
        self.beat.stop()
        if self._written:
            self.write("down", at=time.time())

    def write(self, kind: str, /, **body: Any) -> None:
        """Append one line and bring it to the disk; raises StoreError."""
        line = json.dumps({"kind": kind, **to_plain(body)}, ensure_ascii=False, allow_nan=False)
        with clear_errors(self.path):
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._written = True

    def asked(self, asked: Asked) -> None:
        """Keep a question, before anything of it is measured."""
        self.write("asked", **to_plain(asked))

    def trial(self, trial: Trial) -> None:
        """Keep an answer."""
        self.write("trial", **finite(to_plain(trial)))

    def judged(self, judged: Judged) -> None:
        """Keep a verdict on a candidate's answers, before it is acted upon."""
        self.write("judged", **to_plain(judged), at=time.time())

    def _drop_torn_line(self) -> None:
        """A line that was cut off was never acted upon."""
        self._file.seek(0)
        whole = self._file.read()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
        sync(self.path.parent)


def read_journal(path: Path) -> Told:
    """What a journal tells, also while it is being written; raises StoreError when it is damaged.

    A last line that was cut off is left out.
    """
    with clear_errors(path, "cannot read"):
        whole = path.read_bytes() if path.exists() else b""
    told = Told()
    for number, line in enumerate(whole[: whole.rfind(b"\n") + 1].splitlines(), 1):
        try:
            body = json.loads(line)
            told = _with_line(told, body, f"{path}:{number}")
        except (ValueError, KeyError, TypeError) as error:
            what = f"is damaged: {type(error).__name__} {error}"
            raise StoreError(what, where=f"{path}:{number}") from None
    return told


def _with_line(told: Told, body: dict[str, Any], where: str) -> Told:
    kind = body.pop("kind")
    told = replace(told, last_at=max(told.last_at, body.get("at", 0.0)))
    reader = _READERS.get(kind)
    if reader is None:
        return replace(told, phases={**told.phases, kind: body})
    return reader(told, body, where)


def _begin(told: Told, body: dict[str, Any], where: str) -> Told:
    if body["schema"] != SCHEMA:
        raise StoreError(f"has schema {body['schema']!r}, this version reads {SCHEMA}", where=where)
    return replace(
        told, fingerprint=told.fingerprint or body["fingerprint"], question=body.get("question"),
        price=body.get("price"),
    )  # fmt: skip


def _priced(told: Told, body: dict[str, Any], where: str) -> Told:
    """What was measured is worth another objective under another price."""
    factor = body["factor"]
    trials, dueled = (
        tuple(_scaled(t, factor) for t in found) for found in (told.trials, told.dueled)
    )
    phases = dict(told.phases)
    if "finalists" in phases:
        known = phases["finalists"]["estimates"]
        estimates = {words: value * factor for words, value in known.items()}
        phases["finalists"] = {**phases["finalists"], "estimates": estimates}
    return replace(told, trials=trials, dueled=dueled, phases=phases, price=body["price"])


def _scaled(trial: Trial, factor: float) -> Trial:
    value, low, high = (
        None if v is None else v * factor for v in (trial.value, trial.low, trial.high)
    )
    return replace(trial, value=value, low=low, high=high)


def _left_behind(told: Told, body: dict[str, Any], where: str, kind: str) -> Told:
    """It opens the search again; the runs of its contenders are known to it."""
    made = [from_plain(Trial, _infinite(t), where) for t in body.pop("trials", ())]
    trials = tuple(replace(t, candidate=_as_made(t.candidate)) for t in made)
    phases = {k: v for k, v in told.phases.items() if k != "finalists"}
    before = (*told.before, {**body, "kind": kind}) if body.get("rounds") else told.before
    return replace(told, phases=phases, before=before, dueled=(*told.dueled, *trials))


def _asked(told: Told, body: dict[str, Any], where: str) -> Told:
    asked = from_plain(Asked, body, where)
    candidates = tuple(_as_made(c) for c in asked.candidates)
    return replace(told, asked=(*told.asked, replace(asked, candidates=candidates)))


def _trial(told: Told, body: dict[str, Any], where: str) -> Told:
    trial = from_plain(Trial, _infinite(body), where)
    trial = replace(trial, candidate=_as_made(trial.candidate))
    others = tuple(t for t in told.trials if t.number != trial.number)
    trials = tuple(sorted((*others, trial), key=lambda t: t.number))
    return replace(told, trials=trials, unbooked_s=told.unbooked_s + trial.gpu_s)


def _booked(told: Told, body: dict[str, Any], where: str) -> Told:
    shares = {int(n): s for n, s in body["gpu_s"].items()}
    trials = tuple(replace(t, gpu_s=shares.get(t.number, t.gpu_s)) for t in told.trials)
    start_s = body["start_s"] or told.start_s
    longest_s = max(start_s or 0.0, told.longest_start_s or 0.0) or None
    return replace(
        _let_go(told), trials=trials, start_s=start_s, longest_start_s=longest_s, unbooked_s=0.0
    )  # fmt: skip


def _let_go(told: Told) -> Told:
    return replace(told, held_s=0.0, held_gpus=0)


def _note(told: Told, body: dict[str, Any], where: str) -> Told:
    fresh = () if body["text"] in told.notes else (body["text"],)
    return replace(told, notes=(*told.notes, *fresh))


def _judged(told: Told, body: dict[str, Any], where: str) -> Told:
    judged = from_plain(Judged, body, where)
    change, part = (_as_made(Candidate(c)).change for c in (judged.change, judged.part))
    judged = replace(judged, change=change, part=part)
    return replace(
        told, judged=(*told.judged, judged), other_s=told.other_s + judged.gpu_s
    )  # fmt: skip


_READERS: Mapping[str, Callable[[Told, dict[str, Any], str], Told]] = {
    "begin": _begin,
    "asked": _asked,
    "trial": _trial,
    "booked": _booked,
    "priced": _priced,
    "note": _note,
    "judged": _judged,
    FALLEN: partial(_left_behind, kind=FALLEN),
    REOPENED: partial(_left_behind, kind=REOPENED),
    AIM: lambda told, body, _: replace(told, aims=(*told.aims, body)),
    "bound": lambda told, body, _: replace(
        told, bounds={**told.bounds, body["run"]: body["bound"]}
    ),
    "held": lambda told, body, _: replace(told, held_s=body["used_s"], held_gpus=body["gpus"]),
    "lost": lambda told, body, _: replace(
        _let_go(told), lost_s=told.lost_s + body["gpu_s"], unbooked_s=0.0
    ),
    "spent": lambda told, body, _: replace(_let_go(told), other_s=told.other_s + body["gpu_s"]),
}


def missing(asked: Asked, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Numbers of a question's candidates that have no answer yet."""
    known = {t.number for t in trials}
    return tuple(n for i in range(len(asked.candidates)) if (n := asked.first + i) not in known)


def _as_made(candidate: Candidate) -> Candidate:
    """JSON has no tuples, and a candidate is known by how its values are written."""
    change = {n: tuple(v) if isinstance(v, list) else v for n, v in candidate.change.items()}
    return Candidate(change)


_INFINITE = "infinite"


def finite(trial: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a percentile among failures is a word."""
    limits = [
        {k: _INFINITE if v == float("inf") else v for k, v in limit.items()}
        for limit in trial["limits"]
    ]
    return {**trial, "limits": limits}


def _infinite(trial: dict[str, Any]) -> dict[str, Any]:
    limits = [
        {k: float("inf") if v == _INFINITE else v for k, v in limit.items()}
        for limit in trial["limits"]
    ]
    return {**trial, "limits": limits}
