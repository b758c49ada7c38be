"""A tuning's answer in one sentence, and the words that the terminal and the page share with it."""

import math

from ridgeline.domain.numerals import MINUS, grouped, significant
from ridgeline.tuning.claims import Claim
from ridgeline.tuning.deciding import limits_words, pair_words
from ridgeline.tuning.objective import UNITS, Goal
from ridgeline.tuning.outcome import Nearest, Side
from ridgeline.tuning.session import Found
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Miss

NONE_MEETS = (
    "no configuration meets the targets",
    "no configuration that was tried meets the targets",
)
_OWN = ("baseline misses the targets", "which the baseline misses", "this one may meet them")


def sentence(
    setting: Setting, found: Found, winner: Side, baseline: Side, nearest: Nearest | None = None
) -> str:
    """The answer in one sentence, with its numbers; of nothing that meets the targets, in a few."""
    if nearest is not None:
        return _none_meets(found, nearest, baseline)
    if not found.winner.change:
        return _stays(setting, found, baseline)
    if not found.recommended:
        more = "begun again with a larger budget it goes on from here"
        return f"No recommendation yet: {found.why}; {more}. It gave {figures(winner)}."
    parts = [f"Serve with {winner.words}: {figures(winner)}"]
    parts += filter(None, (targets_words(winner), _open_words(setting, found, winner)))
    claim = None if found.duel is None else found.duel.claim(found.winner)
    if claim is not None:
        parts.append(claim_words(claim, setting.goal))
    missed = ", which misses the targets" if baseline.meets is False else ""
    if baseline.measured:
        parts.append(f"before: {figures(baseline)}{missed}")
    died = found.duel is not None and found.duel.died(Candidate())
    if died or not found.clear:
        parts += filter(None, (_why(found.why),))
    return f"{'; '.join(parts)}."


def _none_meets(found: Found, nearest: Nearest, baseline: Side) -> str:
    """What came nearest, by how much it misses, what it gives and what it would meet."""
    side = nearest.side
    head = "No configuration was shown to meet the targets"
    if found.why not in NONE_MEETS:
        head += f" ({found.why})"
    lost = [f"{s.words} {s.reason}" for s in found.soak if s.state == "failed"]
    head += f" ({'; '.join(lost)})" if lost else ""
    if not side.change:
        parts = [f"{head}; the baseline itself came nearest: {figures(side)}"]
    else:
        parts = [f"{head}. The nearest is {side.words}: {figures(side)}"]
    parts.append(_misses(side))
    if side.change and baseline.measured:
        if nearest.against:
            clearly = "clearly " if nearest.clearly else ""
            parts.append(f"{clearly}{nearest.against}")
        too = f", which {_misses(baseline).removeprefix('it ')}, too"
        parts.append(f"before: {figures(baseline)}{too if baseline.meets is False else ''}")
    text = f"{'; '.join(parts)}."
    if nearest.would_meet:
        text += f" It would meet {' and '.join(nearest.would_meet)} by {_by(nearest)}."
    elif nearest.had:
        text += f" {_run_had(nearest)}."
    if nearest.chance is not None:
        text += (
            f" Of {grouped(str(nearest.looks))} configurations that the twin looked at, corrected"
            f" by what was measured, the best has a chance of {_chance(nearest.chance)} of meeting"
            " all targets on this host."
        )
    return text


def _by(nearest: Nearest) -> str:
    if nearest.among == 1:
        return "its whole intervals"
    return f"bounds that count that it was picked among {nearest.among}"


def _run_had(nearest: Nearest) -> str:
    """What its run or two had, with what they may stand for: no promise."""
    runs = "one run" if nearest.side.runs == 1 else f"{nearest.side.runs} runs"
    text = f"Its {runs} had {' and '.join(nearest.had)}"
    if not any("(up to " in one for one in nearest.had):
        return text
    picked = "" if nearest.among == 1 else f" and that it was picked among {nearest.among}"
    return f"{text}, where the bound counts the noise between runs{picked}"


def _misses(side: Side) -> str:
    """By how much it misses, limit by limit; what its intervals leave open is said to be open."""
    open_ = [m for m in side.limits if m.met is None]
    missed = [m for m in side.limits if m.met is False]
    parts = []
    if missed:
        parts.append(f"it misses {', '.join(map(miss_words, missed))}")
    if open_:
        parts.append(f"{'it ' if not missed else ''}may miss {', '.join(map(miss_words, open_))}")
    return " and ".join(parts) or "it misses the targets"


def _chance(share: float) -> str:
    return "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _stays(setting: Setting, found: Found, baseline: Side) -> str:
    lost = [s for s in found.soak if s.state == "failed"]
    dead = f" ({', '.join(f'{s.words} {s.reason}' for s in lost)})" if lost else ""
    if not found.recommended:
        return f"No recommendation: {found.why}{dead}."
    parts = [f"The baseline stays: {found.why}{dead}"]
    if found.duel is not None and found.why.startswith("no clear winner: no finalist"):
        parts.append(pair_words(found.duel))
    parts += [targets_words(baseline), _open_words(setting, found, baseline)]
    return f"{'; '.join(filter(None, parts))}."


