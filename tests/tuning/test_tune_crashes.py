"""A planted crash region: engines beyond a setting do not start, and the search has to leave it.

It lies where the search would like to go (more slots are faster here), and it costs a start each
time. After at most two of them nothing beyond it is started any more.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration
from ridgeline.engines.base import Endpoint
from ridgeline.tuning.assembling import assembled
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.watching import SilentTuneWatch
from ridgeline.workload.study import TuneSpec
from support.tunedengine import TunedEngine, setting

SPACE = {
    "max_num_seqs": (32, 64, 96, 128, 160, 192, 256),
    "gpu_memory_utilization": (0.8, 0.85, 0.9, 0.93, 0.95, 0.97),
    "max_num_batched_tokens": (1024, 2048, 4096),
}


@dataclass
class Cliff(TunedEngine):
    """Does not start beyond `most` of `knob`; what it was started with is kept."""

    knob: str = "max_num_seqs"
    most: float = 150.0
    beyond: list[float] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        value = getattr(configuration.knobs, self.knob) or 0
        if value > self.most:
            self.beyond.append(value)
            raise RunFailed("CUDA out of memory, says the engine", where="fake")
        self.ran.append(value)
        with super().start(configuration) as endpoint:
            yield endpoint


def over_the_cliff() -> Setting:
    made = setting()
    knobs = replace(
        made.configuration.knobs, max_num_seqs=64, gpu_memory_utilization=0.9,
        max_num_batched_tokens=2048,
    )  # fmt: skip
    base = replace(made.configuration, model="Qwen/Qwen3-4B", knobs=knobs)
    return replace(made, configuration=base, spec=TuneSpec(only=True, finalists=2, space=SPACE))


@pytest.mark.parametrize(
    ("knob", "most"), [("max_num_seqs", 150), ("gpu_memory_utilization", 0.92)]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_crash_region_is_left_after_two_starts(
    tmp_path: Path, knob: str, most: float, seed: int
) -> None:
    made, engine, watch = over_the_cliff(), Cliff(knob=knob, most=most), SilentTuneWatch()
    with (
        TuneJournal(tmp_path) as journal,
        LastingEngines(lambda name: engine, made.places, made.configuration) as engines,
        contextlib.closing(Oracle(made, tmp_path, cores=1)) as oracle,
    ):
        session = assembled(
            made, tmp_path, engines, journal, watch, oracle=oracle, limits=Limits(trials=16),
            seed=seed,
        )  # fmt: skip
        found = session.run()
        result = conclude(session, found)
    crashed = [t for t in found.told.trials if t.state == "crashed"]
    assert len(crashed) == len(engine.beyond)
    assert len(engine.beyond) <= 2, engine.beyond
    print(f"{len(found.told.trials)} trials, beyond: {engine.beyond}; {result.verdict}")
    assert found.winner.change.get(knob, 0) <= most
    if knob == "max_num_seqs":  # what is allowed is still found
        assert found.winner.change["max_num_seqs"] == 128
