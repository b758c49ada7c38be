"""Engines that stand still, gauges that only look so, restarts, and one URL for several servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, evidence, findings, page, words

from ridgeline.cli.watchpage import first_said
from ridgeline.diagnosis.evidence import Known, ProbeResult
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.live import Now, Pool, Price, figures
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.watching import watch
from ridgeline.load.address import parse_address
from ridgeline.telemetry.prometheus import merged, parse_metrics
from support.serving import serving

LIMITS = {"imbalance", "batch-ceiling", "token-budget", "kv-memory", "prefill-stalls"}
FROZEN = page({R: 12, W: 5, KV: 0.5, STEPS: 100, MADE: 1000, PROMPT: 5000, PRE: 0})


@contextmanager
def answering(body: str) -> Iterator[str]:
    """A server with /health and always the same page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = b"" if self.path == "/health" else body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        yield url


class Clock:
    """A clock that sleeping moves, so that half a minute takes no time; work takes 1 ms."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)

    def time(self) -> float:
        return self.now


def test_a_look_of_the_usual_length_finds_a_hung_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(FROZEN) as url:
        monkeypatch.setattr("ridgeline.diagnosis.watching.time", Clock())
        seen = watch([parse_address(url)], {}, 30.0)
    found = diagnose(gather(seen.snapshots))
    assert found[0].id == "hung"
    assert not LIMITS & {f.id for f in found}


@pytest.mark.parametrize("interval_s", [1.0, 10.0, 60.0])
def test_a_watch_finds_a_hung_engine_and_tells_how_long(
    interval_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(FROZEN) as url:
        pool = Pool([parse_address(url)], {}, period_s=interval_s)
        clock = Clock()
        monkeypatch.setattr("ridgeline.diagnosis.live.time", clock)
        for _ in range(int(120 / interval_s) + 1):
            pool.replicas[0]._look()
            clock.sleep(interval_s)
        pool.replicas[0]._close()
        (row,) = pool.now()
    assert row.findings[0].id == "hung"
    assert row.evidence is not None
    assert row.evidence.stood_still_s == pytest.approx(120, abs=2), "longer than its window"


def test_a_short_look_says_that_nothing_moved_in_front_of_every_limit() -> None:
    first = diagnose(evidence(*[FROZEN] * 8, apart_s=1.0))[0]
    assert (first.id, first.confidence) == ("standing-still", "low")
    assert "nothing moved for 7 s" in first.title
    assert not any(t.knob == "restart" for t in first.tries)


def test_a_request_that_came_at_the_last_moment_has_not_waited_since_the_first() -> None:
    idle, busy = ({R: r, W: 0, KV: 0.0, STEPS: 9, MADE: 9, PROMPT: 9} for r in (0, 1))
    assert "hung" not in findings(evidence(page(idle), page(busy), apart_s=60))


def test_without_a_probe_a_stale_gauge_may_be_the_reason() -> None:
    """vLLM's gauges keep their last value after an abort, until there is another step."""
    stale = page({R: 1, W: 0, KV: 0.01, STEPS: 100, MADE: 1000, PROMPT: 5000})
    seen = evidence(stale, stale)
    first = diagnose(seen)[0]
    assert (first.id, first.confidence) == ("hung", "medium")
    assert "after an abort" in words(first)
    assert first.tries[0].knob == "--probe"
    assert "restart" not in {t.knob for t in first.tries}
    answered = diagnose(replace(seen, probe=ProbeResult(5, 5, 0.1, 0.1)))
    assert "hung" not in {f.id for f in answered}
    assert "stale-gauges" in {f.id for f in answered}
    silent = diagnose(replace(seen, probe=ProbeResult(1, 0, silent_s=30.0)))
    assert (silent[0].id, silent[0].confidence, silent[0].tries[0].knob) == (
        "hung", "high", "restart")  # fmt: skip
    assert "unanswered" not in {f.id for f in silent}, "once is enough"


@pytest.mark.parametrize("apart_s", [10.0, 30.0, 60.0])
def test_a_prompt_that_never_fits_is_no_hung_engine(apart_s: float) -> None:
    stuck = page({R: 0, W: 3, KV: 0.0, STEPS: 100, MADE: 1000, PROMPT: 5000, PRE: 0})
    known = Known(kv_tokens=8000, max_model_len=32_768)
    found = diagnose(evidence(stuck, stuck, known=known, apart_s=apart_s))
    assert found[0].id == "kv-below-context"
    assert not {"hung", "standing-still", *LIMITS} & {f.id for f in found}


