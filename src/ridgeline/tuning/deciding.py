"""How much more measuring would decide what a tuning left open, in words (`undecided`)."""

import math

from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.tuning.duel import NOISE
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate
from ridgeline.tuning.undecided import rounds_to_tell, runs_of_one


def limits_words(setting: Setting, side: Side, duel: Duel | None = None) -> str:
    """What would decide the latency targets that its runs leave open; "" where none is open.

    duel: that its figures are of; None: of one trial alone.
    """
    open_ = [m for m in side.limits if m.met is None and m.key not in SHARE_KEYS]
    if side.meets is not None or not open_ or not side.runs:
        return ""
    if duel is None:
        counts = {m.key: runs_of_one(m, PLAN.contenders, PLAN.most) for m in open_}
    else:
        counts = duel.runs_to_decide(Candidate(side.change))
    near = [key for key, count in counts.items() if count is None]
    if near:
        more = f"more than {PLAN.most} runs of it would be needed to decide {' and '.join(near)}"
        return f"{more}: too near the target to tell"
    more_runs = max((count or 0 for count in counts.values()), default=0) - side.runs
    if more_runs < 1:
        return ""
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
    count = rounds_to_tell(duel.judging, ratio, noise, duel.held)
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
