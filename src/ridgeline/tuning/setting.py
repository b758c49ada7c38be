"""What is tuned: one study's baseline, its load, targets and objective, and how long runs take."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Workload
from ridgeline.experiment.budget import EXPECTED_START_S
from ridgeline.experiment.plan import file_name, model_digest
from ridgeline.experiment.planning import with_changes
from ridgeline.store.codec import to_plain
from ridgeline.tuning.judging import goal_of
from ridgeline.tuning.objective import Goal
from ridgeline.tuning.trial import Candidate
from ridgeline.workload.study import Study, TuneSpec

CPU_START_S = 30.0  # of an engine without a GPU, before one was seen
AROUND_S = 1.5  # a run's replies that end after the window, and its bookkeeping
LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Setting:
    """The baseline with everything that a trial of it needs."""

    study: str
    configuration: Configuration
    workload: Workload
    slo: Slo
    api: str
    spec: TuneSpec

    @property
    def goal(self) -> Goal:
        """What is made larger."""
        return goal_of(self.spec.objective, priced=bool(self.configuration.price_per_gpu_hour))

    @property
    def window_s(self) -> float:
        """The shortest window of a trial."""
        return self.spec.window_s or self.workload.duration_s

    @property
    def simulated(self) -> bool:
        """Whether a twin answers."""
        return self.configuration.engine == "twin"

    @property
    def places(self) -> int:
        """How many engines may be up side by side: as the launch says, where each one's memory is
        known.
        """
        launch, knobs = self.configuration.launch, self.configuration.knobs
        known = knobs.kv_cache_memory_bytes is not None
        if self.configuration.gpu is not None and not self.simulated:
            known = known and knobs.gpu_memory_utilization is not None
        return (launch.resident or 1) if launch is not None and known else 1

    @property
    def first_start_s(self) -> float:
        """Seconds that an engine's start is expected to take before one was seen."""
        usual = CPU_START_S if self.configuration.gpu is None else EXPECTED_START_S
        launch = self.configuration.launch
        return usual if launch is None else min(usual, launch.ready_s)

    @property
    def cold_s(self) -> float:
        """Seconds of the first load of a fresh engine."""
        launch = self.configuration.launch
        if self.simulated:
            return 0.0
        if launch is None or launch.cold_s is None:
            return self.workload.warmup_s + self.workload.duration_s
        return launch.cold_s

    def run_s(self, window_s: float) -> float:
        """Seconds of one run on an engine that is up."""
        return self.workload.warmup_s + window_s + AROUND_S

    def starts(self, engines: int, rounds: int = 1) -> int:
        """Engine starts of so many rounds of so many contenders, none of which is up.

        Where they do not all stay up side by side they take turns (A B C, C B A, ...): those that
        end a round begin the next one, all others but the first (the baseline, where it has a place
        of its own) are started anew.
        """
        places, rest = self.places, engines - 1
        if engines <= places:
            return engines
        stays = 1 if places == 1 else rest % (places - 1) or places - 1
        again = rest if places == 1 else rest - stays
        return engines + max(rounds - 1, 0) * again

    def starting_s(self, start_s: float, engines: int, up: int = 0, rounds: int = 1) -> float:
        """Seconds that the starts of so many rounds take (`starts`), where one takes `start_s`.

        `up` of the engines are already, which helps where all stay up side by side.
        """
        places, launch = self.places, self.configuration.launch
        side_by_side = launch is None or launch.start_together
        if engines <= places:
            fresh = max(engines - up, 0)
            return start_s * (min(fresh, 1) if side_by_side else fresh)
        if places == 1 or not side_by_side:
            return start_s * self.starts(engines, rounds)
        groups = math.ceil((engines - 1) / (places - 1))  # the first one stays up
        return start_s * (groups + max(rounds - 1, 0) * (groups - 1))

    def gpus_for(self, *candidates: Candidate) -> int:
        """GPUs that are paid for while these are measured: at least the baseline's, which the host
        has, whether they use them or not. A GPU minute is one of these for a minute of wall time.
        """
        return max(self.configuration.gpus, *(self.served(c).gpus for c in candidates), 1)

    def minutes_for(self, left_s: float, *candidates: Candidate) -> float | None:
        """GPU minutes as the runner of a plan counts them (those of a run's own GPUs), so that
        their wall time is what `left_s` GPU seconds give; None for no limit, and for a twin.
        """
        if self.simulated or math.isinf(left_s):
            return None
        own = max(self.served(c).gpus for c in candidates)
        return max(left_s, 0.0) / self.gpus_for(*candidates) * own / 60

    def served(self, candidate: Candidate) -> Configuration:
        """The candidate's configuration; raises BadInput for what is no knob."""
        return with_changes(self.configuration, candidate.change)

    def offered(self, window_s: float, seed: int) -> Workload:
        """The load over such a window with that seed."""
        return replace(self.workload, duration_s=window_s, seed=seed)

    @property
    def fingerprint(self) -> str:
        """Equal for tunings whose trials count for each other."""
        body: Mapping[str, Any] = {
            "configuration": to_plain(replace(self.configuration, price_per_gpu_hour=None)),
            "model_files": model_digest(self.configuration),
            "workload": to_plain(self.workload),
            "slo": to_plain(self.slo),
            "api": self.api,
            "goal": self.goal,
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def setting_of(study: Study) -> Setting:
    """What a study file asks to be tuned: its baseline."""
    base = study.baseline
    return Setting(study.name, base.configuration, base.workload, study.slo, study.api, study.tune)


def trial_name(number: int, candidate: Candidate) -> str:
    """A readable name that is safe as a folder's: trial-007-max_num_seqs-128."""
    words = "-".join(f"{n}-{v}" for n, v in candidate.change.items()) or "baseline"
    return file_name(f"trial-{number:03d}-{words}")[:LONGEST_NAME].rstrip("-.")
