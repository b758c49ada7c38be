"""Tasks of lm-evaluation-harness in pairs: the same documents by reference and candidate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.tuning.quality_stats import Figure, ratio


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """One metric of a task. recovery: the candidate's mean score over the reference's, paired by
    document; documents weigh the same. flipped: documents whose scores differ.
    """

    task: str
    metric: str
    documents: int
    reference: float
    candidate: float
    recovery: Figure
    flipped: int


def compare_task(
    task: str, metric: str, reference: Mapping[str, float], candidate: Mapping[str, float]
) -> TaskComparison:
    """Pair the scores (0 to 1, higher is better) by document. Raises ValueError when the documents
    differ or the reference scores nothing.
    """
    if not reference or reference.keys() != candidate.keys():
        raise ValueError(f"task {task}: the two servers were asked different documents")
    ours = np.array([reference[k] for k in reference], dtype=np.float64)
    theirs = np.array([candidate[k] for k in reference], dtype=np.float64)
    if ours.sum() <= 0:
        raise ValueError(f"task {task}: the reference scores 0, there is nothing to recover")
    return TaskComparison(
        task, metric, len(ours), float(ours.mean()), float(theirs.mean()),
        ratio(theirs, ours, weights=np.ones_like(ours)),
        int((ours != theirs).sum()),
    )  # fmt: skip
