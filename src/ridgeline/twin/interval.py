"""Which tokens leave a step at once where only every N-th of an answer does."""

from ridgeline.twin.decision import Decision
from ridgeline.twin.request import Request


class StreamInterval:
    """Counts the chunks of one replica's steps, as `Request.step_runs` keeps them: the first token
    of an answer, every N-th after it, and the last one.

    A request in steady decode is due at the steps of one residue, so it is enough to know how many
    are at each. Not followed: one that lost a step to a preemption under priorities.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._counts = [0] * every
        self._phases: dict[Request, int] = {}

    def chunks(self, step: Decision) -> int:
        """Chunks of a step that was just decided; each step once, in their order."""
        now = step.step % self._every
        for request in step.preempted:
            self._leave(request)
        due = self._counts[now]
        for request in step.finished:
            phase = self._leave(request)
            due += phase is not None and phase != now
        for request in step.firsts:
            place = request.produced - 1  # 0 unless it was preempted before
            due += place % self._every == 0 or request.ending
            if not request.ending:
                phase = (step.step - place) % self._every
                self._phases[request] = phase
                self._counts[phase] += 1
        return due

    def _leave(self, request: Request) -> int | None:
        phase = self._phases.pop(request, None)
        if phase is not None:
            self._counts[phase] -= 1
        return phase
