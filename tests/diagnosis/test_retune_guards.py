"""A re-tune pays only where nothing is given up for it; what is asked, and whose turn it is."""

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_pages import evidence, histogram, page

from ridgeline.cli.winneroption import tuned_from
from ridgeline.diagnosis import retuning
from ridgeline.diagnosis.drift import Edge, Tuned, drift, shifts
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.finding import Finding, Gain, Try
from ridgeline.diagnosis.gain import with_gain
from ridgeline.diagnosis.known import with_configuration
from ridgeline.diagnosis.paying import figures_asked, judge
from ridgeline.diagnosis.retuning import Retuning, retune
from ridgeline.domain.errors import BadInput
from ridgeline.domain.slo import parse_slo
from support.situations import TUNED
from support.staging import load, serving, stage

STUDIES = Path(__file__).parents[2] / "results" / "h200" / "tune" / "h200-tune-32"


def _seen(ttft_ms: float = 100.0) -> Evidence:
    """Twenty requests/s, 40 in flight, all with the same TTFT."""
    rows = [
        page({"vllm:num_requests_running": 40, "vllm:num_requests_waiting": 0,
              "vllm:iteration_tokens_total_count": 50.0 * t,
              "vllm:generation_tokens_total": 2000.0 * t, "vllm:prompt_tokens_total": 4000.0 * t,
              'vllm:request_success_total{finished_reason="stop"}': 20.0 * t,
              **histogram("vllm:time_to_first_token_seconds",
                          {ttft_ms / 1e3 - 1e-4: 0, ttft_ms / 1e3: 20 * t}, ttft_ms / 50 * t)})
        for t in range(31)
    ]  # fmt: skip
    return evidence(*rows, apart_s=1.0)


def _gains(tokens: float = 1.0, ttft: float = 1.0, itl: float = 1.0) -> list[Gain]:
    rows = {"output_tokens_per_s": tokens, "ttft_p50_s": ttft, "ttft_p95_s": ttft,
            "itl_mean_s": itl, "e2e_mean_s": itl}  # fmt: skip
    return [Gain(m, r, r / 1.1, r * 1.1, better=False) for m, r in rows.items()]


NONE, TTFT = parse_slo(""), parse_slo("ttft_p95_ms=200")


@pytest.mark.parametrize(
    ("gains", "slo", "now_ms", "closed", "gpus", "pays"),
    [
        (_gains(itl=0.7), NONE, 100, False, 1, False),  # faster tokens are no money
        (_gains(itl=0.7, ttft=31), NONE, 100, False, 1, False),
        (_gains(tokens=1.4), NONE, 100, True, 1, True),
        (_gains(tokens=1.4, ttft=3), NONE, 100, True, 1, False),
        (_gains(tokens=1.4, ttft=1.9), TTFT, 100, True, 1, True),  # 190 of 200 ms
        (_gains(tokens=1.4, ttft=2.1), TTFT, 100, True, 1, False),
        (_gains(ttft=0.5), TTFT, 300, False, 1, True),  # a limit that is missed now is held
        (_gains(ttft=0.65), TTFT, 300, False, 1, False),  # 195 ms, but it may be 215
        (_gains(), TTFT, 100, False, 0.5, True),  # half the GPUs
        (_gains(tokens=1.5), NONE, 100, True, 2, False),
        (_gains(tokens=0.8), NONE, 100, False, 0.5, False),  # it does not carry the rate
    ],
)
def test_what_pays(
    gains: list[Gain], slo: object, now_ms: float, closed: bool, gpus: float, pays: bool
) -> None:
    verdict = judge(_seen(now_ms), gains, slo, closed=closed, gpus=gpus)  # type: ignore[arg-type]
    assert verdict.pays is pays, verdict


