"""How far a candidate's probabilities are from a reference's, as pure formulas of two readings.

A prompt is one unit of the statistics: its tokens share a text and are not independent. Intervals
(95 %) are those of a ratio of sums over prompts, paired: both servers read the same tokens. Long
prompts alone are too few for that; among themselves their pieces of PIECE tokens are the units.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.domain.intervals import student_t
from ridgeline.domain.readings import GreedyAnswer, Likelihoods, Reading
from ridgeline.domain.records import Floats, Ints

# Logits of bfloat16 between 16 and 32 are 0.125 apart (8 bits of significand); two such steps are
# rounding, and nothing that a model meant.
TIE_NATS = 0.25
PIECE = 256
FEWEST_UNITS = 5  # for an interval; the t approximation holds from 4 degrees of freedom on
_TINY = 1e-9  # below the rounding of a remainder 1 - sum of float32 probabilities


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate and its 95 % interval, None where there are too few prompts for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Greedy:
    """Answers of always the likeliest token. near_ties: answers that part at a token which the
    reference held as likely as its own within TIE_NATS; they count as agreed in `agreement`.
    agreement: share of prompts with its Wilson interval. length: of the reference's answers, tokens
    in the mean.
    """

    prompts: int
    same: int
    near_ties: int
    agreement: Figure
    length: float

    @property
    def parted(self) -> int:
        """Answers that part where the reference had a clear preference."""
        return self.prompts - self.same - self.near_ties


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate against reference on the same tokens.

    nll: mean negative log-likelihood per token, nats. recovery: exp(nll_reference - nll_candidate),
    the ratio of perplexities. top1: share of places with the same likeliest token. agreement: the
    same, where a token that the reference held as likely as its own within TIE_NATS agrees too.
    kl: mean KL divergence (reference || candidate) per token in nats, over the listed tokens and
    one lumped remainder: a lower bound of that over the vocabulary. reference_hits: share of places
    whose token is the reference's likeliest one. decode_kl: the same KL at the places of the greedy
    answers up to where they part; an engine may read its KV cache in decode only.
    """

    prompts: int
    tokens: int
    nll_reference: float
    nll_candidate: float
    recovery: Figure
    top1: Figure
    agreement: Figure
    kl: Figure
    kl_worst_prompt: float
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
    answers = [
        (a.answer, b.answer) for a, b in pairs if a.answer is not None and b.answer is not None
    ]
    return Comparison(
        prompts=len(pairs),
        tokens=int(total),
        nll_reference=float(sums.nll_reference.sum()) / total,
        nll_candidate=float(sums.nll_candidate.sum()) / total,
        recovery=_exp_of_minus(loss),
        top1=_share(sums.top1, n),
        agreement=_share(sums.agreed, n),
        kl=ratio(sums.kl, n),
        kl_worst_prompt=float(np.max(sums.kl / n)),
        reference_hits=float(sums.hits.sum()) / total,
        greedy=greedy_agreement(answers) if answers else None,
        decode_kl=decode_kl(answers),
    )


def agreement_beyond_noise(
    reference: Sequence[Reading], candidate: Sequence[Reading], floor: Sequence[Reading] | None
) -> Figure:
    """The candidate's agreement as a share of that of the noise floor, paired by prompt.

    floor: the same model in other exact numerics; None: a perfect one.
    """
    sums = unit_sums(list(zip(reference, candidate, strict=True)))
    if floor is None:
        return _share(sums.agreed, sums.tokens)
    exact = unit_sums(list(zip(reference, floor, strict=True)))
    return ratio(sums.agreed, exact.agreed)


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


def preference(reference: Likelihoods, candidate: Likelihoods) -> Floats:
    """By how much (nats) the reference prefers its likeliest token to the candidate's, each place.

    A token that it does not list is at most as likely as the last one that it lists.
    """
    listed = reference.top_ids == candidate.top_ids[:, :1]
    known = np.where(listed, reference.top_logprobs, -np.inf).max(axis=1)
    unlisted = np.nextafter(reference.top_logprobs[:, -1], -np.inf)
    gap: Floats = reference.top_logprobs[:, 0] - np.where(listed.any(axis=1), known, unlisted)
    return gap


