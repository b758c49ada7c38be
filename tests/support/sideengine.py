"""The engine of arithmetic as several trials side by side see it, and a tuning on it to be killed.

`python sideengine.py FOLDER`: a tuning of the first three of SIX on four pretended GPUs.
SIDE_LOG is a folder that is told what ran where and when. An engine that starts waits
until as many as SIDE_MEET says have been up at once with it (so that they surely overlap, however
slow the host is); max_num_seqs of SIDE_DIES ends its own process, of SIDE_HANGS waits in its run,
of SIDE_VOID has a client without a core the first time, and of SIDE_WAITS waits for the stop.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.engines.base import DrivePlan, Endpoint, Engine
from ridgeline.tuning.room import Room, room_of
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.sidebyside import SideBySide
from ridgeline.tuning.trial import Candidate
from support.tunedengine import Listed, TunedEndpoint, TunedEngine, session, setting

LOG, MEET = "SIDE_LOG", "SIDE_MEET"
DIES, HANGS = "SIDE_DIES", "SIDE_HANGS"
VOID, WAITS = "SIDE_VOID", "SIDE_WAITS"
PATIENCE_S = 30.0


@dataclass
class SideEndpoint(TunedEndpoint):
    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        seqs = str(self.configuration.knobs.max_num_seqs)
        if seqs == os.environ.get(DIES):
            os.kill(os.getpid(), signal.SIGKILL)
        if seqs == os.environ.get(HANGS):
            (Path(os.environ[LOG]) / "hangs").write_text(str(os.getpid()))
            time.sleep(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while seqs == os.environ.get(WAITS) and not watch.stop_asked():
            assert time.monotonic() < until, "nobody stopped it"
            time.sleep(0.01)
        facts = super().drive(plan, sink, watch)
        if seqs == os.environ.get(VOID) and self.engine.drives == 1:
            return replace(facts, client=replace(facts.client, cpu_share=1.0))
        return facts


@dataclass
class SideEngine(TunedEngine):
    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        with super().start(configuration):
            mine = Path(os.environ[LOG]) / f"{os.getpid()}-{time.monotonic_ns()}.json"
            knobs = configuration.knobs
            told: dict[str, Any] = {
                "seqs": knobs.max_num_seqs, "tensor": knobs.tensor_parallel_size or 1,
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid(),
                "up": time.monotonic(),
            }  # fmt: skip
            mine.write_text(json.dumps(told))
            until = time.monotonic() + PATIENCE_S
            meet = int(os.environ.get(MEET, "1"))
            while len(list(mine.parent.glob("*.json"))) < meet and time.monotonic() < until:
                time.sleep(0.01)
            try:
                yield SideEndpoint(self, configuration)  # type: ignore[misc]
            finally:
                mine.write_text(json.dumps(told | {"down": time.monotonic()}))


def side_engine(name: str) -> Engine:
    """A function of a module, as what travels to another process must be."""
    return SideEngine()  # type: ignore[return-value]


def on_gpus(gpus: int = 4, own: int = 1) -> Setting:
    """The usual setting on a host with so many GPUs, of which the baseline uses `own`."""
    made = setting()
    knobs = made.configuration.knobs
    knobs = knobs if own == 1 else replace(knobs, tensor_parallel_size=own)
    base = replace(made.configuration, gpu="H200-SXM", gpus=own, knobs=knobs)
    return replace(made, configuration=base, spec=replace(made.spec, host_gpus=gpus))


def roomy(made: Setting) -> Room:
    """With cores for all of them."""
    return room_of(made, cores=64)


def ran(log: Path) -> list[dict[str, Any]]:
    """What ran, in the order of starts."""
    return sorted((json.loads(f.read_text()) for f in log.glob("*.json")), key=lambda r: r["up"])


SIX = [
    Candidate(),
    *(Candidate({"max_num_seqs": n}) for n in (120, 140)),
    *(Candidate({"max_num_seqs": n, "tensor_parallel_size": 2}) for n in (90, 110)),
    Candidate({"max_num_seqs": 160}),
]


if __name__ == "__main__":
    made = on_gpus()
    side = SideBySide(roomy(made), side_engine, rest_s=0.0)
    with session(
        Path(sys.argv[1]), Listed(SIX[:3], at_once=3), SideEngine(), made, side=side
    ) as begun:
        found = begun.run()
        print(found.winner.words, found.clear)
