"""The winner at its worst case: as many of the longest requests as it admits, all at once.

A configuration that starts is not one that serves: memory that a start does not touch is taken when
the longest prompts come together. No change is recommended that was not loaded like this; a
baseline that stays is not soaked, it is what runs already.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import GIVEN_UP, RidgelineError
from ridgeline.domain.summary import RequestCounts
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.plan import Plan, PlannedExperiment, file_name, plan_runs
from ridgeline.experiment.protocol import recover
from ridgeline.experiment.runner import run_plan
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.memorymargin import memory_lines
from ridgeline.tuning.outcome import NOT_SOAKED, Soaked
from ridgeline.tuning.setting import LONGEST_NAME, Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.tuning.watching import TrialsWatch, TuneWatch

SOAK = "soak"
SOAK_S = 15.0  # window; every request that fits is in it from its start
GRACE_S = 15.0  # for what is still running then: the question is whether it lives, not how fast
MOST_USERS = 2048
GIB = 2**30
USUAL_SEQS = 256  # vLLM's own ceiling where nothing is given and no GPU says otherwise


@dataclass(slots=True)
class Soak:
    """Runs it; see the module."""

    setting: Setting
    folder: Path
    engines: LastingEngines
    journal: TuneJournal
    watch: TuneWatch
    command: str
    start_s: float | None = None

    def run(self, candidate: Candidate, left_s: float) -> Soaked | None:
        """Load it within `left_s` GPU seconds; what they do not hold is not soaked, which is said.

        None when the user stopped.
        """
        served = self.setting.served(candidate)
        load, words = worst_case(self.setting, candidate)
        base = replace(self.setting, slo=self.setting.slo)
        plan = Plan(
            base.study, SOAK, None,
            (PlannedExperiment(name_of(candidate), served, load, candidate.words),),
            api_slo(base), 1, base.api,
        )  # fmt: skip
        run_id = plan_runs(plan)[0].run_id
        folder = self.folder / SOAK
        begun = time.monotonic()
        needed_s = base.run_s(SOAK_S) * self.setting.gpus_for(candidate)
        held = not base.simulated or needed_s <= left_s  # of a real one the runner looks itself
        if held and not self._known(folder / run_id, plan):
            watch = TrialsWatch({}, self.journal, base.goal, self.watch, {})
            run_plan(
                plan, StudyDirectory(folder), self.engines, watch, command=self.command,
                gpu_minutes=self.setting.minutes_for(left_s, candidate),
                start_s=self.start_s,
            )  # fmt: skip
            took_s = base.run_s(SOAK_S) if base.simulated else time.monotonic() - begun
            gpu_s = took_s * self.setting.gpus_for(candidate)
            self.journal.write("spent", gpu_s=gpu_s, what=SOAK, at=time.time())
        run = read_run(folder / run_id) if is_finished(folder / run_id) else None
        if run is not None and run.state != "interrupted" and not _given_up(run):
            return judged(run, candidate, words)
        if self.watch.stop_asked():
            return None
        why = f"{NOT_SOAKED}: {max(left_s, 0.0):.0f} GPU seconds are left, too few for it"
        return Soaked(candidate.words, candidate.change, words, False, why, soaked=False)

    def _known(self, folder: Path, plan: Plan) -> bool:
        """Whether it was soaked before the process was killed."""
        run = recover(folder)
        (asked,) = plan_runs(plan)
        return (
            run is not None
            and run.meta.fingerprint == asked.fingerprint
            and run.state != "interrupted"
            and not _given_up(run)
        )


def _given_up(run: StoredRun) -> bool:
    """Whether a budget ended its engine's start, which tells nothing about the engine."""
    return run.failure is not None and GIVEN_UP in run.failure.text


def name_of(candidate: Candidate) -> str:
    """The soak as an experiment."""
    words = file_name("-".join(f"{n}-{v}" for n, v in candidate.change.items()) or "baseline")
    digest = hashlib.sha256(repr(candidate.key).encode()).hexdigest()[:6]
    return f"{words[:LONGEST_NAME].rstrip('-.')}-{digest}"


def api_slo(setting: Setting) -> Any:
    """No targets: the worst case need not be fast, it must be survived."""
    return replace(setting.slo, limits=())


def admitted(setting: Setting, candidate: Candidate) -> int:
    """How many requests run at a time at most, over all replicas."""
    served = setting.served(candidate)
    given = served.knobs.max_num_seqs
    replicas = served.knobs.data_parallel_size or 1
    if given is None and served.gpu is not None:
        try:
            given = twin_of(replace(served, engine="twin", launch=None)).knobs.max_num_seqs
        except RidgelineError:
            given = None
    return min((given or USUAL_SEQS) * replicas, MOST_USERS)


