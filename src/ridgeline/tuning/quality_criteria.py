"""What a candidate must reach in the quality gate, condition by condition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.tuning.quality_figures import Comparison
from ridgeline.tuning.quality_sets import Figures
from ridgeline.tuning.quality_stats import Figure, exp_of_minus
from ridgeline.tuning.quality_tasks import TaskComparison

# How many times of what all prompts may lose together a single one may lose: single prompts sway
# (of real 8-bit candidates the worst loses 1.6 to 2.4 times the mean), but a language or a format
# that is ruined must not drown in the rest.
WORST_TIMES = 5


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
        return f"{self.name} {words_of(self.figure)} {word} {self.limit:.4g}"


def criteria_of(
    figures: Figures, limits: Limits, tasks: Sequence[TaskComparison]
) -> tuple[Criterion, ...]:
    """Every condition with its figure."""
    compared, limit = figures.candidate, limits.recovery
    found = [
        _criterion("likelihood recovery", compared.recovery, limit),
        _criterion("agreement recovery", figures.agreement, limit),
    ]
    if figures.short is not None and figures.short_agreement is not None:
        where = "on short prompts"
        found += [
            _criterion(f"likelihood recovery {where}", figures.short.recovery, limit),
            _criterion(f"agreement recovery {where}", figures.short_agreement, limit),
        ]
    if figures.long is not None:
        long = figures.long.recovery
        found.append(
            _criterion("likelihood recovery on long prompts", long, limit, lenient=True)
        )  # fmt: skip
    if compared.kl_worst_prompt is not None:
        kept = Figure(math.exp(-compared.kl_worst_prompt))
        name = f"exp(-KL) of the worst prompt ({compared.worst_prompt})"
        met = kept.value >= limit**WORST_TIMES
        found.append(Criterion(name, kept, limit**WORST_TIMES, met))
    decode_only = compared.prompts_identical and not compared.identical
    found += _of_answers(compared, limits, "", only=decode_only)
    if figures.long is not None:
        found += _of_answers(figures.long, limits, " on long prompts", only=False)
    found += [_criterion(f"task {t.task} ({t.metric})", t.recovery, limit) for t in tasks]
    return tuple(found)


def _of_answers(compared: Comparison, limits: Limits, where: str, *, only: bool) -> list[Criterion]:
    """The conditions on greedy answers. only: nothing else shows a difference, so that the whole
    interval must reach the limit and not the estimate alone.
    """
    found = []
    greedy, kl = compared.greedy, compared.decode_kl
    if greedy is not None:
        least = limits.recovery**greedy.length if limits.greedy is None else limits.greedy
        one = _criterion(f"greedy agreement{where}", greedy.agreement, least, lenient=not only)
        if one.met and not greedy.enough:  # near ties, after which nothing was compared
            one = Criterion(one.name, one.figure, one.limit, None)
        found.append(one)
    if kl is not None:
        kept = exp_of_minus(kl)
        found.append(
            _criterion(f"exp(-KL) in decode{where}", kept, limits.recovery, lenient=not only)
        )  # fmt: skip
    return found


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


def words_of(figure: Figure) -> str:
    """An estimate with its interval, for a sentence."""
    if figure.low is None or figure.high is None:
        return f"{figure.value:.4f} (no interval)"
    return f"{figure.value:.4f} ({figure.low:.4f} to {figure.high:.4f})"
