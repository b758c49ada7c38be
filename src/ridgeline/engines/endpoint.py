"""A server that runs already: probe it, fit the prompts to its tokenizer, drive it, count."""

import contextlib
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from ridgeline import __version__
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import MemorySink, RecordSink, RequestRecord, RunEvent, StepTable
from ridgeline.domain.run import ClientCheck, RunFacts, SilentWatch, Source, Watch, Window
from ridgeline.domain.workload import Arrivals, Lengths, Prompts, Workload
from ridgeline.engines.base import DrivePlan, Endpoint, Timeouts
from ridgeline.engines.beside import SampledEndpoint
from ridgeline.engines.bodies import Bodies
from ridgeline.engines.probe import ServerInfo, api_key_from_environment, auth_headers, probe
from ridgeline.engines.tokenizing import TRIED_WORDS, TokenCounter, exact_fit
from ridgeline.load.address import Address, parse_address
from ridgeline.load.crew import drive_with, workers_for
from ridgeline.load.driver import DriveResult, Job, Limits
from ridgeline.load.http import Site
from ridgeline.load.making import RequestMaker
from ridgeline.telemetry.prometheus import (
    STARTED,
    Scrape,
    counters_between,
    fetch_metrics,
    merged,
    restarted,
    settled_metrics,
)
from ridgeline.workload.prompts import WORDS, PromptMaker, TokenFit, fit_tokens
from ridgeline.workload.schedule import Schedule

CONNECT_S = 10.0
PROBE_WORDS = 32  # of the first calibration prompt; the others are sized by what it costs
PROBE_OUTPUT_TOKENS = 2
FIT_TOKENS = 768  # of the longest calibration prompt at least, where the model allows


Fits = dict[tuple[str, str], TokenFit]  # (model, kind of endpoint) -> how words become tokens


@dataclass(frozen=True, slots=True)
class Calibration:
    """How words become tokens at this server, and what finding out has cost it.

    fit None: the server does not let itself be asked; prompt lengths are words then.
    """

    fit: TokenFit | None
    requests: int
    prompt_tokens: int
    output_tokens: int
    notes: tuple[str, ...] = ()


