"""Small engines for scheduler tests."""

from ridgeline.domain.defaults import ResolvedKnobs, resolve
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision, Scheduler


def knobs(version: str = "0.21", **given: object) -> ResolvedKnobs:
    """Resolved knobs of a Qwen3-4B shape on an H100, prefix caching off unless given."""
    base = {"max_model_len": 8192, "enable_prefix_caching": False}
    return resolve(Knobs().with_changes({**base, **given}), gpu("H100"), shape("Qwen3-4B"), version)


def engine(blocks: int = 10_000, version: str = "0.21", **given: object) -> Scheduler:
    """A tracing scheduler with so many usable blocks."""
    return Scheduler(knobs(version, **given), blocks, trace=True)


def request(number: int, prompt: int, output: int, **more: object) -> Request:
    return Request(number, prompt, output, **more)  # type: ignore[arg-type]


def step(scheduler: Scheduler) -> Decision | None:
    """One step whose outputs are processed before the next (no steps in flight)."""
    decision = scheduler.schedule()
    if decision is not None:
        scheduler.update(decision)
        scheduler.pool.check()
    return decision


def traces(scheduler: Scheduler, steps: int) -> list[dict[int, int]]:
    """{request: tokens} of the next steps; stops when nothing can run."""
    found = []
    for _ in range(steps):
        decision = step(scheduler)
        if decision is None:
            break
        assert decision.trace is not None
        found.append(decision.trace)
    return found
