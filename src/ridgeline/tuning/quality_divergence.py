"""How far two distributions over tokens are apart, of which the likeliest tokens are known."""

import numpy as np

from ridgeline.domain.readings import Likelihoods
from ridgeline.domain.records import Floats, Ints

# Logits of bfloat16 between 16 and 32 are 0.125 apart (8 bits of significand); two such steps are
# rounding, and nothing that a model meant.
TIE_NATS = 0.25
_TINY = 1e-9  # below the rounding of a remainder 1 - sum of float32 probabilities


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
