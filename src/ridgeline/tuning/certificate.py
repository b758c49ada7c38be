"""How far a winner is from what no setting can beat, and what is still to be expected of searching.

Two bounds from `experiment.capacity`, both of the roofline: of the winner's own settings (layout,
weights, KV type and batch ceiling, every step at its floor: what better scheduling could still
give), and over all settings that a plan looks at. The expected gain is the search's own.
"""

import math
from dataclasses import dataclass

from ridgeline.domain.numerals import significant
from ridgeline.experiment.capacity import Bound
from ridgeline.tuning.search import ENOUGH, Outlook

CONTRADICTED = 0.5  # weight of the twin below which its word counts for nothing


@dataclass(frozen=True, slots=True)
class Basis:
    """What the twin's word rests on, and the half-width (log) of its 90 % band of throughput."""

    words: str = "the twin, its constants prior and fitted to nothing measured"
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """tokens_per_s_per_gpu of the winner; its shares (0..1) of the two bounds; relative gains.

    expected_gain: of the answer by the best next measurement, noise and limits included. basis: of
    the twin's word. best_guess: how much more than the winner any candidate is believed to give (0:
    none more). over: the probability that any meets the targets and gives 2 % more than the winner;
    chance: the same over the search's own answer, 1 without one (answered); threshold: of it, below
    which the search stops. belief: the twin's weight. ended: what of the budget ended the search,
    "" = none.
    """

    tokens_per_s_per_gpu: float
    own_bound: float
    any_bound: float
    share_of_own: float
    share_of_any: float
    expected_gain: float
    best_guess: float
    chance: float
    threshold: float
    belief: float
    looks: int
    over: float
    answered: bool = True
    targets: bool = True
    basis: Basis = Basis()
    ended: str = ""

    @property
    def complete(self) -> bool:
        """Whether the search ended because nothing more was worth it, not by its budget."""
        return self.chance < self.threshold

    def sentences(self) -> tuple[str, ...]:
        """What is claimed, no more than the twin's own error allows."""
        return self._bounds(), self._outlook()

    def _bounds(self) -> str:
        any_, own = significant(self.any_bound), significant(self.own_bound)
        return (
            f"{significant(self.tokens_per_s_per_gpu)} tokens/s per GPU are"
            f" {self.share_of_any:.0%} of the roofline bound over all weights and KV types ({any_}:"
            " memory bandwidth and compute by the GPU's data sheet, the largest batch that fits, no"
            f" host time), and {self.share_of_own:.0%} of the scheduling bound of its own settings"
            f" ({own}: every step full and at its roofline floor). Neither bound is calibrated;"
            " real kernels reach a part of the data sheet, so the rest is not all to be had."
        )

    def _outlook(self) -> str:
        gains = (self.best_guess, self.expected_gain if self.answered else 0.0)
        worth = 100 * max(gains)
        at_most = f"no setting is expected to give more than {worth:.1f} % over the one named here"
        looked = f"among {self.looks} looked at"
        inside = " inside the targets" if self.targets else ""
        more = (
            f"; each is known within its error only, and that any of them gives 2 % more{inside}"
            f" than the one named here has a probability of {self.over:.0%}"
        )
        if not self.answered:
            more += "; nothing that the search measured meets the targets for sure"
        if self.belief < CONTRADICTED:
            seen = f"By the measurements (the twin is contradicted by them) {at_most} {looked}"
        else:
            seen = f"By {self.basis.words} {at_most} {looked}"
            off = 100 * math.expm1(self.basis.error)
            if off > worth:
                seen += (
                    f"; its throughput is known within ±{off:.0f} % only (nine times of ten), so a"
                    " smaller gain than that may be missed"
                )
        cut = self.ended and not self.complete
        end = f"; the search had more to try: {self.ended}" if cut else ""
        return f"{seen}{more}{end}."


def certify(
    tokens_per_s_per_gpu: float,
    own: Bound,
    highest: Bound,
    outlook: Outlook,
    *,
    basis: Basis = Basis(),
    enough: float = ENOUGH,
    ended: str = "",
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
        outlook.chance,
        enough,
        outlook.belief,
        outlook.looks,
        outlook.over,
        outlook.answered,
        outlook.targets,
        basis,
        ended,
    )  # fmt: skip
