"""The scheduler with speculative decoding: a decode verifies guessed tokens beside its own.

Every decode is granted 1 + k tokens; what was guessed wrong is taken off the computed count again,
and the tokens that were right leave together in one chunk. How many are right is drawn from the
request and its progress, so it does not depend on the order of anything: position i is right with
the acceptance rate when all before it were.

Requests differ in their progress here, so all are visited one by one.
"""

import math

from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.twin.decision import Decision
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Scheduler


class SpeculativeScheduler(Scheduler):
    """Drafting requests stand in `_drafting`; `held` counts all of a drafting request's blocks."""

    def __init__(
        self, knobs: ResolvedKnobs, blocks: int, acceptance: float, *, trace: bool = False
    ) -> None:
        super().__init__(knobs, blocks, trace=trace, always_walk=True)
        assert 0 <= acceptance < 1
        self._acceptance = acceptance
        self._drafting: dict[Request, None] = {}
        self._granted: dict[Request, int] = {}  # tokens gained in this step
        self.drafted = 0
        self.accepted = 0

    @property
    def has_work(self) -> bool:
        """True while any request waits or still has steps to come."""
        return super().has_work or bool(self._drafting)

    def _walk(self, decision: Decision, deferred: bool) -> int:
        left, pool = self._budget, self.pool
        passed: dict[Request, int] = {}
        self._granted.clear()
        for request in list(self.running):
            if request not in self.running or request.ending:
                continue
            drafting = request in self._drafting
            if left == 0 or (deferred and not drafting):
                if drafting:
                    request.close_run(self.step)
                continue
            tokens, blocks = self._wanted(request, left, drafting=drafting)
            left += self._make_room(decision, request, blocks, passed)
            if request not in self.running:
                if self._by_priority and self.knobs.version == "0.33":
                    continue
                for other in self._drafting:
                    if other not in passed:
                        other.close_run(self.step)
                break
            pool.take(blocks)
            left -= tokens
            passed[request] = tokens
            if drafting:
                self._verify(decision, request, tokens, blocks)
            else:
                self._grant_chunk(decision, request, tokens)
        return left

    def _wanted(self, request: Request, left: int, *, drafting: bool) -> tuple[int, int]:
        """(tokens, new blocks) for a running request; drafts end at the model's length."""
        knobs, pool = self.knobs, self.pool
        if not drafting:
            tokens = min(self._capped(request), left)
            return tokens, self._blocks_needed(request, tokens)
        tokens = max(1, min(1 + knobs.drafts, left, knobs.max_model_len - 1 - request.computed))
        ahead = request.computed + tokens + knobs.lookahead
        return tokens, max(0, pool.blocks_for(ahead) - request.held)

    def _verify(self, decision: Decision, request: Request, tokens: int, blocks: int) -> None:
        """One own token and `tokens - 1` guessed ones."""
        right = accepted_drafts(request.number, request.produced, tokens - 1, self._acceptance)
        gained = min(1 + right, request.output - request.produced)
        decision.decodes += 1
        decision.drafts += tokens - 1
        decision.context += request.computed + tokens
        if decision.trace is not None:
            decision.trace[request.number] = tokens
        request.held += blocks
        request.computed += gained
        request.produced += gained
        if request.run_first < 0:
            request.run_first = self.step
        self._granted[request] = gained
        self.drafted += tokens - 1
        self.accepted += gained - 1

    def _revoke(self, decision: Decision, victim: Request, granted: int) -> None:
        gained = self._granted.pop(victim, None)
        if gained is None:
            super()._revoke(decision, victim, granted)
            return
        victim.computed -= gained
        victim.produced -= gained
        decision.decodes -= 1
        decision.drafts -= granted - 1
        decision.context -= victim.computed + granted
        self.drafted -= granted - 1
        self.accepted -= gained - 1
        if decision.trace is not None:
            del decision.trace[victim.number]

    def _preempt(self, decision: Decision, victim: Request, granted: int = 0) -> None:
        if victim in self._drafting:
            victim.close_run(self.step)
            del self._drafting[victim]
        self._drop_drafts(victim)
        super()._preempt(decision, victim, granted)

    def update(self, decision: Decision) -> None:
        """Take note of a step's end: finished requests leave and give their blocks back."""
        for request in decision.finished:
            self._drop_drafts(request)
        super().update(decision)

    def _drop_drafts(self, request: Request) -> None:
        """Give back what a request holds above its computed tokens."""
        if request.held:
            self.pool.give_back(request.held - self.pool.blocks_for(request.computed))
            request.held = 0

    def _conclude(self, decision: Decision) -> None:
        for request in self._granted:
            if request.produced == request.output:
                del self._drafting[request]
                self._end(decision, request, self.step)
        super()._conclude(decision)

    def _join(self, request: Request, step: int) -> None:
        self._drafting[request] = None
        request.held = self.pool.blocks_for(request.computed)


def accepted_drafts(number: int, produced: int, drafts: int, acceptance: float) -> int:
    """How many of the next drafts are right: min(drafts, geometric), from a hash of the place."""
    if not drafts or acceptance <= 0:
        return 0
    mixed = (number * 0x9E3779B97F4A7C15 + produced * 0xBF58476D1CE4E5B9 + 1) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    uniform = ((mixed ^ (mixed >> 31)) + 0.5) / 2**64
    return min(drafts, int(math.log(uniform) / math.log(acceptance)))
