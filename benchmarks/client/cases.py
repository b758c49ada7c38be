"""Servers whose times are known, to hold against them what a tool prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.client.replies import HEAD, Part, closing, paced, role, text

FIRST_MS, GAP_MS, CHUNKS = 100.0, 10.0, 50


@dataclass(frozen=True, slots=True)
class Case:
    """What the server does (`plan`), in words (`title`), and the load that is put on it."""

    title: str
    plan: tuple[Part, ...]
    tokens: int
    streams: int = 4
    requests: int = 40


def _times(stall_after: int | None = None) -> Sequence[float]:
    """One chunk every GAP_MS from FIRST_MS on; the gap after chunk `stall_after` is 1 s longer."""
    late = [0.0 if stall_after is None or i < stall_after else 1000.0 for i in range(CHUNKS)]
    return [FIRST_MS + GAP_MS * i + late[i] for i in range(CHUNKS)]


CASES = {
    "quick": Case(
        "answers in 1 ms: 200 chunks in one write, 32 streams",
        (Part(1.0, HEAD + role() + text() * 200 + closing(200), content=True),),
        tokens=200,
        streams=32,
        requests=3200,
    ),
    "plain": Case("first token at 100 ms, then one every 10 ms", paced(_times()), tokens=CHUNKS),
    "four": Case(
        "the same with 4 tokens a chunk",
        paced(_times(), words=4),
        tokens=1 + 4 * (CHUNKS - 1),
    ),
    "role": Case(
        "a role chunk at once, the first token at 100 ms",
        paced(_times(), role_ms=0.0),
        tokens=CHUNKS,
    ),
    "stall": Case(
        "a stall of 1 s after the tenth chunk",
        paced(_times(stall_after=10)),
        tokens=CHUNKS,
    ),
    "reasoning": Case(
        "25 chunks of reasoning from 100 ms on, the answer from 350 ms on",
        paced([350.0 + GAP_MS * i for i in range(25)], reasoning_ms=_times()[:25]),
        tokens=CHUNKS,
    ),
}
