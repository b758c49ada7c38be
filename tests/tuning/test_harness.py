"""Scores by document out of what lm-evaluation-harness 0.4.13 writes (rows as it wrote them)."""

import json

import pytest

from ridgeline.domain.errors import RunFailed
from ridgeline.tuning.harness import read_scores

ROWS = """\
{"doc_id": 0, "target": "0", "filter": "none", "metrics": ["acc"], "doc_hash": "71fe", "acc": 0.0}
{"doc_id": 1, "target": "0", "filter": "none", "metrics": ["acc"], "doc_hash": "bbaf", "acc": 1.0}
{"doc_id": 0, "target": "7", "filter": "strict", "metrics": ["exact_match"], "exact_match": 1.0}
{"doc_id": 0, "target": "7", "filter": "flexible", "metrics": ["exact_match"], "exact_match": 0.0}
{"doc_id": 3, "filter": "none", "metrics": ["acc", "acc_norm"], "acc": 1.0, "acc_norm": 0.0}
{"doc_id": 3, "filter": "none", "metrics": ["word_perplexity"], "word_perplexity": [-9.1, 4]}
"""


def rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in ROWS.splitlines()]


def test_scores_by_document_and_filter() -> None:
    found = read_scores(zip(["a", "a", "b", "b", "c"], rows()[:5], strict=True))
    assert found == {
        ("a", "acc"): {"0 none": 0.0, "1 none": 1.0},
        ("b", "exact_match"): {"0 strict": 1.0, "0 flexible": 0.0},
        ("c", "acc_norm"): {"3 none": 0.0},
    }


def test_a_task_without_a_score_is_named() -> None:
    with pytest.raises(RunFailed, match="task d has none of the scores exact_match"):
        read_scores([("d", rows()[5])])
