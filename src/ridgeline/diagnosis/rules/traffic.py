"""What clients do: classes in one pool, priorities, hanging up; and what is in between."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.distribution import Distribution
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.wording import ms, queue_facts
from ridgeline.domain.numerals import counted

FAR = 8.0  # times the median: another kind of request
FEW, MUCH = 0.35, 0.4  # so few requests have so much of the tokens
LEAVE = 0.05  # share of requests that their clients gave up
LEAVE_MUCH = 0.25  # of them: nobody would call that fine
FEW_ENDS = 3.0  # requests: fewer may be anything
BETWEEN_SHARE, BETWEEN_LEAST_S = 0.10, 0.02


def mixed_classes(e: Evidence) -> Iterable[Finding]:
    """Few requests are far longer than the others and take much of the work."""
    account = Account(e)
    rows = [(name, two_kinds(d)) for name, d in (
        ("prompts", e.histograms.prompt_lengths), ("answers", e.histograms.output_lengths))
        if d is not None]  # fmt: skip
    found = [(name, kinds) for name, kinds in rows if kinds is not None]
    if not found:
        return
    felt = account.queue_share >= 0.1
    facts = [
        Fact(f"long_{name}", share, f"{share:.0%} of the requests have {name} of more than"
             f" {counted(limit)} tokens ({FAR:g} times the median) and at least {tokens:.0%} of"
             " their tokens", low=tokens)
        for name, (limit, share, tokens) in found
    ]  # fmt: skip
    yield Finding(
        "mixed-classes", "two kinds of traffic share the pool: short requests wait behind long ones"
        if felt else "two kinds of traffic share the pool",
        "limit" if felt else "note", 0.5 * account.queue_share if felt else 0.0,
        "mixed traffic" if felt else "", (*facts, *queue_facts(e)), "medium",
        (Try("two pools", "long requests on replicas of their own", None,
             why_no_gain="not asked of the twin"),
         Try("scheduling_policy", "priority, with a priority on every request", None,
             why_no_gain="not asked of the twin")),
        (Wont("max_num_partial_prefills", "refused or gone in vLLM 0.21 and 0.33"),),
    )  # fmt: skip


def two_kinds(d: Distribution) -> tuple[float, float, float] | None:
    """(limit, share of requests above it, least share of tokens); None for one kind."""
    median = d.estimate(0.5)
    if not d.total or not median or d.count < 20:
        return None
    limit = FAR * median
    low, _ = d.share_above(limit)
    tokens = d.sum_above(limit) / d.total
    return (limit, low, tokens) if 0 < low <= FEW and tokens >= MUCH else None


def priority(e: Evidence) -> Iterable[Finding]:
    """Priorities that the scheduler does not look at, or that cannot take a slot."""
    policy = e.known.scheduling_policy
    if policy == "priority":
        if not Account(e).queue_share_of("slots"):
            return
        yield Finding(
            "priority", "priority cannot take a slot: all of them are taken by running requests",
            "note", 0.0, "", tuple(queue_facts(e)), "high",
            (Try("max_num_seqs", "more slots, so that urgent requests find one", None,
                 why_no_gain="the server tells no latencies by priority: measure at the client"),
             Try("separate pools", "one for the batch class", None,
                 why_no_gain="declare the classes in a study file and ask `ridgeline plan`")),
            (Wont("lower priority values", "vLLM preempts for KV blocks only, never for a slot"),),
        )  # fmt: skip
    elif e.known.priorities and policy in (None, "fcfs"):
        told = policy is not None
        yield Finding(
            "priority", f"{_declared(e)} priorities, and fcfs ignores priority"
            + ("" if told else ": the policy is not known, and fcfs is vLLM's default"),
            "note", 0.0, "",
            (Fact("scheduling_policy", policy or "unknown", f"scheduling_policy"
                  f" {policy or 'not known'}"),
             Fact("priorities", None, "whether requests carry them is not on the server's page"),
             *queue_facts(e)), "medium" if told else "low",
            (Try("scheduling_policy", "priority", {"scheduling_policy": "priority"},
                 metric="ttft_p50_s",
                 why_no_gain="what it gives each class: `ridgeline plan` with the study file"),),
            (Wont("other priority values", "they are not read, and no error says so"),),
        )  # fmt: skip


def _declared(e: Evidence) -> str:
    """Who says that there are priorities: no metric of a server does."""
    return f"{e.known.sources.get('priorities', 'the study file')}'s classes declare"


def requests_fail(e: Evidence) -> Iterable[Finding]:
    """Requests end in an error of the server's."""
    if not e.failed or e.failed < FEW_ENDS:
        return
    share = e.failed / (e.failed + (e.requests or 0.0) + (e.aborted or 0.0))
    if share < LEAVE:
        return
    yield Finding(
        "requests-fail", f"{share:.0%} of the requests end in an error", "fault", share, "errors",
        (Fact("failed_share", share, f"{e.failed:.0f} failed, {e.requests or 0:.0f} answered"),),
        "high",
        (Try("the server's log", "it names the error", None,
             why_no_gain="no knob is known to matter"),),
    )  # fmt: skip


def clients_leave(e: Evidence) -> Iterable[Finding]:
    """Clients hang up before their answer is complete: work for nothing."""
    if e.aborted is None or e.requests is None or e.aborted < FEW_ENDS:
        return
    share = e.aborted / (e.aborted + e.requests)
    if share < LEAVE:
        return
    much = share >= LEAVE_MUCH
    yield Finding(
        "clients-leave", f"{share:.0%} of the requests are given up by their clients",
        "fault" if much else "note", share if much else 0.0, "clients that leave" if much else "",
        (Fact("aborted_share", share, f"{e.aborted:.0f} aborted, {e.requests:.0f} answered (of some"
              " releases of vLLM the abort counter does not move)"),), "high",
        (Try("time-outs of clients and proxies", "longer than the slowest answer, or a limit on the"
             " queue (max_num_queued_reqs, vLLM 0.33)", None,
             why_no_gain="what clients do then is not known"),),
    )  # fmt: skip


def between(e: Evidence) -> Iterable[Finding]:
    """The probe's requests took longer at the client than in the server."""
    p = e.probe
    if p is None or p.client_e2e_s is None or p.server_e2e_s is None:
        return
    extra = p.client_e2e_s - p.server_e2e_s
    e2e = e.histograms.e2e
    usual = max(p.server_e2e_s, (e2e.mean or 0.0) if e2e is not None else 0.0)
    share = extra / (extra + usual)  # of the requests that are served here, not of small ones
    if extra < BETWEEN_LEAST_S or share < BETWEEN_SHARE:
        return
    facts = (
        Fact("client_e2e_s", p.client_e2e_s, f"{p.ok} requests took {ms(p.client_e2e_s)} here",
             "s"),
        Fact("server_e2e_s", p.server_e2e_s, f"and {ms(p.server_e2e_s)} by the server's own"
             " clock", "s"),
    )  # fmt: skip
    yield Finding(
        "between", f"a client or proxy in between: {share:.0%} of a request's time passes outside"
        " the server", "limit", share, "network or proxy", facts,
        "high" if p.alone else "low",
        (Try("the path", "ask the server directly and compare; look at buffering of streams", None,
             why_no_gain="the path is not in the twin"),),
        (Wont("engine knobs", "the engine has answered by then"),),
    )  # fmt: skip
