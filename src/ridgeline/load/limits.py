"""Limits of this process that would otherwise cap the number of streams in silence."""

from ridgeline.domain.errors import BadInput

SPARE_FILES = 64  # the interpreter's, the store's, and connections that replace closed ones


def ensure_open_files(connections: int) -> None:
    """Raise the open-file limit for that many connections, as far as the hard limit lets us.

    Raises BadInput that names the limit and the value needed when it does not suffice.
    """
    try:
        import resource  # noqa: PLC0415 (not on every platform)
    except ImportError:
        return
    need = connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard == resource.RLIM_INFINITY or hard >= need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need if hard == -1 else hard, hard))
        return
    raise BadInput(
        f"{connections} connections need an open-file limit (RLIMIT_NOFILE) of {need},"
        f" but the hard limit of this process is {hard}",
        where="open files",
        fix=f"raise it (`ulimit -Hn {need}` as root, or LimitNOFILE of the service) or use fewer"
        " users",
    )