def test_one_rank_that_hangs_is_named_whatever_the_others_do() -> None:
    def at(i: int) -> str:
        return page({
            R: [12, 10], W: [30 + i, 0], KV: [0.4, 0.3], STEPS: [1000, 1000 + 2000 * i],
            MADE: [10_000, 10_000 + 20_000 * i], PROMPT: [50_000, 50_000 + 10_000 * i], PRE: [0, 0],
        })  # fmt: skip

    found = diagnose(evidence(*[at(i) for i in range(4)]))
    assert found[0].id == "hung"
    assert "in engine 0" in found[0].title
    assert "engine 0: 12 running, 33 waiting" in words(found[0])
    assert not LIMITS & {f.id for f in found}


def test_one_replica_that_hangs_is_named() -> None:
    def at(i: int) -> Snapshot:
        moving = page({R: 4, W: 0, KV: 0.1, STEPS: 90 * i, MADE: 300 * i, PROMPT: 300 * i})
        return Snapshot(10.0 * i, merged([parse_metrics(moving), parse_metrics(FROZEN)]), 200)

    first = diagnose(gather([at(i) for i in range(4)]))[0]
    assert first.id == "hung"
    assert "in engine 1/0" in first.title


def _replica(steps: float, made: float, prompt: float, begun: float | None = None) -> str:
    text = page({R: 4, W: 0, KV: 0.1, STEPS: steps, MADE: made, PROMPT: prompt, PRE: 0})
    return text if begun is None else text + f"process_start_time_seconds {begun}\n"


@pytest.mark.parametrize("told", [True, False], ids=["start time told", "not told"])
def test_a_restart_of_one_replica_leaves_the_others_counts_alone(*, told: bool) -> None:
    def both(i: int, steps: float, made: float, prompt: float, begun: float) -> Snapshot:
        old = _replica(1e6 + 900 * i, 5e7 + 3000 * i, 9e7 + 3000 * i, 1.0 if told else None)
        new = _replica(steps, made, prompt, begun if told else None)
        return Snapshot(30.0 * i, merged([parse_metrics(old), parse_metrics(new)]))

    seen = gather([both(0, 5000, 500_000, 500_000, 2.0), both(1, 900, 3000, 3000, 3.0),
                   both(2, 1800, 6000, 6000, 3.0)])  # fmt: skip
    assert seen.restarts == 1
    assert seen.generation_tokens == 6000 + 6000
    assert seen.steps == 1800 + 1800


def test_a_restart_that_has_caught_up_is_known_by_its_start_time() -> None:
    one, two = (
        evidence(_replica(100, 1000, 1000, 1.0), _replica(100 + n, 1000 + n, 1000 + n, t))
        for n, t in ((50, 1.0), (50, 2.0))
    )
    assert (one.generation_tokens, two.generation_tokens) == (50, 1050)


def test_a_url_in_front_of_several_servers_is_told() -> None:
    pages = [_replica((1 + i % 2) * 1e6 + 900 * i, (5 + 3 * (i % 2)) * 1e7 + 3000 * i,
                      9e7 + 3000 * i) for i in range(6)]  # fmt: skip
    seen = evidence(*pages, apart_s=1.0)
    first = diagnose(seen)[0]
    assert first.id == "several-servers"
    assert "each replica's own URL" in first.title
    assert seen.generation_tokens is None, "no rate is better than a wrong one"
    crashing = [_replica(n, n, n) for n in (900, 40, 80, 30, 60, 90)]
    assert "several-servers" not in findings(evidence(*crashing))
    assert findings(evidence(*crashing))["restarted"]


def test_a_watch_says_a_finding_once_however_its_seconds_grow() -> None:
    frozen = [figures("x", evidence(*[FROZEN] * n, apart_s=1.0), Price()) for n in (8, 12, 40)]
    assert [first_said(row) for row in frozen] == ["standing-still", "standing-still", "hung"]
    gone = [Now("x", up=False, silent_s=n, trouble=f"no whole page for {n} s") for n in (8, 9)]
    assert first_said(gone[0]) == first_said(gone[1]) != first_said(frozen[0])
