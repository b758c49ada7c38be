"""The GPU waits for its host: no CUDA graphs, steps above them, the engine core, the API server."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Confidence, Fact, Finding, Try, Wont
from ridgeline.diagnosis.wording import ms

HOST_SHARE = 0.4  # of the step: below it the GPU, not its host, sets the step
HOST_SURE = 0.25  # the least that the wait must be where nothing but it is known
GRAPH_SHARE = 0.15  # the same, where steps above the graphs explain it
BUSY = 0.5  # share of the time at work from which a slow step is what requests feel
LAUNCHED = 4.0  # a step without a graph takes about so many times one with (H200, 4 B model)
CORE_FULL, API_FULL = 0.9, 0.8  # cores of one Python process: from here on it is the limit
NO_CPU_LEFT, STARVED_SHARE = 0.05, 0.3  # of the host's CPU time; of a request's
FRONT_SHARE, FRONT_LEAST_S = 0.10, 0.02  # of a request's time, between client side and engine


def _waits(
    e: Evidence, account: Account, least: float = HOST_SHARE
) -> tuple[float, float, float, str] | None:
    """The GPU's wait, where it is large enough to speak of and the engine is at work."""
    waits = account.gpu_waits
    if waits is None or waits[0] < least or (account.busy or 0.0) < BUSY:
        return None
    if front_end(e, account) is not None:
        return None  # behind a full front end nothing else can be
    return waits


def _wait_fact(waits: tuple[float, float, float, str]) -> Fact:
    value, low, high, how = waits
    return Fact("gpu_waits", value, f"the GPU waits {value:.0%} of a step for its host ({how})",
                "", low, high)  # fmt: skip


def _step_facts(e: Evidence, account: Account) -> list[Fact]:
    found = []
    if e.step_s is not None:
        found.append(Fact("step_s", e.step_s, f"a step takes {ms(e.step_s)}", "s"))
    if account.floor is not None:
        floor = account.floor.seconds
        found.append(Fact("floor_s", floor, f"its floor on the roofline is {ms(floor)}", "s"))
    return found


def _share(account: Account, part: float) -> float:
    return (1 - account.queue_share) * (account.busy or 1.0) * part


def eager(e: Evidence) -> Iterable[Finding]:
    """CUDA graphs are off: each kernel is launched alone."""
    if not e.known.eager:
        return
    account = Account(e)
    waits = _waits(e, account)
    source = e.known.sources.get("eager", "given")
    known = Fact("enforce_eager", "True", f"enforce_eager is on ({source})")
    measured = waits is not None
    share = _share(account, waits[0]) if waits is not None else 0.0
    unknown = account.gpu_waits is None and (account.busy or 0.0) >= BUSY
    facts = [known, *_step_facts(e, account)]
    if waits is not None:
        facts.append(_wait_fact(waits))
    yield Finding(
        "eager", "CUDA graphs are off (enforce_eager): every step launches its kernels one by one",
        "limit" if measured or unknown else "note",
        share if measured else _share(account, 0.5) if unknown else 0.0,
        "kernel launch, no CUDA graphs" if measured or unknown else "",
        tuple(facts), "high" if measured else "medium",
        (Try("enforce_eager", "False", {"enforce_eager": False}, metric="itl_mean_s"),),
        (Wont("quantization=fp8", "the GPU is not what the step waits for"),
         Wont("more GPU memory", "the launches stay")) if measured else (),
    )  # fmt: skip


def above_graphs(e: Evidence) -> Iterable[Finding]:
    """Many steps carry more tokens than the largest captured graph and are launched by hand."""
    account = Account(e)
    tokens, capture = e.histograms.step_tokens, e.known.capture
    if not capture or tokens is None or not tokens.count or not tokens.bucketed or e.known.eager:
        return
    low, high = tokens.share_above(capture)
    waits = _waits(e, account, GRAPH_SHARE)
    if waits is None or _time_share(high) < 0.5 * waits[0] or high < 0.05:
        return
    largest = tokens.estimate(0.95) or capture
    value = next((n for n in (256, 512, 1024) if n > capture and n >= largest), 2048)
    budget = e.known.max_num_batched_tokens
    value = value if budget is None else min(value, budget)
    source = e.known.sources.get("capture", "given")
    yield Finding(
        "above-graphs",
        f"{_range(low, high)} of the steps carry more tokens than the largest captured graph"
        f" ({capture})",
        "limit", _share(account, waits[0]), "kernel launch, steps above the captured graphs",
        (Fact("above_share", high, f"{_range(low, high)} of the steps are above it, about"
              f" {_time_share(high):.0%} of the time", "", low, high),
         Fact("capture", float(capture), f"largest captured size {capture} ({source})"),
         _wait_fact(waits), *_step_facts(e, account)),
        "high" if low >= 0.05 else "medium",
        (Try("max_cudagraph_capture_size", str(value),
             {"max_cudagraph_capture_size": value}, metric="output_tokens_per_s"),),
        (Wont("max_num_seqs alone", "a larger batch does not make prompts fit a graph"),
         Wont("quantization=fp8", "the GPU is not what these steps wait for")),
    )  # fmt: skip


def _range(low: float, high: float) -> str:
    same = f"{low:.0%}" == f"{high:.0%}"
    return f"{high:.0%}" if same else f"{low:.0%} to {high:.0%}"


def _time_share(steps: float) -> float:
    """Share of the time of so many slow steps (a share of all)."""
    return LAUNCHED * steps / (1 - steps + LAUNCHED * steps)