def kl_bound(reference: Likelihoods, candidate: Likelihoods, *, standing: bool = True) -> Floats:
    """A lower bound of KL(reference || candidate) at each place, in nats, never negative.

    Lumping tokens together can only lower KL. Tokens of which both tell the probability stay
    single: those that both list and, with `standing`, the one that stands there. Those that one
    side alone lists have one known mass; the other side's is at most its least listed probability
    each, and what makes KL least is taken. Two such lumpings are bounds, and the larger counts.
    """
    p, q = np.exp(reference.top_logprobs), np.exp(candidate.top_logprobs)
    p_least, q_least = p[:, -1], q[:, -1]
    p_ids, q_ids = reference.top_ids, candidate.top_ids
    if standing:
        token = np.array(reference.ids[-len(p) :])[:, None]
        p, p_ids = _with(p, p_ids, np.exp(reference.logprobs), token, missing=-1)
        q, q_ids = _with(q, q_ids, np.exp(candidate.logprobs), token, missing=-2)
    match = p_ids[:, :, None] == q_ids[:, None, :]
    in_both, q_there = match.any(axis=2), (match * q[:, None, :]).sum(axis=2)
    both = np.where(in_both, _terms(p, q_there), 0.0).sum(axis=1)
    p_left = _left(np.where(in_both, p, 0.0).sum(axis=1))
    q_left = _left(np.where(in_both, q_there, 0.0).sum(axis=1))
    p_only = np.where(in_both, 0.0, p)
    q_only = np.where(match.any(axis=1), 0.0, q)
    # the reference's own tokens as one lump: the candidate's mass of it is free up to a limit
    a = p_only.sum(axis=1)
    most = np.minimum((p_only > 0).sum(axis=1) * q_least, _left(q.sum(axis=1)))
    x = np.minimum(q_left * a / p_left, most)
    first = both + _terms(a, x) + _terms(np.maximum(p_left - a, 0.0), q_left - x)
    # and the other way round
    b = q_only.sum(axis=1)
    most = np.minimum((q_only > 0).sum(axis=1) * p_least, _left(p.sum(axis=1)))
    y = np.minimum(p_left * b / q_left, most)
    second = both + _terms(y, b) + _terms(np.maximum(p_left - y, 0.0), q_left - b)
    bound: Floats = np.maximum(np.maximum(first, second), 0.0)
    return bound


def _with(p: Floats, ids: Ints, own: Floats, token: Ints, *, missing: int) -> tuple[Floats, Ints]:
    """A list with one more column for the token that stands there, where it is not listed."""
    listed = (ids == token).any(axis=1, keepdims=True)
    return (
        np.hstack([p, np.where(listed, 0.0, own[:, None])]),
        np.hstack([ids, np.where(listed, missing, token)]),
    )


def _left(listed: Floats) -> Floats:
    """The mass of everything else."""
    rest: Floats = np.maximum(1.0 - listed, _TINY)
    return rest


def _terms(p: Floats, q: Floats) -> Floats:
    """p log(p / q), 0 where p is."""
    safe = np.where(p > 0, p, 1.0)
    terms: Floats = np.where(p > 0, p * (np.log(safe) - np.log(np.maximum(q, _TINY))), 0.0)
    return terms


def greedy_agreement(pairs: Sequence[tuple[GreedyAnswer, GreedyAnswer]]) -> Greedy:
    """How many answers (reference, candidate) are the same, or part at a near tie."""
    same = near = 0
    for reference, candidate in pairs:
        gap = parting(reference, candidate)
        same += gap is None
        near += gap is not None and gap <= TIE_NATS
    agreed, n = same + near, len(pairs)
    length = sum(len(reference.ids) for reference, _ in pairs) / n
    return Greedy(n, same, near, wilson(agreed, n), length)


