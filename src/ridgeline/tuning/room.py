"""How many trials of a question may be measured side by side on the GPUs of one host.

Each takes GPUs of its own, and cores of its own: a client without a core reads late, and what it
measures is then the neighbours' doing. Which trials meet is decided here, how in `sidebyside`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.experiment.runner import usable_cores
from ridgeline.load.crew import workers_for
from ridgeline.telemetry.gpu import open_nvml
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate

# An API server and a core of the engine, beside one process for each GPU: what vLLM's own guide
# takes for the least.
ENGINE_CORES = 2


@dataclass(frozen=True, slots=True)
class Room:
    """The GPUs that trials share, by the names that CUDA_VISIBLE_DEVICES knows, and how many trials
    may share them at once. why: one line on that for the plan, "" where nobody would ask.
    """

    gpus: tuple[str, ...]
    most: int
    gpus_of: Callable[[Candidate], int]
    why: str = ""

    @property
    def several(self) -> bool:
        """Whether any two may."""
        return self.most > 1

    def fits(self, candidates: Sequence[Candidate]) -> bool:
        """Whether these may be measured at once."""
        return len(candidates) <= self.most and sum(map(self.gpus_of, candidates)) <= len(self.gpus)


@dataclass(slots=True)
class Packing:
    """Which GPUs are free; hands them out and takes them back. Never more than there are."""

    gpus: tuple[str, ...]
    _used: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        """How many are."""
        return len(self.gpus) - len(self._used)

    def take(self, count: int) -> tuple[str, ...]:
        """The first free ones: neighbours in the driver's order where nothing lies between them.

        Raises ValueError where there are fewer.
        """
        free = [name for name in self.gpus if name not in self._used]
        if count > len(free):
            raise ValueError(f"{count} GPUs are asked for, {len(free)} are free")
        self._used |= set(free[:count])
        return tuple(free[:count])

    def give(self, names: Sequence[str]) -> None:
        """They are free again."""
        self._used -= set(names)


def room_of(setting: Setting, *, cores: int | None = None, visible: int | None = None) -> Room:
    """What the host of a setting has room for.

    cores: of this host, None = those that this process may use. visible: GPUs that the driver
    shows, None = not known; the study's count is then believed.
    """
    base, spec = setting.configuration, setting.spec

    def gpus_of(candidate: Candidate) -> int:
        return max(setting.served(candidate).gpus, 1)

    counted = max(spec.host_gpus or 0, base.gpus)
    names = _names(counted, visible)

    def room(most: int, why: str = "") -> Room:
        return Room(names, max(most, 1), gpus_of, why)

    far = base.launch is not None and base.launch.host is not None
    if setting.simulated or base.gpu is None or len(names) < 2 or spec.side_by_side == 1:
        return room(1)
    if far:
        return room(1, "trials on another host run one at a time")
    if setting.places > 1:
        return room(1, "engines that stay up (launch.resident) share their GPUs, one loaded at a"
                    " time; leave resident out for trials on GPUs of their own")  # fmt: skip
    client = setting.workload.client.workers
    if client == "auto":
        return room(1, "one trial at a time: client.workers auto takes all cores but one for it;"
                    " give a number")  # fmt: skip
    arrivals = setting.workload.arrivals
    workers = workers_for(client, arrivals.peak_users, arrivals.max_concurrency)
    most, why = _by_cores(setting, len(names), workers, cores or usable_cores())
    missing = f" ({counted} are counted in the file)" if len(names) < counted else ""
    return room(most, why + missing)


def gpus_shown(setting: Setting) -> int | None:
    """GPUs of this host that the driver shows and this process may use; None = not known."""
    if setting.simulated or setting.configuration.gpu is None:
        return None
    sampler = open_nvml()
    return None if sampler is None else len(sampler.sample())


def _by_cores(setting: Setting, gpus: int, workers: int, cores: int) -> tuple[int, str]:
    """How many trials the cores carry, at most one a GPU; and why."""
    own = setting.configuration.gpus
    needed = workers + ENGINE_CORES + own
    wanted = min(gpus, setting.spec.side_by_side or gpus)
    most = min(wanted, cores // needed)
    each = (
        f"a trial takes {needed} cores ({workers} for its client, {ENGINE_CORES} + {own} for its"
        " engine)"
    )
    if most <= 1 < wanted:
        return 1, f"one trial at a time on {gpus} GPUs: {each}, and there are {cores}"
    short = f", not {wanted}: {each}, and there are {cores}" if most < wanted else ""
    return most, f"up to {most} trials side by side on {gpus} GPUs{short}"


def _names(count: int, visible: int | None) -> tuple[str, ...]:
    """The first `count` GPUs by their names, of those that are there and may be used."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [n.strip() for n in listed.split(",")] if listed else [str(i) for i in range(count)]
    return tuple(names[: count if visible is None else min(count, visible)])
