"""How much more measuring would decide what a tuning left open, by the noise that it saw.

A limit is open while the interval of its figure lies across it. Over n runs of equal noise s
(standard deviation of the logarithm) the half-width is t(n - 1) s / sqrt(n) and what runs differ by
beyond their intervals (`objective.judge`), which no number of runs makes smaller. A pair is told
apart from the difference on that `DuelPlan.tells` gives.
"""

import math

from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.experiment.statistics import t_quantile
from ridgeline.tuning.budgeting import NOISE
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.objective import BETWEEN_RUNS
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Miss

_BEYOND = 1.959964 * BETWEEN_RUNS


def runs_to_decide(miss: Miss, runs: int) -> int | None:
    """Of how many runs in all the interval would lie on one side of the limit, if they go on as
    they did; None: of more than a duel has. One run alone takes the usual noise.
    """
    if miss.value is None or not miss.low or not miss.high or not miss.limit:
        return None
    if runs > 1:
        middle = math.sqrt(miss.low * miss.high)
        half = max(math.log(miss.high / miss.low) / 2 - _BEYOND, 0.0)
        noise = half * math.sqrt(runs) / t_quantile(runs - 1, 0.975)
    else:
        middle, noise = miss.value, NOISE
    if (middle > miss.limit) != (miss.value > miss.limit):
        return None  # the worst run lies on the other side than the runs on the whole
    away = abs(math.log(middle / miss.limit))
    counts = range(max(runs + 1, 2), PLAN.most + 1)
    return next(
        (n for n in counts if t_quantile(n - 1, 0.975) * noise / math.sqrt(n) + _BEYOND < away),
        None,
    )


def limits_words(setting: Setting, side: Side) -> str:
    """What would decide the latency targets that its runs leave open; "" where none is open."""
    open_ = [m for m in side.limits if m.met is None and m.key not in SHARE_KEYS]
    if side.meets is not None or not open_ or not side.runs:
        return ""
    counts = {m.key: runs_to_decide(m, side.runs) for m in open_}
    near = [key for key, count in counts.items() if count is None]
    if near:
        more = f"more than {PLAN.most} runs of it would be needed to decide {' and '.join(near)}"
        return f"{more}: too near the target to tell"
    more_runs = max(count or 0 for count in counts.values()) - side.runs
    gpu_s = more_runs * setting.run_s(setting.workload.duration_s) * side.gpus
    runs = f"{more_runs} more run{'s' * (more_runs != 1)} of it"
    return f"about {runs} ({gpu_s / 60:.1f} GPU minutes) would decide {' and '.join(counts)}"


def pair_words(duel: Duel) -> str:
    """What would tell the finalist that is furthest ahead from the baseline; "" where none is ahead
    by more than a tie, or it is told already.
    """
    claims = [(duel.claim(c), c) for c in duel.candidates[1:]
              if duel.meets(c) is not False and not duel.died(c)]  # fmt: skip
    ahead = [(claim.ratio, c) for claim, c in claims
             if claim is not None and claim.ratio > 1 + PLAN.tie
             and claim.verdict == "no clear difference"]  # fmt: skip
    if not ahead:
        return ""
    ratio, candidate = max(ahead, key=lambda pair: pair[0])
    found = duel.judging.noise(duel.rounds)
    noise = NOISE if found is None else math.sqrt(found.variance)
    counts = range(duel.held + 1, PLAN.most + 1)
    count = next((n for n in counts if duel.judging.tells(n, noise) <= ratio - 1), None)
    head = f"{candidate.words} is {100 * (ratio - 1):.0f} % ahead with {100 * noise:.0f} % noise"
    if count is None:
        return f"{head}, which {PLAN.most} rounds would not tell"
    more = count - duel.held
    setting = duel.setting
    gpus = setting.gpus_for(Candidate(), candidate)
    run_s = setting.run_s(setting.workload.duration_s)
    gpu_s = more * len(duel.candidates) * run_s * gpus
    rounds = f"{more} more round{'s' * (more != 1)}"
    return f"{head}: about {rounds} ({gpu_s / 60:.1f} GPU minutes) would tell"
