"""Greedy answers of two servers held against each other.

Where two answers part at a near tie, what comes after tells nothing: the tokens before it differ.
A candidate that was asked to go on from the reference's tokens (`GreedyAnswer.followed`) is
compared to the end; one that was not counts by the part that could be compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.readings import GreedyAnswer, Likelihoods
from ridgeline.tuning.quality_divergence import TIE_NATS, kl_bound
from ridgeline.tuning.quality_stats import Figure, ratio, wilson

LEAST_COMPARED = 0.5  # of the answers' tokens; with less the answers decide nothing
Pair = tuple[GreedyAnswer, GreedyAnswer]  # reference, candidate


@dataclass(frozen=True, slots=True)
class Greedy:
    """Answers of always the likeliest token. near_ties: answers that part only at tokens which the
    reference held as likely as its own within TIE_NATS. compared: the answers, each counted by the
    share of its tokens that could be compared; one that parts at a clear preference is decided and
    counts whole. agreement: share of `compared` that does not part so, with its Wilson interval.
    length: of the reference's answers, tokens in the mean.
    """

    prompts: int
    same: int
    near_ties: int
    compared: float
    agreement: Figure
    length: float

    @property
    def parted(self) -> int:
        """Answers that part where the reference had a clear preference."""
        return self.prompts - self.same - self.near_ties

    @property
    def enough(self) -> bool:
        """Whether enough of the answers was compared for a verdict on them."""
        return self.compared >= LEAST_COMPARED * self.prompts


def greedy_agreement(pairs: Sequence[Pair]) -> Greedy:
    """How many answers (reference, candidate) are the same, or part at near ties only."""
    same = near = parted = 0
    compared = 0.0
    for reference, candidate in pairs:
        gap = parting(reference, candidate)
        if gap is None:
            same, compared = same + 1, compared + 1
        elif gap <= TIE_NATS:
            near, compared = near + 1, compared + _compared(reference, candidate)
        else:
            parted, compared = parted + 1, compared + 1
    length = sum(len(reference.ids) for reference, _ in pairs) / len(pairs)
    return Greedy(
        len(pairs), same, near, compared, wilson(compared - parted, compared), length
    )  # fmt: skip


def decode_kl(pairs: Sequence[Pair]) -> Figure | None:
    """Mean `kl_bound` over the places of answers that have the same tokens before them, by prompt;
    None where no alternatives are told.
    """
    sums, places = [], []
    for reference, candidate in pairs:
        n = min(_places_compared(reference, candidate), len(reference.top), len(candidate.top))
        k = min((len(top) for top in (*reference.top[:n], *candidate.top[:n])), default=0)
        if n and k:
            a, b = _places(reference, n, k), _places(candidate, n, k)
            sums.append(float(kl_bound(a, b, standing=False).sum()))
            places.append(float(n))
    return ratio(np.array(sums), np.array(places)) if places else None


def parting(reference: GreedyAnswer, candidate: GreedyAnswer) -> float | None:
    """By how much (nats) the reference preferred its token where the answers part; of a followed
    answer, which may part more than once, the most. None: they are the same. Infinite where it is
    not told, or where one answer is at its end.
    """
    if reference.ids == candidate.ids:
        return None
    places = list(_differing(reference, candidate))
    if not candidate.followed:
        places = places[:1]
    gaps = [_preferred(reference, candidate, place) for place in places]
    last = len(candidate.ids) - 1
    ends = len(candidate.ids) != len(reference.ids) and (not places or candidate.followed)
    if ends and last not in places:  # it stopped by itself, not where it was left
        gaps.append(math.inf)
    return max(gaps, default=math.inf)


def _preferred(reference: GreedyAnswer, candidate: GreedyAnswer, place: int) -> float:
    """By how much the reference prefers its token at a place to the candidate's."""
    if place >= len(reference.top) or not reference.top[place]:
        return math.inf
    top: Mapping[int, float] = reference.top[place]
    own = top.get(reference.ids[place], max(top.values()))
    other = top.get(candidate.ids[place])
    return math.inf if other is None else own - other


def _differing(reference: GreedyAnswer, candidate: GreedyAnswer) -> Iterator[int]:
    both = zip(reference.ids, candidate.ids, strict=False)
    return (i for i, (a, b) in enumerate(both) if a != b)


def _places_compared(reference: GreedyAnswer, candidate: GreedyAnswer) -> int:
    """How many places of the two have the same tokens before them."""
    most = min(len(reference.ids), len(candidate.ids))
    if candidate.followed:
        return most
    return next(_differing(reference, candidate), most - 1) + 1


def _compared(reference: GreedyAnswer, candidate: GreedyAnswer) -> float:
    """Their share of the reference's answer."""
    return _places_compared(reference, candidate) / len(reference.ids)


def _places(answer: GreedyAnswer, n: int, k: int) -> Likelihoods:
    """The first n places of an answer, as those of a prompt."""
    ranked = [sorted(top.items(), key=lambda e: -e[1])[:k] for top in answer.top[:n]]
    logprobs = np.array([[logprob for _, logprob in place] for place in ranked])
    ids = np.array([[token for token, _ in place] for place in ranked])
    return Likelihoods(answer.ids[:n], logprobs[:, 0], ids, logprobs)
