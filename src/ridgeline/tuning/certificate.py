"""How far a winner is from what no setting can beat, and what is still to be expected of searching.

Two bounds from `experiment.capacity`, both of the roofline: of the winner's own settings (layout,
weights, KV type and batch ceiling, every step at its floor: what better scheduling could still
give), and over all settings that a plan looks at. The expected gain is the search's own.
"""

import math
from dataclasses import dataclass

from ridgeline.experiment.capacity import Bound
from ridgeline.tuning.search import ENOUGH, Outlook

CONTRADICTED = 0.5  # weight of the twin below which its word counts for nothing


@dataclass(frozen=True, slots=True)
class Certificate:
    """tokens_per_s_per_gpu of the winner; its shares (0..1) of the two bounds; relative gains.

    expected_gain: of the best further candidate, its chance of meeting the limits and noise
    included. best_guess: how much more than the winner any candidate is believed to give (0: none
    more). threshold: of expected_gain, below which the search stops. belief: the twin's weight.
    """

    tokens_per_s_per_gpu: float
    own_bound: float
    any_bound: float
    share_of_own: float
    share_of_any: float
    expected_gain: float
    best_guess: float
    threshold: float
    belief: float
    looks: int

    @property
    def complete(self) -> bool:
        """Whether the search ended because nothing more was worth it, not by its budget."""
        return self.expected_gain < self.threshold

    def sentence(self) -> str:
        """One line for the report."""
        at = (
            f"at {self.share_of_any:.0%} of the bound of any setting and {self.share_of_own:.0%} of"
            " its own settings'"
        )
        who = (
            "the twin sees"
            if self.belief >= CONTRADICTED
            else "the measurements (the twin is contradicted) show"
        )
        worth = max(self.best_guess, self.expected_gain)
        seen = f"{who} no setting worth more than {100 * worth:.1f} % among {self.looks} looked at"
        end = "" if self.complete else "; the budget ended the search before it was done"
        return f"{at}; {seen}{end}"


def certify(
    tokens_per_s_per_gpu: float,
    own: Bound,
    highest: Bound,
    outlook: Outlook,
    enough: float = ENOUGH,
) -> Certificate:
    """The certificate of a winner that gives so many output tokens per second and GPU.

    A share above 1 is not hidden: it says that the shape, the workload or the GPU's figures are
    not what was measured.
    """
    return Certificate(
        tokens_per_s_per_gpu,
        own.tokens_per_s_per_gpu,
        highest.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu / own.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu / highest.tokens_per_s_per_gpu,
        math.expm1(outlook.gain),
        math.expm1(max(outlook.best_guess, 0.0)),
        math.expm1(enough),
        outlook.belief,
        outlook.looks,
    )  # fmt: skip
