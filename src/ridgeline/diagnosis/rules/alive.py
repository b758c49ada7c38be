"""Whether it works and tells at all: a hung engine, restarts, missing pages and counters."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import EngineLevels, Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.rules.memory import stuck
from ridgeline.diagnosis.wording import queue_facts

STALLED_S = 20.0  # the longest step seen on a GPU took 3 s; clearly below a look of 30 s
SICK = 500  # of /health: 404 and the like only say that there is no such page
PAUSED_S = 5.0  # from here on it is said, without being sure

STALE = ("or it idles: after an abort of its last requests vLLM's gauges show them until the next"
         " step; --probe tells which")  # fmt: skip
_UNTOLD = ("or it idles, and its gauges are old: the probe's answers came from another rank or"
           " server")  # fmt: skip


def hung(e: Evidence, limit_s: float = STALLED_S) -> Iterable[Finding]:
    """Requests are in an engine and nothing of it moves, whatever /health says.

    A gauge is what the engine said at its last step: after an abort of its last requests vLLM goes
    on showing them until the next step. Only a request of one's own tells the two apart.
    """
    if e.stood_still_s < PAUSED_S or stuck(e):
        return
    alone = e.replicas == 1
    if alone and e.probe is not None and e.probe.ok:
        yield _stale(e)
        return
    still = [] if alone else _still(e)
    answered = [g for g in still if (p := e.probe_of(g)) is not None and p.ok and "/" in g.name]
    if still and len(answered) == len(still):
        yield _stale(e)
        return
    left = [g for g in still if g not in answered]
    silent = (
        e.probe is not None and e.probe.silent if alone
        else any((p := e.probe_of(g)) is not None and p.silent for g in left)
    )  # fmt: skip
    seconds = f"{e.stood_still_s:.0f} s"
    facts = [Fact("stood_still_s", e.stood_still_s, "no step, no token, no change of the KV cache"
                  f" for {seconds}", "s"), *_standing(left), *queue_facts(e),
             *health_facts(e)]  # fmt: skip
    who = "" if alone else f" in engine {', '.join(g.name for g in left)}"
    if e.stood_still_s < limit_s:
        yield Finding(
            "standing-still", f"nothing moved for {seconds} although requests are in it{who}",
            "fault", 1.0, "nothing moves", tuple(facts), "low",
            (Try("look longer", f"--seconds {STALLED_S + 10:g}; with --probe if it is still so",
                 None, why_no_gain="it may be one long step"),),
        )  # fmt: skip
        return
    if not silent:
        facts.append(Fact("stale_gauge", "possible", STALE if e.probe is None else _UNTOLD))
    yield Finding(
        "hung", f"stalled: requests are in it{who} and nothing moved for {seconds}",
        "fault", 1.0, "hung engine", tuple(facts), "high" if silent else "medium",
        _restart() if silent else _ask_first(asked=e.probe is not None),
        (Wont("waiting", "/health tells only a dead engine, not a hung one"),
         Wont("any knob", "no step is taken")),
    )  # fmt: skip


def _restart() -> tuple[Try, ...]:
    return (Try("restart", "the engine; keep its log and a stack dump (py-spy dump) of EngineCore",
                None, why_no_gain="it does not answer at all"),)  # fmt: skip


def _ask_first(*, asked: bool) -> tuple[Try, ...]:
    dump = Try("a stack dump", "py-spy dump of EngineCore; restart it only if it does not answer",
               None, why_no_gain="it may be idle")  # fmt: skip
    if asked:
        return (dump,)
    return (
        Try("--probe", "five small requests tell a hung engine from a gauge that kept its value",
            None, why_no_gain="it is a question, not a change"), dump,
    )  # fmt: skip


def _stale(e: Evidence) -> Finding:
    return Finding(
        "stale-gauges", "the engine answers: its gauges show requests that are gone",
        "note", 0.0, "", (*queue_facts(e), Fact("stood_still_s", e.stood_still_s, "nothing moved"
                          f" for {e.stood_still_s:.0f} s before the probe", "s")), "high",
    )  # fmt: skip


def _still(e: Evidence) -> list[EngineLevels]:
    return [g for g in e.engines if g.stood_still_s >= PAUSED_S]


def _standing(engines: Iterable[EngineLevels]) -> list[Fact]:
    """Which of several engines stand still, with their requests."""
    return [
        Fact(f"stood_still_s_{g.name}", g.stood_still_s, f"engine {g.name}: {_last(g)} and nothing"
             f" moved for {g.stood_still_s:.0f} s", "s")
        for g in engines
    ]  # fmt: skip


def _last(g: EngineLevels) -> str:
    told = (("running", g.running), ("waiting", g.waiting))
    return ", ".join(f"{level.last:g} {word}" for word, level in told if level is not None)


def health_facts(e: Evidence) -> list[Fact]:
    """What /health said, where it was asked."""
    if e.health is None:
        return []
    return [Fact("health", float(e.health), f"/health says {e.health}")]


def unhealthy(e: Evidence) -> Iterable[Finding]:
    """/health says that the engine is dead, whatever its last page shows."""
    if not e.sick and (e.health or 0) < SICK:
        return
    who = "" if e.servers == 1 else f" of {', '.join(e.sick)}"
    yield Finding(
        "unhealthy", f"the engine is dead: /health{who} says {e.health}", "fault", 1.0,
        "dead engine", (*health_facts(e), *queue_facts(e)), "high",
        (Try("restart", "the server, once its log is kept: it tells why the engine ended", None,
             why_no_gain="it answers nothing"),),
        (Wont("any knob", "nothing is computed"),),
    )  # fmt: skip


def unreachable(e: Evidence) -> Iterable[Finding]:
    """Replicas whose pages were not had; the others are diagnosed without them."""
    if not e.unread or not e.scrapes or e.servers == 1:
        return
    names = ", ".join(e.unread)
    yield Finding(
        "unreachable", f"{len(e.unread)} of {e.servers} replicas tell nothing: {names}", "fault",
        len(e.unread) / e.servers, "replicas that do not answer",
        (Fact("unread", names, "what follows is of the others alone"),), "high",
        (Try("the replica", "see whether it runs and its URL is right", None,
             why_no_gain="nothing is known of it"),),
    )  # fmt: skip


def nothing_listens(e: Evidence) -> Iterable[Finding]:
    """No connection can be made: no question of metrics."""
    for url, why in e.closed.items():
        refused = "refused" in why
        yield Finding(
            "nothing-listens", f"nothing listens at {url}" if refused else f"{url} {why}",
            "fault", 1.0, "no server at this address",
            (Fact("connection", why, f"{url} {why}"),), "high",
            (Try("the address", "see whether the server runs, on this host and port", None,
                 why_no_gain="nobody answers"),),
        )  # fmt: skip


def several_servers(e: Evidence) -> Iterable[Finding]:
    """One address in front of several servers: no difference of two readings says anything."""
    if not e.mixed:
        return
    yield Finding(
        "several-servers", "this URL answers for several servers in turn: give each replica's own"
        " URL", "fault", 1.0, "telemetry",
        (Fact("scrapes", float(e.scrapes), f"in {e.scrapes} readings start times or counters go"
              " back and forth"),), "high",
        (Try("the URLs", "one for each replica, past the load balancer", None,
             why_no_gain="rates cannot be told from such a page"),),
    )  # fmt: skip


def restarted(e: Evidence) -> Iterable[Finding]:
    """The counters began anew inside the span."""
    if not e.restarts or e.mixed:
        return
    facts = [Fact("restarts", float(e.restarts), f"counters began anew {e.restarts} times")]
    if e.preemptions is not None:
        facts.append(Fact("preemptions", e.preemptions,
                          f"{e.preemptions:g} preemptions since, and before it"))  # fmt: skip
    yield Finding(
        "restarted", "the server was restarted while it was looked at", "note", 0.0, "",
        tuple(facts), "high", (Try("the log", "why it ended", None,
                                   why_no_gain="no knob is known to matter"),),
    )  # fmt: skip


def page_absent(e: Evidence) -> Iterable[Finding]:
    """No page of metrics, or one of another kind: nothing can be said of the engine."""
    if e.closed or (e.scrapes and e.running is not None):
        return
    health = "" if e.health is None else f"; /health says {e.health}"
    what = "/metrics could not be read" if not e.scrapes else "the page has no engine metrics"
    if e.scrapes and e.server is not None:
        what = "the page tells no number of running requests (absent, or NaN)"
    yield Finding(
        "metrics-absent", f"{what}{health}", "fault", 1.0, "telemetry",
        (Fact("scrapes", float(e.scrapes), f"{e.scrapes} pages read, {e.lost} not had"),), "high",
        (Try("--enable-metrics (SGLang), --metrics (llama.cpp)", "on", None,
             why_no_gain="vLLM has it always, unless --disable-log-stats"),),
    )  # fmt: skip


def no_rates(e: Evidence) -> Iterable[Finding]:
    """A single reading, or several at unknown times: gauges alone."""
    if not e.scrapes or e.rates_known or e.mixed or e.running is None:
        return
    yield Finding(
        "no-rates", "no rates are known: " + ("one reading says nothing of what is counted"
        if e.scrapes == 1 else "the times of the readings are not told"), "note", 0.0, "",
        tuple(queue_facts(e)), "high",
        (Try("two readings", "half a minute apart; of pages without their times --seconds tells it",
             None, why_no_gain="it is a question, not a change"),),
    )  # fmt: skip


def pages_lost(e: Evidence) -> Iterable[Finding]:
    """Some readings got no answer: a front end that is too busy, or a network that is."""
    if not e.scrapes or e.lost == 0 or e.lost < 0.1 * (e.lost + e.scrapes):
        return
    yield Finding(
        "pages-lost", f"{e.lost} of {e.lost + e.scrapes} readings of /metrics got no answer",
        "note", 0.0, "", (Fact("lost", float(e.lost), f"{e.lost} readings lost"),), "medium",
    )  # fmt: skip


def gpu_telemetry(e: Evidence) -> Iterable[Finding]:
    """GPU counters that say nothing, or nothing true."""
    if not e.gpu_page:
        return
    fields = [e.gpu_mean(n) for n in ("sm_active", "tensor_active", "dram_active")]
    used, power = e.gpu_mean("utilisation"), e.gpu_mean("power_w")
    seen = (
        [Fact("gpu_utilisation", used, f"GPU utilisation {used:.0%}")] if used is not None else []
    )
    if power is not None:
        seen.append(Fact("power_w", power, f"{power:.0f} W", "W"))
    if e.gpus and not e.own_gpus:
        working = sum(g.works for g in e.gpus)
        yield Finding(
            "gpu-telemetry", f"the page has {len(e.gpus)} GPUs, {working} of them at work: which"
            " are this server's cannot be told", "note", 0.0, "", (), "high",
            (Try("the GPU page", "one of this server's GPUs alone; and give --study, or --model and"
                 " --gpu", None, why_no_gain="it is the instrument"),),
        )  # fmt: skip
    elif Account(e).gpu_page_broken:
        yield Finding(
            "gpu-telemetry", "telemetry broken: the GPU's profiling fields are 0 while it works;"
            " its activity is unknown, not idle", "note", 0.0, "", tuple(seen), "high",
            (Try("DCGM", "end other profilers on this GPU, restart dcgm-exporter", None,
                 why_no_gain="it is the instrument"),),
        )  # fmt: skip
    elif not any(f is not None for f in fields):
        yield Finding(
            "gpu-telemetry", "hardware truth not available: the profiling fields are absent",
            "note", 0.0, "", tuple(seen), "high",
            (Try("dcgm-exporter's counters file", "DCGM_FI_PROF_SM_ACTIVE, PIPE_TENSOR_ACTIVE and"
                 " DRAM_ACTIVE (not on consumer GPUs)", None,
                 why_no_gain="it is the instrument"),),
        )  # fmt: skip


def stats_off(e: Evidence) -> Iterable[Finding]:
    """The log has no periodic lines, and that is by design."""
    if not e.known.stats_off:
        return
    n = e.known.api_servers
    many = "several API servers" if n is None else f"{n} API servers"
    yield Finding(
        "stats-off", f"stat lines are off because there are {many}; using /metrics", "note", 0.0,
        "", (), "high",
    )  # fmt: skip


def older_names(e: Evidence) -> Iterable[Finding]:
    """Metrics that were found under a name of an older release."""
    if not e.aliases:
        return
    facts = tuple(Fact(new, old, f"{new} is called {old} here") for new, old in e.aliases.items())
    yield Finding("older-names", "an older vLLM: some metrics have names that later ones dropped",
                  "note", 0.0, "", facts, "high")  # fmt: skip
