"""Which replica of a pool starts, serves, drains and ends, and when: decided, not done.

A state machine without clock, process or thread. It is told what happened (`ready`, `lost`,
`stopped`, ...) and what time it is, and returns what is to be done. Every time is in seconds of
the caller's clock.
"""

import random
from dataclasses import dataclass

from ridgeline.serving.backoff import BackOff
from ridgeline.serving.places import Places
from ridgeline.serving.states import (
    MOVING,
    RUNNING,
    Action,
    Drain,
    Enter,
    Hurry,
    Leave,
    Phase,
    Replica,
    Start,
    State,
    Stop,
    Tell,
    Wanted,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a supervisor is.

    give_up: failures in a row after which a replica is not started again. stable_s: up for so
    long, earlier failures are forgotten. drain_s: how long running requests are waited for.
    beside: in a change, a new replica is started beside the old one where GPUs are free.
    """

    back_off: BackOff = BackOff()  # noqa: RUF009  a frozen value
    give_up: int = 5
    stable_s: float = 120.0
    drain_s: float = 60.0
    beside: bool = True


class Supervisor:
    """Keeps the replicas of one pool; see the module.

    `stream` is what the back-off's jitter is drawn from. `failure` is why the pool has ended by
    itself, None until then.
    """

    def __init__(
        self, policy: Policy, wanted: Wanted, places: Places, stream: random.Random
    ) -> None:
        self._policy, self._places, self._stream = policy, places, stream
        self._wanted = wanted
        self._before: Wanted | None = None  # where a change goes back to
        self._replicas: list[Replica] = []
        self._actions: list[Action] = []
        self._next = 0
        self.phase = Phase.OPENING
        self.failure: str | None = None

    @property
    def wanted(self) -> Wanted:
        """What is to run."""
        return self._wanted

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Those that are not gone."""
        return tuple(r for r in self._replicas if r.state is not State.GONE)

    def begin(self, now: float) -> list[Action]:
        """Start everything side by side."""
        for _ in range(self._wanted.count):
            if not self._start_new(now):
                self._fail("there are fewer free GPUs than the configuration needs", now)
                break
        return self._taken()

    def ready(self, number: int, now: float) -> list[Action]:
        """A completion came back from a replica that was starting."""
        replica = self._find(number, State.STARTING)
        if replica is not None:
            self._move(replica, State.ENTERING, now)
            self._actions.append(Enter(number))
        return self._taken()

    def entered(self, number: int, now: float) -> list[Action]:
        """The router knows it."""
        replica = self._find(number, State.ENTERING)
        if replica is not None:
            self._move(replica, State.UP, now)
            replica.up_since_s = now
            self._tell("up", "in rotation", replica)
            self._opened(now)
        return self._taken()

    def lost(self, number: int, words: str, now: float) -> list[Action]:
        """Its start failed, its process ended, or it does not answer; `words` say which."""
        replica = self._find(number, *RUNNING)
        if replica is None:
            return self._taken()
        was = replica.state
        replica.words = words
        self._tell("lost", f"{words} (it was {was})", replica)
        replica.back = was not in (State.LEAVING, State.DRAINING)
        self._end(replica, now, kill=True)
        if self.phase is Phase.OPENING:
            self._fail(f"replica {number} did not start: {words}", now)
        elif self._in_change(replica) and was in (State.STARTING, State.ENTERING):
            replica.back = False
            self._roll_back(f"replica {number} did not start: {words}")
        return self._taken()

    def left(self, number: int, now: float) -> list[Action]:
        """The router sends it nothing more."""
        replica = self._find(number, State.LEAVING)
        if replica is not None:
            self._move(replica, State.DRAINING, now)
            replica.due_s = now + self._policy.drain_s
            self._actions.append(Drain(number))
        return self._taken()

    def idle(self, number: int, now: float) -> list[Action]:
        """It has no request any more."""
        replica = self._find(number, State.DRAINING)
        if replica is not None:
            took = now - replica.since_s
            self._tell("drained", f"every request has ended, after {took:.1f} s", replica)
            self._end(replica, now)
        return self._taken()

    def stopped(self, number: int, now: float) -> list[Action]:
        """Nothing of its processes is left."""
        replica = self._find(number, State.STOPPING)
        if replica is None:
            return self._taken()
        replica.due_s = None
        if self.phase in (Phase.STOPPING, Phase.ENDED) or not replica.back:
            self._gone(replica, now)
        else:
            self._wait_or_give_up(replica, now)
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """What is due at this time."""
        for replica in self.replicas:
            due = replica.due_s is not None and now >= replica.due_s
            if due and replica.state is State.WAITING:
                self._start(replica, now)
            elif due and replica.state is State.DRAINING:
                limit = f"{self._policy.drain_s:g} s"
                self._tell(
                    "cut", f"it was not seen empty for {limit}; what still runs is cut off", replica
                )
                self._end(replica, now)
        if self.phase is Phase.CHANGING:
            self._change_on(now)
        if self.phase is Phase.STOPPING and not self.replicas:
            self.phase = Phase.ENDED
            self._actions.append(Tell("ended", "nothing runs any more"))
        return self._taken()

    def change(self, wanted: Wanted, now: float) -> list[Action]:
        """Go over to another configuration, replica by replica.

        Ignored, with a line, while the pool opens, changes or stops.
        """
        if self.phase is not Phase.SERVING:
            self._actions.append(Tell("ignored", f"no change while the pool is {self.phase}"))
            return self._taken()
        self._before, self._wanted = self._wanted, wanted
        self.phase = Phase.CHANGING
        words = "1 replica" if wanted.count == 1 else f"{wanted.count} replicas, one at a time"
        self._actions.append(Tell("changing", f"to {words}"))
        return self.tick(now)

    def stop(self, now: float) -> list[Action]:
        """Let running requests end, then stop everything."""
        if self.phase not in (Phase.STOPPING, Phase.ENDED):
            self.phase = Phase.STOPPING
            self._actions.append(Tell("stopping", "no new requests; running ones are waited for"))
            for replica in self.replicas:
                self._take_down(replica, now)
        return self.tick(now)

    def stop_now(self, now: float) -> list[Action]:
        """Stop everything without waiting for requests."""
        self.phase = Phase.STOPPING if self.phase is not Phase.ENDED else Phase.ENDED
        for replica in self.replicas:
            if replica.state in RUNNING:
                self._end(replica, now, kill=True)
            elif replica.state is State.STOPPING:
                replica.back = False
                self._actions.append(Hurry(replica.number))
            else:
                self._take_down(replica, now)
        return self.tick(now)

    def _change_on(self, now: float) -> None:
        """The next step of a change, once the last one is done."""
        for replica in self._old():
            if replica.state in (State.WAITING, State.FAILED, State.STARTING):
                self._take_down(replica, now)  # it serves nothing: it need not come up first
        new = [r for r in self.replicas if r.generation == self._wanted.generation]
        old = self._old()
        if self._before is not None and any(r.state is State.FAILED for r in new):
            self._roll_back("a replica of the new configuration was given up")
            return
        if any(r.state in MOVING for r in self.replicas):
            return
        if len(new) < self._wanted.count:
            beside = self._policy.beside or not old
            if beside and self._start_new(now):
                return
            if not old and self._before is not None:
                self._roll_back("there are fewer free GPUs than it needs")
                return
            if not old:
                self._fail("there are fewer free GPUs than the configuration needs", now)
                return
        if old:
            if sum(r.state is State.UP for r in self.replicas) == 1:
                words = "no replica is up until the next one is: requests are refused meanwhile"
                self._tell("gap", words, old[0])
            self._take_down(old[0], now)
            return
        back = self._before is None
        words = "the former configuration runs again" if back else "the new configuration runs"
        self._actions.append(Tell("rolled-back" if back else "changed", words))
        self._before = None
        self.phase = Phase.SERVING

    def _old(self) -> list[Replica]:
        return [r for r in self.replicas if r.generation != self._wanted.generation]

    def _in_change(self, replica: Replica) -> bool:
        """True for a replica of a new configuration that can still be gone back from."""
        new = replica.generation == self._wanted.generation
        return self.phase is Phase.CHANGING and self._before is not None and new

    def _roll_back(self, words: str) -> None:
        assert self._before is not None
        self._wanted, self._before = self._before, None
        self._actions.append(Tell("rolling-back", f"{words}; the former configuration stays"))

    def _opened(self, now: float) -> None:
        if self.phase is Phase.OPENING and all(r.state is State.UP for r in self.replicas):
            self.phase = Phase.SERVING
            up = len(self.replicas)
            words = "1 replica is up" if up == 1 else f"{up} replicas are up"
            self._actions.append(Tell("serving", words))

    def _wait_or_give_up(self, replica: Replica, now: float) -> None:
        """After a failure: wait for the next try, or give the replica up."""
        if replica.in_a_row >= self._policy.give_up:
            self._move(replica, State.FAILED, now)
            often = f"given up after {replica.in_a_row + 1} failures in a row"
            words = f"{often}, the last: {replica.words}"
            self._tell("given-up", words, replica)
            if all(r.state is State.FAILED for r in self.replicas):
                self._fail(f"every replica was given up, the last one: {replica.words}", now)
            return
        replica.in_a_row += 1
        wait_s = self._policy.back_off.wait_s(replica.in_a_row, self._stream)
        self._move(replica, State.WAITING, now)
        replica.due_s = now + wait_s
        self._tell("waiting", f"it is started again in {wait_s:.1f} s", replica)

    def _start_new(self, now: float) -> bool:
        gpus = self._places.take(self._wanted.gpus_each)
        if gpus is None:
            return False
        replica = Replica(self._next, self._wanted.generation, gpus)
        self._next += 1
        self._replicas.append(replica)
        self._begin_start(replica, now)
        return True

    def _start(self, replica: Replica, now: float) -> None:
        replica.restarts += 1
        self._begin_start(replica, now)

    def _begin_start(self, replica: Replica, now: float) -> None:
        self._move(replica, State.STARTING, now)
        replica.due_s, replica.back = None, True
        on = f" on GPU {','.join(replica.gpus)}" if replica.gpus else ""
        self._tell("starting", f"it is started{on}", replica)
        self._actions.append(Start(replica.number, replica.generation, replica.gpus))

    def _take_down(self, replica: Replica, now: float) -> None:
        """For good, with the requests that it has ended first."""
        replica.back = False
        if replica.state is State.UP:
            self._move(replica, State.LEAVING, now)
            self._actions.append(Leave(replica.number))
        elif replica.state in (State.STARTING, State.ENTERING):
            self._end(replica, now, kill=True)
        elif replica.state in (State.WAITING, State.FAILED):
            self._gone(replica, now)

    def _end(self, replica: Replica, now: float, *, kill: bool = False) -> None:
        if replica.up_since_s is not None and now - replica.up_since_s >= self._policy.stable_s:
            replica.in_a_row = 0
        replica.up_since_s = replica.due_s = None
        if replica.state in (State.ENTERING, State.UP):
            self._actions.append(Leave(replica.number))
        self._move(replica, State.STOPPING, now)
        self._actions.append(Stop(replica.number, kill))

    def _gone(self, replica: Replica, now: float) -> None:
        self._move(replica, State.GONE, now)
        self._places.give(replica.gpus)
        self._replicas.remove(replica)
        self._tell("gone", "it has ended", replica)

    def _fail(self, words: str, now: float) -> None:
        """The pool cannot serve: end it."""
        self.failure = self.failure or words
        self._actions.append(Tell("failed", words))
        self.phase = Phase.STOPPING
        for replica in self.replicas:
            self._take_down(replica, now)

    def _find(self, number: int, *states: State) -> Replica | None:
        """The replica, unless it has moved on: what is told of it then is late."""
        found = (r for r in self._replicas if r.number == number and r.state in states)
        return next(found, None)

    def _move(self, replica: Replica, state: State, now: float) -> None:
        replica.state, replica.since_s = state, now

    def _tell(self, event: str, words: str, replica: Replica) -> None:
        facts: dict[str, object] = {"restarts": replica.restarts, "state": str(replica.state)}
        self._actions.append(Tell(event, words, replica.number, facts))

    def _taken(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
