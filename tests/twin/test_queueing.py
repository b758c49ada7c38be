"""With one slot and one step a request, the twin is a single server: closed forms must hold."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import knobs, request

from ridgeline.domain.records import FULL_GRAPH
from ridgeline.twin.constants import Constants
from ridgeline.twin.replica import Replica
from ridgeline.twin.scheduler import Scheduler

REQUESTS = 100_000
SERVICE = 1000  # ns, on average
FREE = Constants(
    schedule_ns=0, schedule_ns_per_request=0, prompt_step_ns=0, update_ns=0,
    update_ns_per_request=0, launch_tail_ns=0,
)  # fmt: skip


def sojourn(load, service, seed):
    """Mean time in the system over the mean service, for Poisson arrivals at that load."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(SERVICE / load, REQUESTS)
    arrivals = np.rint(np.cumsum(gaps)).astype(np.int64).tolist()
    lengths = service(rng)
    cost = SimpleNamespace(
        constants=FREE,
        graph=lambda tokens, uniform: (FULL_GRAPH, tokens),
        launch_ns=lambda mode: 0,
        gpu_ns=lambda step, padded: step.tokens,  # a token takes a nanosecond
    )
    settings = knobs(max_num_seqs=1, max_num_batched_tokens=1 << 20, async_scheduling=False,
                     max_model_len=32_768)  # fmt: skip
    replica = Replica(0, Scheduler(settings, 1 << 20), cost)
    done = np.zeros(REQUESTS)
    index, due = 0, None
    while index < REQUESTS or due is not None:
        now = arrivals[index] if due is None else due
        while index < REQUESTS and arrivals[index] <= now:
            replica.inbox.append(request(index, lengths[index], 1))
            index += 1
        if replica.ended is not None:
            for r in replica.ended.finished:
                done[r.number] = now
        due = replica.turn(now)
    assert (done > 0).all()
    return float((done - arrivals).mean()) / np.mean(lengths)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_equal_services_follow_the_formula_of_pollaczek_and_khinchine(load):
    """M/D/1: service plus load / (2 (1 - load)) services of waiting."""
    found = sojourn(load, lambda rng: [SERVICE] * REQUESTS, seed=1)
    assert found == pytest.approx(1 + load / (2 * (1 - load)), rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_exponential_services_double_the_wait(load):
    """M/M/1: 1 / (1 - load) services in all."""

    def draw(rng):
        return np.maximum(1, np.rint(rng.exponential(SERVICE, REQUESTS))).astype(int).tolist()

    assert sojourn(load, draw, seed=2) == pytest.approx(1 / (1 - load), rel=0.02)
