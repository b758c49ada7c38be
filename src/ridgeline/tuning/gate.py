"""The quality gate of a tuning: what is not exact may meet the baseline only after it was judged.

The baseline's engine is asked once for all candidates (twice over: its own noise), each candidate's
once; engines that are up are asked first, others are started one after another. Every verdict is in
the journal before it is acted upon, so a resumed tuning does not ask again.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ridgeline.domain.errors import EndpointError, RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.readings import QualityPrompt, ServerReading
from ridgeline.domain.summary import jsonable
from ridgeline.engines.base import Endpoint
from ridgeline.engines.logprobs import Asking, follow_server, read_server
from ridgeline.engines.resident import KeepsEngines
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.outcome import Judged
from ridgeline.tuning.quality import Limits, QualityVerdict, change_of, judge_readings, with_long
from ridgeline.tuning.quality_prompts import prompts_from
from ridgeline.tuning.risk import Risk, risk_of
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.tuning.watching import TuneWatch

READ_S = 30.0  # of one engine's answers, before any was asked
LOGS = "logs"
_RISKS = {"exact": Risk.NEUTRAL, "numerics": Risk.NUMERICS, "lossy": Risk.LOSSY}
_DUMMY = "dummy"


@runtime_checkable
class Served(Protocol):
    """An endpoint whose servers can be asked. Implementations: StartedEndpoint."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of each replica."""


@runtime_checkable
class Visited(Protocol):
    """Engines that can be asked beside their runs. Implementations: LastingEngine."""

    def visit(self, configuration: Configuration) -> contextlib.AbstractContextManager[Endpoint]:
        """As `start`, but it counts as no load."""


def not_judged(setting: Setting) -> str | None:
    """Why no answers of this study can be judged, in words; None when they can."""
    launch, knobs = setting.configuration.launch, setting.configuration.knobs
    given = " ".join(() if launch is None else launch.arguments).replace("=", " ").split()
    by_hand = dict(pairwise(given)).get("--load-format")
    if _DUMMY in (by_hand, knobs.load_format):
        why = "random weights (load_format dummy) have no quality to lose"
    elif setting.simulated:
        why = "a twin has no weights"
    elif setting.configuration.engine == "llamacpp":
        why = "llama.cpp tells no prompt_logprobs"
    else:
        return None
    return f"not applicable: {why}; only exact changes are tried and may win"


def allowed_risk(setting: Setting) -> Risk:
    """The highest class that is proposed: the study's, where it can be judged."""
    return Risk.NEUTRAL if not_judged(setting) else _RISKS[setting.spec.risk]


def gated(setting: Setting) -> bool:
    """Whether candidates that are not exact are proposed, and hence judged."""
    return allowed_risk(setting).needs_gate


def reserved_s(setting: Setting, start_s: float) -> float:
    """GPU seconds that judging every finalist takes: the baseline is asked twice, each once, and
    what does not stay up side by side is started for it.
    """
    if not gated(setting):
        return 0.0
    asked = setting.spec.finalists + 1
    starts = 0 if asked <= setting.places else asked
    return (starts * start_s + (asked + 1) * READ_S) * setting.gpus_for()


