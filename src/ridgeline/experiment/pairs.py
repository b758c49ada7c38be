"""Which runs may be compared with which, and which pairs lie too far apart in time.

A pair of measured runs is only as good as what its two halves share: the same build of the server,
the same process where one server answers for both, and about the same hour.
"""

import datetime
from collections.abc import Mapping, Sequence

from ridgeline.store.run_directory import StoredRun

FAR_APART_S = 3600.0  # clocks, neighbours and temperatures of a machine do not stay for longer


def server_build(run: StoredRun) -> str | None:
    """Engine and version that answered a measured run; None for a twin or when it did not tell.

    A twin's build needs no watch: its source is part of the run's fingerprint.
    """
    if run.facts is None or run.facts.source == "twin":
        return None
    name, version = run.facts.server.get("engine"), run.facts.server.get("version")
    return None if version is None else f"{name or run.meta.configuration.engine} {version}"


def on_another_build(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Of one experiment: the valid runs that its latest build did not answer, each with why.

    One experiment is one configuration: repeats of two builds are not repeats.
    """
    valid = sorted((r for r in runs if r.valid), key=lambda r: r.meta.started_at)
    known = [build for r in valid if (build := server_build(r)) is not None]
    if not known:
        return {}
    return {
        r.meta.run_id: f"measured on {build}, later repeats on {known[-1]}"
        for r in valid
        if (build := server_build(r)) not in (None, known[-1])
    }


def comparable(first: StoredRun, second: StoredRun) -> bool:
    """False when both ran on known, different builds and no study file says so.

    Another URL or another `engine_version` is a difference that was asked for.
    """
    a, b = first.meta.configuration, second.meta.configuration
    if a.url != b.url or a.engine_version != b.engine_version:
        return True
    builds = {server_build(first), server_build(second)} - {None}
    return len(builds) < 2


def same_builds(
    first: Mapping[int, StoredRun], second: Mapping[int, StoredRun]
) -> tuple[dict[int, StoredRun], dict[int, StoredRun]]:
    """Both (repeat -> run) without the pairs that may not be compared."""
    wrong = {r for r in set(first) & set(second) if not comparable(first[r], second[r])}
    return (
        {r: run for r, run in first.items() if r not in wrong},
        {r: run for r, run in second.items() if r not in wrong},
    )


def refused(first: Mapping[int, StoredRun], second: Mapping[int, StoredRun]) -> str | None:
    """Why no pair of the two (repeat -> run) may be compared, None when there is one that may."""
    repeats = sorted(set(first) & set(second))
    wrong = [r for r in repeats if not comparable(first[r], second[r])]
    if not wrong:
        return None
    run, other = first[wrong[0]], second[wrong[0]]
    return (
        f"{run.meta.experiment} was measured on {server_build(run)} and {other.meta.experiment} on"
        f" {server_build(other)}: {'no pair' if len(wrong) == len(repeats) else 'not every pair'}"
        " of them is compared; measure again with another --out"
    )


def far_apart(first: Mapping[int, StoredRun], second: Mapping[int, StoredRun]) -> str | None:
    """A warning about pairs that are not interleaved, None when all are (or a twin answered)."""
    apart: dict[int, float] = {}
    restarted = False
    for repeat in sorted(set(first) & set(second)):
        run, other = first[repeat], second[repeat]
        if "twin" in (run.meta.configuration.engine, other.meta.configuration.engine):
            continue
        seconds = abs((_time(run) - _time(other)).total_seconds())
        anew = _another_start(run, other)
        if seconds > FAR_APART_S or anew:
            apart[repeat] = seconds
            restarted = restarted or anew
    if not apart:
        return None
    run, other = next(iter(first.values())), next(iter(second.values()))
    which = ", ".join(map(str, apart))
    between = " and another start of the server lies between" if restarted else ""
    return (
        f"{run.meta.experiment} and {other.meta.experiment} are not interleaved in repeat {which}:"
        f" measured up to {_span(max(apart.values()))} apart{between}; what changed meanwhile is"
        " part of their difference"
    )


def _another_start(first: StoredRun, second: StoredRun) -> bool:
    """True when one URL answered for both, from processes with different start times."""
    if first.facts is None or second.facts is None:
        return False
    if first.meta.configuration.url is None:
        return False  # engines of ours: every configuration has a process of its own
    if first.meta.configuration.url != second.meta.configuration.url:
        return False
    starts = [run.facts.server.get("process_starts") for run in (first, second) if run.facts]
    return None not in starts and starts[0] != starts[1]


def _time(run: StoredRun) -> datetime.datetime:
    return datetime.datetime.fromisoformat(run.meta.started_at)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
