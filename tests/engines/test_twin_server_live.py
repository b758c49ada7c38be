"""The live twin: what leaves in real time is what the simulation says, to the nanosecond."""

import json
from collections.abc import Hashable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin_server_support import Crowd, events, raw_post, running

from ridgeline.domain import hardware
from ridgeline.domain.defaults import resolve
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.engines.twin_server.live import Prefixes, TwinPacer
from ridgeline.twin.fleet import Fleet, Twin, build_twin
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision

MODEL = "Qwen/Qwen3-0.6B"
MS = 1_000_000


def small_twin(**knobs: object) -> Twin:
    gpu, form = hardware.gpu("H100-SXM"), shape(MODEL)
    given_knobs = Knobs().with_changes(
        {"max_model_len": 2048, "max_num_seqs": 8, "enable_prefix_caching": False, **knobs}
    )
    return build_twin(form, gpu, resolve(given_knobs, gpu, form))


class Recorder:
    """Listener of the offline simulation: when each request's tokens reach the client."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        assert decision.trace is not None
        first = {r.number for r in decision.firsts}
        chunk = {r.number for r, _, _ in decision.prefills}
        for number in decision.trace:
            if number in first or number not in chunk:
                self.tokens.setdefault(number, []).append(at_ns)

    def finished(self, request: Request) -> None:
        pass


def offline(twin: Twin, asked: list[tuple[int, int, int]]) -> dict[int, list[int]]:
    """Token times of requests (arrival ns, prompt, output), all known beforehand."""
    recorder = Recorder()
    fleet = Fleet(twin, recorder, trace=True)

    def send(number: int, prompt: int, output: int, now: int) -> None:
        fleet.submit(Request(number, prompt, output, sent_ns=now), now)

    for number, (at, prompt, output) in enumerate(asked):
        fleet.at(at, lambda now, n=number, p=prompt, o=output: send(n, p, o, now))
    fleet.run_until(None)
    return recorder.tokens


class Sent:
    """What the pacer sends, and when it is told to."""

    def __init__(self, pacer: TwinPacer) -> None:
        self.pacer = pacer
        self.tokens: dict[Hashable, list[int]] = {}
        self.left: dict[Hashable, int] = {}

    def add(self, key: int, at: int, prompt: int, output: int, priority: int = 0) -> int:
        self.left[key] = output
        return self.pacer.add(key, ["w"] * prompt, output, at, priority)

    def send(self, key: Hashable, planned: int, count: int) -> None:
        self.tokens.setdefault(key, []).append(planned)
        self.left[key] -= count
        if not self.left[key]:
            self.pacer.cancel(key)

    def run_to(self, end: int | None) -> None:
        """Deliver at each due time, as the server does, up to `end`."""
        now = 0
        while (due := self.pacer.deliver(now, self.send)) is not None:
            if end is not None and due >= end:
                return
            now = max(now, due)


@pytest.mark.parametrize(("policy", "order"), [("priority", [3, 0, 2, 1]), ("fcfs", [0, 1, 2, 3])])
def test_the_priority_of_a_request_reaches_the_queue(policy: str, order: list[int]) -> None:
    """One slot, four requests before the first step: by their priority, or as they came."""
    sent = Sent(TwinPacer(small_twin(scheduling_policy=policy, max_num_seqs=1), origin_ns=0))
    for key, priority in enumerate((0, 10, 5, -1)):
        sent.add(key, key + 1, 50, 20, priority)
    sent.run_to(None)
    assert sorted(sent.tokens, key=lambda key: sent.tokens[key][0]) == order


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_live_pacer_sends_what_the_offline_simulation_says(replicas: int) -> None:
    rng = np.random.default_rng(5)
    at = np.cumsum(rng.integers(1, 30 * MS, 120))
    asked = [
        (int(t), int(p), int(o))
        for t, p, o in zip(at, rng.integers(1, 900, 120), rng.integers(1, 60, 120), strict=True)
    ]
    twin = small_twin(data_parallel_size=replicas, max_num_batched_tokens=512)
    truth = offline(twin, asked)
    sent = Sent(TwinPacer(twin, origin_ns=0))
    for number, (time_ns, prompt, output) in enumerate(asked):
        sent.run_to(time_ns)
        assert sent.add(number, time_ns, prompt, output) == number % replicas
    sent.run_to(None)
    assert sent.tokens == truth
    assert [len(truth[n]) for n in range(120)] == [output for _, _, output in asked]
    # It is a simulation with contention, not a constant: several waited, gaps differ.
    gaps = {b - a for times in truth.values() for a, b in pairwise(times)}
    assert len(gaps) > 50


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_clients_that_leave_give_everything_back(data: st.DataObject) -> None:
    """Cancelled while unread, waiting, in the prompt or decoding: slots and blocks come back."""
    blocks = data.draw(st.integers(131, 400))
    twin = small_twin(
        max_num_batched_tokens=256, num_gpu_blocks_override=blocks, max_num_seqs=4,
        enable_prefix_caching=data.draw(st.booleans()),
    )  # fmt: skip
    pacer = TwinPacer(twin, origin_ns=0)
    sent, now, keys = Sent(pacer), 0, 20
    leaves = set(data.draw(st.lists(st.integers(0, keys - 1), max_size=keys)))
    for key in range(keys):
        now += data.draw(st.integers(0, 20 * MS))
        sent.run_to(now)
        sent.add(key, now, data.draw(st.integers(1, 700)), data.draw(st.integers(1, 300)))
        for gone in sorted(leaves & set(range(key + 1))):
            if data.draw(st.booleans()):
                leaves.discard(gone)
                pacer.cancel(gone)
                sent.left.setdefault(gone, 0)
                if sent.left[gone]:
                    sent.left[gone] = -1  # gone: nothing may be sent any more
    sent.run_to(None)
    assert all(left in {0, -1} for left in sent.left.values())
    state = pacer.state()[0]
    assert (state.running, state.waiting, state.kv_usage) == (0, 0, 0)


def test_a_client_that_leaves_makes_room_for_the_next() -> None:
    """One slot: the second request starts when the first one's client has left, not 1000 later."""
    twin = small_twin(max_num_seqs=1)
    sent = Sent(TwinPacer(twin, origin_ns=0))
    sent.add(0, 0, 10, 1000)
    sent.add(1, 0, 10, 1)
    sent.run_to(100 * MS)
    assert 1 not in sent.tokens
    sent.pacer.cancel(0)
    sent.run_to(None)
    assert 100 * MS < sent.tokens[1][0] < 130 * MS


