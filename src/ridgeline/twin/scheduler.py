"""Who gets how many tokens in the next step: vLLM's V1 scheduler, as a pure decision.

No clock and no step time in here. Running requests come first, in the order of their admission;
then waiting ones while budget, slots and blocks last; nobody is admitted in a step that preempted.

Requests in steady decode are not visited one by one. They all get one token a step, so it is
enough to know how many they are, the sum of their contexts, how many need a new block at each
residue of the step number (`_phases`), and who finishes at which step (`_finish_at`). A step in
which that is not true (blocks or budget run out, or several prompts are under way) is decided by
walking the list, request by request; both ways must agree, and a test holds them against each
other (`always_walk`).
"""

from collections import deque

from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.twin.decision import Decision
from ridgeline.twin.kv import BlockPool, Hits
from ridgeline.twin.queue import PriorityQueue, rank
from ridgeline.twin.request import Request

__all__ = ["Decision", "Scheduler"]


class Scheduler:
    """Waiting and running requests of one replica. Call `schedule`, later `update` with its result.

    With asynchronous scheduling `schedule` is called again before the `update` of the step before:
    a finished request then keeps its slot and blocks for one step more, as in the engine.
    """

    def __init__(
        self,
        knobs: ResolvedKnobs,
        blocks: int,
        *,
        trace: bool = False,
        always_walk: bool = False,
    ) -> None:
        self.knobs = knobs
        self.pool = BlockPool(
            blocks,
            knobs.block_size,
            caching=knobs.prefix_caching,
            unhashed_first=knobs.version != "0.21",
        )
        self._by_priority = knobs.scheduling_policy == "priority"
        self.waiting: deque[Request] | PriorityQueue = (
            PriorityQueue() if self._by_priority else deque()
        )
        self.running: dict[Request, None] = {}
        self.step = 0
        self.preemptions = 0
        self.last_preempted: list[Request] = []  # by the last call of `schedule`
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._budget = knobs.max_num_scheduled_tokens
        self._slots = knobs.max_num_active_seqs
        self._block_size = knobs.block_size
        self._trace = trace
        self._always_walk = always_walk
        self._admissions = 0
        self._interval = knobs.prefill_schedule_interval if knobs.version == "0.33" else 1
        self._prefill_step = -self._interval  # the last step that carried a prompt
        self._in_flight = 0  # steps whose `update` is still to come
        self._prefill_bound = False  # the last step that could admit left requests waiting
        self._partials: list[Request] = []
        self._decoders = 0
        self._context_base = 0  # sum over decoders of (base_computed - base_step + 1)
        self._phases = [0] * knobs.block_size
        self._finish_at: dict[int, list[Request]] = {}

    @property
    def has_work(self) -> bool:
        """True while any request waits or still has steps to come."""
        return bool(self.waiting) or self._decoders > 0 or bool(self._partials)

    def add(self, request: Request) -> None:
        """Take in a request."""
        assert request.prompt >= 1
        assert request.output >= 1
        self.waiting.append(request)

    def schedule(self) -> Decision | None:
        """Decide the next step; None when nothing can run."""
        decision = Decision(self.step)
        self.last_preempted = decision.preempted
        if self._trace:
            decision.trace = {}
        decoders = self._decoders
        deferred = self._interval > 1 and self._defers_prefill()
        partials = [] if deferred else self._partials
        need = self._phases[self.step % self._block_size] if decoders else 0
        # One prompt under way is always the last of the list, unless a cap on long prompts lets
        # later ones overtake it.
        simple = not partials or (
            len(partials) == 1 and not self.knobs.long_prefill_token_threshold
        )
        if simple and need <= self.pool.free and decoders <= self._budget and not self._always_walk:
            fits = self._decode_all(decision, need, partials)
        else:
            fits = False
        if fits:  # nothing is drafted here
            left = self._budget - decision.decodes - decision.prefill_tokens
        else:
            left = self._walk(decision, deferred)
        if partials and decision.prefills:
            self._prefill_step = self.step
        if not decision.preempted:
            if left > 0 and self.waiting and len(self.running) < self._slots:
                self._admit(decision, left, deferred=deferred)
            if not deferred:
                self._prefill_bound = bool(self.waiting)
        if not decision.decodes and not decision.prefills:
            assert not decision.finished
            return None
        self._conclude(decision)
        self._in_flight += 1
        return decision

    def _defers_prefill(self) -> bool:
        """Prompts wait for N steps after the last with a prompt, while others decode.

        Unless they pile up. Release 0.32 has the knob and uses it between data-parallel ranks only.
        """
        return (
            self.step - self._prefill_step < self._interval
            and not self._prefill_bound
            and len(self.running) > len(self._partials)
        )

    def update(self, decision: Decision) -> None:
        """Take note of a step's end: finished requests leave and give their blocks back."""
        self._in_flight -= 1
        finished = decision.finished
        if self.pool.caching and len(finished) > 1:
            # In the order of the running list: it decides which blocks are reused first.
            finished = sorted(finished, key=lambda r: r.place)
        for request in finished:
            request.ending = False
            if request in self.running:
                del self.running[request]
                self.pool.release(request)
            else:  # preempted while its last token was in flight
                self.waiting.remove(request)

    # -- running requests ------------------------------------------------------------------------

    def _decode_all(self, decision: Decision, need: int, partials: list[Request]) -> bool:
        """One token for every decoder, the rest to the prompt under way. False: blocks lack."""
        decoders, step = self._decoders, self.step
        tokens = blocks = 0
        if partials:
            request = partials[0]
            tokens = min(request.total - request.computed, self._budget - decoders)
            blocks = self._blocks_needed(request, tokens)
            if need + blocks > self.pool.free:
                return False
        if need:
            self.pool.take(need)
        decision.decodes = decoders
        decision.context = self._context_base + decoders * step
        if self._trace:
            self._trace_decoders(decision)
        if tokens:
            self.pool.take(blocks)
            self._grant_chunk(decision, partials[0], tokens)
        return True

    def _walk(self, decision: Decision, deferred: bool) -> int:
        """The running list, one by one, with preemption. Returns the budget left."""
        left, step, pool = self._budget, self.step, self.pool
        passed: dict[Request, int] = {}  # tokens granted in this step
        for request in list(self.running):
            if request not in self.running or request.ending:
                continue
            if left == 0:
                # A cut chunk was the last of the list: decoders behind it fit into what it left.
                assert not request.decoding, "a decoder without budget"
                continue
            if request.decoding:
                computed = request.base_computed + step - request.base_step
                tokens = 1
                blocks = 1 if computed % pool.block_size == 0 else 0
            elif deferred:
                continue
            else:
                tokens = min(self._capped(request), left)
                blocks = self._blocks_needed(request, tokens)
            left += self._make_room(decision, request, blocks, passed)
            if request not in self.running:
                # It gave way itself. Release 0.33 goes on with the next one under priorities.
                if self._by_priority and self.knobs.version == "0.33":
                    continue
                self._postpone_others(passed)
                break
            pool.take(blocks)
            left -= tokens
            passed[request] = tokens
            if request.decoding:
                decision.decodes += 1
                decision.context += computed + 1
                if decision.trace is not None:
                    decision.trace[request.number] = 1
            else:
                self._grant_chunk(decision, request, tokens)
        return left

    def _make_room(
        self, decision: Decision, request: Request, blocks: int, passed: dict[Request, int]
    ) -> int:
        """Preempt until `blocks` are free or `request` itself had to go.

        Gives way: the tail of the list; under priorities the one that ranks last, and what it was
        granted in this step goes back to the budget. Returns those tokens.
        """
        back = 0
        while blocks > self.pool.free and request in self.running:
            if self._by_priority:
                victim = max(self.running, key=rank)
            else:
                victim = next(reversed(self.running))
                assert victim is request or victim not in passed
            granted = passed.pop(victim, 0)
            if granted:
                self._revoke(decision, victim, granted)
                back += granted
            self._preempt(decision, victim, granted)
        return back

    def _postpone_others(self, passed: dict[Request, int]) -> None:
        """Under priorities a loop that ends early passes over decoders: they lose this step."""
        if not passed:  # then there is no step at all
            return
        for request in self.running:
            if request.decoding and request not in passed:
                request.close_run(self.step)
                self._settle(request)
                self._join(request, self.step + 1)
                request.run_first = self.step + 1

    def _revoke(self, decision: Decision, victim: Request, granted: int) -> None:
        """Take back what a request was granted in this step (its blocks are still held)."""
        if victim.decoding:
            decision.decodes -= 1
            decision.context -= victim.base_computed + self.step - victim.base_step + 1
        else:
            index = next(i for i, (r, _, _) in enumerate(decision.prefills) if r is victim)
            _, start, tokens = decision.prefills.pop(index)
            decision.prefill_tokens -= tokens
            decision.pairs -= tokens * (start + tokens / 2)
            decision.chunk_context -= start
            if victim in decision.firsts:
                decision.firsts.remove(victim)
                victim.produced -= 1
        if decision.trace is not None:
            del decision.trace[victim.number]

    def _preempt(self, decision: Decision, victim: Request, granted: int = 0) -> None:
        """Recompute later: give the blocks back, keep the outputs, go to the front of the queue.

        `granted`: tokens of this step that were revoked; their blocks go back too.
        """
        del self.running[victim]
        victim.preemptions += 1
        self.preemptions += 1
        decision.preempted.append(victim)
        hashed = None
        if victim.decoding or victim.ending:
            # A token in flight is not known yet: the prefix cache is one decode behind.
            behind, least = min(self._in_flight, 1), victim.prompt
            if victim.decoding:
                least = victim.base_computed
                victim.close_run(self.step)
                self._settle(victim)
                victim.computed += granted
            hashed = max(least, victim.computed - behind)
        elif victim in self._partials:
            self._partials.remove(victim)
        self.pool.release(victim, hashed)
        victim.computed = 0
        # One whose last token is in flight waits too, until that step ends: `update` takes it out.
        self.waiting.appendleft(victim)

    def _capped(self, request: Request) -> int:
        """Tokens that a prompt still lacks, under the cap on long prompts."""
        lacks = request.total - request.computed
        cap = self.knobs.long_prefill_token_threshold
        if not cap or lacks <= cap:
            return lacks
        if self.knobs.version != "0.21" and len(self.running) + len(self.waiting) == 1:
            return lacks
        return cap

    def _blocks_needed(self, request: Request, tokens: int) -> int:
        pool = self.pool
        return pool.blocks_for(request.computed + tokens) - pool.blocks_for(request.computed)

    def _grant_chunk(self, decision: Decision, request: Request, tokens: int) -> bool:
        """A piece of a prompt, or its end, which gives a token (then True). Blocks are taken."""
        start = request.computed
        decision.prefills.append((request, start, tokens))
        decision.prefill_tokens += tokens
        decision.pairs += tokens * (start + tokens / 2)
        decision.chunk_context += start
        if decision.trace is not None:
            decision.trace[request.number] = tokens
        request.computed = start + tokens
        self.pool.publish(request)
        if request.computed < request.total:
            return False
        request.produced += 1
        decision.firsts.append(request)
        return True

    # -- waiting requests ------------------------------------------------------------------------

    def _admit(self, decision: Decision, left: int, *, deferred: bool) -> None:
        """Admit from the head of the queue until something runs out."""
        pool, waiting = self.pool, self.waiting
        while waiting and left > 0 and len(self.running) < self._slots:
            request = waiting[0]
            hits = pool.lookup(request)
            start = hits.blocks * pool.block_size
            lacks = request.total - start
            if deferred and lacks > 1:
                break
            request.computed = start
            tokens = self._capped(request)
            request.computed = 0
            if not self.knobs.chunked_prefill and tokens > left:
                break
            tokens = min(tokens, left)
            if not self._fits(start, tokens, lacks, hits):
                break
            waiting.popleft()
            pool.claim(request, hits)
            request.computed = start
            pool.take(self._blocks_needed(request, tokens))
            if pool.caching and not request.preemptions:
                self.queried_tokens += request.total
                self.hit_tokens += start
            if not request.admitted:
                request.admitted = True
                request.cached = start
                decision.admitted.append(request)
            if lacks > 1:
                self._prefill_step = self.step
            self.running[request] = None
            self._admissions += 1
            request.place = self._admissions
            left -= tokens
            if not self._grant_chunk(decision, request, tokens):
                self._partials.append(request)

    def _fits(self, start: int, tokens: int, lacks: int, hits: Hits) -> bool:
        """Enough free blocks for the chunk, and with full reservation for the whole prompt.

        Hit blocks that lie in the free queue count as used up. The watermark applies only while
        something runs. Where nothing does, the whole prompt must fit in any case: one that is
        larger than the pool would give way to itself in the middle and start again, for ever (the
        engine does that; here it waits, and `results.stall` tells).
        """
        pool, knobs = self.pool, self.knobs
        # The engine counts the block that it keeps for itself, too.
        kept = int(knobs.watermark * (pool.capacity + 1)) if self.running else 0
        ahead = lacks if knobs.reserve_full_isl or not self.running else tokens
        needed = pool.blocks_for(start + ahead) - hits.blocks + hits.idle
        return needed + kept <= pool.free

    # -- bookkeeping -----------------------------------------------------------------------------

    def _conclude(self, decision: Decision) -> None:
        """Turn ended prompts into decoders, take finishing requests out, count the step."""
        step = self.step
        if self._partials and decision.firsts:
            self._partials = [r for r in self._partials if r not in decision.firsts]
        ending = self._finish_at.pop(step, None) if self._finish_at else None
        for request in ending or ():
            if request.decoding and request.finish_step == step:
                self._leave(request)
                self._end(decision, request, step)
        for request in decision.firsts:
            request.run_first = step
            if request.produced == request.output:
                self._end(decision, request, step)
            else:
                self._join(request, step + 1)
        decision.running = len(self.running)
        decision.waiting = len(self.waiting)
        decision.used_blocks = self.pool.capacity - self.pool.free
        self.step = step + 1

    def _end(self, decision: Decision, request: Request, step: int) -> None:
        request.ending = True
        request.close_run(step + 1)
        decision.finished.append(request)

    def _join(self, request: Request, step: int) -> None:
        """Steady decode from `step` on."""
        request.decoding = True
        request.base_step = step
        request.base_computed = request.computed
        request.base_produced = request.produced
        request.finish_step = step + request.output - request.produced - 1
        request.phase = (step - request.computed) % self.knobs.block_size
        self._decoders += 1
        self._context_base += request.computed - step + 1
        self._phases[request.phase] += 1
        self._finish_at.setdefault(request.finish_step, []).append(request)

    def _settle(self, request: Request) -> None:
        """Leave steady decode before the current step; write the progress down."""
        done = self.step - request.base_step
        self._decoders -= 1
        self._context_base -= request.base_computed - request.base_step + 1
        self._phases[request.phase] -= 1
        request.decoding = False
        request.computed = request.base_computed + done
        request.produced = request.base_produced + done

    def _leave(self, request: Request) -> None:
        """Leave steady decode after the current step."""
        self._settle(request)
        request.computed += 1
        request.produced += 1

    def _trace_decoders(self, decision: Decision) -> None:
        assert decision.trace is not None
        for request in self.running:
            if request.decoding:
                decision.trace[request.number] = 1
