"""Long columns piece by piece: a run of a million chunks must not be held several times over."""

from collections.abc import Iterator

AT_ONCE = 1 << 16


def pieces(length: int) -> Iterator[slice]:
    """Slices that cover so many rows, each short enough for what is made of it meanwhile."""
    for begin in range(0, length, AT_ONCE):
        yield slice(begin, begin + AT_ONCE)
