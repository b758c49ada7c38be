"""The files of a recording, held within a bound: the oldest figures and pages go, never the newest.

Figures are lines that are appended to figures.jsonl and handed to the kernel at each look: a kill
costs none that was written. Every PARTS-th of the bound the file gets a number
(figures-000001.jsonl) and a new one begins; what has to go goes a numbered file at a time, so that
nothing is ever rewritten. What went is told by dropped.json, which is written before.
"""

import json
import re
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ridgeline.domain.errors import BadInput

FIGURES, DROPPED = "figures.jsonl", "dropped.json"
DEFAULT = "200MB"  # a table of so many figures is made in seconds, in memory that a host has
LEAST_BYTES, LEAST_S = 1_000_000, 60.0
PARTS = 16
FIGURES_SHARE, PAGES_SHARE = 0.4, 0.5  # of the bound; the rest is telemetry.parquet's
PAGES_LEFT = 2  # of a replica: rates need two
_LIMIT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBERED = re.compile(r"figures-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes of the folder, or seconds back from the newest look; both None: no bound."""

    text: str
    size: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a bound took: begun: time of the very first look (s since 1970); lines of figures (a
    replica's look each); pages; limit: as it was given. part: number of the last file that went.
    """

    begun: float | None = None
    lines: int = 0
    pages: int = 0
    limit: str = ""
    part: int = 0


def parse_limit(text: str) -> Limit:
    """ "500MB", "24h", "none". Raises BadInput."""
    if text.strip().lower() == "none":
        return Limit("none")
    found = _LIMIT.fullmatch(text.strip())
    unit = found[2].lower() if found else ""
    if found and unit in _BYTES and (size := float(found[1]) * _BYTES[unit]) >= LEAST_BYTES:
        return Limit(text.strip(), size=size)
    if found and unit in _SECONDS and (s := float(found[1]) * _SECONDS[unit]) >= LEAST_S:
        return Limit(text.strip(), seconds=s)
    raise BadInput(
        f"{text!r} bounds no recording", where="--record-limit",
        fix="give a size of at least 1MB or a time of at least 1min, like 500MB, 2GB, 24h or 7d;"
        " or none",
    )  # fmt: skip


def figure_files(folder: Path) -> list[Path]:
    """The files of figures that are there, oldest first."""
    parts = [p for p in folder.glob("figures-*.jsonl") if _NUMBERED.fullmatch(p.name)]
    newest = folder / FIGURES
    return sorted(parts, key=_number) + ([newest] if newest.is_file() else [])


def dropped(folder: Path) -> Dropped:
    """What went; of nothing where nothing is told."""
    try:
        told = json.loads((folder / DROPPED).read_text("utf-8"))
        return Dropped(**{k: told[k] for k in Dropped.__dataclass_fields__ if k in told})
    except (OSError, ValueError, TypeError):
        return Dropped()


class Keeper:
    """Writes a recording into `folder` and holds it within `limit`. Methods raise OSError."""

    def __init__(self, folder: Path, limit: Limit) -> None:
        self._folder, self._limit = folder, limit
        self._dropped = dropped(folder)
        self._begun: float | None = None  # of the file that is written
        found = ((p.stat(), p) for p in folder.glob("replica-*/metrics-*.txt"))
        rows = sorted((stat.st_mtime, stat.st_size, path) for stat, path in found)
        self._pages = deque((at, size, path) for at, size, path in rows)
        self._of: dict[Path, int] = {}
        for _, _, path in rows:
            self._of[path.parent] = self._of.get(path.parent, 0) + 1
        self._size = sum(size for _, size, _ in rows)

    def add(self, lines: bytes, at: float) -> None:
        """Append whole lines of a look at `at` (s since 1970)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / FIGURES
        with path.open("a+b") as file:
            if file.tell() and not _ends_a_line(file):
                file.write(b"\n")  # behind one that a kill or a full disk cut off
            file.write(lines)
            size = file.tell()
        self._begun = self._begun or _first_at(path) or at
        limit = self._limit
        if (limit.size is not None and size > FIGURES_SHARE * limit.size / PARTS) or (
            limit.seconds is not None and at - self._begun > limit.seconds / PARTS
        ):
            self._number(path)
            self._trim(at)

    def page(self, path: Path, text: str, at: float) -> None:
        """Write a page whole, or not at all."""
        half = path.with_suffix(".part")
        half.write_text(text, "utf-8")
        half.replace(path)
        size = path.stat().st_size
        self._pages.append((at, size, path))
        self._of[path.parent] = self._of.get(path.parent, 0) + 1
        self._size += size
        self._trim_pages(at)

    def _number(self, path: Path) -> None:
        """The next number for the file that was written, so that a new one begins."""
        last = max((_number(p) for p in figure_files(self._folder)), default=0)
        path.rename(self._folder / f"figures-{max(last, self._dropped.part) + 1:06d}.jsonl")
        self._begun = None

    def _trim(self, at: float) -> None:
        files = figure_files(self._folder)
        total = sum(p.stat().st_size for p in files)
        most, oldest = self._limit.size, self._limit.seconds
        for path in files[:-1]:
            over = most is not None and total > FIGURES_SHARE * most * (1 - 1 / PARTS)
            old = oldest is not None and (_last_at(path) or at) < at - oldest
            if not over and not old:
                return
            total -= path.stat().st_size
            self._note(path)
            path.unlink()

    def _note(self, path: Path) -> None:
        """Tell that a file of figures goes; once, also where a kill came before it went."""
        number = _number(path)
        if number <= self._dropped.part:
            return
        self._tell(replace(
            self._dropped, part=number, lines=self._dropped.lines + _lines_in(path),
            begun=_first_at(path) if self._dropped.begun is None else self._dropped.begun,
        ))  # fmt: skip

    def _trim_pages(self, at: float) -> None:
        gone = 0
        kept: list[tuple[float, int, Path]] = []
        while self._pages and self._pages_over(at):
            begun, size, path = self._pages.popleft()
            if self._of[path.parent] <= PAGES_LEFT:
                kept.append((begun, size, path))  # the newest of one that has long been silent
                continue
            path.unlink(missing_ok=True)
            self._of[path.parent] -= 1
            self._size -= size
            gone += 1
        self._pages.extendleft(reversed(kept))
        if gone:
            self._tell(replace(self._dropped, pages=self._dropped.pages + gone))

    def _pages_over(self, at: float) -> bool:
        limit = self._limit
        if limit.size is not None:
            return self._size > PAGES_SHARE * limit.size
        return limit.seconds is not None and self._pages[0][0] < at - limit.seconds

    def _tell(self, what: Dropped) -> None:
        what = replace(what, limit=self._limit.text)
        half = self._folder / f"{DROPPED}.part"
        half.write_text(json.dumps(asdict(what)) + "\n", "utf-8")
        half.replace(self._folder / DROPPED)
        self._dropped = what


def _number(path: Path) -> int:
    found = _NUMBERED.fullmatch(path.name)
    return int(found[1]) if found else 0


def _at(line: bytes) -> float | None:
    try:
        return float(json.loads(line)["at"])
    except (ValueError, KeyError, TypeError):
        return None


def _first_at(path: Path) -> float | None:
    with path.open("rb") as file:
        return next((at for line in file if (at := _at(line)) is not None), None)


def _last_at(path: Path) -> float | None:
    """By its last lines: some kilobytes, as one may be damaged."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 65536))
        told = [at for line in file.read().splitlines() if (at := _at(line)) is not None]
    return told[-1] if told else None


def _lines_in(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, 2)
    return file.read(1) == b"\n"
