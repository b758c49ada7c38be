"""Real pages of vLLM 0.32.0, cut anywhere: what is told is the truth, or it is not told."""

from dataclasses import fields
from pathlib import Path

import pytest

from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.saved import parsed
from ridgeline.domain.errors import BadInput

DATA = Path(__file__).parent / "data"
COUNTS = ("requests", "prompt_tokens", "generation_tokens", "steps", "preemptions",
          "cache_queries", "cache_hits")  # fmt: skip
CUTS = 60


def _texts(name: str) -> list[str]:
    return [(DATA / f"vllm-0.32.0-{name}-{i}.txt").read_text() for i in (0, 2)]


def _gathered(first: str, last: str) -> Evidence:
    return gather([Snapshot(20.0 * i, parsed(t, "x")) for i, t in enumerate((first, last))])


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the last"])
@pytest.mark.parametrize("name", ["four-slots", "few-blocks"])
def test_of_a_page_that_was_cut_nothing_wrong_is_told(name: str, which: int) -> None:
    texts = _texts(name)
    whole = _gathered(*texts)
    assert whole.generation_tokens
    told = 0
    for cut in range(1, CUTS):
        given = list(texts)
        given[which] = given[which][: len(given[which]) * cut // CUTS]
        try:
            seen = _gathered(*given)
        except BadInput:
            continue
        for field in COUNTS:
            value = getattr(seen, field)
            assert value in (None, getattr(whole, field)), (field, cut)
            told += value is not None
        for kind in fields(whole.histograms):
            one, true = (getattr(e.histograms, kind.name) for e in (seen, whole))
            if one is not None:
                assert one.count == true.count, (kind.name, cut)
        diagnose(seen)
    assert told > CUTS, "much of what stands before the cut is told"
