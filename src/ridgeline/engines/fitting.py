"""How a server's tokenizer turns words into tokens, found out before the traffic."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.records import MemorySink, RecordSink, RequestRecord
from ridgeline.domain.run import SilentWatch, Watch
from ridgeline.domain.workload import Arrivals, Images, Lengths, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.probe import ServerInfo, auth_headers
from ridgeline.engines.tokenizing import TRIED_WORDS, TokenCounter, exact_fit
from ridgeline.load.address import Address
from ridgeline.workload.prompts import PromptMaker, TokenFit, fit_tokens
from ridgeline.workload.schedule import Schedule

PROBE_WORDS = 32  # of the first calibration prompt; the others are sized by what it costs
PROBE_OUTPUT_TOKENS = 2
FIT_TOKENS = 768  # of the longest calibration prompt at least, where the model allows
PICTURED = "images"

Fits = dict[tuple[str, str], TokenFit]  # (model, kind of endpoint) -> how words become tokens
Send = Callable[[DrivePlan, PromptMaker, RecordSink, Watch], None]


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


class PromptFitter:
    """Fits prompts to the tokenizer of one server.

    `send` offers a plan's traffic to `url`; `tokenizer` is asked for counts. `fits` are shared by
    the endpoints of a study.
    """

    def __init__(
        self, send: Send, url: str, tokenizer: Address, api_key: str | None, fits: Fits
    ) -> None:
        self._send = send
        self._url = url
        self._address = tokenizer
        self._api_key = api_key
        self._fits = fits
        self._proved: set[str] = set()  # kinds of endpoints, and of content, that were answered

    def calibrate(self, plan: DrivePlan, info: ServerInfo, watch: Watch) -> Calibration:
        """How words become tokens, found out once in a study for each model and kind of endpoint.

        One request is the proof that streaming works: raises EndpointError with the server's words
        when it does not. Its count is held against what other endpoints of the model have told.
        Where the server tokenises on request, that is asked; otherwise up to four more requests of
        several lengths are, because the template's constant is seen in short prompts and the cost
        of a word in long ones.
        """
        asked = _Asked()
        if plan.endpoint in self._proved:
            self._prove_images(plan, watch, asked)
            fit = self._fits.get((info.model, plan.endpoint))
            return Calibration(fit, asked.requests, asked.prompt_tokens, asked.output_tokens)
        first = self._ask_once(plan, PROBE_WORDS, 0, watch)
        if first is None:
            return Calibration(None, 0, 0, 0)
        asked.add(PROBE_WORDS, first)
        self._prove_images(plan, watch, asked)
        self._proved.add(plan.endpoint)
        text = _probe_text(plan, PROBE_WORDS, 0)
        key = info.model, plan.endpoint
        known = self._fits.get(key)
        if known is None or not _agrees(known, text, first.prompt_tokens):
            notes = self._find_fit(plan, info, watch, asked)
        else:
            notes = ()
        return Calibration(
            self._fits.get(key), asked.requests, asked.prompt_tokens, asked.output_tokens, notes
        )

    def _prove_images(self, plan: DrivePlan, watch: Watch, asked: "_Asked") -> None:
        """One request with images as the first class that has them sends them: a server that takes
        none says so now, and not in every request of the run.
        """
        kinds = plan.schedule.workload.kinds
        images = next((kind.prompts.images for kind in kinds if kind.prompts.images), None)
        if images is None or PICTURED in self._proved:
            return
        record = self._ask_once(plan, PROBE_WORDS, asked.requests, watch, images)
        if record is not None:
            self._proved.add(PICTURED)
            asked.count(record)

    def _find_fit(
        self, plan: DrivePlan, info: ServerInfo, watch: Watch, asked: "_Asked"
    ) -> tuple[str, ...]:
        """Fit tokens to words; what cannot be told is said in notes."""
        key = info.model, plan.endpoint
        self._fits.pop(key, None)
        if asked.samples:
            count = asked.samples[0][1]
            headers = auth_headers(self._api_key)
            with TokenCounter(self._address, headers, info.model, plan.endpoint) as counter:
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
                record = self._ask_once(plan, words_now, asked.requests, watch)
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
        self,
        plan: DrivePlan,
        words: int,
        number: int,
        watch: Watch,
        images: Images | None = None,
    ) -> RequestRecord | None:
        """Send one calibration request; None when the user stopped it.

        Raises EndpointError when it fails.
        """
        one = Schedule(
            _probe_workload(plan, words, images),
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
        self._send(probe_plan, maker, sink, _StopOnly(watch))
        if watch.stop_asked() or not sink.requests:
            return None
        record = sink.requests[0]
        # two tokens may well be no text (half a character): the usage is what is asked for here
        if record.failure in (None, "no_tokens"):
            return record
        raise EndpointError(
            f"a test request failed: {record.failure_detail or record.failure}",
            where=f"{self._url}/v1/{'chat/' if plan.endpoint == 'chat' else ''}completions",
            fix=_advice(record, has_key=self._api_key is not None),
        )


@dataclass(slots=True)
class _Asked:
    """The test requests of a calibration: (words, prompt tokens) of each, and what they cost."""

    samples: list[tuple[int, int]] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    uncounted: bool = False

    def count(self, record: RequestRecord) -> None:
        """Note what a reply has cost the server."""
        self.requests += 1
        self.output_tokens += record.output_tokens or 0
        self.prompt_tokens += record.prompt_tokens or 0

    def add(self, words: int, record: RequestRecord) -> None:
        """Take a reply to words alone."""
        self.count(record)
        if record.prompt_tokens is None:
            self.uncounted = True
        else:
            self.samples.append((words, record.prompt_tokens))


def _probe_workload(plan: DrivePlan, words: int, images: Images | None = None) -> Workload:
    return Workload(
        Arrivals(users=1),
        Prompts(Lengths(words), images=images),
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


class _StopOnly(SilentWatch):
    """Shows nothing, but lets the user stop it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def stop_asked(self) -> bool:
        """What the watch behind it says."""
        return self._watch.stop_asked()


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
