"""What a model said of some prompts: the probabilities that it gave, and how it went on by itself.

Logarithms are natural ones; a token is an id of the model's vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.domain.records import Floats, Ints


@dataclass(frozen=True, slots=True)
class QualityPrompt:
    """A text on which models are compared. `long`: it stands for long contexts."""

    name: str
    text: str
    long: bool = False


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Of a prompt's tokens after the first, n of them, each given all tokens before it.

    logprobs: of the tokens that stand there. top_ids, top_logprobs (n x k): the k likeliest tokens
    of each place, falling.
    """

    ids: tuple[int, ...]
    logprobs: Floats
    top_ids: Ints
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """How a model goes on when it always takes the likeliest token.

    top: of each token the likeliest ones with their log-probability; empty when not told.
    followed: token i is what the model would say after the first i tokens of another's answer.
    """

    ids: tuple[int, ...]
    text: str
    top: tuple[Mapping[int, float], ...] = ()
    followed: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What one server said of one prompt. answer: None when it was not asked for. followed: what it
    says along the reference's answer; None where its own is the same, or it was not asked.
    """

    prompt: QualityPrompt
    likelihoods: Likelihoods
    answer: GreedyAnswer | None = None
    followed: GreedyAnswer | None = None


@dataclass(frozen=True, slots=True)
class ServerReading:
    """All that one server said, and who it is.

    kv_cache_dtype, kv_blocks: as its metrics tell them, None where they do not.
    """

    url: str
    model: str
    readings: tuple[Reading, ...]
    version: str | None = None
    kv_cache_dtype: str | None = None
    kv_blocks: int | None = None
    notes: tuple[str, ...] = field(default=())
