"""What the verbs print: results to standard output, everything else to standard error.

The only place that knows the terminal. Colour goes when NO_COLOR is set or nobody looks (rich).
"""

import json
import os
import shlex
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import BadInput, RidgelineError
from ridgeline.domain.secrets import mask, mask_all

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
GATE_FAILED = 1
NOT_COMPLETED = 3


def say(line: str) -> None:
    """One line for the person, on standard error."""
    print(mask(line), file=sys.stderr, flush=True)


def same_console() -> bool:
    """Whether results and the rest go to one place: what the one says the other need not."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError):  # replaced by something that is no file, or closed
        return False


def command_line() -> str:
    """The command as it can be typed again."""
    return shlex.join(["ridgeline", *sys.argv[1:]])


def show(*renderables: Any, to_stderr: bool = False) -> None:
    """Print rich renderables as a result."""
    target = console(to_stderr=to_stderr)
    if target.is_terminal:
        for renderable in renderables:
            target.print(renderable)
        return
    # A file or a pipe gets no padding: rich fills its tables up to the width with spaces.
    with target.capture() as captured:
        for renderable in renderables:
            target.print(renderable)
    text = "\n".join(line.rstrip(" ") for line in captured.get().split("\n"))
    print(text, end="", file=sys.stderr if to_stderr else sys.stdout, flush=True)


def console(*, to_stderr: bool = False) -> "Console":
    """A console of at least 80 columns, without colour unless somebody looks."""
    from rich.console import Console  # noqa: PLC0415  costs too much for --help

    found = Console(stderr=to_stderr, soft_wrap=False, highlight=False)
    if not found.is_terminal and found.width < 80:
        found.width = 80
    return found


def ensure_json_target(target: str | None, out: Path, option: str = "--json") -> None:
    """Find out before the work, not after it, that a file cannot be written; raises BadInput.

    `out` is the folder of the results: it and its parents will have been made by then.
    """
    if target is None or target == "-":
        return
    path = Path(target)
    reason = None
    if path.is_dir():
        reason = "is a directory"
    elif not path.parent.is_dir():
        if path.parent.absolute() in (out.absolute(), *out.absolute().parents):
            return
        reason = "no such folder"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "permission denied"
    if reason is not None:
        raise BadInput(
            f"cannot write ({reason})", where=target, fix=f"give another file to {option}"
        )


def ensure_folder_target(folder: Path) -> None:
    """The same for --out: every part of the path that exists must be a folder."""
    for part in (folder, *folder.parents):
        if part.is_dir():
            return
        if part.exists() or part.is_symlink():
            raise BadInput(
                "is a file, and a folder is needed",
                where=str(part),
                fix="give another folder to --out",
            )


def write_json(target: str | None, body: Any) -> None:
    """Write `body` to a file, to standard output for "-", nowhere for None."""
    if target is None:
        return
    text = json.dumps(mask_all(body), indent=1, ensure_ascii=False, allow_nan=False)
    if target == "-":
        print(text, flush=True)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot write ({(error.strerror or str(error)).lower()})",
            where=target,
            fix="give another file to --json",
        ) from error


def explain(error: BaseException) -> int:
    """Say an error in one line and return its exit code.

    An error that nobody expected leaves its traceback in a file.
    """
    if isinstance(error, RidgelineError):
        say(f"ridgeline: {one_line(str(error))}")
        return error.exit_code
    with tempfile.NamedTemporaryFile(
        "w", prefix="ridgeline-traceback-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(mask("".join(traceback.format_exception(error))))
    kind = type(error).__name__
    say(f"ridgeline: unexpected {kind}: {one_line(str(error))}; the traceback is in {file.name}")
    return NOT_COMPLETED


def one_line(text: str) -> str:
    """Text without line breaks and control characters, which servers and files may carry."""
    flat = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