def _open_words(setting: Setting, found: Found, side: Side) -> str:
    """What would decide its open targets, by the duel or the trial that its figures are of."""
    duel = found.duel_with(Candidate(side.change)) if side.measured == "duel" else None
    return limits_words(setting, side, duel)


def _why(why: str) -> str:
    """What is not clear about it; what the sentence has said already is left out."""
    kept = [part for part in why.split("; ") if not any(word in part for word in _OWN)]
    return "; ".join(kept)


def targets_words(side: Side) -> str:
    """How it stands to the targets, by the intervals; "" without targets or figures."""
    if not side.limits:
        return ""
    if side.meets:
        return "it meets the targets"
    wanted = False if side.meets is False else None
    open_ = [miss_words(m) for m in side.limits if m.met is wanted]
    if side.meets is False:
        return f"it misses the targets ({', '.join(open_)})" if open_ else "it misses the targets"
    told = ", ".join(open_) or "too little data"
    return f"it may meet the targets and may miss them ({told})"


def miss_words(miss: Miss) -> str:
    """One limit with what was found: "itl_p95_ms 11.9 (9.99 to 16.4) against at most 12"."""
    kind = "at least" if miss.key == "attainment" else "at most"
    if miss.value is None:
        return f"{miss.key} not known, {kind} {_plain(miss.limit)}"
    span = ""
    if miss.low is not None and miss.high is not None and miss.low < miss.high:
        span = f" ({significant(miss.low)} to {significant(miss.high)})"
    return f"{miss.key} {significant(miss.value)}{span} against {kind} {_plain(miss.limit)}"


def missed_words(miss: Miss) -> str:
    """A missed limit in short: "itl_p95_ms 22.7 > 12"; an attainment is missed from below."""
    sign = "<" if miss.key == "attainment" else ">"
    value = "not known" if miss.value is None else significant(miss.value)
    return f"{miss.key} {value} {sign} {_plain(miss.limit)}"


def claim_words(claim: Claim, goal: Goal) -> str:
    """A difference with its bounds and the rounds behind it, in words; of cost that of the price.

    "61 % cheaper than the baseline (52 to 68 %, 3 paired rounds)".
    """
    ratio, low, high = of_price(claim) if goal == "cost" else (claim.ratio, claim.low, claim.high)
    below, above = ("cheaper", "dearer") if goal == "cost" else ("less", "more")
    word = above if ratio > 1 else below
    of = "" if goal == "cost" else f" {UNITS[goal]}"
    sign = 1 if ratio > 1 else -1
    text = f"{_percent(sign * (ratio - 1))} %{of} {word} than the baseline"
    rounds = f"{claim.rounds} paired round{'s' * (claim.rounds != 1)}"
    if low is None or high is None:
        return f"{text} ({rounds}: no interval)"
    ends = sorted((sign * (low - 1), sign * (high - 1)))
    return f"{text} ({_percent(ends[0])} to {_percent(ends[1])} %, {rounds})"


def unpaired_words(ratio: float, goal: Goal) -> str:
    """A difference to the baseline by trials of their own, which no round pairs."""
    ratio = 1 / ratio if goal == "cost" else ratio
    below, above = ("cheaper", "dearer") if goal == "cost" else ("less", "more")
    of = "" if goal == "cost" else f" {UNITS[goal]}"
    word = above if ratio > 1 else below
    return f"{_percent(abs(ratio - 1))} %{of} {word} than the baseline by unpaired trials"


def of_price(claim: Claim) -> tuple[float, float | None, float | None]:
    """A ratio of tokens per USD as one of USD per token."""
    low = None if not claim.high else 1 / claim.high
    high = None if not claim.low else 1 / claim.low
    return 1 / claim.ratio, low, high


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}" if abs(share) < 0.0995 else f"{100 * share:.0f}"
    return grouped(text).replace(f"{MINUS}0.0", "0.0")


def _plain(value: float) -> str:
    return significant(value) if value else "0"


def figures(side: Side) -> str:
    """Price with its interval, tokens per second and GPU, latencies."""
    parts = []
    if side.usd_per_million_output_tokens is not None:
        price = side.usd_per_million_output_tokens
        parts.append(f"${significant(price)}{_price_span(side)} per million output tokens")
    if side.output_tokens_per_s_per_gpu is not None:
        parts.append(f"{significant(side.output_tokens_per_s_per_gpu)} tokens/s per GPU")
    times = [
        f"p95 {name} {significant(value)} ms"
        for name, value in (("TTFT", side.ttft_p95_ms), ("ITL", side.itl_p95_ms))
        if value is not None and math.isfinite(value)
    ]
    if times and side.runs > 1:
        times[-1] += f" (the worst of {side.runs} runs)"
    return ", ".join(parts + times) or "no figures"


def _price_span(side: Side) -> str:
    """The interval of the price, where the objective has one that tells it."""
    price = side.usd_per_million_output_tokens
    if not side.value or not side.low or not side.high or price is None:
        return ""
    if abs(price * side.value / 1e6 - 1) < 1e-6:  # tokens per USD: the smaller, the dearer
        return f" ({significant(1e6 / side.high)} to {significant(1e6 / side.low)})"
    return ""
