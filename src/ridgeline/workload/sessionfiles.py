"""Sessions from a file: rows that belong together, in the order in which they were said.

A row either carries the whole talk so far (cumulative) or only what is new in it (incremental).
Taking one for the other sends the past twice, or not at all: which it is, is stated or seen in the
rows, and where it cannot be seen it is asked for.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.domain.errors import BadInput
from ridgeline.workload.promptrow import Entry, row_fault

CUMULATIVE, INCREMENTAL = "cumulative", "incremental"
HISTORIES = (CUMULATIVE, INCREMENTAL)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A row of the file (counted from 1) and the session that it belongs to."""

    number: int
    session: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Talks:
    """The sessions of a file. entries: turn after turn, session after session; turns: of each.

    carried: an entry is the whole request. Otherwise it is the new part of its turn, and what was
    said before, with the server's own replies, goes before it.
    """

    entries: tuple[Entry, ...]
    turns: tuple[int, ...]
    history: str
    carried: bool

    @property
    def longest_whole(self) -> int:
        """The most tokens that a request can have, with what went before it and its reply."""
        most, at = 0, 0
        for count in self.turns:
            own = self.entries[at : at + count]
            at += count
            sizes = [e.planned_tokens + (e.output_tokens or 0) for e in own]
            most = max(most, max(sizes) if self.carried else sum(sizes))
        return most


def talks_of(rows: Sequence[SessionRow], file: str, history: str | None) -> Talks:
    """Group rows into sessions, by first appearance. Raises BadInput naming file and row."""
    sessions: dict[str, list[SessionRow]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    found = history or _seen(list(sessions.values()), file)
    by_length = not rows[0].entry.messages
    for row in rows:
        if bool(row.entry.messages) == by_length:
            raise row_fault(file, row.number, "rows have either texts or lengths, not both")
    if found == CUMULATIVE and by_length:
        sessions = {name: _own_lengths(turns, file) for name, turns in sessions.items()}
    entries = tuple(row.entry for turns in sessions.values() for row in turns)
    turns = tuple(map(len, sessions.values()))
    return Talks(entries, turns, found, carried=found == CUMULATIVE and not by_length)


def _own_lengths(turns: list[SessionRow], file: str) -> list[SessionRow]:
    """Cumulative lengths as those of the new parts."""
    found, past = [], 0
    for row in turns:
        whole = row.entry.planned_tokens
        if whole <= past:
            raise row_fault(
                file, row.number,
                f"{whole} tokens cannot carry the {past} tokens of the talk before it",
                f"are the rows {INCREMENTAL}?",
            )  # fmt: skip
        found.append(replace(row, entry=replace(row.entry, tokens=whole - past)))
        if row is not turns[-1] and row.entry.output_tokens is None:
            what = "cumulative lengths need output_length in every row but a session's last"
            raise row_fault(file, row.number, what)
        past = whole + (row.entry.output_tokens or 0)
    return found


def _seen(sessions: list[list[SessionRow]], file: str) -> str:
    """What the rows themselves show. Raises BadInput where they do not show it."""
    first: dict[str | None, int] = {}  # kind -> the first row that is of it
    for before, row in itertools.chain(*(itertools.pairwise(turns) for turns in sessions)):
        first.setdefault(_kind(before, row), row.number)
    if not first:
        return INCREMENTAL  # no session has a second turn
    if len(first) == 1 and (only := next(iter(first))) is not None:
        return only
    what = "cannot tell whether this row carries the talk so far or only what is new"
    if None not in first:
        what = f"this row carries the talk so far, row {first[INCREMENTAL]} does not"
    raise BadInput(
        what, where=f"{file}, row {first.get(None, first.get(CUMULATIVE))}",
        fix=f"state it: --history {CUMULATIVE} or --history {INCREMENTAL}"
        f" (in a study file `history: {CUMULATIVE}`)",
    )  # fmt: skip


def _kind(before: SessionRow, row: SessionRow) -> str | None:
    """Whether a row carries the one before it; None where that cannot be told."""
    past, now = before.entry, row.entry
    if not past.messages or not now.messages:
        # a long new part looks like one that carries the past; a short one cannot carry it
        carried = past.planned_tokens + (past.output_tokens or 0)
        return INCREMENTAL if now.planned_tokens <= carried else None
    if len(past.messages) == len(now.messages) == 1:
        old, new = past.messages[0][1], now.messages[0][1]
        if new.startswith(old) and len(new) > len(old):
            return CUMULATIVE
        return None if old in new else INCREMENTAL
    if now.messages[: len(past.messages)] == past.messages and len(now.messages) > len(
        past.messages
    ):
        return CUMULATIVE
    if any(role == "assistant" for role, _ in now.messages) or _overlap(past, now):
        return None  # it has a past of its own, which is not the row before it
    return INCREMENTAL


def _overlap(past: Entry, now: Entry) -> bool:
    """Whether a text of the row before, other than a system text, stands in this one too."""
    said = {text for role, text in past.messages if role != "system"}
    return any(text in said for _, text in now.messages)
