"""A workload becomes a complete schedule, drawn once, before the run, from named seeded streams.

A pair of runs with the same workload and seed shares arrivals and lengths exactly; only the salt
of the prompts differs. The schedule does not depend on how many workers will send it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Lengths, Trace, TrafficClass, Workload
from ridgeline.workload.arrivals import (
    Presence,
    draw_arrivals,
    draw_pauses,
    draw_user_starts,
    presence_of,
)
from ridgeline.workload.promptfiles import entries_of, turns_of
from ridgeline.workload.traces import replayed

# Rows of lengths drawn for a closed loop, whose request count is not known beforehand. A run that
# needs more starts again at the first row: lengths repeat then, prompts' text never does.
CLOSED_LOOP_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of prompt that others have too, after the same pieces: `key` names it in the run."""

    key: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A past turn of a session: what identified its request, the tokens of its new part and reply.

    `reply` is the text that the server gave, None where there is none (a twin).
    """

    identity: int
    own_tokens: int
    output_tokens: int
    reply: str | None = None
    entry: int | None = None  # which prompt of its class's file its new part was


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back for a turn. Counts are the server's, None where it tells none."""

    reply: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True)  # one a request: frozen ones take four times as long to make
class PlannedRequest:
    """One request of the schedule. `row` is its place in the drawn lengths.

    prefix: what the prompt begins with and shares with others, piece after piece. think_ns: how
    long its user pauses after it. traffic_class: index into the workload's classes. session, turn,
    past: of a conversation; `past_tokens` of the prompt are the talk so far.
    """

    row: int
    prompt_tokens: int  # all of the prompt, shared prefix and past turns included
    output_tokens: int
    prefix: tuple[Segment, ...] = ()
    think_ns: int = 0
    traffic_class: int | None = None
    session: int | None = None
    turn: int = 0
    past: tuple[Turn, ...] = ()
    past_tokens: int = 0
    entry: int | None = None  # which prompt of its class's file it is

    @property
    def own_tokens(self) -> int:
        """Tokens of the prompt that are new in this turn."""
        return self.prompt_tokens - self.past_tokens


