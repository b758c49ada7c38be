"""From a stored run to the trial that it is: its state, its objective, its limits."""

from typing import cast

from ridgeline.store.run_directory import StoredRun
from ridgeline.tuning.objective import Goal, interval_of, judge, value_of
from ridgeline.tuning.trial import Candidate, State, Trial

REFUSED = "refused"


def goal_of(objective: str, *, priced: bool) -> Goal:
    """What is made larger for a study's objective; without a price cost goes by tokens per GPU,
    which is the same order as long as all GPUs cost the same.
    """
    if objective == "cost" and not priced:
        return "throughput_per_gpu"
    return cast("Goal", objective)


def trial_of(
    run: StoredRun,
    number: int,
    candidate: Candidate,
    goal: Goal,
    *,
    gpu_s: float,
    bound: str | None = None,
) -> Trial | None:
    """The trial of a run; None for one that the user cut off: it says nothing.

    `bound`: the bound by which it was ended early.
    """
    made = Trial(
        number, candidate, "void", gpu_s=gpu_s, seed=run.meta.workload.seed, run=run.folder.name
    )
    if run.failure is not None:
        state: State = "refused" if run.failure.kind == REFUSED else "crashed"
        return _with(made, run, state, goal, f"{run.failure.kind}: {run.failure.text}")
    if bound is not None:
        return _with(made, run, "infeasible", goal, bound, stopped=True)
    if run.state == "interrupted" and (run.facts is None or run.facts.interrupted):
        return None
    if run.summary is None:
        return _with(made, run, "void", goal, "nothing was measured inside the window")
    state, _ = judge(run.summary)
    void = "; ".join(run.summary.verdict.reasons) if state == "void" else None
    return _with(made, run, state, goal, void)


def _with(
    trial: Trial, run: StoredRun, state: State, goal: Goal, reason: str | None, *,
    stopped: bool = False,
) -> Trial:  # fmt: skip
    """The trial with what the run measured; a value only where its figures count."""
    summary, gpus = run.summary, run.meta.configuration.gpus
    counts = summary is not None and not stopped and state in ("feasible", "unsure", "infeasible")
    low, high = interval_of(summary, goal, gpus) if counts and summary else (None, None)
    return Trial(
        trial.number,
        trial.candidate,
        state,
        value=value_of(summary, goal, gpus) if counts and summary else None,
        low=low,
        high=high,
        limits=() if summary is None else judge(summary)[1],
        window_s=0.0 if run.facts is None else run.facts.window.seconds,
        gpu_s=trial.gpu_s,
        seed=trial.seed,
        stopped=stopped,
        reason=reason,
        run=trial.run,
    )
