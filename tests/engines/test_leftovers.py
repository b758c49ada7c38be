"""What an engine leaves behind is told: memory that stays, processes that nobody can end."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.engines.leftovers import Leftovers
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.telemetry.gpu import FakeSampler, GpuSample

GIB = 2**30


def used(*gib: float, processes: tuple[int, ...] = ()) -> list[GpuSample]:
    return [
        GpuSample(i, "H200", memory_used_bytes=int(g * GIB), processes=processes)
        for i, g in enumerate(gib)
    ]


def test_memory_that_comes_back_late_is_waited_for() -> None:
    sampler = FakeSampler([used(1.0), used(90.0), used(90.0), used(1.1)])
    found = Leftovers(lambda: sampler, patience_s=30.0)
    found.starting(on_gpu=True)
    begun = time.monotonic()
    found.stopped()
    assert 0.3 < time.monotonic() - begun < 10
    assert found.told == ()


def test_memory_that_stays_is_told_with_the_gpu_and_who_holds_it() -> None:
    holding = GpuSample(1, "H200", memory_used_bytes=int(13.5 * GIB), processes=(77, 78))
    sampler = FakeSampler([used(1.0, 1.0), [*used(1.0), holding]])
    found = Leftovers(lambda: sampler, patience_s=0.3)
    found.starting(on_gpu=True)
    found.stopped()
    assert found.told == (
        "GPU 1 holds 12.5 GiB more than before the engines were started, 0.3 s after the last one"
        " was stopped (its processes: 77, 78)",
    )


def test_engines_side_by_side_are_held_against_what_was_before_the_first() -> None:
    """The second starts while the first holds its memory; only the last one's stop waits."""
    sampler = FakeSampler([used(1.0), used(1.0)])
    opened = []
    found = Leftovers(lambda: opened.append(1) or sampler, patience_s=30.0)  # type: ignore[func-returns-value]
    found.starting(on_gpu=True)
    found.starting(on_gpu=True)
    sampler.script = [used(60.0)]
    begun = time.monotonic()
    found.stopped()
    assert time.monotonic() - begun < 1
    sampler.script = [used(60.0), used(1.0)]
    found.stopped()
    assert found.told == ()
    assert opened == [1]


class Fails:
    """A sampler whose driver fails from the `good`-th reading on."""

    def __init__(self, good: int) -> None:
        self.good = good

    def sample(self) -> list[GpuSample]:
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("GPU is lost")
        return used(1.0)


def test_a_driver_that_fails_at_the_stop_takes_no_ones_place() -> None:
    """The stop runs in a finally: what it raised would hide the engine's own error."""
    found = Leftovers(lambda: Fails(good=1), patience_s=0.1)
    found.starting(on_gpu=True)
    found.stopped()
    assert found.told == (
        "what engines left on the GPUs could not be checked: their counters failed after the last"
        " engine was stopped (RuntimeError: GPU is lost)",
    )


def test_a_driver_that_fails_at_the_start_leaves_later_engines_checked() -> None:
    samplers = [Fails(good=0), FakeSampler([used(1.0), used(9.0)])]
    found = Leftovers(lambda: samplers.pop(0), patience_s=0.1)
    found.starting(on_gpu=True)
    found.stopped()
    assert [line[:76] for line in found.told] == [
        "what engines left on the GPUs could not be checked: their counters failed be"
    ]
    found.starting(on_gpu=True)
    found.stopped()
    assert "GPU 0 holds 8.0 GiB more" in found.told[-1]


def test_a_gpu_that_no_longer_tells_its_memory_is_not_taken_for_clean() -> None:
    for after in ([GpuSample(0, "H200")], []):
        sampler = FakeSampler([used(1.0), after])
        found = Leftovers(lambda sampler=sampler: sampler, patience_s=0.1)  # type: ignore[misc]
        found.starting(on_gpu=True)
        found.stopped()
        assert len(found.told) == 1
        assert found.told[0].startswith("GPU 0 could not be checked")


def test_a_leak_is_seen_where_a_neighbour_gave_back_as_much() -> None:
    before, after = used(40.0, processes=(7, 8)), used(40.0, processes=(8, 4711))
    found = Leftovers(lambda: FakeSampler([before, after]), patience_s=0.1)
    found.starting(on_gpu=True)
    found.stopped()
    assert found.told == (
        "GPU 0 is used by processes that it did not list before the engines were started, 0.1 s"
        " after the last one was stopped: 4711 (an engine's own or a neighbour's)",
    )
    back = Leftovers(lambda: FakeSampler([before, after, used(1.0, processes=(8,))]))
    back.starting(on_gpu=True)
    back.stopped()
    assert back.told == (), "it ended while it was waited for"


def test_without_a_gpu_nothing_is_asked() -> None:
    def no() -> FakeSampler:
        raise AssertionError

    found = Leftovers(no)
    found.starting(on_gpu=False)
    found.stopped([4711])
    assert found.told == ("processes of an engine could not be ended: 4711",)


def test_an_engine_that_dies_at_its_start_leaves_its_memory_to_be_told(tmp_path: Path) -> None:
    sampler = FakeSampler([used(1.0), used(40.0)])
    log = tmp_path / "log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    fake = Path(__file__).with_name("fake_engine.py")
    launch = ServerLaunch((sys.executable, str(fake), str(log), "exit=1"), log_folder=tmp_path)
    engine = VllmEngine(launch)
    engine._leftovers = Leftovers(lambda: sampler, patience_s=0.2)
    wanted = Configuration("tiny", Knobs(), engine="vllm", gpu="H200-SXM")
    with pytest.raises(RunFailed, match="oom"), engine.start(wanted):
        pass
    assert [line[:25] for line in engine.left_behind] == ["GPU 0 holds 39.0 GiB more"]


def test_a_process_that_bears_the_mark_after_the_stop_is_told(tmp_path: Path) -> None:
    """One that left the guard's family: here it is started with the engine's mark beside it."""
    from ridgeline.engines.guard import MARK  # noqa: PLC0415
    from ridgeline.engines.process import EngineProcess  # noqa: PLC0415

    process = EngineProcess(["sleep", "600"], tmp_path / "log")
    stray = subprocess.Popen(["sleep", "600"], env={MARK: process._mark, "PATH": "/usr/bin:/bin"})
    try:
        process.stop()
        assert process.left == (stray.pid,)
        assert stray.poll() is None
    finally:
        stray.kill()
        stray.wait()
