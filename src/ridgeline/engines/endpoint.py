"""A server that runs already: probe it, fit the prompts to its tokenizer, drive it, count."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest

from ridgeline import __version__
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import ClientCheck, RunFacts, Source, Watch, Window
from ridgeline.domain.workload import Workload
from ridgeline.engines.base import DrivePlan, Endpoint, Timeouts
from ridgeline.engines.beside import SampledEndpoint
from ridgeline.engines.bodies import Bodies
from ridgeline.engines.fitting import Calibration, Fits, PromptFitter
from ridgeline.engines.probe import ServerInfo, api_key_from_environment, auth_headers, probe
from ridgeline.engines.tally import Tally, reuse_notes
from ridgeline.engines.tokenizing import TokenCounter
from ridgeline.load.address import Address, parse_address
from ridgeline.load.crew import drive_with, workers_for
from ridgeline.load.http import Site
from ridgeline.load.job import Job, Limits
from ridgeline.load.making import RequestMaker
from ridgeline.load.outcome import DriveResult
from ridgeline.telemetry.prometheus import (
    STARTED,
    Scrape,
    counters_between,
    fetch_metrics,
    merged,
    restarted,
    settled_metrics,
)
from ridgeline.workload.prompts import WORDS, PromptMaker, TokenFit
from ridgeline.workload.schedule import Schedule

CONNECT_S = 10.0


class HttpEndpoint:
    """One or several base URLs of one model (replicas, asked in turn); see the Endpoint port.

    model None: the first that the server names. `server` is what the caller knows about it.
    `fits` are shared by the endpoints of a study, so that all of them get prompts of the same
    words. `servers`: the base URLs of the servers themselves where `urls` is a balancer before
    them; their counters and their tokenizer are asked, not the balancer's. `classes`: class of
    requests -> the places of its URLs among `urls`; None: all go to all. The API key comes from
    the environment (RIDGELINE_API_KEY or OPENAI_API_KEY) and is stored nowhere.
    """

    source: Source = "measured"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: str | None = None,
        server: Mapping[str, object] | None = None,
        fits: Fits | None = None,
        servers: Sequence[str] = (),
        classes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._classes = classes
        listed = [urls] if isinstance(urls, str) else list(urls)
        self._addresses = [parse_address(url) for url in listed]
        self._servers = [parse_address(url) for url in servers] or self._addresses
        self._model = model
        self._server = dict(server or {})
        self._api_key = api_key_from_environment()
        self._sites: list[Site] = []
        self._info: ServerInfo | None = None
        self._fits = {} if fits is None else fits
        self._fitter: PromptFitter | None = None

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
        calibration = self._prompt_fitter().calibrate(plan, info, watch)
        if watch.stop_asked():
            return _stopped_before(self.source)
        workload = plan.schedule.workload
        vocabulary = self._vocabulary(plan, info) if workload.token_ids else None
        maker = PromptMaker(workload, plan.salt, calibration.fit or TokenFit(), vocabulary)
        tally = Tally(sink)
        result = self._run(plan, sites, maker, tally, watch)
        after = settled_metrics(
            self._scrape, before, tally.ok + calibration.requests, pause=time.sleep
        )
        return self._facts(calibration, tally, result, workload, (before, after))

    def _prompt_fitter(self) -> PromptFitter:
        if self._fitter is None:
            first = self._sites[0]

            def send(plan: DrivePlan, maker: PromptMaker, sink: RecordSink, watch: Watch) -> None:
                asked = [first] * len(self._addresses)

                self._run(plan, asked, maker, sink, watch, by_class=False)

            self._fitter = PromptFitter(
                send, first.url, self._servers[0], self._api_key, self._fits
            )
        return self._fitter

    def _vocabulary(self, plan: DrivePlan, info: ServerInfo) -> list[int]:
        """Token ids of our words, as the server tells them. Raises BadInput when it does not."""
        if plan.endpoint != "completions":
            raise BadInput("token ids can only be sent to completions", fix="ask completions")
        headers = auth_headers(self._api_key)
        with TokenCounter(self._servers[0], headers, info.model, plan.endpoint) as counter:
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
        return merged([fetch_metrics(a.url, headers=headers) for a in self._servers])

    # -- sending

    def _run(
        self,
        plan: DrivePlan,
        sites: Sequence[Site],
        maker: PromptMaker,
        sink: RecordSink,
        watch: Watch,
        *,
        by_class: bool = True,
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
            sites_of=self._sites_of(plan.schedule.workload) if by_class else (),
        )
        return drive_with(workers_for(plan.schedule.workload.client.workers), job, sink, watch)

    def _sites_of(self, workload: Workload) -> tuple[tuple[int, ...], ...]:
        """The sites of each class. Raises BadInput for a class that no pool serves."""
        if self._classes is None:
            return ()
        for kind in workload.kinds:
            if kind.name not in self._classes:
                what = f"no pool serves the class {kind.name!r}" if kind.name else (
                    "the servers are pools by class, and the requests have none")  # fmt: skip
                raise BadInput(what, where="pools", fix="add it to the classes of one of them")
        return tuple(self._classes[kind.name] for kind in workload.kinds)

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

    # -- results

    def _facts(
        self,
        calibration: Calibration,
        tally: "Tally",
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


def _told(fit: TokenFit) -> dict[str, object]:
    """A fit as it is stored: `exact` when the server's own tokenizer was asked for every word."""
    found = asdict(fit)
    return {**found, "exact": found.pop("costs") is not None}


def _starts(scrape: Scrape) -> list[float] | None:
    """When the server's processes say that they were started, s since 1970; None when they don't.

    Two runs of one server share it.
    """
    return sorted(s.value for s in scrape.series(STARTED)) or None


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
        if any(part.url is None for part in configuration.parts):
            raise BadInput(
                "engine endpoint needs the URL of a running server",
                fix="give one: `ridgeline bench http://HOST:PORT`",
            )
        urls, classes = urls_of(configuration)
        endpoint = HttpEndpoint(
            urls, model=configuration.model or None, fits=self._fits, classes=classes
        )
        endpoint.info()
        headers = auth_headers(api_key_from_environment())
        yield SampledEndpoint(endpoint, [parse_address(url).url for url in urls], headers)


def urls_of(
    configuration: Configuration,
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]] | None]:
    """The URLs of an endpoint's servers, and which of them each class has; None without pools."""
    urls: list[str] = []
    classes: dict[str, tuple[int, ...]] = {}
    for part, pool in zip_longest(configuration.parts, configuration.pools):
        mine = [url for url in (part.url, *part.more_urls) if url is not None]
        if pool is not None:
            places = tuple(range(len(urls), len(urls) + len(mine)))
            classes |= dict.fromkeys(pool.classes, places)
        urls += mine
    return tuple(urls), classes or None


def _stopped_before(source: Source) -> RunFacts:
    """The facts of a drive that the user stopped before its first request."""
    return RunFacts(source, Window(0, 0), ClientCheck("read"), interrupted=True)


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
