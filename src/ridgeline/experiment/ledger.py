"""What a study's folder holds: its index before and between runs, and what is done already.

A run that is there under the same fingerprint is not measured again; other targets or another price
only judge it anew. What belongs to an earlier study file stays in the index, marked as outdated.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ridgeline.domain.errors import StoreError
from ridgeline.experiment.plan import Plan, PlannedRun, plan_runs, ridgeline_version, utc_now
from ridgeline.experiment.protocol import judge_again, priced, recover
from ridgeline.store.files import make_folder
from ridgeline.store.run_directory import (
    State,
    StoredRun,
    is_finished,
    read_run,
    set_aside,
    write_run,
)
from ridgeline.store.study_directory import (
    ExperimentEntry,
    RunEntry,
    StudyDirectory,
    StudyIndex,
)

KEPT: tuple[State, ...] = ("done",)
AGAIN: tuple[State, ...] = ("void", "failed")  # measured in full, and worth another try


def begin_index(
    plan: Plan,
    runs: Sequence[PlannedRun],
    directory: StudyDirectory,
    command: str,
    whole: Plan,
) -> StudyIndex:
    """The index before any run.

    Of an earlier start in the same folder it keeps the date, and every run that is on disk.
    """
    earlier = None
    if directory.exists():
        earlier = directory.index()
        if (earlier.name, earlier.kind) != (plan.name, plan.kind):
            raise StoreError(
                f"holds the {earlier.kind} {earlier.name!r}",
                where=str(directory.path),
                fix="choose another folder with --out",
            )
    make_folder(directory.path)
    engines = dict.fromkeys(e.configuration.engine for e in plan.experiments)
    entries = {
        r.run_id: RunEntry(
            r.run_id, r.experiment, r.repeat, r.workload.seed, "planned", r.fingerprint
        )
        for r in runs
    }
    others = {} if earlier is None else _others_on_disk(earlier, directory, entries, whole)
    return StudyIndex(
        name=plan.name,
        kind=plan.kind,
        engine=", ".join(engines),
        baseline=plan.baseline,
        experiments=_experiments(plan, whole, earlier, others),
        order=(*entries, *others),
        runs={**entries, **others},
        created_at=utc_now() if earlier is None else earlier.created_at,
        command=command,
        ridgeline=ridgeline_version(),
    )


def _others_on_disk(
    earlier: StudyIndex,
    directory: StudyDirectory,
    planned: Mapping[str, RunEntry],
    whole: Plan,
) -> dict[str, RunEntry]:
    """Runs beside the planned ones that were measured before.

    Outdated are those that the whole study, with as many repeats as there are, would do otherwise.
    The others stand in one table with the planned ones: they too take today's targets and price.
    """
    found = {
        e.run_id: (e, run)
        for e in earlier.runs.values()
        if e.run_id not in planned and (run := recover(directory.run_folder(e.run_id))) is not None
    }
    if not found:
        return {}
    repeats = max(e.repeat for e, _ in found.values())
    every = tuple(replace(e, repeats=None) for e in whole.experiments)
    full = replace(whole, repeats=repeats, experiments=every)
    now = {r.run_id: r for r in plan_runs(full)}
    return {run_id: _other(e, run, now.get(run_id)) for run_id, (e, run) in found.items()}


def _other(entry: RunEntry, stored: StoredRun, now: PlannedRun | None) -> RunEntry:
    """The entry of a run that is not asked for; `now`: what the study would do in its place."""
    if now is None or now.fingerprint != entry.fingerprint:
        return replace(entry, outdated=True)
    if stored.meta.fingerprint != entry.fingerprint:
        return replace(entry, outdated=False)
    return entry_of(_judged_by(stored, now))


def _experiments(
    plan: Plan, whole: Plan, earlier: StudyIndex | None, others: Mapping[str, RunEntry]
) -> tuple[ExperimentEntry, ...]:
    """Those of the plan, and those of the other runs, in the order of the study file."""
    chosen = {e.name for e in plan.experiments} | {e.experiment for e in others.values()}
    found = {e.name: ExperimentEntry(e.name, e.change) for e in whole.experiments}
    for entry in earlier.experiments if earlier is not None else ():
        found.setdefault(entry.name, entry)
    return tuple(entry for name, entry in found.items() if name in chosen)


def split_runs(
    runs: Sequence[PlannedRun], directory: StudyDirectory, *, keep: bool
) -> tuple[list[PlannedRun], list[StoredRun]]:
    """Runs still to be done, and those that are there.

    What was measured in full but is void or failed is done again last: first comes what has no
    result at all. It stays in its place until then. Anything else that stands in the way is moved
    aside.
    """
    todo, again, kept = [], [], []
    for run in runs:
        folder = directory.run_folder(run.run_id)
        found = recover(folder)
        if keep and found is not None and found.meta.fingerprint == run.fingerprint:
            found = _judged_by(found, run)
        if found is None:
            todo.append(run)
        elif not keep or found.meta.fingerprint != run.fingerprint:
            set_aside(folder)
            todo.append(run)
        elif found.state in KEPT:
            kept.append(found)
        elif found.state in AGAIN:
            kept.append(found)
            again.append(run)
        else:
            set_aside(folder)
            todo.append(run)
    return [*todo, *again], kept


def _judged_by(found: StoredRun, run: PlannedRun) -> StoredRun:
    """The run on disk under the targets and the price that the study has now; stores a change.

    A copy whose chunks were left out keeps the targets that it was judged by, and takes the price.
    So does a run of which a table is missing. `incomplete` tells of both.
    """
    price = run.configuration.price_per_gpu_hour
    configuration = replace(found.meta.configuration, price_per_gpu_hour=price)
    kept = found.trimmed or found.damage is not None
    slo = found.meta.slo if kept else run.slo
    meta = replace(found.meta, slo=slo, configuration=configuration)
    if meta == found.meta or found.unsaved is not None:
        return found
    judged = priced(found, meta) if kept else judge_again(replace(found, meta=meta))
    write_run(judged)
    return judged


def entry_of(run: StoredRun) -> RunEntry:
    """A finished run as the index tells of it."""
    reason = None
    if run.failure is not None:
        reason = f"{run.failure.kind}: {run.failure.text}"
    elif run.summary is not None and not run.summary.verdict.valid:
        reason = "; ".join(run.summary.verdict.reasons)
    elif run.state == "interrupted":
        reason = "stopped before its end"
    meta = run.meta
    return RunEntry(
        meta.run_id,
        meta.experiment,
        meta.repeat,
        meta.workload.seed,
        run.state,
        meta.fingerprint,
        reason,
        tries=meta.tries,
    )


def judge_study_again(directory: StudyDirectory) -> StudyIndex:
    """Judge every finished run of a study again (see `judge_again`); raises StoreError.

    Verdicts belong to the rules, not to the measurement: when a rule changes, runs are judged from
    their records, not measured anew. One whose tables are damaged stays as it is.
    """
    with directory.held():
        index = directory.index()
        for run_id in index.order:
            folder = directory.run_folder(run_id)
            if is_finished(folder):
                run = read_run(folder)
                entry = entry_of(run if run.damage is not None else judge_again(run))
                index = index.with_run(replace(entry, outdated=index.runs[run_id].outdated))
        directory.write_index(index)
    return index


def recover_study(directory: StudyDirectory) -> tuple[StudyIndex, dict[str, StoredRun]]:
    """The index of a study, and by run id the runs that were cut off and are recovered now.

    A directory that cannot be written to is read all the same.
    """
    index = directory.index()
    recovered: dict[str, StoredRun] = {}
    if directory.is_held():
        return index, recovered
    changed = index
    for run_id, entry in index.runs.items():
        if entry.state not in ("planned", "running"):
            continue
        found = recover(directory.run_folder(run_id))
        if found is not None and found.meta.fingerprint == entry.fingerprint:
            recovered[run_id] = found
            changed = changed.with_run(replace(entry_of(found), outdated=entry.outdated))
        elif entry.state == "running":
            gone = "the process that measured it is gone"
            changed = changed.with_run(replace(entry, state="interrupted", reason=gone))
    if changed != index and all(run.unsaved is None for run in recovered.values()):
        with contextlib.suppress(StoreError):
            directory.write_index(changed)
    return changed, recovered