@dataclass(frozen=True, slots=True)
class SessionRows:
    """The rows of each session: `turns[s]` of them, from `first[s]` on. `most`: the longest."""

    first: NDArray[np.int64]
    turns: NDArray[np.int32]
    most: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The drawn traffic of one run.

    Open loop: `intended_ns[i]` is when item i should start, ascending, from the run's zero, over
    warm-up and window. Closed loop: `intended_ns` is None, `users` have one item after another;
    user u starts at `user_start_ns[u]`, and its k-th item (k from 0) is number u + k * users;
    under a stepped load `presence` says when it may go on. An item is a request, or a session
    where there are `sessions`: `begin` gives the first request of an item, `follow` the next one.
    `prompt_tokens`, `output_tokens`, `prefix_group` (-1: no group; an index into `chains` where the
    prompts of a trace share more than one beginning), `class_of` (index into the
    workload's classes) and `pause_ns` (None: all as the workload says) are the drawn rows, which
    wrap around in a closed loop.
    """

    workload: Workload
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    prefix_group: NDArray[np.int32]
    intended_ns: NDArray[np.int64] | None = None
    users: int | None = None
    user_start_ns: NDArray[np.int64] | None = None
    class_of: NDArray[np.int16] | None = None
    pause_ns: NDArray[np.int64] | None = None
    presence: Presence | None = None
    sessions: SessionRows | None = None
    chains: tuple[tuple[Segment, ...], ...] | None = None
    entry_of: NDArray[np.int32] | None = None

    @property
    def pauses(self) -> bool:
        """False when no user ever waits."""
        return self.pause_ns is not None or self.workload.arrivals.think_time_s > 0

    def planned(self, row: int) -> PlannedRequest:
        """The request of a row, as if it were no part of a session."""
        row %= len(self.prompt_tokens)
        group = self.prefix_group.item(row)
        kind = None if self.class_of is None else self.class_of.item(row)
        return PlannedRequest(
            row,
            self.prompt_tokens.item(row),
            self.output_tokens.item(row),
            () if group < 0 else self._prefix(group, kind),
            0
            if self.pause_ns is None and not self.workload.arrivals.think_time_s
            else self._pause_ns(row),
            kind,
            entry=None if self.entry_of is None else self._entry(row),
        )

    def _entry(self, row: int) -> int | None:
        entry = -1 if self.entry_of is None else self.entry_of.item(row)
        return entry if entry >= 0 else None

    def _prefix(self, group: int, kind: int | None) -> tuple[Segment, ...]:
        workload = self.workload
        prompts = workload.prompts if kind is None else workload.classes[kind].prompts
        if self.chains is not None:
            return self.chains[group]
        return (Segment(group, prompts.shared_tokens),)

    def _pause_ns(self, row: int) -> int:
        if self.pause_ns is None:
            return round(self.workload.arrivals.think_time_s * 1e9)
        return int(self.pause_ns[row])

    def closed(self, user: int, turn: int) -> PlannedRequest:
        """The turn-th item of a user. The same for every configuration that is compared."""
        assert self.users is not None, "an open-loop schedule has no users"
        return self.begin(user + turn * self.users)

    def begin(self, number: int) -> PlannedRequest:
        """The (first) request of an item."""
        if self.sessions is None:
            return self.planned(number)
        session = number % len(self.sessions.first)
        planned = self.planned(int(self.sessions.first[session]))
        return replace(planned, session=session)

    def identity(self, number: int, turn: int = 0) -> int:
        """A number that no other request of the run has."""
        return number if self.sessions is None else number * self.sessions.most + turn

    def follow(
        self,
        planned: PlannedRequest,
        identity: int,
        heard: Heard = Heard(),
    ) -> PlannedRequest | None:
        """The next turn of a session, after what was heard; None when it is over.

        Lengths of the past are the server's counts where it told them, else the planned ones.
        """
        if self.sessions is None or planned.session is None:
            return None
        if planned.turn + 1 >= int(self.sessions.turns[planned.session]):
            return None
        prompt, output = planned.prompt_tokens, planned.output_tokens
        then = self.planned(planned.row + 1)
        file = self.workload.prompts.file
        carried = file is not None and file.carried
        if carried:  # the row is the whole request, whatever the server said
            if then.prompt_tokens <= prompt + output:  # by the planned lengths it has lost its past
                return replace(then, session=planned.session, turn=planned.turn + 1)
            then = replace(then, prompt_tokens=then.prompt_tokens - prompt - output)
        elif heard.prompt_tokens is not None and heard.output_tokens is not None:
            prompt, output = heard.prompt_tokens, heard.output_tokens
        turn = Turn(identity, planned.own_tokens, output, heard.reply, planned.entry)
        return replace(
            then,
            prompt_tokens=prompt + output + then.prompt_tokens,
            prefix=planned.prefix,
            session=planned.session,
            turn=planned.turn + 1,
            past=(*planned.past, turn),
            past_tokens=prompt + output,
        )

    @property
    def longest(self) -> int:
        """The most tokens that a request can have, prompt and output."""
        whole = self.prompt_tokens.astype(np.int64) + self.output_tokens
        file = self.workload.prompts.file
        if self.sessions is None or (file is not None and file.carried):
            return int(whole.max())
        return int(np.add.reduceat(whole, self.sessions.first).max())

    def goes_on_ns(self, user: int, at_ns: int) -> int | None:
        """When a user that is ready at `at_ns` may send; None: it is not there any more."""
        return at_ns if self.presence is None else self.presence.next_ns(user, at_ns)


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one named random stream: independent of all others, stable for ever."""
    words = [seed & 0xFFFFFFFF, seed >> 32, *name.encode()]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def draw_lengths(lengths: Lengths, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """n lengths, uniform on the whole numbers from lengths.low to lengths.high."""
    return rng.integers(lengths.low, lengths.high, size=n, endpoint=True, dtype=np.int32)


def draw_schedule(workload: Workload) -> Schedule:
    """Draw everything that a run needs; the same workload (its seed included) gives the same.

    Raises BadInput when the arrivals are not one of users and rate, or name an unknown process.
    """
    arrivals, seed = workload.arrivals, workload.seed
    if arrivals.trace is not None:
        return _replay(workload, arrivals.trace)
    given = (arrivals.users is not None, arrivals.rate_per_s is not None, bool(arrivals.steps))
    if sum(given) != 1:
        raise BadInput("arrivals need either users or a rate", fix="give exactly one of them")
    intended = starts = None
    if arrivals.closed_loop:
        users = arrivals.peak_users
        assert users is not None
        starts = _user_starts(workload, users)
        items = max(CLOSED_LOOP_ROWS, users)
    else:
        total_s = workload.warmup_s + workload.duration_s
        rng = stream(seed, "arrivals")
        intended = draw_arrivals(arrivals, total_s, rng, workload.warmup_s)
        items = max(1, len(intended))
    sessions = _draw_sessions(workload, items)
    prompts, outputs, groups, classes = _draw_rows(workload, items, sessions)
    entries = _draw_entries(workload, prompts, outputs, classes, sessions)
    return Schedule(
        workload=workload,
        prompt_tokens=prompts,
        output_tokens=outputs,
        prefix_group=groups,
        intended_ns=intended,
        users=arrivals.peak_users,
        user_start_ns=starts,
        class_of=classes,
        pause_ns=_draw_pauses(workload, len(prompts), sessions),
        presence=presence_of(arrivals.steps, workload.warmup_s)
        if arrivals.closed_loop and arrivals.steps
        else None,
        sessions=sessions,
        entry_of=entries,
    )


def _replay(workload: Workload, trace: Trace) -> Schedule:
    """The schedule of a trace: nothing is drawn."""
    rows = replayed(trace)
    at_ns = np.rint(rows.at_s * 1e9).astype(np.int64)
    kept = at_ns < round((workload.warmup_s + workload.duration_s) * 1e9)
    groups, chains = np.full(int(kept.sum()), -1, dtype=np.int32), None
    if rows.chain is not None:
        own = (chain for chain, inside in zip(rows.chain, kept, strict=True) if inside)
        chains = tuple(tuple(Segment(key, tokens) for key, tokens in chain) for chain in own)
        has = np.array([bool(chain) for chain in chains], dtype=np.bool_)
        groups[has] = np.flatnonzero(has)
    return Schedule(
        workload=workload,
        prompt_tokens=rows.prompt_tokens[kept],
        output_tokens=rows.output_tokens[kept],
        prefix_group=groups,
        intended_ns=at_ns[kept],
        chains=chains,
    )


def _user_starts(workload: Workload, users: int) -> NDArray[np.int64]:
    """When each user begins; those of later steps of the load begin with their step."""
    arrivals, rng = workload.arrivals, stream(workload.seed, "user-start")
    if not arrivals.steps:
        return draw_user_starts(users, workload.warmup_s, rng, arrivals.ramp_s)
    first = arrivals.steps[0].users or 0
    starts = np.zeros(users, dtype=np.int64)
    starts[:first] = draw_user_starts(first, workload.warmup_s, rng, arrivals.ramp_s)
    presence = presence_of(arrivals.steps, workload.warmup_s)
    for user in range(first, users):
        at_ns = presence.next_ns(user, 0)
        assert at_ns is not None
        starts[user] = at_ns
    return starts


def _draw_sessions(workload: Workload, items: int) -> SessionRows | None:
    """How many turns each session has, and where its rows are."""
    if workload.sessions is None:
        return None
    file = workload.prompts.file
    if file is not None and file.history is not None:
        turns = np.array(turns_of(file), dtype=np.int32)[_talks(workload, items)]
    else:
        rng = stream(workload.seed, "session-turns")
        turns = draw_lengths(workload.sessions.turns, items, rng)
    if workload.arrivals.closed_loop:  # enough rows, not enough sessions
        last = int(np.searchsorted(np.cumsum(turns), items)) + 1
        turns = turns[: max(last, workload.arrivals.peak_users or 1)]
    first = np.cumsum(turns, dtype=np.int64) - turns
    return SessionRows(first, turns, int(turns.max()))


def _talks(workload: Workload, items: int) -> NDArray[np.int64]:
    """Which session of a file each item is, in the order of `_passes`."""
    assert workload.prompts.file is not None
    return _passes(workload, "", len(turns_of(workload.prompts.file)), items)


def _passes(workload: Workload, name: str, count: int, wanted: int) -> NDArray[np.int64]:
    """`wanted` of `count` things: all in a random order, and in another one each time anew."""
    rng = stream(workload.seed, f"prompt-file:{name}")
    passes = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return np.concatenate([np.empty(0, np.int64), *passes])[:wanted]


def _draw_pauses(
    workload: Workload, rows: int, sessions: SessionRows | None
) -> NDArray[np.int64] | None:
    """The pause after each row: between the turns of a session, and after its last one."""
    arrivals, talk = workload.arrivals, workload.sessions
    rng = stream(workload.seed, "think-time")
    pauses = draw_pauses(arrivals.think_time_s, arrivals.think_time, rows, rng)
    if sessions is None or talk is None:
        return pauses
    rng = stream(workload.seed, "turn-think-time")
    between = draw_pauses(talk.think_time_s, talk.think_time, rows, rng)
    found = np.full(rows, round(talk.think_time_s * 1e9)) if between is None else between
    last = sessions.first + sessions.turns - 1
    found[last] = round(arrivals.think_time_s * 1e9) if pauses is None else pauses[last]
    return found


_Rows = NDArray[np.int32]


def _draw_rows(
    workload: Workload, items: int, sessions: SessionRows | None
) -> tuple[_Rows, _Rows, _Rows, NDArray[np.int16] | None]:
    """Prompt lengths, output lengths, prefix groups and classes of so many requests.

    Every class has its own streams, so a change in one moves nothing in the others. All turns of a
    session are of one class, and only the first one has the shared prefix in its own part.
    """
    seed, classes = workload.seed, None
    rows = items if sessions is None else int(sessions.turns.sum())
    prompts, outputs = np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.int32)
    groups, used = np.full(rows, -1, dtype=np.int32), 0
    if workload.classes:
        bounds = np.cumsum([kind.share for kind in workload.classes])
        drawn = stream(seed, "classes").random(items) * bounds[-1]
        classes = np.searchsorted(bounds, drawn, side="right").astype(np.int16)
        if sessions is not None:
            classes = np.repeat(classes[: len(sessions.turns)], sessions.turns)
    for number, kind in enumerate(workload.kinds):
        mine: slice | NDArray[np.bool_] = slice(None)
        if classes is not None:
            mine = classes == number
        one = _draw_kind(kind, rows, seed)
        prompts[mine], outputs[mine] = one[0][mine], one[1][mine]
        if kind.prompts.shared_prefix is not None:
            groups[mine] = one[2][mine] + used
            used += kind.prompts.shared_prefix.groups
            begins = np.ones(rows, dtype=np.bool_)
            if sessions is not None:
                begins[:] = False
                begins[sessions.first] = True
            begins &= groups >= 0 if classes is None else classes == number
            prompts[begins] += np.int32(kind.prompts.shared_prefix.tokens)
    return prompts, outputs, groups, classes


def _draw_entries(
    workload: Workload,
    prompts: _Rows,
    outputs: _Rows,
    classes: NDArray[np.int16] | None,
    sessions: SessionRows | None,
) -> NDArray[np.int32] | None:
    """Which prompt of a file each row is; its lengths go into `prompts` and `outputs`.

    A file is gone through in a random order, and in another one each time it begins anew: all its
    prompts are sent equally often.
    """
    if all(kind.prompts.file is None for kind in workload.kinds):
        return None
    found = np.full(len(prompts), -1, dtype=np.int32)
    for number, kind in enumerate(workload.kinds):
        if kind.prompts.file is None:
            continue
        mine = np.arange(len(prompts)) if classes is None else np.flatnonzero(classes == number)
        entries = entries_of(kind.prompts.file)
        if sessions is None:
            found[mine] = _passes(workload, kind.name, len(entries), len(mine))
        else:  # turn after turn
            first = np.concatenate(([0], np.cumsum(turns_of(kind.prompts.file))))
            begin = first[_talks(workload, len(sessions.turns))]
            turn = np.arange(len(mine)) - np.repeat(sessions.first, sessions.turns)
            found[mine] = np.repeat(begin, sessions.turns) + turn
        planned = np.array([entry.planned_tokens for entry in entries], dtype=np.int32)
        stated = np.array([entry.output_tokens or 0 for entry in entries], dtype=np.int32)
        prompts[mine] = planned[found[mine]]
        outputs[mine] = np.where(stated[found[mine]] > 0, stated[found[mine]], outputs[mine])
        if not entries[0].messages:  # lengths alone: the texts are made
            found[mine] = -1
    return found


def _draw_kind(kind: TrafficClass, rows: int, seed: int) -> tuple[_Rows, _Rows, _Rows]:
    """Rows of one class of requests, as if there were no other."""
    name = f":{kind.name}" if kind.name else ""
    shared = kind.prompts.shared_prefix
    prompts = draw_lengths(kind.prompts.tokens, rows, stream(seed, f"prompt-lengths{name}"))
    groups = np.full(rows, -1, dtype=np.int32)
    if shared is not None:
        rng = stream(seed, f"prefix-groups{name}")
        groups = rng.integers(shared.groups, size=rows, dtype=np.int32)
    outputs = draw_lengths(kind.outputs.tokens, rows, stream(seed, f"output-lengths{name}"))
    return prompts, outputs, groups