@pytest.mark.parametrize(("blocks", "preempted"), [(2000, False), (70, True)])
def test_an_iteration_is_a_batch_of_outputs_and_has_whole_prompts(
    blocks: int, preempted: bool
) -> None:
    """vLLM's front end counts what it is told: nothing of steps with unfinished prompts only, a
    prompt with its first token and once, however often it is computed.
    """
    twin = small_twin(
        max_num_batched_tokens=256, max_model_len=1024, num_gpu_blocks_override=blocks
    )
    pacer = TwinPacer(twin, origin_ns=0)
    sent = Sent(pacer)
    sent.add(0, 1, 900, 3)
    sent.run_to(None)
    state = pacer.state()[0].iteration_tokens
    assert state is not None
    assert (state.count, state.total) == (3, 900 + 3)  # of six steps
    for key in range(1, 5):
        sent.add(key, 10**9 + key, 240, 60)
    sent.run_to(None)
    assert (pacer.state()[0].preemptions != 0) == preempted
    assert state.total == 900 + 3 + 4 * (240 + 60)


def words(*parts: tuple[str, int]) -> list[str]:
    return [f"{name}{i}" for name, count in parts for i in range(count)]


def test_prompts_share_what_they_have_in_common_with_their_group() -> None:
    prefixes = Prefixes(block_size=16)
    system = ("s", 40)
    assert prefixes.find(words(system, ("a", 10))) == (0, 50)
    assert prefixes.find(words(system, ("b", 30))) == (0, 40)
    assert prefixes.find(words(("other", 20))) == (1, 20)
    assert prefixes.find(words(("short", 15))) == (None, 0)
    # The next turn of the first conversation, and the one after it.
    assert prefixes.find(words(system, ("a", 10), ("c", 20))) == (0, 70)
    assert prefixes.find(words(system, ("a", 10), ("c", 20), ("d", 5))) == (0, 75)
    assert prefixes.find(words(system, ("a", 9), ("e", 5))) == (0, 49)