class HttpEndpoint:
    """One or several base URLs of one model (replicas, asked in turn); see the Endpoint port.

    model None: the first that the server names. `server` is what the caller knows about it.
    `fits` are shared by the endpoints of a study, so that all of them get prompts of the same
    words. The API key comes from the environment (RIDGELINE_API_KEY or OPENAI_API_KEY) and is
    stored nowhere.
    """

    source: Source = "measured"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: str | None = None,
        server: Mapping[str, object] | None = None,
        fits: Fits | None = None,
    ) -> None:
        listed = [urls] if isinstance(urls, str) else list(urls)
        self._addresses = [parse_address(url) for url in listed]
        self._model = model
        self._server = dict(server or {})
        self._api_key = api_key_from_environment()
        self._sites: list[Site] = []
        self._info: ServerInfo | None = None
        self._fits = {} if fits is None else fits
        self._proved: set[str] = set()  # kinds of endpoints that answered a test request

    def info(self) -> ServerInfo:
        """Who answers; asks each address once. Raises EndpointError or BadInput."""
        if self._info is None:
            self._sites = [address.site(CONNECT_S) for address in self._addresses]
            infos = [probe(address, self._model, self._api_key) for address in self._addresses]
            limits = [i.max_model_len for i in infos if i.max_model_len is not None]
            first = infos[0]
            self._info = ServerInfo(
                first.model, first.served, min(limits, default=None), first.engine, first.version
            )
        return self._info

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        """Offer the plan's traffic; see Endpoint.drive."""
        info = self.info()
        sites = self._sites
        _refuse_too_long(plan.schedule, info, self._addresses[0])
        before = self._scrape()
        calibration = self._calibrate(plan, sites[0], info, watch)
        if watch.stop_asked():
            return _stopped_before(self.source)
        workload = plan.schedule.workload
        vocabulary = self._vocabulary(plan, info) if workload.token_ids else None
        maker = PromptMaker(workload, plan.salt, calibration.fit or TokenFit(), vocabulary)
        tally = _Tally(sink)
        result = self._run(plan, sites, maker, tally, watch)
        after = settled_metrics(
            self._scrape, before, tally.ok + calibration.requests, pause=time.sleep
        )
        return self._facts(calibration, tally, result, workload, (before, after))

    def _vocabulary(self, plan: DrivePlan, info: ServerInfo) -> list[int]:
        """Token ids of our words, as the server tells them. Raises BadInput when it does not."""
        if plan.endpoint != "completions":
            raise BadInput("token ids can only be sent to completions", fix="ask completions")
        headers = auth_headers(self._api_key)
        with TokenCounter(self._addresses[0], headers, info.model, plan.endpoint) as counter:
            ids = counter.ids(" ".join(WORDS))
        kept = sorted(set(ids or ()))
        if len(kept) < 2:
            raise BadInput(
                "does not tell token ids (POST /tokenize)", where=self._addresses[0].url,
                fix="send texts: leave out token_ids",
            )  # fmt: skip
        # a small vocabulary is gone through several times: heads then differ a little later
        return [kept[i % len(kept)] for i in range(len(WORDS))]

    def _still_there(self) -> list[str]:
        """What is wrong with the addresses now, each in one line; empty when all answer."""
        wrong = []
        for address in self._addresses:
            try:
                address.get("/v1/models", auth_headers(self._api_key), CONNECT_S)
            except EndpointError as error:
                wrong.append(f"the server no longer answered after the run: {error.what}")
        return wrong

    def _scrape(self) -> Scrape | None:
        headers = auth_headers(self._api_key)
        return merged([fetch_metrics(a.url, headers=headers) for a in self._addresses])

    # -- sending

    def _run(
        self,
        plan: DrivePlan,
        sites: Sequence[Site],
        maker: PromptMaker,
        sink: RecordSink,
        watch: Watch,
    ) -> DriveResult:
        bodies = Bodies(plan.schedule.workload, plan.endpoint, self.info().model, maker)
        more = plan.schedule.workload.options.headers
        heads = [self._head(address, bodies.path, more) for address in self._addresses]
        job = Job(
            plan.schedule,
            sites,
            RequestMaker(bodies, heads),
            _limits(plan.timeouts),
            hide=self._api_key,
            routing=plan.routing,
        )
        return drive_with(workers_for(plan.schedule.workload.client.workers), job, sink, watch)

    def _head(self, address: Address, path: str, more: Mapping[str, str]) -> bytes:
        """A request's head up to the value of Content-Length."""
        lines = [
            f"POST {address.path}{path} HTTP/1.1",
            f"Host: {address.authority}",
            f"User-Agent: ridgeline/{__version__}",
            "Accept: text/event-stream",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in auth_headers(self._api_key).items()),
            *(f"{name}: {value}" for name, value in more.items()),
            "Content-Length: ",
        ]
        return "\r\n".join(lines).encode("latin-1")

    # -- calibration

    def _calibrate(
        self, plan: DrivePlan, site: Site, info: ServerInfo, watch: Watch
    ) -> Calibration:
        """How words become tokens, found out once in a study for each model and kind of endpoint.

        One request is the proof that streaming works: raises EndpointError with the server's words
        when it does not. Its count is held against what other endpoints of the model have told.
        Where the server tokenises on request, that is asked; otherwise up to four more requests of
        several lengths are, because the template's constant is seen in short prompts and the cost
        of a word in long ones.
        """
        if plan.endpoint in self._proved:
            return Calibration(self._fits.get((info.model, plan.endpoint)), 0, 0, 0)
        asked = _Asked()
        first = self._ask_once(plan, site, PROBE_WORDS, 0, watch)
        if first is None:
            return Calibration(None, 0, 0, 0)
        asked.add(PROBE_WORDS, first)
        self._proved.add(plan.endpoint)
        text = _probe_text(plan, PROBE_WORDS, 0)
        key = info.model, plan.endpoint
        known = self._fits.get(key)
        if known is None or not _agrees(known, text, first.prompt_tokens):
            notes = self._find_fit(plan, site, info, watch, asked)
        else:
            notes = ()
        return Calibration(
            self._fits.get(key), asked.requests, asked.prompt_tokens, asked.output_tokens, notes
        )

    def _find_fit(
        self, plan: DrivePlan, site: Site, info: ServerInfo, watch: Watch, asked: "_Asked"
    ) -> tuple[str, ...]:
        """Fit tokens to words; what cannot be told is said in notes."""
        key = info.model, plan.endpoint
        self._fits.pop(key, None)
        if asked.samples:
            count = asked.samples[0][1]
            headers = auth_headers(self._api_key)
            with TokenCounter(self._addresses[0], headers, info.model, plan.endpoint) as counter:
                if counter.count(_probe_text(plan, PROBE_WORDS, 0)) == count:
                    words = _probe_text(plan, 2 * max(TRIED_WORDS), 1).split()
                    fit = exact_fit(counter, words)
                    if fit is not None:
                        self._fits[key] = fit
                        return ()
        low, mean = float(plan.schedule.prompt_tokens.min()), plan.schedule.prompt_tokens.mean()
        high = float(plan.schedule.prompt_tokens.max())
        for tokens in (low, float(mean), max(high, FIT_TOKENS)):
            if not asked.samples:
                break
            words_now = _next_words(asked.samples, tokens, info.max_model_len)
            try:
                record = self._ask_once(plan, site, words_now, asked.requests, watch)
            except EndpointError:
                if tokens <= high:
                    raise
                break  # a server that does not take the long one may well take the workload's
            if record is None:
                return ()
            asked.add(words_now, record)
        if asked.uncounted:
            return ("the server reports no usage: prompt lengths are words, not counted tokens",)
        try:
            self._fits[key] = fit_tokens(asked.samples)
        except ValueError as error:
            return (f"{error}: prompt lengths are words, not counted tokens",)
        return ()

    def _ask_once(
        self, plan: DrivePlan, site: Site, words: int, number: int, watch: Watch
    ) -> RequestRecord | None:
        """Send one calibration request; None when the user stopped it.

        Raises EndpointError when it fails.
        """
        one = Schedule(
            _probe_workload(plan, words),
            np.array([words], dtype=np.int32),
            np.array([PROBE_OUTPUT_TOKENS], dtype=np.int32),
            np.array([-1], dtype=np.int32),
            users=1,
            user_start_ns=np.zeros(1, dtype=np.int64),
        )
        sink = MemorySink()
        maker = _probe_maker(plan, words, number)
        # a window of one request is over as soon as that is sent: its time-outs end it, no grace
        limits = replace(plan.timeouts, grace_s=plan.timeouts.total_s or one.workload.duration_s)
        probe_plan = DrivePlan(one, plan.salt, plan.endpoint, limits)
        self._run(probe_plan, [site] * len(self._addresses), maker, sink, _StopOnly(watch))
        if watch.stop_asked() or not sink.requests:
            return None
        record = sink.requests[0]
        # two tokens may well be no text (half a character): the usage is what is asked for here
        if record.failure in (None, "no_tokens"):
            return record
        raise EndpointError(
            f"a test request failed: {record.failure_detail or record.failure}",
            where=f"{site.url}/v1/{'chat/' if plan.endpoint == 'chat' else ''}completions",
            fix=_advice(record, has_key=self._api_key is not None),
        )

    # -- results

    def _facts(
        self,
        calibration: Calibration,
        tally: "_Tally",
        result: DriveResult,
        workload: Workload,
        scrapes: tuple[Scrape | None, Scrape | None],
    ) -> RunFacts:
        info = self.info()
        before, after = scrapes
        notes = [*calibration.notes, *result.notes]
        faults = list(result.faults)
        drift = tally.drift
        if drift is not None and workload.planned_exactly:
            notes.append(tally.drift_text)
        notes += reuse_notes(workload, tally.sent)
        if before is not None and after is not None and restarted(before, after):
            faults.append("the server was restarted during the run")
        if not faults and (tally.broken or (before is not None and after is None)):
            faults += self._still_there()
        if not faults and before is not None and after is None:
            faults.append("the server's /metrics could not be read any more after the run")
        fit = calibration.fit
        server: dict[str, object] = {
            "urls": [address.url for address in self._addresses],
            "model": info.model,
            "served_models": list(info.served),
            "max_model_len": info.max_model_len,
            "engine": info.engine,
            "version": info.version,
            "process_starts": None if before is None else _starts(before),
            "prompt_fit": None if fit is None else _told(fit),
            "prompt_drift": drift,
            **self._server,
        }
        return RunFacts(
            source=self.source,
            window=result.window,
            client=result.client,
            counters=counters_between(before, after),
            server={key: value for key, value in server.items() if value is not None},
            interrupted=result.interrupted,
            extra_requests=calibration.requests,
            extra_prompt_tokens=calibration.prompt_tokens,
            extra_output_tokens=calibration.output_tokens,
            notes=tuple(notes),
            server_faults=tuple(faults),
            warmup=result.warmup,
        )


