"""Saved scrapes: how people ask for help. Written masked, read with the times that are known."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from ridgeline.diagnosis.gathering import Snapshot
from ridgeline.diagnosis.lives import same_process
from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import MASK, looks_secret, mask, secret_name
from ridgeline.telemetry.prometheus import Scrape, parse_metrics, restarted, whole_lines

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)(\s*=\s*)"((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"^[ \t]*#(?! (?:HELP|TYPE|UNIT|EOF|ridgeline:)).*\n?", re.MULTILINE)
_AT = re.compile(r"^# ridgeline: read at ([0-9.]+)$", re.MULTILINE)


def masked(text: str) -> str:
    """A page without what its labels hold of secrets, known by their name or by their form.

    Nor with comments that are none of the format's: nobody knows what they hold.
    """

    def one(label: re.Match[str]) -> str:
        return f'{label[1]}{label[2]}"{label_masked(label[1], label[3])}"'

    kept = _LABEL.sub(one, _COMMENT.sub("", text))
    return mask("\n".join(line for line in kept.split("\n")
                          if not (line.startswith("#") and looks_secret(line))))  # fmt: skip


def label_masked(name: str, value: str) -> str:
    """One label's value, or MASK where its name or its form says that it is secret."""
    return MASK if value and (secret_name(name) or looks_secret(value)) else mask(value)


def parsed(text: str, where: str) -> Scrape:
    """A page as a Scrape, its secrets masked. Raises BadInput for what is no page of metrics."""
    try:
        page = parse_metrics(masked(whole_lines(text)))
    except (ValueError, KeyError, IndexError) as error:
        raise BadInput(
            f"is no page of metrics ({str(error) or type(error).__name__})",
            where=where,
            fix="save one with `curl -s URL/metrics > FILE`",
        ) from None
    if not page.samples:
        raise BadInput("holds no metrics", where=where, fix="save one with `curl -s URL/metrics`")
    return page


def stamped(text: str, at_s: float) -> str:
    """A page to be saved: masked, with its time (s since 1970) in a comment."""
    return f"# ridgeline: read at {at_s:.3f}\n{masked(text)}"


def read_saved(
    files: Sequence[Path], apart_s: float | None, cut: list[Path] | None = None
) -> list[Snapshot]:
    """Saved pages as snapshots, in the order given.

    cut: takes in the pages without any metric, which are left out; else they are refused.

    Their times: from the comment of pages that Ridgeline saved; else `apart_s` between them; else
    when the files were written, where that ascends. With none of these no rates are known.
    """
    if cut is not None:
        empty = [file for file in files if _holds_nothing(_text(file))]
        cut += empty
        files = [file for file in files if file not in empty]
    texts = [_text(file) for file in files]
    pages = [parsed(text, str(file)) for text, file in zip(texts, files, strict=True)]
    told = [_AT.search(text) for text in texts]
    times: list[float | None]
    if all(told):
        times = [float(match[1]) for match in told if match is not None]
    elif apart_s is not None:
        times = [i * apart_s for i in range(len(files))]
    else:
        written = [file.stat().st_mtime for file in files]
        ascending = all(b - a >= 1.0 for a, b in itertools.pairwise(written))
        times = list(written) if ascending else [None] * len(files)
    known = [t for t in times if t is not None]
    if known != sorted(known):
        raise BadInput(
            "is older than the one before it", where="--from", fix="name the files in their order"
        )
    for before, after, file in zip(pages, pages[1:], files[1:], strict=False):
        if same_process(before, after) and restarted(before, after):
            raise BadInput(
                "shows less than the one before it, of the same process", where=str(file),
                fix="name the files in their order, and those of one server only",
            )  # fmt: skip
    return [Snapshot(at, page) for at, page in zip(times, pages, strict=True)]


def _holds_nothing(text: str) -> bool:
    try:
        return not parse_metrics(whole_lines(text)).samples
    except (ValueError, KeyError, IndexError):
        return False  # it holds something, and no page: that is an error


def series_of(paths: Sequence[Path]) -> list[list[Path]]:
    """Files as they are given; of a folder its pages, or those of each replica in it.

    A folder: of `doctor --save` or `watch --record`. Raises BadInput for one without pages.
    """
    if not any(path.is_dir() for path in paths):
        return [list(paths)]
    if len(paths) > 1:
        raise BadInput("give one folder, or files", where="--from")
    (folder,) = paths
    inside = [sorted(own.glob("metrics-*.txt")) for own in
              (folder, *sorted(folder.glob("replica-*")))]  # fmt: skip
    found = [files for files in inside if files]
    if not found:
        raise BadInput("holds no metrics-*.txt", where=str(folder),
                       fix="give a folder of `doctor --save` or `watch --record`")  # fmt: skip
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise BadInput(
            f"cannot be read ({(error.strerror or str(error)).lower()})", where=str(file)
        ) from None
