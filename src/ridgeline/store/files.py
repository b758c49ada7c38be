"""Files that are either whole or not there, and disk errors as one clear line."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import StoreError
from ridgeline.domain.secrets import mask_all

_FIXES = {
    errno.ENOSPC: "free some space and start the same command again: finished runs are kept",
    errno.EDQUOT: "raise the quota and start the same command again: finished runs are kept",
    errno.EACCES: "choose a folder that you may write to with --out",
    errno.EPERM: "choose a folder that you may write to with --out",
    errno.EROFS: "choose a folder that you may write to with --out",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another folder with --out",
    errno.EEXIST: "a file stands where a folder is needed; choose another folder with --out",
}


def store_error(error: OSError, path: Path, doing: str = "cannot write") -> StoreError:
    """Turn an operating-system error into the line that a person reads."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    fix = _FIXES.get(error.errno or 0, "choose another folder with --out")
    return StoreError(f"{doing} ({reason.lower()})", where=str(path), fix=fix)


@contextlib.contextmanager
def clear_errors(path: Path, doing: str = "cannot write") -> Iterator[None]:
    """Raise StoreError instead of OSError."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path, doing) from error


def make_folder(path: Path) -> Path:
    """Create `path` and its parents; raises StoreError when that is not possible."""
    with clear_errors(path, "cannot create the folder"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk; file systems that cannot are left alone."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with clear_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, body: Any) -> None:
    """Write indented JSON atomically. NaN and infinity are refused: they are not JSON.

    API keys are masked: the last line of defence against a server that quotes one.
    """
    text = json.dumps(mask_all(body), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises StoreError when it is missing or damaged."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(
            f"cannot read ({(error.strerror or str(error)).lower()})", where=str(path)
        ) from error
    except ValueError as error:
        raise StoreError(f"is damaged: not JSON ({error})", where=str(path)) from error
    if not isinstance(body, dict):
        raise StoreError("is damaged: not a JSON object", where=str(path))
    return body