def reuse_notes(workload: Workload, sent: Mapping[str | None, int]) -> list[str]:
    """How often the prompts of a file were sent, and that their lengths are estimates."""
    notes = []
    for kind in workload.kinds:
        file = kind.prompts.file
        count = sent.get(kind.name or None, 0)
        if file is None or not count:
            continue
        own = "with a beginning of its own" if file.salted else "as it is"
        times = count / file.rows
        often = f"{times:.3g} times" if times > 1 else "at most once"
        notes.append(
            f"each prompt of {Path(file.file).name} ({file.rows} rows) was sent {often}, {own};"
            " planned lengths are estimates (4 characters a token), the server's counts are exact"
        )
    return notes


def _told(fit: TokenFit) -> dict[str, object]:
    """A fit as it is stored: `exact` when the server's own tokenizer was asked for every word."""
    found = asdict(fit)
    return {**found, "exact": found.pop("costs") is not None}


def _starts(scrape: Scrape) -> list[float] | None:
    """When the server's processes say that they were started, s since 1970; None when they don't.

    Two runs of one server share it.
    """
    return sorted(s.value for s in scrape.series(STARTED)) or None


@dataclass(slots=True)
class _Asked:
    """The test requests of a calibration: (words, prompt tokens) of each, and what they cost."""

    samples: list[tuple[int, int]] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    uncounted: bool = False

    def add(self, words: int, record: RequestRecord) -> None:
        """Take a reply."""
        self.requests += 1
        self.output_tokens += record.output_tokens or 0
        if record.prompt_tokens is None:
            self.uncounted = True
        else:
            self.prompt_tokens += record.prompt_tokens
            self.samples.append((words, record.prompt_tokens))