def test_halving_the_slots_of_a_server_where_nothing_waits_does_not_pay() -> None:
    """Fewer slots than run: shorter steps, and all wait for a slot. Staged: p50 TTFT is higher."""
    own = serving(**{**TUNED, "max_num_seqs": 32})
    plan = load(rate=2.0, prompt=600, output=300, duration=20.0)
    offered = replace(plan, arrivals=load(rate=7.0, duration=1.0).arrivals)
    staged = stage(own, offered)
    e = replace(staged.evidence(), known=with_configuration(Known(), own, plan, "winner.yaml"))
    assert e.running is not None
    assert 8 < e.running.mean < 32, e.running
    found = drift(e, Tuned("winner.yaml", own, plan), retune=retune)
    assert found is not None
    assert "load x" in found.title
    assert "a re-tune pays" not in found.title, found.title
    assert "not yet" in found.title
    low = max(2, round(e.running.mean / 2))
    fewer = replace(own, knobs=own.knobs.with_changes({"max_num_seqs": low}))
    asked = with_gain(e, Finding("drift", "", "note", 0.0), Try("x", "y", {"max_num_seqs": low}),
                      asked=figures_asked(NONE))  # fmt: skip
    told = {g.metric: g for g in asked.gain}
    truth = stage(fewer, offered).figures["ttft_p50_s"] / staged.figures["ttft_p50_s"]
    assert truth > 1.5
    assert told["ttft_p50_s"].low > 1
    assert judge(e, asked.gain, NONE, closed=False, gpus=1).against is not None


def test_a_whole_configuration_unsets_what_only_the_winner_sets() -> None:
    """The winner is eager; the other one is not, and steps faster."""
    own = serving(**{**TUNED, "enforce_eager": True})
    other = serving(**TUNED)
    offered = load(users=8, prompt=128, output=100, duration=15.0)
    e = stage(own, offered).evidence()
    e = replace(e, known=with_configuration(Known(), own, offered, "winner.yaml"))
    rows = retuning._changes(e, Tuned("w", own, offered, others=(("graphs", other),)))
    change, whole, gpus = rows[0]
    assert (change.knob, change.value, whole, gpus) == ("graphs", "enforce_eager=unset", other, 1)
    base = Finding("drift", "", "note", 0.0)
    (gain, *_) = with_gain(e, base, change, other=other).gain
    assert gain.ratio > 1.05
    (same, *_) = with_gain(e, base, change, other=own).gain
    assert same.ratio == pytest.approx(1)


def test_those_that_the_winner_met_in_the_duel_are_asked_whole() -> None:
    """A recorded tuning whose winner sets a knob that its baseline left alone."""
    tuned = tuned_from(STUDIES / "winner.yaml")
    assert [name for name, _ in tuned.others] == [
        "baseline",
        "max_num_seqs=128, max_num_batched_tokens=512, max_cudagraph_capture_size=512,"
        " enable_prefix_caching=True, api_server_count=4",
        "max_num_seqs=64, max_num_batched_tokens=512, max_cudagraph_capture_size=512,"
        " enable_prefix_caching=True, api_server_count=4",
    ]
    assert tuned.others[0][1].knobs.max_num_seqs == 32
    assert tuned.others[0][1].knobs.max_cudagraph_capture_size is None
    assert (tuned.slo.get("itl_p95_ms"), tuned.unasked) == (12, 0)


def test_a_winner_without_its_tunings_study_says_how_many_are_not_asked(tmp_path: Path) -> None:
    for name in ("winner.yaml", "tune.json"):
        (tmp_path / name).write_text((STUDIES / name).read_text())
    tuned = tuned_from(tmp_path / "winner.yaml")
    assert (tuned.others, tuned.unasked) == ((), 3)
    assert "3 that the winner was compared with are not known" in retuning._left_out(tuned)


