"""Prompts: admission that waits for the token budget, and decodes that stand behind long ones."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.rules.gpu import side
from ridgeline.diagnosis.wording import kv_facts, ms, queue_facts
from ridgeline.domain.numerals import counted

STALL_SHARE = 0.05  # of the time between tokens, spent in gaps far above the usual one
STALL_LEAST_S = 0.2
STALL_TIMES = 8.0
LONG_PROMPT = 2048


def token_budget(e: Evidence) -> Iterable[Finding]:
    """Requests wait with slots and blocks free: the step's token budget is used up."""
    account = Account(e)
    share = account.queue_share_of("budget")
    if not share or account.imbalance is not None:
        return
    near = side(e, account)
    if near is not None and near[0] == "compute":
        return  # a larger step would take as much longer: the chip is what is full
    budget, tokens = e.known.max_num_batched_tokens, account.tokens_per_step
    facts = [*queue_facts(e), *kv_facts(e)]
    if tokens is not None:
        of = "" if budget is None else f" of max_num_batched_tokens {budget}"
        facts.append(Fact("tokens_per_step", tokens, f"{tokens:.0f} tokens a step{of}"))
    prompt, made = account.prompt_tokens_per_step, account.made_per_step or 0.0
    full = budget is not None and prompt is not None and prompt >= 0.5 * (budget - made)
    slots = e.known.max_num_seqs
    bound = account.share_of_bound
    if bound is not None:
        facts.append(Fact("share_of_bound", bound, f"the step is at {bound:.0%} of the roofline"))
    tries = []
    if budget is not None:
        tries.append(Try("max_num_batched_tokens", str(4 * budget),
                         {"max_num_batched_tokens": 4 * budget}, metric="ttft_p50_s"))  # fmt: skip
    else:
        tries.append(Try("max_num_batched_tokens", "twice what it is", None,
                         why_no_gain="its present value is not known"))  # fmt: skip
    yield Finding(
        "token-budget",
        f"prompts wait for room in the step: {share:.0%} of the requests queue with "
        + ("" if slots is None else "slots and ") + "KV memory free",
        "limit", share, "prefill budget", tuple(facts), "high" if full else "medium", tuple(tries),
        (*(() if slots is None else (Wont("max_num_seqs", "slots are free"),)),
         Wont("max_num_partial_prefills", "not an answer in vLLM 0.21 (other values than 1 are"
              " refused) nor 0.33 (gone)")),
    )  # fmt: skip


def prefill_stalls(e: Evidence) -> Iterable[Finding]:
    """Answers stand still while a long prompt is computed: much time in few, long gaps."""
    account = Account(e)
    gaps, lengths = e.histograms.itl, e.histograms.prompt_lengths
    if gaps is None or not gaps.count or not gaps.total or lengths is None:
        return
    usual = gaps.quantile(0.5)
    if usual is None:
        return
    limit = max(STALL_LEAST_S, STALL_TIMES * min(usual[1], gaps.mean or usual[1]))
    stalled = gaps.sum_above(limit) / gaps.total
    longest = lengths.estimate(0.99)
    if stalled < STALL_SHARE or longest is None or longest < LONG_PROMPT:
        return
    predicted = worst_gap_s(e, account)
    facts = [
        Fact("stalled_share", stalled, f"at least {stalled:.0%} of the time between tokens passes"
             f" in gaps above {ms(limit)}", low=stalled),
        Fact("itl_mean_s", gaps.mean, f"mean gap {ms(gaps.mean or 0.0)}, median at most"
             f" {ms(usual[1])}", "s"),
        Fact("prompt_p99", longest, f"1 % of the prompts have {counted(longest)} tokens or more"),
    ]  # fmt: skip
    if predicted is not None:
        facts.append(Fact("worst_itl_s", predicted, f"a step full of prompt takes about"
                          f" {ms(predicted)}: the worst gap", "s"))  # fmt: skip
    yield Finding(
        "prefill-stalls",
        f"long prompts stall everyone else's answers: {stalled:.0%} of the time between tokens",
        "limit", (1 - account.queue_share) * min(1.0, stalled), "prefill in the same steps",
        tuple(facts), "high" if predicted is not None else "medium", tuple(_smaller(e, account)),
        (Wont("max_num_partial_prefills", "refused by 0.21 unless 1, gone in 0.33"),
         Wont("enable_chunked_prefill", "it is on; the chunk is what is too large")),
    )  # fmt: skip


