"""The quality gate: does a configuration that is not exact still answer as the reference does?

`judge_quality` asks two endpoints and judges; `judge_readings` judges what was read before. Only
the outcome "pass" lets a configuration win. docs/quality.md defines every figure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.readings import QualityPrompt, Reading, ServerReading
from ridgeline.engines.logprobs import Asking, read_server
from ridgeline.tuning.quality_figures import (
    Comparison,
    Figure,
    agreement_beyond_noise,
    compare,
)
from ridgeline.tuning.quality_prompts import bundled_prompts
from ridgeline.tuning.quality_tasks import TaskComparison
from ridgeline.tuning.risk import risk_of

Outcome = Literal["pass", "fail", "no-op", "not applicable", "unknown"]

FEWEST_PROMPTS = 8
FEWEST_HITS = 0.05  # a model that knows language finds a third of the next words, a random one none


@dataclass(frozen=True, slots=True)
class Limits:
    """What a candidate must reach. recovery: share of the reference's quality, by likelihood and
    by agreement, at 95 % confidence. greedy: share of answers that do not part from the reference's
    where it had a clear preference; None: recovery to the power of the answers' length in tokens,
    which is what remains when as much agrees at each token.
    """

    recovery: float = 0.99
    greedy: float | None = None


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of the gate. met: None = the interval holds the limit, so it is not decided."""

    name: str
    figure: Figure
    limit: float
    met: bool | None

    def sentence(self) -> str:
        """In words, with the interval."""
        word = {True: "reaches", False: "is below", None: "cannot be told from"}[self.met]
        return f"{self.name} {_words(self.figure)} {word} {self.limit:.4g}"


@dataclass(frozen=True, slots=True)
class Change:
    """What is known of how the candidate differs from the reference.

    acts: the change must show in the numbers (None: not known; False: it need not).
    kv_quantised: the KV cache has another type. dummy_weights: the servers have random weights.
    names: for people.
    """

    acts: bool | None = None
    kv_quantised: bool = False
    dummy_weights: bool = False
    names: tuple[str, ...] = ()


def change_of(
    changes: Mapping[str, Any], model_dtype: str = "bfloat16", *, dummy_weights: bool = False
) -> Change:
    """What the gate must know of changed knobs (name -> value, as in `risk_of`)."""
    found = risk_of(changes, model_dtype)
    return Change(
        acts=found.risk.needs_gate if changes else None,
        kv_quantised=found.kv_quantised,
        dummy_weights=dummy_weights or changes.get("load_format") == "dummy",
        names=tuple(f"{k}={v}" for k, v in changes.items() if found.reasons[k][0] == found.risk),
    )


@dataclass(frozen=True, slots=True)
class QualityVerdict:
    """The gate's answer, with every figure it rests on.

    candidate, long: candidate against reference on all prompts, and on the long ones alone. repeat:
    the reference asked twice. floor: the same model in other exact numerics against the reference.
    acted: whether the change shows in the numbers, None = cannot be told.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    limits: Limits
    candidate: Comparison | None = None
    agreement_recovery: Figure | None = None
    long: Comparison | None = None
    repeat: Comparison | None = None
    floor: Comparison | None = None
    acted: bool | None = None
    criteria: tuple[Criterion, ...] = ()
    tasks: tuple[TaskComparison, ...] = ()
    remarks: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def may_win(self) -> bool:
        """Whether a configuration that is not exact may win with this verdict."""
        return self.outcome == "pass"

    def sentence(self) -> str:
        """One line for people."""
        return f"{self.outcome}: {'; '.join(self.reasons)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        told = {
            name: None if found is None else found.to_json()
            for name in ("candidate", "long", "repeat", "floor")
            for found in [getattr(self, name)]
        }
        recovery = self.agreement_recovery
        return {
            "schema": 1,
            "outcome": self.outcome,
            "may_win": self.may_win,
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "limits": asdict(self.limits),
            "acted": self.acted,
            "criteria": [asdict(c) for c in self.criteria],
            "agreement_recovery": None if recovery is None else asdict(recovery),
            **told,
            "tasks": [asdict(t) for t in self.tasks],
            "evidence": dict(self.evidence),
        }


def judge_quality(
    reference_endpoint_url: str,
    candidate_endpoint_url: str,
    *,
    prompts: Sequence[QualityPrompt] | None = None,
    change: Change | None = None,
    limits: Limits | None = None,
    floor_endpoint_url: str | None = None,
    asking: Asking | None = None,
    candidate_model: str | None = None,
    tasks: Sequence[TaskComparison] = (),
    tell: Callable[[str], None] | None = None,
) -> QualityVerdict:
    """Ask the reference twice and the candidate once, and judge.

    prompts: the user's own, None = the bundled ones; the bundled long ones are always added.
    floor_endpoint_url: the same model in other exact numerics (dtype float32). candidate_model: its
    name, None = the first that it serves. tasks: scores of `harness.run_tasks`. tell: is told which
    server is being read. An endpoint that cannot be asked gives "unknown". Raises BadInput for a
    wrong URL or API key.
    """
    change, limits = change or Change(), limits or Limits()
    if change.dummy_weights:
        return not_applicable(limits)
    chosen, asking = with_long(prompts), asking or Asking()

    def read(url: str, who: str, model: str | None = None) -> ServerReading:
        if tell is not None:
            tell(f"{who}: reading {len(chosen)} prompts")
        return read_server(url, chosen, replace(asking, model=model))

    try:
        reference = read(reference_endpoint_url, "reference", asking.model)
        again = read(reference_endpoint_url, "reference, again", asking.model)
        floor = None
        if floor_endpoint_url is not None:
            floor = read(floor_endpoint_url, "noise floor")
        candidate = read(candidate_endpoint_url, "candidate", candidate_model)
    except EndpointError as error:
        return QualityVerdict("unknown", (str(error),), limits)
    return judge_readings(
        reference, candidate, repeat=again, floor=floor, change=change, limits=limits, tasks=tasks
    )


def with_long(own: Sequence[QualityPrompt] | None) -> tuple[QualityPrompt, ...]:
    """The prompts to ask: the user's own and the bundled long ones, or all the bundled ones."""
    bundled = bundled_prompts()
    return bundled if own is None else (*own, *(p for p in bundled if p.long))