def _probe_workload(plan: DrivePlan, words: int) -> Workload:
    return Workload(
        Arrivals(users=1),
        Prompts(Lengths(words)),
        outputs=plan.schedule.workload.outputs,
        options=plan.schedule.workload.options,
        duration_s=3600.0,
        warmup_s=0.0,
        requests=1,
        seed=plan.schedule.workload.seed,
    )


def _probe_maker(plan: DrivePlan, words: int, number: int) -> PromptMaker:
    return PromptMaker(_probe_workload(plan, words), f"{plan.salt}-calibration-{number}")


def _probe_text(plan: DrivePlan, words: int, number: int) -> str:
    """The text of a test request."""
    return _probe_maker(plan, words, number).text(0, words)


def _agrees(fit: TokenFit, text: str, count: int | None) -> bool:
    """Whether a server counts a text as the fit from another one would."""
    return count is not None and abs(fit.tokens_of(text) - count) <= max(2, 2 * fit.drift_tokens)


class EndpointEngine:
    """The engine that is a URL: starts and stops nothing. See the Engine port.

    Prompts are calibrated once for all its endpoints of a model.
    """

    name = "endpoint"

    def __init__(self) -> None:
        self._fits: Fits = {}

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        """The endpoint at `configuration.url`; its model None-like ("") takes the served one."""
        if configuration.url is None:
            raise BadInput(
                "engine endpoint needs the URL of a running server",
                fix="give one: `ridgeline bench http://HOST:PORT`",
            )
        urls = (configuration.url, *configuration.more_urls)
        endpoint = HttpEndpoint(urls, model=configuration.model or None, fits=self._fits)
        endpoint.info()
        headers = auth_headers(api_key_from_environment())
        yield SampledEndpoint(endpoint, [parse_address(url).url for url in urls], headers)


