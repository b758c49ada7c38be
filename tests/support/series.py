"""Series whose values go together, with known truths: AR(1), and waiting times of a queue."""

import numpy as np

S = 1_000_000_000


def ar1(rng: np.random.Generator, n: int, step_s: float, constant_s: float) -> np.ndarray:
    """n values of variance 1 every step_s, whose correlation falls with exp(-t / constant_s)."""
    phi = np.exp(-step_s / constant_s)
    noise = rng.standard_normal(n) * np.sqrt(1 - phi**2)
    values = np.empty(n)
    last = rng.standard_normal()
    for i in range(n):
        last = phi * last + noise[i]
        values[i] = last
    return values


def waits(rng: np.random.Generator, n: int, load: float) -> tuple[np.ndarray, np.ndarray]:
    """Arrival times and waiting times of an M/M/1 queue with mean service 1 (Lindley)."""
    gaps, services = rng.exponential(1 / load, n), rng.exponential(1.0, n)
    found = np.zeros(n)
    for i in range(1, n):
        found[i] = max(0.0, found[i - 1] + services[i - 1] - gaps[i])
    return np.cumsum(gaps), found