def worst_case(setting: Setting, candidate: Candidate) -> tuple[Workload, str]:
    """The longest requests of the study's load, as many as are admitted, and that in words."""
    load, users = setting.workload, admitted(setting, candidate)
    arrivals = Arrivals(users=users, ramp_s=0.0)
    if load.arrivals.trace is not None or load.sessions is not None or load.classes:
        changed = replace(load, arrivals=arrivals if load.arrivals.trace is None else load.arrivals)
        words = f"{users} requests at a time, of the study's own lengths"
    elif load.prompts.file is not None:
        changed = replace(load, arrivals=arrivals)
        words = f"{users} requests at a time, of the file's own lengths"
    else:
        longest, output = load.prompts.tokens.high, load.outputs.tokens.high
        prompts: Prompts = replace(load.prompts, tokens=Lengths(longest))
        outputs: Outputs = replace(load.outputs, tokens=Lengths(output))
        changed = replace(load, arrivals=arrivals, prompts=prompts, outputs=outputs)
        words = f"{users} requests at a time, each of {longest} prompt and {output} output tokens"
    timeouts = replace(load.client.timeouts, grace_s=GRACE_S)
    client = replace(load.client, timeouts=timeouts)
    changed = replace(
        changed, client=client, duration_s=SOAK_S, warmup_s=min(load.warmup_s, SOAK_S),
        warmup_auto=False, requests=None, seed=load.seed + 5000,
    )  # fmt: skip
    return changed, words


def judged(run: StoredRun, candidate: Candidate, words: str) -> Soaked:
    """Whether it lived and answered: no death, no failed request, tokens as long as any waited.

    A void window says nothing against that.
    """
    margin, basis = memory_margin(run)
    made = Soaked(
        candidate.words, candidate.change, words, True, None, margin, basis, run.folder.name,
        memory_lines(run),
    )  # fmt: skip
    if run.failure is not None:
        why = f"starts, dies under load: {run.failure.kind}: {run.failure.text}"
        if run.facts is None and run.failure.kind in ("hung", "refused", "port"):
            why = f"{run.failure.kind}: {run.failure.text}"
        return replace(made, passed=False, reason=why)
    if run.summary is None:
        return replace(made, passed=False, reason="nothing was measured under load")
    requests = run.summary.requests
    if requests.failed:
        kinds = ", ".join(f"{n} {kind}" for kind, n in requests.failures.items())
        return replace(made, passed=False, reason=f"{requests.failed} requests failed: {kinds}")
    silent = _silent(run, requests)
    return made if silent is None else replace(made, passed=False, reason=silent)


def _silent(run: StoredRun, requests: RequestCounts) -> str | None:
    """Why it does not count as alive: no request, or none answered though they waited; else None.

    Long requests need not end in time, but an engine that works gives tokens all the while.
    """
    if not requests.sent:
        return "no request was sent in its window"
    if not requests.unfinished or run.facts is None or run.facts.source == "twin":
        return None if requests.ok or requests.unfinished else "no request came to its end"
    chunks = run.records().chunk_ns
    if len(chunks) and int(chunks.max()) >= run.facts.window.end_ns:
        return None
    waited = f"{requests.unfinished} of {requests.sent} requests were left waiting"
    if not requests.ok and not len(chunks):
        return f"hangs under load: {waited}, and not one has got a token"
    return f"hangs under load: {waited}, and none got a token in the last {GRACE_S:g} s"


def memory_margin(run: StoredRun) -> tuple[float | None, str | None]:
    """GiB of GPU memory that were left on the fullest GPU, and by what that is known."""
    if run.facts is None:
        return None, None
    server = run.facts.server
    told = server.get("telemetry")
    gpus: Sequence[Any] = told.get("gpus", ()) if isinstance(told, dict) else ()
    used = [g["memory_used_max_bytes"] for g in gpus if g.get("memory_used_max_bytes")]
    device = run.meta.configuration.device() if run.meta.configuration.gpu else None
    if used and device is not None:
        left = (device.total_memory_bytes - max(used)) / GIB
        return left, "the driver's highest reading under load, everything on the GPU counted"
    memory = server.get("memory_bytes")
    if isinstance(memory, dict) and memory.get("total") and memory.get("budget"):
        left = (float(memory["total"]) - float(memory["budget"])) / GIB
        return left, "the twin's memory plan"
    return None, None