@dataclass(slots=True)
class Gate:
    """Judges candidates, each once; see the module. `start_s`: of an engine, as far as known."""

    setting: Setting
    folder: Path
    engines: LastingEngines
    journal: TuneJournal
    watch: TuneWatch
    start_s: Callable[[], float]
    read_s: float = READ_S
    _known: dict[str, Judged] | None = None
    _reference: tuple[ServerReading, ServerReading] | None = None
    _cannot: str | None = None  # why the reference cannot be asked
    _prompts: tuple[QualityPrompt, ...] = field(default=())

    def __post_init__(self) -> None:
        """Reads the user's prompts, where they will be asked; raises BadInput."""
        if gated(self.setting):
            file = self.setting.spec.quality_prompts
            self._prompts = with_long(None if file is None else prompts_from(Path(file)))

    def needs(self, candidate: Candidate) -> Mapping[str, Any]:
        """The changes for which it must be judged; none of an exact one."""
        return self._of(candidate.change, Risk.NEUTRAL)

    def barred(self, candidate: Candidate) -> str | None:
        """Why it cannot win by what was judged so far: it holds changes that did not pass."""
        needs = self.needs(candidate)
        if not needs:
            return None
        if not gated(self.setting):
            return not_judged(self.setting) or f"risk: {self.setting.spec.risk} leaves it out"
        judged = self._against(candidate)
        return None if judged is None else judged.sentence()

    def qualify(
        self,
        ranked: Sequence[tuple[Candidate, float]],
        most: int,
        left_s: Callable[[], float],
    ) -> list[tuple[Candidate, float]] | None:
        """The first `most` of the ranked that may win, judged where that is due; None when the user
        stopped. Of a change that did nothing the candidate without it takes the place.
        """
        found: dict[Any, tuple[Candidate, float]] = {}
        for candidate, value in ranked:
            if len(found) >= most:
                break
            if self.due(candidate) and self.judge(candidate, left_s()) is None:
                return None
            while (judged := self._against(candidate)) and judged.outcome == "no-op":
                candidate = without(candidate, judged.part)  # noqa: PLW2901
            if candidate.change and self.barred(candidate) is None:
                found.setdefault(candidate.key, (candidate, value))
        return list(found.values())

    def due(self, candidate: Candidate) -> bool:
        """Whether it is to be judged before it may win."""
        return (
            bool(self.needs(candidate))
            and self._key(candidate) not in self._judged
            and self.barred(candidate) is None
        )

    def verdict(self, candidate: Candidate) -> Judged | None:
        """What was judged of it; None when it was not."""
        return self._judged.get(self._key(candidate))

    def expected_s(self, candidate: Candidate) -> float:
        """GPU seconds of judging it now."""
        served = self.setting.served(candidate)
        seconds = self.read_s + (0.0 if self.engines.is_up(served) else self.start_s())
        if self._reference is None:
            base = self.setting.configuration
            seconds += 2 * self.read_s + (0.0 if self.engines.is_up(base) else self.start_s())
        return seconds * self.setting.gpus_for(candidate)

    def judge(self, candidate: Candidate, left_s: float) -> Judged | None:
        """Ask and judge, within `left_s` GPU seconds; None when the user stopped."""
        known = self.verdict(candidate)
        if known is not None:
            return known
        needed_s = self.expected_s(candidate)
        if needed_s > left_s:
            why = f"its budget has no room to ask it: {needed_s:.0f} s needed, {left_s:.0f} s left"
            return self._keep(candidate, self._unknown(why), 0.0)
        self.watch.told(f"quality: {candidate.words} is asked and held against the baseline")
        begun = time.monotonic()
        verdict = self._asked(candidate)
        gpu_s = (time.monotonic() - begun) * self.setting.gpus_for(candidate)
        if verdict is None:
            self.journal.write("spent", gpu_s=gpu_s, what="quality", at=time.time())
            return None
        return self._keep(candidate, verdict, gpu_s)

    def _against(self, candidate: Candidate) -> Judged | None:
        """The verdict that speaks against it: its own, or one on a part of its changes."""
        own = self.verdict(candidate)
        if own is not None and own.may_win:
            return None
        needs = self.needs(candidate)
        for judged in () if not needs else self._judged.values():
            if not judged.may_win and judged.part.items() <= needs.items():
                return judged
        return None

    def _asked(self, candidate: Candidate) -> QualityVerdict | None:
        """The verdict; what is up is asked before another engine takes its place."""
        served, reading = self.setting.served(candidate), None
        try:
            if self._reference is None and self.engines.is_up(served):
                reading = self._read(served)
            reference = self._read_reference()
            if reference is None:
                return self._unknown(self._cannot) if self._cannot else None
            if reading is None:
                if self.watch.stop_asked():
                    return None
                reading = self._read(served, reference[0])
            elif self.engines.is_up(served):
                reading = self._along(served, reading, reference[0])
        except RidgelineError as error:
            return None if self.watch.stop_asked() else self._unknown(str(error))
        first, again = reference
        given = self.setting.configuration.knobs.dtype
        known = None if given in (None, "auto") else str(given)
        change = change_of(self._of(candidate.change, Risk.EXACT), known)
        return judge_readings(first, reading, repeat=again, change=change, limits=self._limits)

    def _read_reference(self) -> tuple[ServerReading, ServerReading] | None:
        """The baseline's answers, twice; None when the user stopped or it cannot be asked."""
        if self._reference is None and self._cannot is None:
            base = self.setting.configuration
            try:
                first = self._read(base)
                if self.watch.stop_asked():
                    return None
                begun = time.monotonic()
                self._reference = (first, self._read(base))
                self.read_s = time.monotonic() - begun
            except RidgelineError as error:
                if not self.watch.stop_asked():
                    self._cannot = f"the baseline cannot be asked: {error}"
        return self._reference

    def _read(
        self, configuration: Configuration, reference: ServerReading | None = None
    ) -> ServerReading:
        """What its engine says of the prompts, and along the reference's answers where they are
        known; raises RidgelineError.
        """
        with self._up(configuration) as endpoint:
            reading = read_server(_url(endpoint, configuration), self._prompts, Asking())
            if reference is None:
                return reading
            return follow_server(_url(endpoint, configuration), reading, reference)

    def _along(
        self, configuration: Configuration, reading: ServerReading, reference: ServerReading
    ) -> ServerReading:
        """The reading of an engine that was asked before the reference was, followed up."""
        with self._up(configuration) as endpoint:
            return follow_server(_url(endpoint, configuration), reading, reference)

    @contextlib.contextmanager
    def _up(self, configuration: Configuration) -> Iterator[Endpoint]:
        engine = self.engines(configuration.engine)
        if isinstance(engine, KeepsEngines):
            engine.expect([[configuration]], together=True, logs=self.folder / LOGS)
        visit = engine.visit if isinstance(engine, Visited) else engine.start
        with visit(configuration) as endpoint:
            yield endpoint

    def _keep(self, candidate: Candidate, verdict: QualityVerdict, gpu_s: float) -> Judged:
        made = Judged(
            candidate.words, dict(candidate.change), dict(self.needs(candidate)), verdict.outcome,
            verdict.may_win, verdict.reasons, verdict.remarks, jsonable(verdict.to_json()), gpu_s,
        )  # fmt: skip
        self.journal.judged(made)
        self._judged[self._key(candidate)] = made
        self.watch.judged(made)
        return made

    def _unknown(self, why: str) -> QualityVerdict:
        return QualityVerdict("unknown", (why,), self._limits)

    @property
    def _judged(self) -> dict[str, Judged]:
        if self._known is None:
            told = self.journal.told().judged
            self._known = {self._key(Candidate(j.change)): j for j in told}
        return self._known

    @property
    def _limits(self) -> Limits:
        return Limits(self.setting.spec.quality_threshold)

    @property
    def _dtype(self) -> str:
        given = self.setting.configuration.knobs.dtype
        return "bfloat16" if given in (None, "auto") else str(given)

    def _key(self, candidate: Candidate) -> str:
        """Equal for candidates whose numbers are the same: what is exact has no part in it."""
        return repr(sorted((n, repr(v)) for n, v in self._of(candidate.change, Risk.EXACT).items()))

    def _of(self, change: Mapping[str, Any], least: Risk) -> Mapping[str, Any]:
        """Those of the changes that are worse than `least`; routing is no knob of the engine."""
        knobs = {n: v for n, v in change.items() if n != "routing"}
        found = risk_of(knobs, self._dtype).reasons
        return {n: v for n, v in knobs.items() if found[n][0] > least}


def _url(endpoint: Endpoint, configuration: Configuration) -> str:
    """Where its first replica is asked; raises EndpointError when it has no address."""
    if not isinstance(endpoint, Served) or not endpoint.urls:
        raise EndpointError("has no address to be asked at", where=configuration.engine)
    return endpoint.urls[0]


def without(candidate: Candidate, part: Mapping[str, Any]) -> Candidate:
    """The candidate without some of its changes."""
    return Candidate({n: v for n, v in candidate.change.items() if n not in part})