def engine_core(e: Evidence) -> Iterable[Finding]:
    """The GPU waits and no launch explains it: what the engine core does between steps."""
    account = Account(e)
    cores = e.cores.get("engine core")
    waits = _waits(e, account)
    full = cores is not None and cores >= CORE_FULL
    if waits is None or e.known.eager or any(above_graphs(e)):
        return
    if waits[1] < HOST_SURE:
        return  # kernels that reach little of the roofline would look the same
    sure: Confidence = "high" if full else "medium" if e.known.eager is False else "low"
    facts = [_wait_fact(waits), *_step_facts(e, account)]
    if cores is not None:
        facts.append(Fact("engine_core_cores", cores, f"the engine core takes {cores:.2f} cores"))
    tries = [
        Try("cores of the host", "2 and one for each GPU, faster ones; nothing else on them", None,
            why_no_gain="the host is not in the twin"),
    ]  # fmt: skip
    if e.known.eager is None:
        tries.insert(0, Try("enforce_eager", "False, if the start-up log says it is on",
                            {"enforce_eager": False}, metric="itl_mean_s"))  # fmt: skip
    yield Finding(
        "engine-core-cpu",
        f"the GPU waits {waits[0]:.0%} of each step for the engine core's CPU",
        "limit", _share(account, waits[0]), "engine core CPU", tuple(facts), sure, tuple(tries),
        (Wont("quantization=fp8", "a faster GPU would wait longer"),
         Wont("max_num_batched_tokens", "no scheduler flag makes the host faster")),
    )  # fmt: skip


def front_end(e: Evidence, account: Account) -> tuple[float, list[Fact]] | None:
    """(share of a request's time, facts) of a full API server; None when it is not.

    What a request spends neither queued, in prefill nor in decode is the front end's: reading,
    tokenising, writing.
    """
    h = e.histograms
    stages = [d.mean for d in (h.queue, h.prefill, h.decode) if d is not None]
    told = [s for s in stages if s is not None]
    cores = e.cores.get("api server")
    front = share = None
    if h.e2e is not None and h.e2e.mean and len(told) == 3:
        front = h.e2e.mean - sum(told)
        share = front / h.e2e.mean
    full = cores is not None and cores >= API_FULL
    slow = front is not None and share is not None and (
        front >= FRONT_LEAST_S and share >= FRONT_SHARE)  # fmt: skip
    starved = _starved(e, share)
    engine_full = (e.cores.get("engine core") or 0.0) >= CORE_FULL
    if front is None and not full:
        return None
    if front is not None and not (slow and (full or cores is None or engine_full or starved)):
        return None  # a loop that is busy and delays nobody is no limit
    facts = []
    if cores is not None:
        n = e.api_servers
        who = "the API server takes" if n == 1 else (
            f"the busiest of {'several' if n is None else n} API servers takes")  # fmt: skip
        facts.append(Fact("api_server_cores", cores, f"{who} {cores:.2f} cores; its event loop has"
                          " one"))  # fmt: skip
    if starved and e.host_idle is not None:
        facts.append(Fact("host_idle", e.host_idle, f"the host's CPUs are idle {e.host_idle:.0%} of"
                          " the time: the API server waits for one"))  # fmt: skip
    if front is not None and share is not None:
        facts.append(Fact("front_end_s", front, f"a request spends {ms(front)} ({share:.0%}) in"
                          " neither queue, prefill nor decode", "s"))  # fmt: skip
    if h.ttft is not None and h.ttft.mean and h.queue is not None and h.prefill is not None:
        before = h.ttft.mean - (h.queue.mean or 0.0) - (h.prefill.mean or 0.0)
        facts.append(Fact("front_end_ttft_s", before, f"TTFT is {ms(before)} longer than queue and"
                          " prefill", "s"))  # fmt: skip
    return max(share or 0.0, min(1.0, cores) if full and cores is not None else 0.0), facts


def _starved(e: Evidence, share: float | None) -> bool:
    """Whether the API server holds requests for long because the host has no CPU for it."""
    return (e.host_idle is not None and e.host_idle < NO_CPU_LEFT
            and share is not None and share >= STARVED_SHARE)  # fmt: skip


def api_server(e: Evidence) -> Iterable[Finding]:
    """The API server's event loop is full, or holds requests for a good part of their time."""
    account = Account(e)
    found = front_end(e, account)
    if found is None:
        return
    share, facts = found
    servers = e.api_servers
    sure: Confidence = "high" if (e.cores.get("api server") or 0.0) >= API_FULL else "medium"
    yield Finding(
        "api-server-cpu", "CPU-bound front end" + (
            "" if "api server" in e.cores else " (by its share of the time: its CPU is not told)"
        ) + ": the API server holds the requests",
        "limit", min(1.0, share), "API server CPU", tuple(facts), sure,
        (_more_servers(e, servers),
            Try("stream_interval", "4 (fewer, larger chunks)", {"stream_interval": 4}),
         Try("cores of the host", "at least 2 and one for each GPU", None,
             why_no_gain="the host is not in the twin")),
        (Wont("max_num_seqs, max_num_batched_tokens", "no scheduler flag reaches the front end"),
         Wont("quantization=fp8", "the GPU waits already")),
    )  # fmt: skip


def _more_servers(e: Evidence, servers: int | None) -> Try:
    if servers is None:
        return Try("api_server_count", "twice what it is", None,
                   why_no_gain="how many there are is not told: give --study or --log")  # fmt: skip
    value = str(2 * servers)
    if e.replicas == 1:  # of the twin's servers one engine uses one
        return Try("api_server_count", value, None,
                   why_no_gain="the twin gives one engine one API server")  # fmt: skip
    return Try("api_server_count", value, {"api_server_count": 2 * servers})