def not_applicable(limits: Limits, why: str = "load_format dummy") -> QualityVerdict:
    """The verdict on servers with random weights: there is no quality to lose."""
    return QualityVerdict(
        "not applicable", (f"random weights ({why}) have no quality: only exact changes may win",),
        limits,
    )  # fmt: skip


def judge_readings(
    reference: ServerReading,
    candidate: ServerReading,
    *,
    repeat: ServerReading | None = None,
    floor: ServerReading | None = None,
    change: Change | None = None,
    limits: Limits | None = None,
    tasks: Sequence[TaskComparison] = (),
) -> QualityVerdict:
    """Judge what servers said; the pure part of `judge_quality`. Tokens that differ: "unknown"."""
    change, limits = change or Change(), limits or Limits()
    try:
        figures = _figures(reference, candidate, repeat, floor)
    except ValueError as error:
        return QualityVerdict("unknown", (f"{error}: is it the same model?",), limits)
    compared = figures.candidate
    if compared.reference_hits < FEWEST_HITS:
        why = f"its likeliest token is right at {compared.reference_hits:.1%} of the places"
        return not_applicable(limits, why)
    acted, evidence = has_acted(figures, reference, candidate)
    notes = (*_kv_remark(change, evidence), *reference.notes)
    criteria = _criteria(figures, limits, tasks)
    outcome, reasons, remarks = _decide(figures, change, acted, criteria)
    return QualityVerdict(
        outcome, reasons, limits, compared, figures.agreement, figures.long, figures.repeat,
        figures.floor, acted, criteria, tuple(tasks), (*remarks, *notes),
        evidence,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Figures:
    candidate: Comparison
    agreement: Figure
    long: Comparison | None
    repeat: Comparison | None
    floor: Comparison | None


def _figures(
    reference: ServerReading,
    candidate: ServerReading,
    repeat: ServerReading | None,
    floor: ServerReading | None,
) -> _Figures:
    ours, theirs = reference.readings, candidate.readings
    return _Figures(
        compare(ours, theirs),
        agreement_beyond_noise(ours, theirs, None if floor is None else floor.readings),
        compare(_long(ours), _long(theirs), pieces=True) if _long(ours) else None,
        None if repeat is None else compare(ours, repeat.readings),
        None if floor is None else compare(ours, floor.readings),
    )


def _long(readings: Sequence[Reading]) -> list[Reading]:
    return [reading for reading in readings if reading.prompt.long]


def has_acted(
    figures: _Figures, reference: ServerReading, candidate: ServerReading
) -> tuple[bool | None, dict[str, Any]]:
    """Whether the change shows in the numbers, and what the servers say of their KV cache.

    None: the difference is not larger than the reference's own from one time to the next.
    """
    evidence = {
        "reference_kv_cache_dtype": reference.kv_cache_dtype,
        "candidate_kv_cache_dtype": candidate.kv_cache_dtype,
        "reference_kv_blocks": reference.kv_blocks,
        "candidate_kv_blocks": candidate.kv_blocks,
        "reference_version": reference.version,
        "candidate_version": candidate.version,
        "model": reference.model,
    }
    found, noise = figures.candidate, figures.repeat
    if found.identical:
        return False, evidence
    if noise is None:
        return True, evidence
    if found.prompts_identical and noise.prompts_identical:  # only decode differs
        return _beyond(found.decode_kl, noise.decode_kl), evidence
    return (True if _beyond(found.kl, noise.kl) else None), evidence


def _beyond(found: Figure | None, noise: Figure | None) -> bool:
    """Whether a divergence is larger than that of the reference asked twice."""
    if found is None or noise is None:
        return False
    return found.value > (noise.value if noise.high is None else noise.high)


def _criteria(
    figures: _Figures, limits: Limits, tasks: Sequence[TaskComparison]
) -> tuple[Criterion, ...]:
    compared, limit = figures.candidate, limits.recovery
    found = [
        _criterion("likelihood recovery", compared.recovery, limit),
        _criterion("agreement recovery", figures.agreement, limit),
    ]
    if figures.long is not None:
        long = figures.long.recovery
        name = "likelihood recovery on long prompts"
        found.append(_criterion(name, long, limit, lenient=True))
    if compared.greedy is not None:
        greedy = compared.greedy
        least = limit**greedy.length if limits.greedy is None else limits.greedy
        found.append(_criterion("greedy agreement", greedy.agreement, least, lenient=True))
    found += [_criterion(f"task {t.task} ({t.metric})", t.recovery, limit) for t in tasks]
    return tuple(found)


def _criterion(name: str, figure: Figure, limit: float, *, lenient: bool = False) -> Criterion:
    """lenient: the estimate may be enough. For parts of the prompts, which are few: the conditions
    on all of them demand the whole interval.
    """
    met = None
    if (figure.value if lenient else figure.low or 0.0) >= limit:
        met = True
    elif figure.high is not None and figure.high < limit:
        met = False
    return Criterion(name, figure, limit, met)


def _decide(
    figures: _Figures, change: Change, acted: bool | None, criteria: Sequence[Criterion]
) -> tuple[Outcome, tuple[str, ...], tuple[str, ...]]:
    """Outcome, reasons, remarks."""
    what = " and ".join(change.names) or "the change"
    if acted is False and change.acts:
        n = figures.candidate.tokens
        return "no-op", (f"{what} did nothing: all {n} probabilities are the same numbers",), ()
    remarks = []
    if acted is False:
        remarks.append(f"{what} changes no number: it is exact, or it did nothing")
    elif figures.candidate.prompts_identical:
        remarks.append(f"{what} shows in decode only: the greedy answers alone judge it")
    if acted is None:
        remarks.append(
            f"{what} cannot be told from the reference asked twice; one request at a time makes"
            " servers repeat themselves better"
        )
    limit = next(c.limit for c in criteria)
    noise = figures.repeat
    if noise is not None and min(noise.recovery.value, noise.agreement.value) < limit:
        return "unknown", (
            f"the reference does not repeat itself: recovery {noise.recovery.value:.4f},"
            f" agreement {noise.agreement.value:.4f} when asked twice",
        ), tuple(remarks)  # fmt: skip
    missed = [c.sentence() for c in criteria if c.met is False]
    if missed:
        return "fail", tuple(missed), tuple(remarks)
    if figures.candidate.prompts < FEWEST_PROMPTS:
        return "unknown", (
            f"{figures.candidate.prompts} prompts are too few, {FEWEST_PROMPTS} are needed",
        ), tuple(remarks)  # fmt: skip
    undecided = [c.sentence() for c in criteria if c.met is None]
    if undecided:
        return "unknown", (*undecided, "more prompts narrow the interval"), tuple(remarks)
    return "pass", tuple(c.sentence() for c in criteria), tuple(remarks)


def _kv_remark(change: Change, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """A quantised KV cache must show in what the engine says of it."""
    ours, theirs = evidence["reference_kv_cache_dtype"], evidence["candidate_kv_cache_dtype"]
    if change.kv_quantised and theirs is not None and ours == theirs:
        return (f"the candidate's metrics say that its KV cache has the type {theirs}, as before",)
    return ()


def _words(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.4f} (no interval)"
    return f"{figure.value:.4f} ({figure.low:.4f} to {figure.high:.4f})"
