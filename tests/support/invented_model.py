"""Readings of invented models: whole distributions over a small vocabulary, then cut to the top."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.readings import (
    GreedyAnswer,
    Likelihoods,
    QualityPrompt,
    Reading,
    ServerReading,
)

VOCABULARY = 400
TOP = 20
Logits = NDArray[np.float64]


def log_softmax(logits: Logits) -> Logits:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def likelihoods(ids: NDArray[np.int64], logprobs: Logits) -> Likelihoods:
    """Row i of `logprobs` is about token i + 1."""
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :TOP]
    places = np.arange(len(ids) - 1)
    return Likelihoods(
        tuple(int(i) for i in ids), logprobs[places, ids[1:]], order,
        np.take_along_axis(logprobs, order, axis=1),
    )  # fmt: skip


def server(
    change: Callable[[Logits, str], Logits] = lambda logits, _: logits,
    *,
    prompts: int = 24,
    long: int = 4,
    tokens: int = 160,
    long_tokens: int | None = None,
    departs: int = 0,
    gap: float = 3.0,
) -> ServerReading:
    """A model whose logits went through `change` (logits, prompt name); the same texts each time.

    The texts are drawn from the unchanged model, so that it predicts them. The first `departs`
    answers part from the unchanged ones, at a token that the model held `gap` nats less likely.
    """
    readings = []
    for i, (name, ids, logits) in enumerate(
        texts(prompts, long, tokens, long_tokens or 6 * tokens)
    ):
        seen = likelihoods(ids, log_softmax(change(logits, name)))
        token, other = (8, 7) if i < departs else (7, 8)
        top = {5: -0.1, 6: -0.2, token: -0.3, other: -0.3 - gap}
        answer = GreedyAnswer((5, 6, token), "", (top,) * 3)
        prompt = QualityPrompt(name, "text", long=name.startswith("long"))
        readings.append(Reading(prompt, seen, answer))
    return ServerReading("http://127.0.0.1:1", "invented", tuple(readings), kv_cache_dtype="auto")


@cache
def texts(
    prompts: int, long: int, tokens: int, long_tokens: int
) -> list[tuple[str, NDArray[np.int64], Logits]]:
    """Names, tokens and logits."""
    draw = np.random.default_rng(11)
    found = []
    for i in range(prompts + long):
        n = tokens if i < prompts else long_tokens
        logits = draw.normal(0.0, 3.0, (n - 1, VOCABULARY))
        up_to = np.exp(log_softmax(logits)).cumsum(axis=1)
        drawn = (draw.random((n - 1, 1)) > up_to).sum(axis=1).clip(max=VOCABULARY - 1)
        name = f"short-{i}" if i < prompts else f"long-{i}"
        found.append((name, np.concatenate([[0], drawn]), logits))
    return found
