"""When Little's law is not to be believed: bursts before the look, long requests, restarts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, evidence, findings, histogram, page

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence, Known

QUEUE, PREFILL, DECODE = (f"vllm:request_{what}_time_seconds" for what in
                          ("queue", "prefill", "decode"))  # fmt: skip
SLOTS = Known(max_num_seqs=256, max_num_batched_tokens=8192)


def _page(ended: float, *, waited: float, ran: float, running: int = 0, before: int = 5000) -> str:
    """After so many requests, each of which waited and ran so many seconds."""
    n = before + ended
    return page({
        R: running, W: 0, KV: 0.2 if running else 0.0, PRE: 0, STEPS: 50 * n, MADE: 100 * n,
        PROMPT: 200 * n, 'vllm:request_success_total{finished_reason="stop"}': n,
        **histogram(QUEUE, {30: n}, ended * waited),
        **histogram(PREFILL, {0.3: n}, 0.05 * n),
        **histogram(DECODE, {30: n}, ended * (ran - 0.05)),
        "process_start_time_seconds": 1.7e9, "process_cpu_seconds_total": 1.0,
    })  # fmt: skip


def _look(ended: Callable[[int], float], *, waited: float, ran: float, known: Known = SLOTS,
          first: int = 0) -> Evidence:  # fmt: skip
    """Thirty seconds, a page a second, whose gauges say that nothing runs or waits."""
    pages = [_page(ended(t), waited=waited, ran=ran, running=0 if t else first) for t in range(31)]
    return evidence(*pages, apart_s=1.0, known=known)


def test_a_burst_that_ends_as_the_look_begins_is_no_queue() -> None:
    """Sixty requests that had waited 8 s end in the first second, then nothing comes."""
    seen = _look(lambda t: 60.0 if t else 0.0, waited=8.0, ran=1.5, first=60)
    assert seen.lagged is None
    found = findings(seen)
    assert "batch-ceiling" not in found
    assert not [f for f in found.values() if f.kind == "limit"]


def test_a_queue_of_eight_seconds_in_half_a_minute_is_not_read_into_the_rest() -> None:
    """Gauges that say 0 for the 22 s after it are right."""
    seen = _look(lambda t: 10.0 * min(t, 8), waited=4.0, ran=1.5)
    assert seen.lagged is None
    assert "batch-ceiling" not in findings(seen)


def test_a_queue_that_lasts_is_seen_behind_gauges_that_say_0() -> None:
    """The same requests all the time: ten end a second, 40 wait, 15 run."""
    seen = _look(lambda t: 10.0 * t, waited=4.0, ran=1.5, known=replace(SLOTS, max_num_seqs=16))
    assert seen.lagged is not None
    assert seen.running is not None
    assert seen.waiting is not None
    # of 30 s the first requests' time before the look is left out
    assert 12 < seen.running.mean <= 15
    assert 35 < seen.waiting.mean <= 40
    assert next(iter(findings(seen))) == "batch-ceiling"


def test_what_was_spent_before_the_look_does_not_count() -> None:
    """Answers of 9 s end for 23 s, those of the first second ran in the look for one of them."""
    seen = _look(lambda t: 10.0 * min(t, 23), waited=0.0, ran=9.0)
    assert seen.running is not None
    inside = sum(10 * min(9, t) for t in range(1, 24)) / 30
    assert seen.running.mean == pytest.approx(inside, rel=0.02)


def test_requests_as_long_as_half_the_look_tell_nothing() -> None:
    seen = _look(lambda t: 2.0 * t, waited=10.0, ran=5.0)
    assert seen.lagged is None


def test_a_server_that_began_anew_is_believed_its_gauges() -> None:
    def one(t: int) -> str:
        text = _page(10.0 * (t if t < 15 else t - 15), waited=4.0, ran=1.5,
                     before=5000 if t < 15 else 0)  # fmt: skip
        return text if t < 15 else text.replace("1700000000.0", "1800000000.0")

    seen = evidence(*(one(t) for t in range(31)), apart_s=1.0, known=SLOTS)
    assert seen.restarts == 1
    assert seen.lagged is None


def test_slots_of_which_few_are_taken_are_not_full() -> None:
    few, many = (
        _look(lambda t: 10.0 * t, waited=4.0, ran=1.5, known=replace(SLOTS, max_num_seqs=slots))
        for slots in (256, 16)
    )
    assert "batch-ceiling" not in findings(few)
    assert "batch-ceiling" in findings(many)


def test_a_pool_that_cannot_hold_the_slots_is_what_they_wait_for() -> None:
    """Ten slots of 300 tokens need 3000; the page's own count of them tells which is short."""
    known = replace(SLOTS, max_num_seqs=16)
    lengths = {**histogram("vllm:request_prompt_tokens", {200: 1000}, 200_000.0),
               **histogram("vllm:request_generation_tokens", {100: 1000}, 100_000.0)}  # fmt: skip
    none = dict.fromkeys(lengths, 0.0)
    rows = [_page(10.0 * t, waited=4.0, ran=1.5) + page(lengths if t == 30 else none)
            for t in range(31)]  # fmt: skip
    for tokens, cause in ((1000, "kv"), (100_000, "slots")):
        seen = evidence(*rows, apart_s=1.0, known=replace(known, kv_tokens=tokens))
        assert seen.lagged is not None
        assert Account(seen).waiting_by_cause().keys() == {cause}
