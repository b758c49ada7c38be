"""The options of `bench`, of which `knee` takes some too: each is declared once, here."""

import enum
from pathlib import Path
from typing import Annotated

import typer

# The upper ends of a study file hold here too.
MOST_USERS, MOST_REQUESTS, MOST_TOKENS, MOST_GPUS = 100_000, 100_000_000, 10_000_000, 4096
LEAST_AUTO_S = 8.0  # a shorter window is too short to tell a steady state in


class EndpointKind(enum.StrEnum):
    """Which part of the API is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class PauseLaw(enum.StrEnum):
    """Law of a pause."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


class TraceKind(enum.StrEnum):
    """How a trace is written."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    RECORDS = "records"


class PromptKind(enum.StrEnum):
    """How a file of prompts is written."""

    TEXT = "text"
    JSONL = "jsonl"
    SHAREGPT = "sharegpt"
    SESSIONS = "sessions"


class PastKind(enum.StrEnum):
    """What a row of a session holds."""

    CUMULATIVE = "cumulative"
    INCREMENTAL = "incremental"


class ArrivalLaw(enum.StrEnum):
    """Law of the arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


Url = Annotated[str | None, typer.Argument(metavar="URL", help="Base URL, with or without /v1.")]
Model = Annotated[str | None, typer.Option(metavar="M", help="Model name [the first one served].")]
Endpoint = Annotated[EndpointKind, typer.Option(help="API to use.")]
Users = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_USERS,
        help="Closed loop: N users, one request at a time each.",
    ),
]
Rate = Annotated[float | None, typer.Option(metavar="R", help="Open loop: R requests per second.")]
Process = Annotated[
    ArrivalLaw, typer.Option(help="The law by which an open loop's requests arrive.")
]
Burstiness = Annotated[
    float, typer.Option(metavar="B", help="Shape of --process gamma; smaller is burstier.")
]
UserSteps = Annotated[
    str, typer.Option(metavar="N:S,...", help="N users for S seconds, and so on.")
]
RateSteps = Annotated[
    str, typer.Option(metavar="R:S,...", help="R requests/s for S seconds, and so on.")
]
ThinkTime = Annotated[
    float, typer.Option(metavar="S", help="A user's pause before the next request.")
]
ThinkTimeLaw = Annotated[PauseLaw, typer.Option(help="Always so long, or on average.")]
Ramp = Annotated[
    float | None,
    typer.Option(metavar="S", help="Users begin over S seconds [5, at most half the warm-up]."),
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_USERS, help="At most N in flight at a rate."),
]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Replay a trace (or the requests of a run's folder)."),
]
TraceFormat = Annotated[
    TraceKind | None, typer.Option(help="How it is read [told by its first line].")
]
TraceSpeed = Annotated[float, typer.Option(metavar="X", help="Replay X times as fast.")]
TraceFrom = Annotated[float, typer.Option(metavar="S", help="Begin S seconds into the trace.")]
TraceTo = Annotated[float | None, typer.Option(metavar="S", help="End S seconds into the trace.")]
Turns = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=10_000, help="Sessions of N turns with the talk so far."),
]
TurnThinkTime = Annotated[
    float, typer.Option(metavar="S", help="Pause between the turns of a session.")
]
Classes = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="NAME:KEY=VALUE,...",
        help="A class of requests: share, prompt_tokens, output_tokens, shared_prefix_tokens,"
        " priority, SLO keys, url (a server for this class alone). Repeat it.",
    ),
]
Duration = Annotated[float | None, typer.Option(metavar="S", help="Measure for S seconds [30].")]
Requests = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_REQUESTS, help="Measure N requests instead."),
]
Warmup = Annotated[
    str | None,
    typer.Option(
        metavar="S",
        help="Warm-up of S seconds, or auto: until the run is steady"
        f" [auto; a fifth of a --duration below {LEAST_AUTO_S:g}].",
    ),
]
WarmupLimit = Annotated[
    float | None,
    typer.Option(metavar="S", help="The most that --warmup auto may take [60]."),
]
PromptTokens = Annotated[
    int, typer.Option(metavar="N", min=1, max=MOST_TOKENS, help="Tokens a prompt.")
]
OutputTokens = Annotated[
    int, typer.Option(metavar="N", min=1, max=MOST_TOKENS, help="Most tokens a reply.")
]
Spread = Annotated[
    float,
    typer.Option(
        metavar="S", min=0, max=1, help="Lengths vary evenly by this share of them, both ways."
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Ask for exactly as many output tokens.")
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Prompts from lines, JSONL, ShareGPT conversations or sessions."
    ),
]
PromptFormat = Annotated[
    PromptKind | None, typer.Option(help="How it is read [told by its beginning].")
]
History = Annotated[
    PastKind | None,
    typer.Option(
        help="Rows of a file of sessions carry the talk so far, or only what is new [seen in them]."
    ),
]
Unsalted = Annotated[
    bool, typer.Option("--unsalted", help="Send the texts of --prompt-file as they are.")
]
Images = Annotated[
    str, typer.Option(metavar="N:WxH", help="N images of W x H pixels in each prompt (chat).")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Sampling parameter, as the API has it.")
]
TopP = Annotated[float | None, typer.Option(metavar="P", help="Sampling parameter.")]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Sampling parameter.")]
SamplingSeed = Annotated[
    int | None, typer.Option(metavar="N", help="The server's own seed, sent as `seed`.")
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Text that ends a reply. Repeat it.")
]
ExtraBody = Annotated[
    str, typer.Option(metavar="JSON", help="More fields of every request's body.")
]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="A header of every request; no secrets. Repeat it."),
]
Salt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The same prompts again [fresh in each run].")
]
TokenIds = Annotated[
    bool, typer.Option("--token-ids", help="Send completions token ids, exactly as planned.")
]
Seed = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=(1 << 63) - 1, help="Seed of arrivals, lengths."),
]
Slo = Annotated[
    str,
    typer.Option(metavar="LIMITS", help='"ttft_p95_ms=2000,itl_p95_ms=20"; exit 1 if missed.'),
]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="GPU behind the URL.")]
Gpus = Annotated[int, typer.Option(metavar="N", min=1, max=MOST_GPUS, help="How many of them.")]
PricePerGpuHour = Annotated[
    float | None, typer.Option(metavar="USD", min=0, help="Price, for the cost per token.")
]
JsonFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - is stdout.")
]
ExportVllm = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the run as vllm bench serve --save-detailed does."),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where results go [runs/bench-<time>].")
]
Grace = Annotated[
    float,
    typer.Option(metavar="S", help="Follow requests for S seconds after the window."),
]
ConnectTimeout = Annotated[float, typer.Option(metavar="S", help="Longest time to connect.")]
FirstTokenTimeout = Annotated[
    float, typer.Option(metavar="S", help="Longest time to the first token; 0: no limit.")
]
ChunkTimeout = Annotated[
    float, typer.Option(metavar="S", help="Longest time between chunks; 0: no limit.")
]
Timeout = Annotated[
    float, typer.Option(metavar="S", help="Longest time of a whole request; 0: no limit.")
]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N", help="Client processes, one event loop each; auto: one core left free."
    ),
]
MoreUrls = Annotated[
    list[str] | None,
    typer.Option("--url", metavar="URL", help="Another replica of URL; repeat for more."),
]
Routing = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="How replicas share requests: round-robin, least-loaded, prefix-aware.",
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Try this client against null servers of its own and show what it can do here; without"
        " URL that is all (about 15 s).",
    ),
]
NoCalibration = Annotated[
    bool,
    typer.Option(
        "--no-calibration", help="Leave out the short calibration of the client (1 to 3 s) before."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Plain lines instead of a live bar, no table.")
]
