"""Readings of invented models: whole distributions over a small vocabulary, then cut to the top."""

from collections.abc import Callable

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
    departs: int = 0,
    gap: float = 3.0,
) -> ServerReading:
    """A model whose logits went through `change` (logits, prompt name); the same texts each time.

    The texts are drawn from the unchanged model, so that it predicts them. The first `departs`
    answers part from the unchanged ones, at a token that the model held `gap` nats less likely.
    """
    draw = np.random.default_rng(11)
    readings = []
    for i in range(prompts + long):
        is_long = i >= prompts
        n = tokens * 6 if is_long else tokens
        name = f"long-{i}" if is_long else f"short-{i}"
        logits = draw.normal(0.0, 3.0, (n - 1, VOCABULARY))
        chances = np.exp(log_softmax(logits))
        ids = np.array([0] + [int(draw.choice(VOCABULARY, p=row)) for row in chances])
        seen = likelihoods(ids, log_softmax(change(logits, name)))
        token = 8 if i < departs else 7
        answer = GreedyAnswer((5, 6, token), "", tuple({5: -0.1, 6: -0.2, 7: -0.3, 8: -0.3 - gap}
                                                     for _ in range(3)))  # fmt: skip
        readings.append(Reading(QualityPrompt(name, "text", long=is_long), seen, answer))
    return ServerReading("http://127.0.0.1:1", "invented", tuple(readings), kv_cache_dtype="auto")
