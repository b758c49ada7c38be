"""What a step does: the scheduler's decision, read by the step-time model and the loop."""

from ridgeline.twin.request import Request


class Decision:
    """What one step does. `prefills` are (request, context before, tokens) of prompt chunks.

    `pairs` is the sum over chunks of tokens * (context before + tokens / 2); `context` the KV
    tokens that decodes read; `chunk_context` those that prompt chunks read from earlier ones.
    `drafts` are the guessed tokens that decodes verify beside their own one each.
    `outputs` are the requests that get tokens, `chunks` those of them whose tokens leave at once
    (both filled at the launch, for who processes them).
    `firsts` end their prompt here, `finished` get their last token, `got_token` is filled only
    when the scheduler traces: (request, tokens of this step) of all, in list order.
    """

    __slots__ = (
        "admitted",
        "chunk_context",
        "chunks",
        "context",
        "decodes",
        "drafts",
        "finished",
        "firsts",
        "outputs",
        "pairs",
        "preempted",
        "prefill_tokens",
        "prefills",
        "running",
        "step",
        "trace",
        "used_blocks",
        "waiting",
    )

    def __init__(self, step: int) -> None:
        self.step = step
        self.decodes = 0
        self.drafts = 0
        self.context = 0
        self.prefills: list[tuple[Request, int, int]] = []
        self.prefill_tokens = 0
        self.pairs = 0.0
        self.chunk_context = 0
        self.firsts: list[Request] = []
        self.finished: list[Request] = []
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.outputs = 0
        self.chunks = 0
        self.running = 0
        self.waiting = 0
        self.used_blocks = 0
        self.trace: dict[int, int] | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.decodes + self.drafts + self.prefill_tokens

    @property
    def sampled(self) -> int:
        """Rows that the LM head computes."""
        return self.decodes + self.drafts + len(self.firsts)
