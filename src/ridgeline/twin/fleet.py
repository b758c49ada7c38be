"""Replicas behind a router, and the users or arrivals that offer them a schedule.

A simulation in event order. Ties are decided by a written rule: the earlier time first, at equal
times the event that was created first. There is no randomness here: the schedule is drawn before.

`Fleet` is the serving side and takes requests from whoever calls `submit`; `Offer` is a client
that follows a schedule. `run_until` advances both.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.model import ModelShape
from ridgeline.domain.routing import Router
from ridgeline.twin.constants import PRIORS, Constants
from ridgeline.twin.frontend import ApiServer, Outputs
from ridgeline.twin.memory import MemoryPlan, plan_memory
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision, Scheduler
from ridgeline.twin.speculative import SpeculativeScheduler
from ridgeline.twin.steptime import StepCost


class Listener(Protocol):
    """Hears what the fleet delivers, in time order."""

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        """A step's chunks reach the client. With tracing on, `decision.trace` names the requests:
        those of `decision.prefills` got a chunk only if they are in `decision.firsts`."""

    def finished(self, request: Request) -> None:
        """A request got its last chunk, or failed (`request.failure`)."""


@dataclass(frozen=True, slots=True)
class Twin:
    """Everything that decides how a configuration behaves; build one with `build_twin`."""

    shape: ModelShape
    gpu: Gpu
    knobs: ResolvedKnobs
    constants: Constants
    memory: MemoryPlan


def build_twin(
    shape: ModelShape, gpu: Gpu, knobs: ResolvedKnobs, constants: Constants = PRIORS
) -> Twin:
    """Check that the configuration fits in memory; raises RunFailed when it does not."""
    memory = plan_memory(shape, gpu, knobs, constants)
    memory.require_fit()
    return Twin(shape, gpu, knobs, constants, memory)


def _scheduler(twin: Twin, *, trace: bool) -> Scheduler:
    blocks = twin.memory.usable_blocks
    if not twin.knobs.drafts:
        return Scheduler(twin.knobs, blocks, trace=trace)
    acceptance = twin.constants.draft_acceptance
    return SpeculativeScheduler(twin.knobs, blocks, acceptance, trace=trace)


class Fleet:
    """The serving side: data-parallel replicas, their API servers, one event queue.

    `beside`: another fleet whose queue of events and clock it shares; `first`: the number of its
    first replica, where that one's have the numbers before.
    """

    def __init__(
        self,
        twin: Twin,
        listener: Listener,
        *,
        routing: str = "round-robin",
        trace: bool = False,
        beside: "Fleet | None" = None,
        first: int = 0,
    ) -> None:
        knobs = twin.knobs
        self.first = first
        self.routing = routing
        self._router = Router(routing, knobs.data_parallel)
        self.twin = twin
        self.cost = StepCost(twin.shape, twin.gpu, knobs, twin.constants)
        self.replicas = [
            Replica(first + i, _scheduler(twin, trace=trace), self.cost)
            for i in range(knobs.data_parallel)
        ]
        self.servers = [
            ApiServer(twin.constants, self.at, self._forward, self._delivered)
            for _ in range(knobs.api_servers)
        ]
        self.now = 0
        self.unfinished = 0  # requests that the API servers have accepted and not answered
        self.shed = 0
        self._listener = listener
        self._network_ns = int(twin.constants.network_ns)
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._sequence = count()
        if beside is not None:
            self._events, self._sequence = beside._events, beside._sequence
        self._turns: list[Callable[[int], None]] = [self._turn_of(r) for r in self.replicas]

    def at(self, time: int, call: Callable[[int], None]) -> None:
        """Call `call(time)` when the simulation gets there."""
        heapq.heappush(self._events, (time, next(self._sequence), call))

    @property
    def next_ns(self) -> int | None:
        """Time of the next event, None when nothing is left to happen."""
        return self._events[0][0] if self._events else None

    def run_until(self, end: int | None) -> None:
        """Handle all events before `end` (all there are when it is None)."""
        events, pop = self._events, heapq.heappop
        while events and (end is None or events[0][0] < end):
            time, _, call = pop(events)
            self.now = time
            call(time)

    def submit(self, request: Request, now: int) -> None:
        """A client sends a request now; the router chooses its replica."""
        request.replica = self.first + self._router.choose(request.group)
        self._server_of(request.replica).receive(now + self._network_ns, request)

    def _server_of(self, replica: int) -> ApiServer:
        """Each replica talks to one API server; several share one when there are fewer."""
        return self.servers[(replica - self.first) % len(self.servers)]

    def _forward(self, request: Request, now: int) -> None:
        """The API server has read a request: to its replica, or back when it is too long."""
        if request.prompt + request.output > self.twin.knobs.max_model_len:
            self._refuse(request, 400, now)
            return
        server = self._server_of(request.replica)
        if self._overloaded(server):
            self.shed += 1
            self._refuse(request, 503, now)
            return
        replica = self.replicas[request.replica - self.first]
        request.arrived_ns = now
        self.unfinished += 1
        server.prefill_tokens += request.prompt
        request.at_valve = True
        replica.inbox.append(request)
        if replica.idle:
            replica.idle = False
            self.at(now, self._turns[replica.number - self.first])

    def _overloaded(self, server: ApiServer) -> bool:
        """The valves of release 0.33: all unfinished requests, one server's prompts in prefill."""
        knobs = self.twin.knobs
        requests, tokens = knobs.max_num_queued_reqs, knobs.max_num_queued_tokens
        return (requests is not None and self.unfinished >= requests) or (
            tokens is not None and server.prefill_tokens >= tokens
        )

    def _refuse(self, request: Request, status: int, now: int) -> None:
        request.failure, request.status = "http_status", status
        request.last_ns = now + self._network_ns
        self._router.ended(request.replica - self.first)
        self.at(request.last_ns, lambda _: self._listener.finished(request))

    def forget(self, request: Request) -> None:
        """A client left, and the engine with it: the request no longer counts at the valves.

        Its first token may be on its way all the same (the prompt was taken back after its end).
        """
        self.unfinished -= 1
        self._router.ended(request.replica - self.first)
        self._pass_valve(request)

    def _pass_valve(self, request: Request) -> None:
        """The prompt no longer counts as one in prefill, if it did."""
        if request.at_valve:
            request.at_valve = False
            self._server_of(request.replica).prefill_tokens -= request.prompt

    def _turn_of(self, replica: Replica) -> Callable[[int], None]:
        server = self._server_of(replica.number)
        hand_over, advance, events = self._hand_over, replica.turn, self._events
        sequence = self._sequence

        def turn(now: int) -> None:
            step = replica.ended
            if step is not None:
                hand_over(replica, server, step, now)
            due = advance(now)
            if due is not None:
                heapq.heappush(events, (due, next(sequence), turn))

        return turn

    def _hand_over(self, replica: Replica, server: ApiServer, step: Decision, now: int) -> None:
        """Outputs of a step go to the API server."""
        server.send(now, Outputs(replica.number, step, step.chunks, step.outputs))

    def _delivered(self, outputs: Outputs, at: int) -> None:
        """The client has a step's outputs at `at`; for ended requests that was all.

        Steps of a replica with one time were merged: a request's tokens of them are one chunk.
        """
        number, step = outputs.replica, outputs.step
        replica = self.replicas[number - self.first]
        delivered = replica.delivered
        if delivered and delivered[-1] > at:
            at = delivered[-1]
        delivered.append(at)
        for request in step.firsts:
            if request.first_ns is None:
                request.first_ns = at
                self._pass_valve(request)
        self._listener.delivered(replica, step, at)
        for request in step.finished:
            request.last_ns = at
            self.unfinished -= 1
            self._router.ended(request.replica - self.first)
            self._listener.finished(request)
