"""The prefix cache: useless, or kept from use by its block size; KV from elsewhere."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.domain.numerals import counted

USELESS = 0.02  # hit rate
ENOUGH_TOKENS = 1000.0  # looked up, to judge by


def prefix_cache(e: Evidence) -> Iterable[Finding]:
    """Looked up, and hardly ever found."""
    rate = e.hit_rate
    if rate is None or (e.cache_queries or 0.0) < ENOUGH_TOKENS or rate >= USELESS:
        return
    if e.known.prefix_caching is False:
        return
    facts = [Fact("hit_rate", rate, f"{rate:.1%} of {counted(e.cache_queries or 0)} looked-up"
                  " prompt tokens were found")]  # fmt: skip
    size, prompt = e.known.block_size, Account(e).mean_prompt
    if size is not None and prompt is not None and size > 64 and size > 0.5 * prompt:
        facts.append(Fact("block_size", float(size), f"a block has {size} tokens, a mean prompt"
                          f" {prompt:.0f}: only full blocks are kept"))  # fmt: skip
        yield Finding(
            "prefix-cache-blocks", f"blocks of {size} tokens keep the prefix cache from finding"
            " anything", "note", 0.0, "", tuple(facts), "medium",
            (Try("block_size", "16", None, why_no_gain="what prompts share cannot be seen here"),),
        )  # fmt: skip
        return
    yield Finding(
        "prefix-cache-useless", f"the prefix cache finds nothing ({rate:.1%}): prompts share no"
        " beginning", "note", 0.0, "", tuple(facts), "high",
        (Try("prompts", "put what is common first, what varies (time, name) last", None,
             why_no_gain="what prompts could share cannot be seen here"),),
        (Wont("prefix-aware routing", "there is nothing to find"),
         Wont("KV offloading", "what is never found again need not be kept")),
    )  # fmt: skip


def transfer(e: Evidence) -> Iterable[Finding]:
    """A decoder whose KV should come from elsewhere computes the prompts itself."""
    external = e.prompt_by_source.get("external_kv_transfer")
    local = e.prompt_by_source.get("local_compute")
    if external is None or local is None or e.transferred is None:
        return
    if external > 0 or e.transferred > 0 or local < ENOUGH_TOKENS:
        return
    yield Finding(
        "transfer-absent", "no KV is arriving: the decoder recomputes the prompts",
        "fault", 1.0, "KV transfer", (
            Fact("external_tokens", external, "prompt tokens from KV transfer +0"),
            Fact("local_tokens", local, f"prompt tokens computed here +{counted(local)}"),
            Fact("transferred_bytes", e.transferred, "bytes transferred +0"),
        ), "high",
        (Try("the proxy", "pass kv_transfer_params on from the prefill reply to the decoder", None,
             why_no_gain="P/D disaggregation is not in the twin"),),
        (Wont("more prefill instances", "what they compute never arrives"),),
    )  # fmt: skip
