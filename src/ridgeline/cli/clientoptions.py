"""What the options about the load client mean."""

from typing import TYPE_CHECKING

from ridgeline.domain.errors import BadInput, nearest

if TYPE_CHECKING:
    from ridgeline.domain.workload import Client

AUTO = "auto"
MOST_WORKERS = 256
LONGEST_TIME_S = 86400.0


def client_of(
    workers: str,
    *,
    connect: float,
    first_token: float,
    chunk: float,
    whole: float,
    grace: float,
) -> "Client":
    """The client from its options; times in seconds, 0 = no limit. Raises BadInput.

    A connection needs a limit: a server that takes none would hold up the run without end.
    """
    from ridgeline.domain.workload import Client, Timeouts  # noqa: PLC0415  --help is quick

    times = {
        "--connect-timeout": connect, "--first-token-timeout": first_token,
        "--chunk-timeout": chunk, "--timeout": whole, "--grace": grace,
    }  # fmt: skip
    for name, seconds in times.items():
        if not 0 <= seconds <= LONGEST_TIME_S:  # nan is refused here, too
            raise BadInput(f"{name} must be 0 to {LONGEST_TIME_S:g} seconds, not {seconds:g}")
    if connect == 0:
        raise BadInput("--connect-timeout must be above 0 seconds")
    limits = Timeouts(connect, first_token or None, chunk or None, whole or None, grace)
    if workers == AUTO:
        return Client("auto", limits)
    if not workers.isdecimal() or not 1 <= int(workers) <= MOST_WORKERS:
        raise BadInput(f"--workers must be 1 to {MOST_WORKERS} or {AUTO}, not {workers!r}")
    return Client(int(workers), limits)


def routing_of(rule: str, urls: int) -> str:
    """A rule for spreading requests over that many base URLs. Raises BadInput."""
    from ridgeline.domain.routing import ROUTINGS  # noqa: PLC0415

    if rule not in ROUTINGS:
        raise BadInput(
            f"unknown --routing {rule!r}{nearest(rule, ROUTINGS)}",
            fix=f"use one of {', '.join(ROUTINGS)}",
        )
    if rule != ROUTINGS[0] and urls == 1:
        raise BadInput(
            f"--routing {rule} spreads requests over several servers, and there is one URL",
            fix="give the others with --url",
        )
    return rule