STUDY = f"""
name: live
model: {MODEL}
hardware: {{gpu: H100-SXM}}
workload:
  arrivals: {{users: 4}}
  prompts: {{tokens: {{mean: 20}}}}
  output_tokens: {{max: 12}}
baseline: {{max_model_len: 2048, data_parallel_size: 2, enable_prefix_caching: true,
            enable_prompt_tokens_details: true}}
experiments:
  - {{name: one, set: {{data_parallel_size: 1, max_num_seqs: 2}}}}
"""


def test_a_study_is_served_and_its_prefix_cache_hits_counted(tmp_path: Path) -> None:
    """Prompts of 70 words, 64 of them shared: 4 whole blocks of 16 hit from the 2nd on."""
    study = tmp_path / "live.yaml"
    study.write_text(STUDY)
    system = " ".join(words(("s", 64)))
    cached = []
    with running(tmp_path, str(study), "--experiment", "one") as server:
        assert json.loads(server.get("/v1/models")[2])["data"][0]["max_model_len"] == 2048
        for turn in range(3):
            body = {
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": " ".join(words((f"u{turn}-", 6)))},
                ],
                "max_tokens": 5,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            *_, usage, _done = events(server.post("/v1/chat/completions", body)[2])
            assert usage["usage"]["prompt_tokens"] == 70
            cached.append(usage["usage"]["prompt_tokens_details"]["cached_tokens"])
        _, _, plain = server.post("/v1/chat/completions", {"messages": body["messages"]})
        assert cached == [0, 64, 64]
        # Without max_tokens an answer ends by itself at the study's mean length.
        reply = json.loads(plain)
        assert reply["usage"]["completion_tokens"] == 12
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert server.metric("vllm:prefix_cache_queries_total") == 4 * 70
        assert server.metric("vllm:prefix_cache_hits_total") == 3 * 64
        assert server.metric("vllm:prompt_tokens_cached_total") == 3 * 64
        assert server.metric("vllm:prompt_tokens_total") == 4 * 70
        assert server.metric("vllm:generation_tokens_total") == 3 * 5 + 12
        assert server.metric("vllm:cache_config_info", enable_prefix_caching="True") == 1
        # As vLLM counts: prompts less what hit, and every token.
        steps = server.metric("vllm:iteration_tokens_total_sum")
        assert steps == 4 * 70 - 3 * 64 + 3 * 5 + 12


def test_requests_queue_for_the_slots_of_the_study(tmp_path: Path) -> None:
    """6 requests, 2 slots, 40 tokens each: three waves, seen in the first tokens' times."""
    study = tmp_path / "live.yaml"
    study.write_text(STUDY)
    with running(tmp_path, str(study), "--experiment", "one") as server:
        crowd = Crowd()
        body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 40}
        crowd.start(server.address, [raw_post({**body, "stream": True})] * 6, pause_s=0)
        crowd.finish()
        assert server.metric("vllm:request_success_total", finished_reason="length") == 6
        server.stop()
    lines = sorted(server.sends(), key=lambda line: line["sent_ns"][0])
    firsts = [line["planned_ns"][0] for line in lines]
    lasts = sorted(line["planned_ns"][-1] for line in lines)
    for wave in (1, 2):
        assert firsts[2 * wave] > lasts[2 * wave - 2]
    assert all(
        sent >= planned
        for line in lines
        for sent, planned in zip(line["sent_ns"], line["planned_ns"], strict=True)
    )


def test_a_study_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    study = tmp_path / "live.yaml"
    study.write_text(STUDY.replace(MODEL, "Qwen/Qwen3-30B-A3B").replace("H100-SXM", "L4"))
    with (
        pytest.raises(AssertionError, match="not enough GPU memory"),
        running(tmp_path, str(study)),
    ):
        pass


@pytest.mark.parametrize(
    ("knob", "reason"),
    [
        ("stream_interval: 4", "stream_interval: the served twin sends every token by itself"),
        (
            "speculative_config: {method: ngram, num_speculative_tokens: 3}",
            "speculative_config: the served twin does not model drafted tokens",
        ),
    ],
)
def test_knobs_that_the_served_twin_does_not_model_are_refused(
    tmp_path: Path, knob: str, reason: str
) -> None:
    study = tmp_path / "live.yaml"
    assert "baseline: {" in STUDY
    study.write_text(STUDY.replace("baseline: {", "baseline: {" + knob + ", "))
    with pytest.raises(AssertionError, match=reason), running(tmp_path, str(study)):
        pass
