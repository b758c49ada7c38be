"""What the supervisor of a pool decides over, and what it asks its surroundings to do."""

from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"  # its process runs, no completion came back yet
    ENTERING = "entering"  # it answers; the router is to be told of it
    UP = "up"
    LEAVING = "leaving"  # the router is to send it nothing more
    DRAINING = "draining"  # it gets nothing more and ends what it has
    STOPPING = "stopping"
    WAITING = "waiting"  # until it is started again
    FAILED = "failed"  # given up
    GONE = "gone"


MOVING = (
    State.STARTING, State.ENTERING, State.LEAVING, State.DRAINING, State.STOPPING, State.WAITING,
)  # fmt: skip
RUNNING = (State.STARTING, State.ENTERING, State.UP, State.LEAVING, State.DRAINING)


class Phase(StrEnum):
    """Where a pool is."""

    OPENING = "opening"
    SERVING = "serving"
    CHANGING = "changing"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class Replica:
    """One place of a pool. `number` names it and is never given again.

    gpus: what it holds. restarts: how often it was started again. in_a_row: failures since it was
    last up for a while. `due_s`, `since_s` on the supervisor's clock.
    """

    number: int
    generation: int
    gpus: tuple[str, ...]
    state: State = State.STARTING
    since_s: float = 0.0
    restarts: int = 0
    in_a_row: int = 0
    due_s: float | None = None
    up_since_s: float | None = None
    back: bool = True  # after its stop it is started again
    words: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` replicas of one configuration, which `generation` stands for, with `gpus_each`."""

    generation: int
    count: int
    gpus_each: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Start the replica's process and wait for a completion: then `ready` or `lost`."""

    replica: int
    generation: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Let the router send requests to it: then `entered`."""

    replica: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Let the router send it nothing more: then `left`."""

    replica: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Say `idle` once it has no request any more."""

    replica: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End its processes; with `kill` at once, because it does not answer. Then `stopped`."""

    replica: int
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Hurry:
    """It is being ended: do not wait for that any more."""

    replica: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Something worth a line. `facts` go into the record beside the words."""

    event: str
    words: str
    replica: int | None = None
    facts: dict[str, object] = field(default_factory=dict)


Action = Start | Enter | Leave | Drain | Stop | Hurry | Tell