def _answering(monkeypatch: pytest.MonkeyPatch, low: float) -> Try:
    """The best of seven changes, each with the same band from `low` to 1.21 / low."""
    gain = Gain("output_tokens_per_s", 1.1, low, 1.21 / low, better=True)
    rest = [Gain(f"ttft_{p}_s", 0.9, 0.8, 1.0, better=True) for p in ("p50", "p95")]
    monkeypatch.setattr(retuning, "with_gain", lambda _e, _f, change, **_: replace(
        change, gain=(gain, *rest)))  # fmt: skip
    own = serving(**TUNED)
    offered = load(users=48, prompt=256, output=128, duration=10.0)
    e = stage(own, offered).evidence()
    e = replace(e, known=with_configuration(Known(), own, offered, "winner.yaml"))
    return retune(e, Tuned("w", own, offered))


def test_the_best_of_several_looks_is_less_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A band of 1.02 to 1.19 pays for one look; of the best of six it reaches below 1."""
    change = _answering(monkeypatch, low=1.02)
    assert change.gain[0].low < 1 < change.gain[0].high
    assert not any(g.better for g in change.gain)
    assert any(g.better for g in _answering(monkeypatch, low=1.08).gain)


def _moved() -> tuple[Evidence, Tuned]:
    plan = load(rate=4.0, prompt=200, output=100, duration=30.0)
    return _seen(), Tuned("w", serving(**TUNED), plan)


def test_every_replica_gets_its_answer_in_turn() -> None:
    """An answer takes as long as all may wait: the first one in the list is not asked for ever."""
    e, tuned = _moved()
    asked: Counter[str] = Counter()
    replicas = [f"r{i}" for i in range(6)]
    told: dict[int, str] = {}

    def ask(seen: Evidence, _: Tuned) -> Try:
        asked[told[id(seen)]] += 1
        time.sleep(0.02)
        return Try("x", "y", None, why_no_gain="z")

    retuning_ = Retuning(tuned, ask, again_s=0.04)
    mine = {name: replace(e) for name in replicas}
    told.update({id(seen): name for name, seen in mine.items()})
    end = time.monotonic() + 10
    while min((asked[name] for name in replicas), default=0) < 3 and time.monotonic() < end:
        for name in replicas:
            retuning_.answer(name, mine[name])
        time.sleep(0.005)
    assert min(asked[name] for name in replicas) >= 3, asked
    assert max(asked.values()) <= min(asked[name] for name in replicas) + 2


@pytest.mark.parametrize("error", [RuntimeError("boom"), BadInput("no such thing"), KeyError("k")])
def test_no_error_of_the_twin_ends_the_asking(error: Exception) -> None:
    e, tuned = _moved()
    calls: list[float] = []
    enough = threading.Event()

    def fails(*_: object) -> Try:
        calls.append(time.monotonic())
        if len(calls) >= 3:
            enough.set()
        raise error

    asking = Retuning(tuned, fails, again_s=0.01)
    end = time.monotonic() + 10
    while not enough.is_set() and time.monotonic() < end:
        asking.answer("a", e)
        time.sleep(0.005)
    assert enough.is_set()
    answer = asking.answer("a", e)
    assert answer is not None
    assert "the twin does not answer" in str(answer.why_no_gain)


def test_one_odd_reading_of_a_gauge_does_not_hide_a_load_of_five_times() -> None:
    """Eight users planned, 40 in flight in all readings but one of 3."""
    rows = [
        page({"vllm:num_requests_running": 3 if t == 15 else 40, "vllm:num_requests_waiting": 0,
              "vllm:generation_tokens_total": 2000.0 * t, "vllm:prompt_tokens_total": 4000.0 * t,
              'vllm:request_success_total{finished_reason="stop"}': 20.0 * t})
        for t in range(31)
    ]  # fmt: skip
    e = evidence(*rows, apart_s=1.0)
    plan = load(users=8, prompt=200, output=100, duration=30.0)
    (moved,) = [s for s in shifts(e, Tuned("w", serving(**TUNED), plan)) if s.what == "load"]
    assert moved.state == "moved"
    assert 3 < moved.low < moved.factor < moved.high
    edged = Tuned("w", serving(**TUNED), plan, (Edge("load", None, 0.5, 2, 3.0, "x"),))
    assert next(s for s in shifts(e, edged) if s.what == "load").state == "out"
