"""Errors that a person reads: one line that says what, where and what to do.

Every layer raises these; only the command line prints them and turns them into an exit code.
"""

import difflib
from collections.abc import Iterable


class RidgelineError(Exception):
    """Base of all expected failures. `str(error)` is the whole line that a person sees."""

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        line = what if where is None else f"{where}: {what}"
        super().__init__(line if fix is None else f"{line}; {fix}")


class BadInput(RidgelineError):
    """The user's file, flag or value is wrong (exit code 2)."""


class EndpointError(RidgelineError):
    """A server cannot be reached or does not speak the protocol (exit code 3)."""

    exit_code = 3


GIVEN_UP = "the start was given up"  # by the user's stop or a budget: no fault of the engine


class RunFailed(RidgelineError):
    """A run could not be completed; what was measured until then is kept (exit code 3)."""

    exit_code = 3


class StoreError(RidgelineError):
    """Results cannot be written or read (exit code 3)."""

    exit_code = 3


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name closest to `name`, or ""."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""
