"""How far a candidate's probabilities are from a reference's, as pure formulas of two readings.

A prompt is one unit of the statistics: its tokens share a text and are not independent. Intervals
(95 %) are those of a ratio of sums over prompts, paired: both servers read the same tokens. Long
prompts alone are too few for that; among themselves their pieces of PIECE tokens are the units.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.domain.readings import Reading
from ridgeline.domain.records import Floats
from ridgeline.tuning.quality_answers import Greedy, Pair, decode_kl, greedy_agreement
from ridgeline.tuning.quality_divergence import TIE_NATS, kl_bound, preference
from ridgeline.tuning.quality_stats import Figure, exp_of_minus, ratio, share

PIECE = 256
WORST_TOKENS = 32  # of a prompt that is judged alone: of a few tokens one near tie would speak


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate against reference on the same tokens.

    nll: mean negative log-likelihood per token, nats. recovery: exp(nll_reference - nll_candidate),
    the ratio of perplexities. top1: share of places with the same likeliest token. agreement: the
    same, where a token that the reference held as likely as its own within TIE_NATS agrees too.
    kl: mean KL divergence (reference || candidate) per token in nats, over the listed tokens and
    one lumped remainder: a lower bound of that over the vocabulary. reference_hits: share of places
    whose token is the reference's likeliest one. kl_worst_prompt: the largest KL of a prompt with
    WORST_TOKENS or more, worst_prompt its name; None where all are shorter. decode_kl: the same KL
    at the places of the greedy answers that can be compared; an engine may read its KV cache in
    decode only.
    """

    prompts: int
    tokens: int
    nll_reference: float
    nll_candidate: float
    recovery: Figure
    top1: Figure
    agreement: Figure
    kl: Figure
    kl_worst_prompt: float | None
    worst_prompt: str | None
    reference_hits: float
    greedy: Greedy | None = None
    decode_kl: Figure | None = None

    @property
    def prompts_identical(self) -> bool:
        """Every probability of the prompts is the same number."""
        return (
            self.kl.value == 0.0
            and self.top1.value == 1.0
            and self.nll_candidate == self.nll_reference
        )

    @property
    def identical(self) -> bool:
        """Every probability and every answer is the same number."""
        same_answers = self.greedy is None or self.greedy.same == self.greedy.prompts
        same_decode = self.decode_kl is None or self.decode_kl.value == 0.0
        return self.prompts_identical and same_answers and same_decode

    def to_json(self) -> dict[str, Any]:
        """Plain values, with perplexities."""
        body = asdict(self)
        body["perplexity_reference"] = math.exp(self.nll_reference)
        body["perplexity_candidate"] = math.exp(self.nll_candidate)
        return body


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over each unit's tokens, one entry a unit."""

    tokens: Floats
    nll_reference: Floats
    nll_candidate: Floats
    kl: Floats
    top1: Floats
    agreed: Floats
    hits: Floats


def compare(
    reference: Sequence[Reading], candidate: Sequence[Reading], *, pieces: bool = False
) -> Comparison:
    """Hold two servers' readings of the same prompts against each other.

    pieces: stretches of PIECE tokens are the units, not prompts. Raises ValueError when the two did
    not read the same tokens.
    """
    pairs = list(zip(reference, candidate, strict=True))
    sums = unit_sums(pairs, pieces=pieces)
    n = sums.tokens
    total = float(n.sum())
    loss = ratio(sums.nll_candidate - sums.nll_reference, n)
    answers, worst = answers_of(pairs), worst_prompt(pairs)
    return Comparison(
        prompts=len(pairs),
        tokens=int(total),
        nll_reference=float(sums.nll_reference.sum()) / total,
        nll_candidate=float(sums.nll_candidate.sum()) / total,
        recovery=exp_of_minus(loss),
        top1=share(sums.top1, n),
        agreement=share(sums.agreed, n),
        kl=ratio(sums.kl, n),
        kl_worst_prompt=None if worst is None else worst[1],
        worst_prompt=None if worst is None else worst[0],
        reference_hits=float(sums.hits.sum()) / total,
        greedy=greedy_agreement(answers) if answers else None,
        decode_kl=decode_kl(answers),
    )


def agreement_beyond_noise(
    reference: Sequence[Reading], candidate: Sequence[Reading], floor: Sequence[Reading] | None
) -> Figure:
    """The candidate's agreement as a share of that of the noise floor, paired by prompt.

    floor: the same model in other exact numerics; None: a perfect one. Never above 1: to agree
    more than the floor does is no merit that could make up for a loss elsewhere.
    """
    sums = unit_sums(list(zip(reference, candidate, strict=True)))
    if floor is None:
        return share(sums.agreed, sums.tokens)
    exact = unit_sums(list(zip(reference, floor, strict=True)))
    found = ratio(sums.agreed, exact.agreed)
    if found.low is None or found.high is None:
        return Figure(min(1.0, found.value))
    return Figure(min(1.0, found.value), min(1.0, found.low), min(1.0, found.high))


def answers_of(pairs: Sequence[tuple[Reading, Reading]]) -> list[Pair]:
    """The answers that both gave; of the candidate's the one along the reference's, if asked."""
    return [
        (a.answer, b.followed or b.answer)
        for a, b in pairs
        if a.answer is not None and b.answer is not None and a.answer.ids
    ]


def worst_prompt(pairs: Sequence[tuple[Reading, Reading]]) -> tuple[str, float] | None:
    """The prompt of WORST_TOKENS or more with the largest mean KL (nats), and that."""
    found = [
        (float(kl_bound(a.likelihoods, b.likelihoods).mean()), a.prompt.name)
        for a, b in pairs
        if len(a.likelihoods.logprobs) >= WORST_TOKENS
    ]
    return max(found)[::-1] if found else None


def unit_sums(pairs: Sequence[tuple[Reading, Reading]], *, pieces: bool = False) -> Sums:
    """The sums of every unit; raises ValueError where the tokens differ."""
    rows: list[list[float]] = []
    for reference, candidate in pairs:
        a, b = reference.likelihoods, candidate.likelihoods
        if a.ids != b.ids or len(a.logprobs) != len(b.logprobs):
            raise ValueError(f"the two servers read {reference.prompt.name!r} as different tokens")
        columns = np.stack([
            np.ones(len(a.logprobs)), -a.logprobs, -b.logprobs, kl_bound(a, b),
            a.top_ids[:, 0] == b.top_ids[:, 0], preference(a, b) <= TIE_NATS,
            a.top_ids[:, 0] == np.array(a.ids[1:]),
        ])  # fmt: skip
        step = PIECE if pieces else columns.shape[1]
        rows += [
            list(columns[:, i : i + step].sum(axis=1)) for i in range(0, columns.shape[1], step)
        ]
    return Sums(*np.array(rows, dtype=np.float64).T)
