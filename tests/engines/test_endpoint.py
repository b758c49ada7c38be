"""An URL that already runs: one clear line about what is wrong, exact counts when it is right."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.errors import BadInput, EndpointError, RidgelineError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import SilentWatch
from ridgeline.engines.base import DrivePlan, Timeouts
from ridgeline.engines.endpoint import EndpointEngine, HttpEndpoint
from ridgeline.load.address import parse_address
from support.driving import closed
from support.mock_server import (
    DONE,
    MockServer,
    Pages,
    Script,
    Served,
    finish,
    models_page,
    page,
    plain_stream,
    role,
    stream,
    text,
    usage,
)

QUICK = Timeouts(connect_s=2.0, first_s=2.0, gap_s=2.0, total_s=5.0, grace_s=5.0)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RIDGELINE_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class FakeVllm:
    """Answers as vLLM does: counts tokens its own way, and counts everything in /metrics.

    A word of up to four letters is one token, a longer one two; the template adds 9.
    """

    def __init__(self, prompt_words_limit: int | None = None) -> None:
        self.limit = prompt_words_limit
        self.lock = threading.Lock()
        self.requests = self.prompt = self.generated = 0
        self.pages: Pages = {
            "/v1/models": models_page("tiny", max_model_len=4096),
            "/version": page(200, "application/json", b'{"version": "0.32.0"}'),
            "/metrics": self._metrics(),
        }

    def _metrics(self) -> Script:
        body = (
            f'vllm:request_success_total{{finished_reason="length"}} {self.requests}\n'
            f"vllm:prompt_tokens_total {self.prompt}\n"
            f"vllm:generation_tokens_total {self.generated}\n"
            "process_start_time_seconds 1.7e+09\n"
        )
        return page(200, "text/plain", body.encode())

    def tokens(self, prompt: str) -> int:
        return 9 + sum(1 if len(word) <= 4 else 2 for word in prompt.split())

    def __call__(self, served: Served, number: int) -> Script:
        body = served.json()
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        tokens, out = self.tokens(prompt), body["max_tokens"]
        with self.lock:
            self.requests += 1
            self.prompt += tokens
            self.generated += out
            self.pages["/metrics"] = self._metrics()
        events = [(3.0, role())] + [(4.0 + i, text()) for i in range(out)]
        return stream([*events, (4.0 + out, finish("length") + usage(tokens, out) + DONE)])


def drive(endpoint: HttpEndpoint, **schedule: Any) -> tuple[Any, list[RequestRecord]]:
    sink = MemorySink()
    plan = DrivePlan(closed(**schedule), "salt-1", timeouts=QUICK)
    facts = endpoint.drive(plan, sink, SilentWatch())
    return facts, sink.requests


@pytest.mark.parametrize(
    ("text_", "url"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("http://h:8000/v1/chat/completions", "http://h:8000"),
        ("h:8000", "http://h:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("https://h/api/v1", "https://h/api"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://h:80", "http://h"),
    ],
)
def test_urls_as_people_write_them(text_: str, url: str) -> None:
    assert parse_address(text_).url == url


@pytest.mark.parametrize(
    "text_", ["ftp://h", "http://", "http://h:99999", "http://h?x=1", "http://me:secret@h:1"]
)
def test_urls_that_are_none(text_: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_address(text_)
    assert "secret" not in str(caught.value)


def test_counts_agree_exactly_with_the_servers_own() -> None:
    fake = FakeVllm()
    with MockServer(fake, fake.pages) as mock:
        facts, records = drive(HttpEndpoint(mock.url + "/v1"), users=4, prompt_tokens=200)
    assert facts.source == "measured"
    assert len(records) > 20
    assert all(r.failure is None for r in records)
    counters = facts.counters
    assert counters.requests_ok == len(records) + facts.extra_requests
    assert counters.prompt_tokens == (
        sum(r.prompt_tokens or 0 for r in records) + facts.extra_prompt_tokens
    )
    assert counters.generation_tokens == (
        sum(r.output_tokens or 0 for r in records) + facts.extra_output_tokens
    )
    assert facts.extra_requests == 4
    assert counters.preemptions is None
    server = facts.server
    assert (server["model"], server["max_model_len"]) == ("tiny", 4096)
    assert server["version"] == "0.32.0"
    assert server["process_starts"] == [1.7e9]


def test_prompts_come_out_as_long_as_planned() -> None:
    """Without a tokenizer: within 1 % on average for a server that counts its own way."""
    fake = FakeVllm()
    with MockServer(fake, fake.pages) as mock:
        facts, records = drive(HttpEndpoint(mock.url), users=2, prompt_tokens=1000)
    mean = sum(r.prompt_tokens or 0 for r in records) / len(records)
    assert mean == pytest.approx(1000, rel=0.01)
    assert facts.server["prompt_drift"] == pytest.approx(mean / 1000 - 1, abs=1e-9)


def test_calibration_is_done_once_for_a_kind_of_endpoint() -> None:
    fake = FakeVllm()
    with MockServer(fake, fake.pages) as mock:
        endpoint = HttpEndpoint(mock.url)
        first, _ = drive(endpoint)
        second, records = drive(endpoint)
        assert (first.extra_requests, second.extra_requests) == (4, 0)
        assert second.counters.requests_ok == len(records)


def test_no_prompt_is_sent_twice() -> None:
    fake = FakeVllm()
    with MockServer(fake, fake.pages) as mock:
        endpoint = HttpEndpoint(mock.url)
        for salt in ("a", "b"):
            plan = DrivePlan(closed(2, prompt_tokens=64), salt, timeouts=QUICK)
            endpoint.drive(plan, MemorySink(), SilentWatch())
        heads = [tuple(s.json()["messages"][0]["content"].split()[:8]) for s in mock.served]
    assert len(heads) > 30
    assert len(set(heads)) == len(heads)


def test_several_urls_take_turns() -> None:
    fakes = [FakeVllm(), FakeVllm()]
    with MockServer(fakes[0], fakes[0].pages) as one, MockServer(fakes[1], fakes[1].pages) as two:
        facts, records = drive(HttpEndpoint([one.url, two.url], server={"engine": "vllm"}), users=4)
        served = len(one.served), len(two.served)
    assert {r.target for r in records} == {0, 1}
    assert abs(served[0] - facts.extra_requests - served[1]) <= 1
    assert facts.counters.requests_ok == len(records) + facts.extra_requests == sum(served)
    assert facts.server["engine"] == "vllm"
    assert len(facts.server["urls"]) == 2


def test_a_server_without_metrics_or_usage() -> None:
    pages = {"/v1/models": models_page("m")}
    script = stream([(2, text()), (4, finish() + DONE)])
    with MockServer([script], pages) as mock:
        facts, records = drive(HttpEndpoint(mock.url))
    assert facts.counters is None
    assert facts.extra_requests == 1
    assert all(r.failure is None and r.output_tokens is None for r in records)
    assert any("no usage" in note for note in facts.notes)


def test_key_goes_into_the_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_API_KEY", "sk-very-secret")
    echo = page(401, "application/json", b'{"error":{"message":"bad key sk-very-secret"}}')
    good = plain_stream(2, first_ms=2, gap_ms=1)
    with MockServer([good, good, good, echo], {"/v1/models": models_page("m")}) as mock:
        facts, records = drive(HttpEndpoint(mock.url), requests=1)
        heads = [s.head for s in [*mock.served, *mock.other]]
    assert all(b"Authorization: Bearer sk-very-secret\r\n" in h for h in heads)
    assert records[0].failure == "http_status"
    assert "sk-very-secret" not in repr((facts, records))
    assert "***" in str(records[0].failure_detail)


def failure_of(
    pages: dict[str, Script], scripts: list[Script] | None = None, model: str | None = None
) -> str:
    """The line that a person sees for a server like that."""
    with MockServer(scripts or [plain_stream(1)], pages) as mock:
        endpoint = HttpEndpoint(mock.url, model=model)
        with pytest.raises(RidgelineError) as caught:
            endpoint.drive(
                DrivePlan(closed(requests=1), "s", timeouts=QUICK), MemorySink(), SilentWatch()
            )
        line = str(caught.value)
        assert mock.url in line
    assert "\n" not in line
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (page(401, "application/json", b'{"error":"Unauthorized"}'), ["401", "RIDGELINE_API_KEY"]),
        (page(404, "application/json", b'{"detail":"Not Found"}'), ["404", "base URL"]),
        (page(429, "text/plain", b"slow down"), ["429", "rate"]),
        (page(500, "text/plain", b"oops"), ["500", "log"]),
        (page(200, "text/html", b"<html>hi</html>"), ["web page", "base URL of the API"]),
        (page(200, "application/json", b'{"data": []}'), ["lists no model"]),
        (page(200, "application/json", b"\xff\xff"), ["not JSON"]),
        (page(200, "application/json", b"[1, 2]"), ["lists no model"]),
    ],
)
def test_models_page_that_is_wrong(answer: Script, words: list[str]) -> None:
    line = failure_of({"/v1/models": answer})
    assert all(word in line for word in words), line


def test_wrong_model_names_the_served_ones() -> None:
    line = failure_of({"/v1/models": models_page("tiny", "tiny-lora")}, model="tinny")
    assert "did you mean 'tiny'?" in line
    assert "tiny, tiny-lora" in line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (page(404, "application/json", b'{"detail":"Not Found"}'), ["404", "--endpoint"]),
        (page(401, "application/json", b"{}"), ["401", "RIDGELINE_API_KEY"]),
        (page(429, "text/plain", b"slow down"), ["429", "slow down", "rate"]),
        (page(500, "text/plain", b"oops"), ["500", "oops", "log"]),
        (page(200, "text/html", b"<html>Welcome</html>"), ["text/html", "Welcome"]),
        (page(200, "application/json", b'{"choices": []}'), ["not an event stream", "streams"]),
        (Script((), "close"), ["closed by the server"]),
        (stream([(1, b"data: \xff\n\n")]), ["UTF-8"]),
        (stream([(1, b"data: nonsense\n\n")]), ["not JSON", "nonsense"]),
        (stream([(1, text()), (2, b'data: {"error":{"message":"died"}}\n\n')]), ["died"]),
        (page(200, "text/event-stream", b""), ["reply without content"]),
    ],
)
def test_completions_that_are_wrong(script: Script, words: list[str]) -> None:
    """A test request finds it out, before any traffic."""
    if words == ["reply without content"]:
        # an empty reply to a test of two tokens is allowed; the run's own requests fail by class
        with MockServer([script], {"/v1/models": models_page("m")}) as mock:
            _, records = drive(HttpEndpoint(mock.url), requests=1)
        assert records[0].failure == "no_tokens"
        return
    line = failure_of({"/v1/models": models_page("m")}, [script])
    line = line.replace("instead of an event stream", "not an event stream")
    assert all(word in line for word in words), line


def test_nobody_there() -> None:
    with MockServer([plain_stream(1)]) as mock:
        url = mock.url
    with pytest.raises(EndpointError, match="refused") as caught:
        HttpEndpoint(url).info()
    assert url in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(EndpointError, match="cannot be resolved"):
        HttpEndpoint("http://no-such-host.invalid:8000").info()


def test_too_long_requests_are_refused_before_any_is_sent() -> None:
    with MockServer([plain_stream(1)], {"/v1/models": models_page("m", max_model_len=512)}) as mock:
        with pytest.raises(BadInput, match=r"up to 600 tokens.*max_model_len of 512"):
            drive(HttpEndpoint(mock.url), prompt_tokens=500, output_tokens=100)
        assert mock.served == []


def test_usage_that_does_not_grow_is_not_believed() -> None:
    with MockServer([plain_stream(2)], {"/v1/models": models_page("m")}) as mock:
        facts, records = drive(HttpEndpoint(mock.url), requests=2, prompt_tokens=40)
        assert {len(s.json()["messages"][0]["content"].split()) for s in mock.served[4:]} == {40}
    assert all(r.failure is None for r in records)
    assert any("does not depend on the prompt" in note for note in facts.notes)
    assert "prompt_fit" not in facts.server  # nothing was learnt, and nothing pretends so


def test_a_server_that_was_restarted_during_the_run_is_a_fault() -> None:
    fake = FakeVllm()
    fake.requests, fake.prompt, fake.generated = 1000, 100_000, 10_000
    fake.pages["/metrics"] = fake._metrics()

    def answer(served: Served, number: int) -> Script:
        if number == 20:
            fake.requests = fake.prompt = fake.generated = 0
        return fake(served, number)

    with MockServer(answer, fake.pages) as mock:
        facts, _ = drive(HttpEndpoint(mock.url), users=4)
    assert facts.server_faults == ("the server was restarted during the run",)


def test_a_server_that_dies_in_the_run_is_a_fault() -> None:
    fake = FakeVllm()

    def answer(served: Served, number: int) -> Script:
        if number == 24:  # counted, not timed: a busy machine may need a second to get here
            threading.Timer(0.02, mock.stop).start()
        return fake(served, number)

    with MockServer(answer, fake.pages) as mock:
        facts, records = drive(HttpEndpoint(mock.url), users=4, duration_s=1.5)
    assert any(r.failure is None for r in records)
    assert {r.failure for r in records} & {"connect", "stream_cut"}
    (fault,) = facts.server_faults
    assert "no longer answered after the run" in fault


def test_a_server_that_cuts_a_stream_and_lives_is_no_fault() -> None:
    fake = FakeVllm()

    def answer(served: Served, number: int) -> Script:
        good = fake(served, number)
        return Script(good.parts[:2], "close") if number == 20 else good

    with MockServer(answer, fake.pages) as mock:
        facts, records = drive(HttpEndpoint(mock.url), users=4)
    assert "stream_cut" in {r.failure for r in records}
    assert facts.server_faults == ()


def test_a_stop_during_calibration_ends_the_drive() -> None:
    """The first answer would take 60 s."""

    class Asked(SilentWatch):
        def stop_asked(self) -> bool:
            return True

    with MockServer([Script(((60_000.0, b""),))], {"/v1/models": models_page("m")}) as mock:
        plan = DrivePlan(closed(requests=1), "s", timeouts=Timeouts())
        began = time.monotonic()
        sink = MemorySink()
        facts = HttpEndpoint(mock.url).drive(plan, sink, Asked())
    assert time.monotonic() - began < 10
    assert facts.interrupted
    assert sink.requests == []


def test_a_test_request_is_followed_for_longer_than_the_grace_time() -> None:
    slow = plain_stream(2, first_ms=600, gap_ms=5)
    with MockServer([slow], {"/v1/models": models_page("m")}) as mock:
        plan = DrivePlan(
            closed(requests=1), "s", timeouts=Timeouts(first_s=5.0, total_s=5.0, grace_s=0.1)
        )
        sink = MemorySink()
        HttpEndpoint(mock.url).drive(plan, sink, SilentWatch())
    assert [r.failure for r in sink.requests] == ["cancelled"]  # grace is for the run's own


def test_the_engine_of_a_url() -> None:
    fake = FakeVllm()
    engine = EndpointEngine()
    with pytest.raises(BadInput, match="URL"), engine.start(Configuration("m", Knobs())):
        pass
    with MockServer(fake, fake.pages) as mock:
        configuration = Configuration("tiny", Knobs(), engine="endpoint", url=mock.url)
        with engine.start(configuration) as endpoint:
            sink = MemorySink()
            plan = DrivePlan(closed(requests=2), "s", endpoint="completions", timeouts=QUICK)
            facts = endpoint.drive(plan, sink, SilentWatch())
        assert {s.path for s in mock.served} == {"/v1/completions"}
    assert facts.source == endpoint.source == "measured"
    assert [r.failure for r in sink.requests] == [None, None]
    assert json.dumps(dict(facts.server))  # can be stored as it is
