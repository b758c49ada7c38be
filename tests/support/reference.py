"""How slow this machine is now, for bounds on CPU time that are no claim about a machine."""

import time

# CPU seconds of `work` on the machine on which the bounds were set (two shared cores, quiet).
REFERENCE_S = 0.008


def work() -> int:
    """Some of what Python does all day: calls, small objects, texts, and copies of them."""
    found = 0
    for number in range(8_000):
        words = f"{number} {number * 7}".split()
        found += len(" ".join(words).encode()) + sum(map(int, words)) % 7
    return found


def slowness() -> float:
    """How many times as long this machine takes now; at least 1, so that no bound gets tighter, and
    at most 3, so that each still bounds.
    """
    took = []
    for _ in range(9):
        before = time.thread_time()
        work()
        took.append(time.thread_time() - before)
    return min(max(1.0, min(took) / REFERENCE_S), 3.0)
