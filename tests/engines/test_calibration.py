"""Prompt lengths against servers that count their own way, with and without /tokenize."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    Outputs,
    Prompts,
    SharedPrefix,
    Workload,
)
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.engines.fitting import Fits
from ridgeline.workload.prompts import WORDS, PromptMaker, TokenFit, fit_tokens
from ridgeline.workload.schedule import Segment, draw_schedule
from support.mock_server import (
    DONE,
    MockServer,
    Pages,
    Script,
    Served,
    finish,
    models_page,
    page,
    stream,
    text,
    usage,
)


class Tokenizing:
    """A server whose words cost 1 to 4 tokens each, and whose template costs 23."""

    def __init__(self, *, tokenize: bool = True, merge: bool = False, template: int = 23) -> None:
        rng = np.random.default_rng(5)
        self.costs = dict(zip(WORDS, rng.choice([1, 1, 1, 2, 4], len(WORDS)), strict=True))
        self.template, self.merge = template, merge
        self.asked = 0
        self.pages: Pages = {"/v1/models": models_page("m", max_model_len=200_000)}
        if tokenize:
            self.pages["/tokenize"] = self.tokenize

    def tokens(self, body: dict[str, object]) -> int:
        chat = "messages" in body
        said = body["messages"][0]["content"] if chat else body["prompt"]  # type: ignore[index]
        words = str(said).split()
        count = int(sum(self.costs[w] for w in words)) + (self.template if chat else 1)
        if self.merge:  # a tokenizer that joins neighbours: counts do not add up
            count -= sum(len(a) + len(b) < 7 for a, b in itertools.pairwise(words))
        return count

    def tokenize(self, served: Served) -> Script:
        self.asked += 1
        body = json.dumps({"count": self.tokens(served.json()), "tokens": [], "max_model_len": 9})
        return page(200, "application/json", body.encode())

    def __call__(self, served: Served, number: int) -> Script:
        end = finish("length") + usage(self.tokens(served.json()), 1) + DONE
        return stream([(0, text()), (0, end)])


def measure(
    server: Tokenizing,
    lengths: Lengths,
    *,
    shared: SharedPrefix | None = None,
    endpoint: str = "chat",
    fits: Fits | None = None,
    requests: int = 120,
) -> tuple[RunFacts, list[RequestRecord]]:
    workload = Workload(
        Arrivals(users=4), Prompts(lengths, shared), Outputs(Lengths(2)), duration_s=60,
        warmup_s=0, requests=requests,
    )  # fmt: skip
    sink = MemorySink()
    with MockServer(server, server.pages) as mock:
        plan = DrivePlan(draw_schedule(workload), "salt", endpoint)
        facts = HttpEndpoint(mock.url, fits=fits).drive(plan, sink, SilentWatch())
    return facts, sink.requests


def misses(records: list[RequestRecord]) -> np.ndarray:
    return np.array([(r.prompt_tokens or 0) - r.planned_prompt_tokens for r in records])


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_prompts_are_made_to_the_token_where_the_server_tokenises(endpoint: str) -> None:
    server = Tokenizing()
    shared = SharedPrefix(100, 3)
    facts, records = measure(server, Lengths(60, 0.9), shared=shared, endpoint=endpoint)
    assert facts.extra_requests == 1
    assert 256 < server.asked < 300
    assert not misses(records).any()
    fit = facts.server["prompt_fit"]
    assert isinstance(fit, dict)
    assert fit["exact"] is True
    assert fit["overhead_tokens"] == (23 if endpoint == "chat" else 1)
    assert "+0.0% at worst" in " ".join(facts.notes)


@pytest.mark.parametrize("lengths", [Lengths(40, 0.3), Lengths(250), Lengths(2000, 0.5)])
def test_without_it_the_mean_is_right_and_the_drift_is_told(lengths: Lengths) -> None:
    facts, records = measure(Tokenizing(tokenize=False), lengths)
    assert facts.extra_requests == 4
    planned = np.array([r.planned_prompt_tokens for r in records])
    # short prompts: the template's constant must not be mixed with the slope
    assert misses(records).mean() / planned.mean() == pytest.approx(0, abs=0.06)
    text_ = " ".join(facts.notes)
    assert "at the median" in text_
    assert "at worst" in text_


def test_a_tokenizer_whose_counts_do_not_add_up_is_not_taken_for_exact() -> None:
    facts, records = measure(Tokenizing(merge=True), Lengths(300))
    fit = facts.server["prompt_fit"]
    assert isinstance(fit, dict)
    assert fit["exact"] is False
    assert misses(records).mean() == pytest.approx(0, abs=12)


def test_one_calibration_serves_all_endpoints_of_a_model_and_is_tried_on_each() -> None:
    fits: Fits = {}
    first, _ = measure(Tokenizing(tokenize=False), Lengths(100), fits=fits, requests=4)
    assert first.extra_requests == 4
    known = dict(fits)
    second, _ = measure(Tokenizing(tokenize=False), Lengths(100), fits=fits, requests=4)
    assert second.extra_requests == 1  # it answers, and counts as the first did
    assert fits == known
    # another template under the same name is found out
    third, records = measure(
        Tokenizing(tokenize=False, template=90), Lengths(200), fits=fits, requests=40
    )
    assert third.extra_requests == 4
    assert misses(records).mean() == pytest.approx(0, abs=10)


def test_the_template_is_not_mixed_with_the_slope() -> None:
    """A template of 25 tokens, words of 1.02: the long sample is 10 tokens off by its words."""
    samples = [(12, 37), (32, 58), (100, 127), (750, 800)]
    fit = fit_tokens(samples)
    assert fit.overhead_tokens == pytest.approx(25, abs=1.0)
    for tokens in (30, 40, 60):
        words = fit.words(tokens)
        assert 25 + 1.02 * words == pytest.approx(tokens, abs=1.2)


def test_exact_prompts_of_any_length() -> None:
    rng = np.random.default_rng(1)
    costs = tuple(int(c) for c in rng.choice([1, 2, 3], len(WORDS)))
    by_word = dict(zip(WORDS, costs, strict=True))
    workload = Workload(Arrivals(users=1), Prompts(Lengths(500)))
    maker = PromptMaker(workload, "s", TokenFit(1.9, 12.0, 0.0, costs))
    for tokens in (13, 14, 15, 20, 29, 64, 500, 33_000, 70_000):
        made = maker.text(tokens, tokens).split()
        assert sum(by_word[w] for w in made) + 12 == tokens
    a, b = (maker.text(i, 400, (Segment(7, 200),)).split() for i in (1, 2))
    common = next(k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    assert sum(by_word[w] for w in a[:common]) >= 200
    dear = PromptMaker(workload, "s", TokenFit(3.0, 0.0, 0.0, (3,) * len(WORDS)))
    assert len(dear.text(1, 100).split()) == 33  # the most that fit
    assert len(dear.text(1, 1).split()) == 1
