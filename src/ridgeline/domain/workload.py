"""What traffic a run offers: arrivals, prompts and output lengths, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ridgeline.domain.slo import Slo


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One step of a stepped load: so many `users`, or a `rate_per_s`, for `for_s` seconds."""

    for_s: float
    users: int | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded traffic that is replayed: a file, how it is read, and what is in the part chosen.

    format: mooncake | azure | burstgpt | records. speed 2 replays twice as fast. from_s, to_s: a
    slice in the trace's own time. seconds: of the replay, up to its last request. digest: of the
    file, so that another file is another workload. left_out: rows of failed requests.
    """

    file: str
    format: str
    digest: str
    speed: float = 1.0
    from_s: float = 0.0
    to_s: float | None = None
    rows: int = 0
    seconds: float = 0.0
    mean_prompt_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    longest_prompt: int = 0
    longest: int = 0
    left_out: int = 0

    @property
    def rate_per_s(self) -> float:
        """Mean requests per second of the replay."""
        return self.rows / self.seconds if self.seconds else float(self.rows)


# A fixed warm-up, where none is asked for: this share of the window, and at most so long.
WARMUP_SHARE, LONGEST_FIXED_WARMUP_S = 0.2, 10.0
WARMUP_LIMIT_S = 60.0  # an automatic one takes at most so long, unless told otherwise


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One of `users` (closed loop), `rate_per_s` (open loop), `steps` (of either) and `trace`.

    process: poisson | constant | gamma; burstiness is the gamma shape (1 = Poisson, smaller is
    burstier). think_time_s: pause of a user between a reply and the next request, always that
    long or, with think_time "exponential", so long on average. ramp_s: over how long the users
    of a closed loop start (None: 5 s, at most half of the warm-up). max_concurrency: an open loop
    has at most so many requests on their way; the others wait for a slot.
    """

    users: int | None = None
    think_time_s: float = 0.0
    rate_per_s: float | None = None
    process: str = "poisson"
    burstiness: float = 1.0
    think_time: str = "constant"
    ramp_s: float | None = None
    steps: tuple[LoadStep, ...] = ()
    max_concurrency: int | None = None
    trace: Trace | None = None

    @property
    def closed_loop(self) -> bool:
        """True when the load is a number of users, False when it is a rate."""
        return self.users is not None or any(step.users is not None for step in self.steps)

    @property
    def peak_users(self) -> int | None:
        """The most users at a time; None in an open loop."""
        return max((s.users for s in self.steps if s.users is not None), default=self.users)

    @property
    def peak_rate_per_s(self) -> float | None:
        """The highest rate; None in a closed loop."""
        if self.trace is not None:
            return self.trace.rate_per_s
        rates = (s.rate_per_s for s in self.steps if s.rate_per_s is not None)
        return max(rates, default=self.rate_per_s)

    @property
    def peak(self) -> float:
        """Users, or requests per second, at the busiest: how much load this is."""
        return float(self.peak_users or self.peak_rate_per_s or 0.0)

    def scaled(self, factor: float) -> "Arrivals":
        """The same shape with so many times the users (at least one) or the rate."""

        trace = self.trace
        if trace is not None:
            seconds, speed = trace.seconds / factor, trace.speed * factor
            return replace(self, trace=replace(trace, speed=speed, seconds=seconds))

        def users(n: int | None) -> int | None:
            return None if n is None else max(1, round(n * factor))

        def rate(n: float | None) -> float | None:
            return None if n is None else n * factor

        return replace(
            self,
            users=users(self.users),
            rate_per_s=rate(self.rate_per_s),
            max_concurrency=users(self.max_concurrency),
            steps=tuple(
                replace(s, users=users(s.users), rate_per_s=rate(s.rate_per_s)) for s in self.steps
            ),
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """A length distribution in tokens: mean with relative half-width `spread`.

    Drawn uniformly from mean*(1-spread) to mean*(1+spread), both ends included and rounded.
    """

    mean: float
    spread: float = 0.0

    @property
    def low(self) -> int:
        """Smallest length that can be drawn, at least 1."""
        return max(1, round(self.mean * (1 - self.spread)))

    @property
    def high(self) -> int:
        """Largest length that can be drawn."""
        return max(self.low, round(self.mean * (1 + self.spread)))


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts of a group begin with the same `tokens` tokens; requests pick a group at random."""

    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts from a file. format: text | jsonl | sharegpt. Token figures are estimates.

    digest: of the file, so that another one is another workload. salted: each prompt begins with
    words of its own, so that no cache knows it; otherwise the texts are sent as they are.
    history: of a file of sessions, cumulative | incremental; None for other files. carried: its
    rows are whole requests, past included. turns: the fewest and most of a session. longest_whole:
    the most tokens of a request with what went before it and its reply.
    """

    file: str
    format: str
    digest: str
    rows: int = 0
    mean_tokens: float = 1.0
    longest: int = 1
    longest_output: int = 0
    salted: bool = True
    history: str | None = None
    carried: bool = False
    turns: tuple[int, int] = (0, 0)
    longest_whole: int = 0


@dataclass(frozen=True, slots=True)
class Images:
    """Synthetic images in every prompt: how many, their size in pixels, png | jpeg.

    tokens: what one adds to a prompt, for a twin; None = by the model's own rule (`domain.vision`).
    """

    count: int = 1
    width: int = 512
    height: int = 512
    format: str = "png"
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prompts:
    """Synthetic prompts: own part by `tokens`, before it an optional shared prefix; or a file's.

    images: are in every prompt, beside its text (chat only).
    """

    tokens: Lengths = field(default_factory=lambda: Lengths(256))
    shared_prefix: SharedPrefix | None = None
    file: PromptFile | None = None
    images: Images | None = None

    @property
    def mean_tokens(self) -> float:
        """Mean planned length of the own part."""
        return self.tokens.mean if self.file is None else self.file.mean_tokens

    @property
    def most_tokens(self) -> int:
        """Largest planned length of the own part."""
        return self.tokens.high if self.file is None else self.file.longest

    @property
    def shared_tokens(self) -> int:
        """Length of the shared prefix, 0 without one."""
        return 0 if self.shared_prefix is None else self.shared_prefix.tokens


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output lengths asked for. `ignore_eos` makes a server produce exactly that many."""

    tokens: Lengths = field(default_factory=lambda: Lengths(128))
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of requests among others: its share of them, its lengths and its own targets.

    priority: sent as the request's `priority` (vLLM: smaller is earlier); None sends none.
    """

    name: str
    share: float
    prompts: Prompts = field(default_factory=Prompts)
    outputs: Outputs = field(default_factory=Outputs)
    slo: Slo = field(default_factory=Slo)
    priority: int | None = None

    @property
    def longest_output(self) -> int:
        """The most tokens that are asked for; a file may say them itself."""
        stated = 0 if self.prompts.file is None else self.prompts.file.longest_output
        return max(self.outputs.tokens.high, stated)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations: each turn's prompt is the whole talk so far, replies included, and a new part.

    turns: how many requests a session has. think_time_s: pause between a reply and the next turn,
    by the law think_time (constant | exponential, then it is the mean).
    """

    turns: Lengths
    think_time_s: float = 0.0
    think_time: str = "constant"


def sessions_of(file: PromptFile, think_time_s: float, think_time: str = "constant") -> Sessions:
    """The sessions of a file that has some: between the fewest turns and the most."""
    low, high = file.turns
    return Sessions(
        Lengths((low + high) / 2, (high - low) / (high + low)), think_time_s, think_time
    )


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of a real request, in seconds; None = no limit."""

    connect_s: float = 10.0
    first_s: float | None = 120.0
    gap_s: float | None = 60.0
    total_s: float | None = 600.0
    grace_s: float = 60.0  # after the window: how long requests sent inside are followed


@dataclass(frozen=True, slots=True)
class Client:
    """How the load client works. A twin, which needs none, heeds the time-outs only.

    workers: processes with one event loop each, or "auto": one fewer than there are cores.
    """

    workers: int | Literal["auto"] = 1
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What goes with every request besides its prompt. None of it may hold a secret.

    sampling: parameters of the API by name. extra_body: more fields of the body. headers: more
    headers.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """One complete offered load. Times in seconds.

    The run offers the traffic for warmup_s, then (without draining) measures for duration_s;
    requests sent inside the window are followed to their end. `requests` ends the window early
    once that many requests were sent inside it (then duration_s is the upper limit).

    warmup_auto: the warm-up ends when the run is steady, and warmup_s is the most that it may take.
    classes: every request is drawn from one of them, and `prompts` and `outputs` are not used. A
    stepped load warms up at its first step, and duration_s is as long as all steps. sessions: an
    arrival is that of a session, and a user has one session after another; prompt lengths are those
    of the new part of each turn. salt: what makes prompts fresh; None: another one in every run.
    token_ids: completions are asked for token ids, not for texts.
    """

    arrivals: Arrivals
    prompts: Prompts = field(default_factory=Prompts)
    outputs: Outputs = field(default_factory=Outputs)
    duration_s: float = 90.0
    warmup_s: float = 10.0
    requests: int | None = None
    seed: int = 0
    warmup_auto: bool = False
    classes: tuple[TrafficClass, ...] = ()
    sessions: Sessions | None = None
    client: Client = Client()
    options: RequestOptions = field(default_factory=RequestOptions)
    salt: str | None = None
    token_ids: bool = False

    @property
    def least_warmup_s(self) -> float:
        """The shortest warm-up that an automatic one may have: what a fixed one would take.

        So it is at no time less safe than the fixed one. A window that counts requests may be
        short, whatever its duration: it asks for no more than the search itself needs.
        """
        if self.requests is not None:
            return 0.0
        return min(LONGEST_FIXED_WARMUP_S, WARMUP_SHARE * self.duration_s, self.warmup_s)

    @property
    def kinds(self) -> tuple[TrafficClass, ...]:
        """The classes; without any, the whole traffic as one class without a name."""
        return self.classes or (TrafficClass("", 1.0, self.prompts, self.outputs),)

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean planned prompt length, shared prefixes included."""
        if self.arrivals.trace is not None:
            return self.arrivals.trace.mean_prompt_tokens
        return sum(k.share * (k.prompts.mean_tokens + k.prompts.shared_tokens) for k in self.kinds)

    @property
    def mean_output_tokens(self) -> float:
        """Mean planned output length."""
        if self.arrivals.trace is not None:
            return self.arrivals.trace.mean_output_tokens
        return sum(k.share * k.outputs.tokens.mean for k in self.kinds)

    @property
    def longest_own_part(self) -> int:
        """The most tokens that the part of a prompt which is its own can have."""
        if self.arrivals.trace is not None:
            return self.arrivals.trace.longest_prompt
        return max(kind.prompts.most_tokens for kind in self.kinds)

    @property
    def longest(self) -> int:
        """The most tokens that a request can have, prompt and output, with all turns before it."""
        if self.arrivals.trace is not None:
            return self.arrivals.trace.longest
        file = self.prompts.file
        if file is not None and file.history is not None and not self.classes:
            return file.longest_whole
        one = max(kind.prompts.most_tokens + kind.longest_output for kind in self.kinds)
        turns = 1 if self.sessions is None else self.sessions.turns.high
        return turns * one + max(kind.prompts.shared_tokens for kind in self.kinds)

    @property
    def planned_exactly(self) -> bool:
        """Whether planned prompt lengths are more than estimates: no texts of others, no images."""
        return all(k.prompts.file is None and k.prompts.images is None for k in self.kinds)

    @property
    def shared_share(self) -> float:
        """Share of all prompt tokens that are declared to be shared."""
        shared = sum(k.share * k.prompts.shared_tokens for k in self.kinds)
        return shared / self.mean_prompt_tokens
