"""Speculation below its break-even: a step costs more than the tokens that it wins."""

from collections.abc import Iterable
from math import nan

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.domain.numerals import counted

LITTLE = 1.25  # tokens a step, below which drafting hardly pays at any batch


def speculation(e: Evidence) -> Iterable[Finding]:
    """Tokens a step and request against what verifying costs more than plain decoding."""
    acceptance, drafts = e.acceptance, e.drafts
    if acceptance is None or not drafts or e.draft_tokens is None or e.accepted_tokens is None:
        return
    account = Account(e)
    length, k = 1 + e.accepted_tokens / drafts, e.draft_tokens / drafts
    cost = _cost(account, k)
    facts = [
        Fact("acceptance", acceptance, f"{acceptance:.0%} of {counted(e.draft_tokens)} drafted"
             " tokens accepted"),
        Fact("tokens_per_step", length, f"{length:.2f} tokens a step and request, with {k:.1f}"
             " drafted"),
    ]  # fmt: skip
    if cost is not None:
        facts.append(Fact("step_cost", cost, f"verifying makes a step about {cost:.2f} times as"
                          " long at this batch"))  # fmt: skip
    if (cost is None and length >= LITTLE) or (cost is not None and length >= 1.05 * cost):
        return
    lost = 1 - length / (cost or nan) if cost is not None else 1 - length / LITTLE
    said = f"{length:.2f} tokens a step"
    title = (
        f"speculation may not pay: {said}, and what a step costs is not known" if cost is None
        else f"speculation does not pay: {said} at {cost:.2f} times the cost"
    )  # fmt: skip
    yield Finding(
        "speculation", title,
        "note" if cost is None else "limit",
        0.0 if cost is None else (1 - account.queue_share) * max(0.1, lost),
        "" if cost is None else "speculation below break-even",
        tuple(facts), "high" if cost is not None else "low",
        (Try("speculative_config", "off", {"speculative_config": None}),
         Try("num_speculative_tokens", str(max(1, int(k / 2))), None,
             why_no_gain="acceptance by position is needed")),
        (Wont("more drafted tokens", "the later ones are accepted even less"),),
    )  # fmt: skip


def _cost(account: Account, k: float) -> float | None:
    """Roofline time of a step with 1 + k rows a request over that of one with a single row."""
    floor, e = account.floor, account.evidence
    tokens, running = account.tokens_per_step, e.running
    if floor is None or tokens is None or running is None:
        return None
    batch = running.mean / e.replicas
    made = (e.generation_tokens or 0.0) / (account.steps or nan)
    prompts = max(0.0, tokens - made)
    per_token = floor.compute_s / tokens
    plain = max(floor.memory_s, per_token * (batch + prompts))
    return max(floor.memory_s, per_token * (batch * (1 + k) + prompts)) / plain
