"""The quality gate: does a configuration that is not exact still answer as the reference does?

`judge_quality` asks two endpoints and judges; `judge_readings` judges what was read before. Only
the outcome "pass" lets a configuration win. docs/quality.md defines every figure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.domain.readings import QualityPrompt, ServerReading
from ridgeline.engines.logprobs import Asking, follow_server, least_context, read_server
from ridgeline.load.address import parse_address
from ridgeline.tuning.quality_criteria import Criterion, Limits, criteria_of
from ridgeline.tuning.quality_figures import Comparison
from ridgeline.tuning.quality_prompts import bundled_prompts
from ridgeline.tuning.quality_sets import Figures, figures_of
from ridgeline.tuning.quality_stats import Figure
from ridgeline.tuning.quality_tasks import TaskComparison
from ridgeline.tuning.risk import risk_of

__all__ = [
    "Change", "Criterion", "Limits", "QualityVerdict", "change_of", "has_acted", "judge_quality",
    "judge_readings", "not_applicable", "with_long",
]  # fmt: skip

Outcome = Literal["pass", "fail", "no-op", "not applicable", "unknown"]

FEWEST_PROMPTS = 8
FEWEST_HITS = 0.05  # a model that knows language finds a third of the next words, a random one none
_HALF = ("bfloat16", "float16", "half")  # one of them is the model's own
_TYPES = ("dtype", "kv_cache_dtype")


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
    changes: Mapping[str, Any], model_dtype: str | None = "bfloat16", *, dummy_weights: bool = False
) -> Change:
    """What the gate must know of changed knobs (name -> value, as in `risk_of`). model_dtype None:
    not known, and then a type of 16 bits may be the model's own and need not act.
    """
    found = risk_of(changes, model_dtype or "bfloat16")
    unsure = [
        n for n, v in changes.items() if model_dtype is None and n in _TYPES and v in _HALF
    ]  # fmt: skip
    must = [n for n, (risk, _) in found.reasons.items() if risk.needs_gate and n not in unsure]
    return Change(
        acts=True if must else None if unsure or not changes else False,
        kv_quantised=found.kv_quantised,
        dummy_weights=dummy_weights or changes.get("load_format") == "dummy",
        names=tuple(f"{k}={v}" for k, v in changes.items() if found.reasons[k][0] == found.risk),
    )


@dataclass(frozen=True, slots=True)
class QualityVerdict:
    """The gate's answer, with every figure it rests on.

    candidate, short, long: candidate against reference on all prompts, on those that are not long
    (the user's own), and on the long ones. repeat: the reference asked twice. floor: the same model
    in other exact numerics against the reference. acted: whether the change shows in the numbers,
    None = cannot be told.
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
    short: Comparison | None = None

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
            for name in ("candidate", "short", "long", "repeat", "floor")
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
    wrong URL or API key, and for a server that would be compared with itself.
    """
    change, limits, asking = change or Change(), limits or Limits(), asking or Asking()
    asked = [
        ("reference", reference_endpoint_url, asking.model),
        ("candidate", candidate_endpoint_url, candidate_model),
    ]
    if floor_endpoint_url is not None:
        asked.append(("noise floor", floor_endpoint_url, None))
    refuse_equal(asked)
    if change.dummy_weights:
        return not_applicable(limits)
    chosen = with_long(prompts)

    def read(url: str, who: str, model: str | None = None) -> ServerReading:
        if tell is not None:
            tell(f"{who}: reading {len(chosen)} prompts")
        return read_server(url, chosen, replace(asking, model=model, context=context))

    try:
        context = least_context([(url, model) for _, url, model in asked])
        reference = read(reference_endpoint_url, "reference", asking.model)
        again = read(reference_endpoint_url, "reference, again", asking.model)
        floor = None
        if floor_endpoint_url is not None:
            floor = read(floor_endpoint_url, "noise floor")
        candidate = read(candidate_endpoint_url, "candidate", candidate_model)
        candidate = follow_server(candidate_endpoint_url, candidate, reference, asking)
    except EndpointError as error:
        return QualityVerdict("unknown", (str(error),), limits)
    return judge_readings(
        reference, candidate, repeat=again, floor=floor, change=change, limits=limits, tasks=tasks
    )


def refuse_equal(asked: Sequence[tuple[str, str, str | None]]) -> None:
    """Raises BadInput when two of (name, URL, model) are one server and one model."""
    seen: dict[tuple[Any, str | None], str] = {}
    for name, url, model in asked:
        address = parse_address(url)
        host = "127.0.0.1" if address.host in ("localhost", "::1") else address.host
        place = (replace(address, host=host), model)
        if place in seen:
            raise BadInput(
                f"{seen[place]} and {name} are the same server", where=address.url,
                fix="give each its own; models of one server need their names",
            )  # fmt: skip
        seen[place] = name


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
        figures = figures_of(reference, candidate, repeat, floor)
    except ValueError as error:
        return QualityVerdict("unknown", (f"{error}: is it the same model?",), limits)
    compared = figures.candidate
    if compared.reference_hits < FEWEST_HITS:
        why = f"its likeliest token is right at {compared.reference_hits:.1%} of the places"
        return not_applicable(limits, why)
    acted, evidence = has_acted(figures, reference, candidate)
    notes = (*_kv_remark(change, evidence), *reference.notes)
    if figures.cut:
        names = ", ".join(figures.cut)
        notes = (*notes, f"one server read less of these, so compared up to there and without"
                 f" their answers: {names}")  # fmt: skip
    criteria = criteria_of(figures, limits, tasks)
    outcome, reasons, remarks = _decide(figures, change, acted, criteria)
    return QualityVerdict(
        outcome, reasons, limits, compared, figures.agreement, figures.long, figures.repeat,
        figures.floor, acted, criteria, tuple(tasks), (*remarks, *notes),
        evidence, figures.short,
    )  # fmt: skip


def has_acted(
    figures: Figures, reference: ServerReading, candidate: ServerReading
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


def _decide(
    figures: Figures, change: Change, acted: bool | None, criteria: Sequence[Criterion]
) -> tuple[Outcome, tuple[str, ...], tuple[str, ...]]:
    """Outcome, reasons, remarks."""
    what = " and ".join(change.names) or "the change"
    blind = change.kv_quantised and figures.candidate.prompts_identical
    if blind and not _asked_in_decode(figures):
        return "unknown", (
            f"{what} may show in decode only, and no answers were compared: ask for some on short"
            " and on long prompts",
        ), ()  # fmt: skip
    if acted is False and change.acts:
        n = figures.candidate.tokens
        return "no-op", (f"{what} did nothing: all {n} probabilities are the same numbers",), ()
    remarks = _remarks(figures, what, acted)
    cannot = _cannot(figures, next(c.limit for c in criteria))
    if cannot is not None:
        return "unknown", (cannot,), remarks
    missed = [c.sentence() for c in criteria if c.met is False]
    if missed:
        return "fail", tuple(missed), remarks
    if figures.candidate.prompts < FEWEST_PROMPTS:
        return "unknown", (
            f"{figures.candidate.prompts} prompts are too few, {FEWEST_PROMPTS} are needed",
        ), remarks  # fmt: skip
    undecided = [c.sentence() for c in criteria if c.met is None]
    if undecided:
        return "unknown", (*undecided, "more prompts narrow the interval"), remarks
    return "pass", tuple(c.sentence() for c in criteria), remarks


def _asked_in_decode(figures: Figures) -> bool:
    """Answers were compared, on long prompts too where there are any."""
    long = figures.long
    return figures.candidate.greedy is not None and (long is None or long.greedy is not None)


def _remarks(figures: Figures, what: str, acted: bool | None) -> tuple[str, ...]:
    """What to know besides the conditions."""
    remarks, greedy = [], figures.candidate.greedy
    if acted is False:
        remarks.append(f"{what} changes no number: it is exact, or it did nothing")
    elif figures.candidate.prompts_identical:
        remarks.append(f"{what} shows in decode only: the greedy answers alone judge it")
    if acted is None:
        remarks.append(
            f"{what} cannot be told from the reference asked twice; one request at a time makes"
            " servers repeat themselves better"
        )
    if greedy is not None and not greedy.enough:
        remarks.append(
            f"answers part early at near ties: {greedy.compared:.1f} of {greedy.prompts} could be"
            " compared"
        )
    return tuple(remarks)


def _cannot(figures: Figures, limit: float) -> str | None:
    """Why nothing can be judged by these servers: they must reach what a candidate must."""
    noise, floor = figures.repeat, figures.floor
    if noise is not None and min(noise.recovery.value, noise.agreement.value) < limit:
        return (
            f"the reference does not repeat itself: recovery {noise.recovery.value:.4f},"
            f" agreement {noise.agreement.value:.4f} when asked twice"
        )
    if floor is None:
        return None
    if figures.floor_is_candidate and not figures.candidate.identical:
        return "the noise floor says the candidate's very numbers: it must be another server"
    if min(floor.recovery.value, floor.agreement.value) < limit:
        return (
            f"the noise floor is not the same model in exact numerics: recovery"
            f" {floor.recovery.value:.4f}, agreement {floor.agreement.value:.4f}"
        )
    return None


def _kv_remark(change: Change, evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """A quantised KV cache must show in what the engine says of it."""
    ours, theirs = evidence["reference_kv_cache_dtype"], evidence["candidate_kv_cache_dtype"]
    if change.kv_quantised and theirs is not None and ours == theirs:
        return (f"the candidate's metrics say that its KV cache has the type {theirs}, as before",)
    return ()