def decode_kl(pairs: Sequence[tuple[GreedyAnswer, GreedyAnswer]]) -> Figure | None:
    """Mean `kl_bound` over the places of answers that have the same tokens before them, by prompt;
    None where no alternatives are told.
    """
    sums, places = [], []
    for reference, candidate in pairs:
        both = zip(reference.ids, candidate.ids, strict=False)
        same = next((i for i, (a, b) in enumerate(both) if a != b), len(reference.ids) - 1) + 1
        n = min(same, len(reference.top), len(candidate.top))
        k = min((len(top) for top in (*reference.top[:n], *candidate.top[:n])), default=0)
        if n and k:
            sums.append(float(_decode_kl(reference, candidate, n, k).sum()))
            places.append(float(n))
    return ratio(np.array(sums), np.array(places)) if places else None


def _decode_kl(reference: GreedyAnswer, candidate: GreedyAnswer, n: int, k: int) -> Floats:
    """`kl_bound` at the first n places, of the k likeliest tokens."""
    return kl_bound(_places(reference, n, k), _places(candidate, n, k), standing=False)


def _places(answer: GreedyAnswer, n: int, k: int) -> Likelihoods:
    """The first n places of an answer, as those of a prompt."""
    ranked = [sorted(top.items(), key=lambda e: -e[1])[:k] for top in answer.top[:n]]
    logprobs = np.array([[logprob for _, logprob in place] for place in ranked])
    ids = np.array([[token for token, _ in place] for place in ranked])
    return Likelihoods(answer.ids[:n], logprobs[:, 0], ids, logprobs)


def parting(reference: GreedyAnswer, candidate: GreedyAnswer) -> float | None:
    """By how much (nats) the reference preferred its token where the answers part; None: they are
    the same. Infinite where it is not told, or where one answer is at its end.
    """
    if reference.ids == candidate.ids:
        return None
    both = zip(reference.ids, candidate.ids, strict=False)
    place = next((i for i, (a, b) in enumerate(both) if a != b), None)
    if place is None or place >= len(reference.top) or not reference.top[place]:
        return math.inf
    top: Mapping[int, float] = reference.top[place]
    own = top.get(reference.ids[place], max(top.values()))
    other = top.get(candidate.ids[place])
    return math.inf if other is None else own - other


def wilson(hits: int, n: int) -> Figure:
    """A share with Wilson's interval (1927, Journal of the American Statistical Association 22)."""
    z = 1.959963984540054
    share = hits / n
    if n == hits:
        return Figure(1.0, n / (n + z * z), 1.0)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Figure(share, max(0.0, centre - half), min(1.0, centre + half))


def ratio(above: Floats, below: Floats) -> Figure:
    """sum(above) / sum(below) over independent units, by linearisation (Cochran 1977, ch. 6)."""
    n = len(below)
    value = float(above.sum() / below.sum())
    if n < FEWEST_UNITS:
        return Figure(value)
    rest = above - value * below
    error = float(np.sqrt(n / (n - 1) * (rest @ rest)) / below.sum())
    half = student_t(n - 1) * error
    return Figure(value, value - half, value + half)


def _share(hits: Floats, n: Floats) -> Figure:
    """A ratio that is a share: where all are hits the spread shows nothing, and the exact bound of
    independent places is given, the tightest that can be claimed.
    """
    total = float(n.sum())
    if float(hits.sum()) == total:
        return Figure(1.0, 0.025 ** (1 / total), 1.0)
    found = ratio(hits, n)
    if found.low is None or found.high is None:
        return found
    return Figure(found.value, max(0.0, found.low), min(1.0, found.high))


def _exp_of_minus(loss: Figure) -> Figure:
    if loss.low is None or loss.high is None:
        return Figure(math.exp(-loss.value))
    return Figure(math.exp(-loss.value), math.exp(-loss.high), math.exp(-loss.low))