class _StopOnly(SilentWatch):
    """Shows nothing, but lets the user stop it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def stop_asked(self) -> bool:
        """What the watch behind it says."""
        return self._watch.stop_asked()


def _stopped_before(source: Source) -> RunFacts:
    """The facts of a drive that the user stopped before its first request."""
    return RunFacts(source, Window(0, 0), ClientCheck("read"), interrupted=True)


class _Tally:
    """Passes records on and adds up how far prompts were from their plan.

    `broken`: a connection was refused or ended in the middle of a reply.
    """

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.ok = 0
        self.broken = False
        self._planned = 0
        self._counted = 0
        self._drifts = array("d")
        self.sent: Counter[str | None] = Counter()  # by class of traffic

    def request(self, record: RequestRecord) -> None:
        """Take one ended request."""
        self.sent[record.traffic_class] += 1
        self.broken |= record.failure in ("connect", "stream_cut")
        if record.failure is None:
            self.ok += 1
            if record.prompt_tokens is not None:
                self._drifts.append(record.prompt_tokens / record.planned_prompt_tokens - 1)
                self._planned += record.planned_prompt_tokens
                self._counted += record.prompt_tokens
        self._sink.request(record)

    def event(self, event: RunEvent) -> None:
        """Take one event."""
        self._sink.event(event)

    def steps(self, table: StepTable) -> None:
        """Take a twin's steps."""
        self._sink.steps(table)

    @property
    def drift_text(self) -> str:
        """What prompts were counted as against their plan: at the median, at worst, in all."""
        worst = max(self._drifts, key=abs)
        middle = float(np.median(np.frombuffer(self._drifts)))
        return (
            f"prompt tokens counted against planned: {middle:+.1%} at the median,"
            f" {worst:+.1%} at worst, {self.drift or 0.0:+.1%} in all"
        )

    @property
    def drift(self) -> float | None:
        """Counted prompt tokens over planned ones, minus 1; None without usage."""
        return self._counted / self._planned - 1 if self._planned else None


def _limits(timeouts: Timeouts) -> Limits:
    def ns(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1e9)

    return Limits(
        connect_ns=round(timeouts.connect_s * 1e9),
        first_ns=ns(timeouts.first_s),
        gap_ns=ns(timeouts.gap_s),
        total_ns=ns(timeouts.total_s),
        grace_ns=round(timeouts.grace_s * 1e9),
    )


def _refuse_too_long(schedule: Schedule, info: ServerInfo, address: Address) -> None:
    """Raise BadInput when a drawn request cannot fit into the model's context."""
    if info.max_model_len is None:
        return
    longest = schedule.longest
    if longest > info.max_model_len:
        raise BadInput(
            f"prompt and output of up to {longest} tokens do not fit into the server's"
            f" max_model_len of {info.max_model_len}",
            where=address.url,
            fix="ask for shorter ones, or serve with a larger --max-model-len",
        )


def _next_words(samples: list[tuple[int, int]], tokens: float, limit: int | None) -> int:
    """Words for a calibration prompt of about that many tokens that differs from those before."""
    per_word = samples[-1][1] / samples[-1][0]  # template included: too high, so never too long
    wanted = round(tokens / per_word)
    if limit is not None:
        wanted = min(wanted, int((limit - PROBE_OUTPUT_TOKENS) * 0.9 / per_word))
    used = {words for words, _ in samples}
    wanted = max(wanted, 4)
    while wanted in used:
        wanted = wanted * 3 // 4 if wanted > 8 else wanted + 5
    return wanted


def _advice(record: RequestRecord, *, has_key: bool) -> str:
    """What to do about a failed test request."""
    if record.http_status in (401, 403):
        return "the API key is not accepted" if has_key else "set RIDGELINE_API_KEY"
    if record.http_status == 404:
        return "try the other --endpoint (chat or completions)"
    if record.http_status == 429:
        return "the server limits the rate of requests; wait, or raise its limit"
    if record.http_status is not None and record.http_status >= 500:
        return "look into the server's log"
    if record.failure == "bad_stream":
        return "is this the base URL of an OpenAI-compatible server that streams?"
    return "look into the server's log"