def worst_gap_s(e: Evidence, account: Account) -> float | None:
    """Seconds of a step that is full of prompt: budget over the rate at which prompts are computed.

    The rate is the server's own where it tells prefill times, else the roofline's best.
    """
    budget = e.known.max_num_batched_tokens
    if budget is None:
        return None
    rate = prefill_rate(e, account)
    return None if not rate else budget / rate


def prefill_rate(e: Evidence, account: Account) -> float | None:
    """Prompt tokens per second while prompts are computed; at least what the gaps show.

    Prompts that are computed side by side each count the whole time, so that their tokens over
    their times are too few: no step full of prompt took longer than the longest gap.
    """
    prefill, tokens = e.histograms.prefill, account.computed_prompt_tokens
    if prefill is None or not prefill.total or not tokens:
        return None
    gaps, budget = e.histograms.itl, e.known.max_num_batched_tokens
    longest = None if gaps is None else gaps.longest
    if longest is None or budget is None:
        return tokens / prefill.total
    return max(tokens / prefill.total, budget / longest)


def _smaller(e: Evidence, account: Account) -> Iterable[Try]:
    budget = e.known.max_num_batched_tokens
    smaller = 2048 if budget is None or budget > 4096 else max(256, budget // 4)
    half = smaller // 2
    if budget is None:
        yield Try("max_num_batched_tokens", "half of what it is", None,
                  why_no_gain="its present value is not known: give --study or --log")  # fmt: skip
    elif smaller < budget:
        yield Try("max_num_batched_tokens", str(smaller), {"max_num_batched_tokens": smaller},
                  metric="itl_p99_s", expect=_expected(e, account, smaller))  # fmt: skip
    yield Try("long_prefill_token_threshold", str(half), {"long_prefill_token_threshold": half},
              metric="itl_p99_s", expect=_expected(e, account, half))  # fmt: skip
    yield Try("prefill_schedule_interval", "4 (vLLM 0.33)", None,
              expect="one step in four carries prompt: the same worst gap a quarter as often, TTFT"
              " of a long prompt up to four times as long",
              why_no_gain="needs 0.33: ask `ridgeline plan` with engine_version 0.33")  # fmt: skip
    yield Try("a pool of its own for long prompts", "two deployments", None,
              expect=f"no gap but the usual one, {_usual_gap(e)}; TTFT of a long prompt as now",
              why_no_gain="price it with `ridgeline plan`")  # fmt: skip


def _usual_gap(e: Evidence) -> str:
    gaps = e.histograms.itl
    usual = None if gaps is None else gaps.quantile(0.5)
    return "?" if usual is None else f"at most {ms(usual[1])}"


def _expected(e: Evidence, account: Account, chunk: int) -> str:
    """The worst gap and the longest prompts' TTFT with chunks of so many tokens, by arithmetic."""
    rate, lengths, gaps = prefill_rate(e, account), e.histograms.prompt_lengths, e.histograms.itl
    longest = None if lengths is None else lengths.estimate(0.99)
    usual = None if gaps is None else gaps.estimate(0.5)
    if not rate or longest is None or usual is None:
        return ""
    ttft = longest / rate + longest / chunk * usual
    return (
        f"worst gap about {ms(chunk / rate + usual)}, TTFT of a prompt of {counted(longest)} tokens"
        f" about {ttft:.3g} s"
    )
