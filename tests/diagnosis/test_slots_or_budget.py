"""A full batch of an unusual size is no token budget, and what cannot be told is not claimed."""

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, evidence, findings, page, words

from ridgeline.diagnosis.evidence import Known


def _at(running: float, steps: float, made: float, prompt: float, waiting: float = 400) -> str:
    return page({R: running, W: waiting, KV: 0.4, STEPS: steps, MADE: made, PROMPT: prompt, PRE: 0})


def test_256_slots_whose_readings_flap_are_a_batch_ceiling() -> None:
    """Steps of 250 tokens of answers and 80 of prompt, of a budget that nobody has so small."""
    running = [256, 248, 251, 256, 250, 253]
    pages = [_at(r, 1000 + 100 * i, 100_000 + 25_000 * i, 90_000 + 8000 * i)
             for i, r in enumerate(running)]  # fmt: skip
    for known in (Known(), Known(max_num_batched_tokens=8192)):
        found = findings(evidence(*pages, apart_s=5.0, known=known))
        assert next(iter(found)) == "batch-ceiling"
        assert "token-budget" not in found


@pytest.mark.parametrize("pages", [
    [_at(48, 1000, 50_000, 90_000, 60)],
    [_at(48, 1000, 50_000, 90_000, 60), _at(41, 1100, 54_500, 140_000, 60)],
])  # fmt: skip
def test_what_cannot_be_told_names_both_with_low_confidence(pages: list[str]) -> None:
    found = findings(evidence(*pages))
    first = next(iter(found.values()))
    assert (first.id, first.confidence) == ("slots-or-budget", "low")
    assert {"max_num_seqs", "max_num_batched_tokens"} <= {t.knob for t in first.tries}
    assert "slots are free" not in words(first)


def test_the_tokens_of_answers_are_no_part_of_a_full_budget() -> None:
    """2,000 answers in steps of 2,100 tokens: prompts take 5 % of the room left."""
    pages = [_at(2000 + i, 100 * i, 200_000 * i, 10_000 * i) for i in range(4)]
    found = findings(evidence(*pages, known=Known(max_num_batched_tokens=4096)))
    assert "token-budget" not in found
