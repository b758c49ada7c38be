"""Sessions and classes on a real socket: what is in the bodies, what is in the records."""

import itertools
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.errors import BadInput
from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import (
    Arrivals,
    Images,
    Lengths,
    Outputs,
    Prompts,
    RequestOptions,
    Sessions,
    SharedPrefix,
    TrafficClass,
    Workload,
)
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.workload.promptfiles import open_prompts
from ridgeline.workload.schedule import draw_schedule
from support.mock_server import (
    DONE,
    MockServer,
    Pages,
    Script,
    Served,
    chunk_value,
    event,
    finish,
    models_page,
    page,
    stream,
    text,
    usage,
)

TEMPLATE = 7  # tokens that the mock's chat template adds to each message
ODD = ['say "', "\\yes", " é\n", "</s>"]


class Talker:
    """Answers the k-th request with words that name it, and counts words as tokens."""

    def __init__(self, *, fail_a_second_turn: bool = False) -> None:
        self.asked: list[dict[str, object]] = []
        self.replies: list[str] = []
        self.to_fail = fail_a_second_turn

    def __call__(self, served: Served, number: int) -> Script:
        body = served.json()
        self.asked.append(body)
        words = [*ODD, f"reply{number}"]
        self.replies.append("".join(words))
        if "messages" in body:
            said = body["messages"]
            prompt = sum(len(m["content"].split()) + TEMPLATE for m in said)
            parts = [text(word) for word in words]
        else:
            prompt = len(body["prompt"].split())
            parts = [event(chunk_value([{"index": 0, "text": w, "finish_reason": None}]))
                     for w in words]  # fmt: skip
        if self.to_fail and len(body.get("messages", [])) == 3:
            self.to_fail = False
            return stream([(0, parts[0])], after="close")
        end = finish("length") + usage(prompt, len(words)) + DONE
        return stream([*((0, part) for part in parts), (0, end)])


def talk(
    endpoint: str, workload: Workload, talker: Talker | None = None
) -> tuple[Talker, list[RequestRecord]]:
    talker, sink = talker or Talker(), MemorySink()
    with MockServer(talker, {"/v1/models": models_page("m", max_model_len=100_000)}) as mock:
        plan = DrivePlan(draw_schedule(workload), "salt", endpoint)
        facts = HttpEndpoint(mock.url).drive(plan, sink, SilentWatch())
    extra = facts.extra_requests
    talker.asked, talker.replies = talker.asked[extra:], talker.replies[extra:]
    return talker, sorted(sink.requests, key=lambda r: r.index)


def sessions(users: int = 1, requests: int = 6, **more: object) -> Workload:
    return Workload(
        Arrivals(users=users), Prompts(Lengths(60), SharedPrefix(30)), Outputs(Lengths(9)),
        duration_s=60, warmup_s=0, requests=requests, sessions=Sessions(Lengths(3)), **more,
    )  # type: ignore[arg-type]  # fmt: skip


def test_the_next_turn_of_a_chat_carries_the_servers_own_reply() -> None:
    talker, records = talk("chat", sessions())
    assert [r.turn for r in records] == [0, 1, 2, 0, 1, 2]
    assert [r.session for r in records] == [0, 0, 0, 1, 1, 1]
    first, second, third = (body["messages"] for body in talker.asked[:3])
    assert [m["role"] for m in third] == ["user", "assistant", "user", "assistant", "user"]
    assert third[:3] == second  # the talk so far, word for word
    assert second[0] == first[0]
    assert [second[1]["content"], third[3]["content"]] == talker.replies[:2]
    assert len({m["content"] for m in third}) == 5
    fourth = talker.asked[3]["messages"]
    assert len(fourth) == 1  # a new session begins anew, with the shared beginning
    assert fourth[0]["content"] != first[0]["content"]
    assert fourth[0]["content"].split()[:20] == first[0]["content"].split()[:20]
    # planned lengths follow what the server counted: the past as it was, the new part by the fit;
    # the template that the mock puts around each reply in the next prompt is in neither
    for before, after in itertools.pairwise(records[:3]):
        assert before.prompt_tokens is not None
        assert before.output_tokens is not None
        past = before.prompt_tokens + before.output_tokens
        assert after.planned_prompt_tokens == past + 60
        assert after.prompt_tokens == pytest.approx(after.planned_prompt_tokens, abs=TEMPLATE + 1)


def test_the_next_turn_of_completions_carries_the_text_so_far() -> None:
    talker, records = talk("completions", sessions())
    prompts = [str(body["prompt"]) for body in talker.asked]
    assert prompts[1].startswith(f"{prompts[0]} {talker.replies[0]} ")
    assert prompts[2].startswith(f"{prompts[1]} {talker.replies[1]} ")
    assert not prompts[3].startswith(prompts[0][:400])
    assert all(r.failure is None for r in records)


def test_a_failed_turn_ends_its_session_and_the_user_begins_another() -> None:
    talker, records = talk("chat", sessions(requests=5), Talker(fail_a_second_turn=True))
    assert [(r.session, r.turn, r.failure) for r in records] == [
        (0, 0, None), (0, 1, "no_finish"), (1, 0, None), (1, 1, None), (1, 2, None),
    ]  # fmt: skip
    assert [len(body["messages"]) for body in talker.asked] == [1, 3, 1, 3, 5]


def test_sessions_at_a_rate_go_on_by_themselves() -> None:
    workload = Workload(
        Arrivals(rate_per_s=20, process="constant"), Prompts(Lengths(20)), Outputs(Lengths(9)),
        duration_s=0.5, warmup_s=0, sessions=Sessions(Lengths(2), think_time_s=0.05),
    )  # fmt: skip
    _, records = talk("chat", workload)
    by_session: dict[int | None, list[RequestRecord]] = {}
    for record in records:
        by_session.setdefault(record.session, []).append(record)
    assert len(by_session) == 10
    both = [pair for pair in by_session.values() if len(pair) == 2]
    assert len(both) >= 5  # turns whose time came after the window are not begun
    for one, two in both:
        assert one.end_ns is not None
        assert two.intended_ns == one.end_ns + 50_000_000
        assert two.user is None


def test_every_request_names_its_class_and_carries_its_priority() -> None:
    classes = (
        TrafficClass("chat", 0.7, Prompts(Lengths(30)), Outputs(Lengths(9)), priority=0),
        TrafficClass("batch", 0.3, Prompts(Lengths(200)), Outputs(Lengths(40), ignore_eos=True),
                     priority=5),
    )  # fmt: skip
    workload = Workload(Arrivals(users=4), duration_s=60, warmup_s=0, requests=80, classes=classes)
    talker, records = talk("chat", workload)
    names = [r.traffic_class for r in records]
    assert set(names) == {"chat", "batch"}
    assert 10 <= names.count("batch") <= 40
    sent = sorted(
        (body["priority"], body["max_tokens"], body.get("ignore_eos", False))
        for body in talker.asked
    )
    wanted = sorted((0, 9, False) if n == "chat" else (5, 40, True) for n in names)
    assert sent == wanted
    for record in records:
        assert record.planned_output_tokens == (9 if record.traffic_class == "chat" else 40)


def test_options_are_in_every_request_and_the_key_is_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RIDGELINE_API_KEY", "sk-1234567890")
    options = RequestOptions(
        {"temperature": 0.5, "stop": ["END"]}, {"guided_regex": "é+"}, {"X-Tenant": "blue"}
    )
    workload = Workload(
        Arrivals(users=1), Prompts(Lengths(40)), Outputs(Lengths(9)), duration_s=9, warmup_s=0,
        requests=3, options=options,
    )  # fmt: skip
    heads: list[bytes] = []

    class Watching(Talker):
        def __call__(self, served: Served, number: int) -> Script:
            heads.append(served.head)
            return super().__call__(served, number)

    talker, records = talk("chat", workload, Watching())
    for body in talker.asked:
        assert body["temperature"] == 0.5
        assert body["stop"] == ["END"]
        assert body["guided_regex"] == "é+"
    assert all(b"\r\nX-Tenant: blue\r\n" in head for head in heads)
    assert all(b"Authorization: Bearer sk-1234567890" in head for head in heads)
    assert "sk-1234567890" not in repr((records, workload))


def test_token_ids_are_exactly_as_many_as_planned_and_fresh() -> None:
    ids = list(range(1000, 1256))

    def tokenize(served: Served) -> Script:
        words = served.json()["prompt"].split()
        return page(200, "application/json", json.dumps(
            {"count": len(words), "tokens": ids[: len(words)], "max_model_len": 9}
        ).encode())  # fmt: skip

    class Ids(Talker):
        def __call__(self, served: Served, number: int) -> Script:
            body = served.json()
            self.asked.append(body)
            end = finish("length") + usage(len(body["prompt"]), 1) + DONE
            return stream([(0, text()), (0, end)])

    workload = Workload(
        Arrivals(users=2), Prompts(Lengths(300, 0.9), SharedPrefix(50, 2)), Outputs(Lengths(9)),
        duration_s=60, warmup_s=0, requests=40, token_ids=True,
    )  # fmt: skip
    server, sink = Ids(), MemorySink()
    pages: Pages = {"/v1/models": models_page("m"), "/tokenize": tokenize}
    with MockServer(server, pages) as mock:
        plan = DrivePlan(draw_schedule(workload), "salt", "completions")
        HttpEndpoint(mock.url).drive(plan, sink, SilentWatch())
    sent = [body["prompt"] for body in server.asked if isinstance(body["prompt"], list)]
    assert len(sent) >= 40
    assert all(r.prompt_tokens == r.planned_prompt_tokens for r in sink.requests)
    assert {i for prompt in sent for i in prompt} <= set(ids)
    assert len({tuple(p[:50]) for p in sent[-40:]}) == 2  # two groups share 50 tokens
    assert len({tuple(p[:58]) for p in sent[-40:]}) == 40
    with (
        MockServer(Ids(), {"/v1/models": models_page("m")}) as mock,
        pytest.raises(BadInput, match="does not tell token ids"),
    ):
        HttpEndpoint(mock.url).drive(plan, MemorySink(), SilentWatch())


def test_a_fixed_salt_sends_the_same_prompts_and_a_fresh_one_never(tmp_path: Path) -> None:
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.engines.endpoint import EndpointEngine  # noqa: PLC0415
    from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs  # noqa: PLC0415
    from ridgeline.experiment.protocol import carry_out  # noqa: PLC0415

    def prompts(salt: str | None, folder: str) -> list[str]:
        workload = Workload(
            Arrivals(users=1), Prompts(Lengths(40)), Outputs(Lengths(9)), duration_s=9, warmup_s=0,
            requests=5, salt=salt,
        )  # fmt: skip
        talker = Talker()
        with MockServer(talker, {"/v1/models": models_page("m")}) as mock:
            configuration = Configuration("m", Knobs(), "endpoint", url=mock.url)
            plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
            carry_out(plan_runs(plan)[0], tmp_path / folder, EndpointEngine(), SilentWatch())
        return [str(body["messages"]) for body in talker.asked][-5:]

    assert prompts("pinned", "a") == prompts("pinned", "b")
    assert not set(prompts(None, "c")) & set(prompts(None, "d"))


def test_a_file_and_images_in_the_bodies(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [
        {"messages": [{"role": "system", "content": 'be "short"'},
                      {"role": "user", "content": f"question é {i}\n"},
                      {"role": "assistant", "content": "well"}], "output_tokens": 3 + i}
        for i in range(4)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Server(Talker):
        def __call__(self, served: Served, number: int) -> Script:
            self.asked.append(served.json())
            return stream([(0, text()), (0, finish("length") + usage(50, 1) + DONE)])

    def asked(prompts: Prompts, endpoint: str) -> tuple[list[dict[str, object]], str]:
        workload = Workload(Arrivals(users=1), prompts, Outputs(Lengths(9)), duration_s=60,
                            warmup_s=0, requests=8)  # fmt: skip
        server, sink = Server(), MemorySink()
        with MockServer(server, {"/v1/models": models_page("m")}) as mock:
            plan = DrivePlan(draw_schedule(workload), "salt", endpoint)
            facts = HttpEndpoint(mock.url).drive(plan, sink, SilentWatch())
        return server.asked[facts.extra_requests :], " ".join(facts.notes)

    file = open_prompts(path)
    bodies, notes = asked(Prompts(file=file), "chat")
    assert "each prompt of p.jsonl (4 rows) was sent 2 times" in notes
    assert len(bodies) == 8
    for body in bodies:
        system, user, reply = body["messages"]  # type: ignore[misc]
        assert (system["content"], reply["content"]) == ('be "short"', "well")
        words = user["content"].split(" ")
        number = int(words[-1])
        assert " ".join(words[8:]) == f"question é {number}\n"  # after eight words of its own
        assert body["max_tokens"] == 3 + number
    assert len({str(b["messages"]) for b in bodies}) == 8
    plain, _ = asked(Prompts(file=open_prompts(path, salted=False)), "chat")
    assert {json.dumps(b["messages"]) for b in plain} == {json.dumps(r["messages"]) for r in rows}
    texts, _ = asked(Prompts(file=open_prompts(path, salted=False)), "completions")
    assert 'be "short"\n\nquestion é 0\n\n\nwell' in {b["prompt"] for b in texts}
    pictured, _ = asked(Prompts(file=file, images=Images(2, 8, 8)), "chat")
    (_, user, reply) = pictured[0]["messages"]  # type: ignore[misc]
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "image_url"]
    assert reply["content"] == "well"
    made, _ = asked(Prompts(Lengths(30), images=Images(1, 8, 8)), "chat")
    (message,) = made[0]["messages"]  # type: ignore[misc]
    assert message["content"][0]["text"].split()
    urls = {b["messages"][0]["content"][1]["image_url"]["url"] for b in made}  # type: ignore[index]
    assert len(urls) == 8


def test_a_run_above_what_its_client_was_shown_to_do_is_void(tmp_path: Path) -> None:
    """The calibration is asked once for the run, kept with it, and judges it."""
    from ridgeline.domain.calibration import ClientCalibration, ClientLevel  # noqa: PLC0415
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415
    from ridgeline.engines.endpoint import EndpointEngine  # noqa: PLC0415
    from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs  # noqa: PLC0415
    from ridgeline.experiment.protocol import carry_out  # noqa: PLC0415
    from ridgeline.store.run_directory import read_run  # noqa: PLC0415

    asked: list[float] = []

    def able(workload: Workload) -> ClientCalibration:
        asked.append(workload.arrivals.peak)
        few = {
            "requests_per_s": 1.0, "chunks_per_s": 2.0, "compared": 9, "failed": 0,
            "ttft_error_p50_s": 0.0, "ttft_error_p99_s": 0.0, "itl_error_p50_s": 0.0,
            "itl_error_p99_s": 0.0, "send_lateness_p50_s": 0.0, "send_lateness_p99_s": 0.0,
            "loop_lag_p99_s": 0.0, "cpu_share": 0.9, "server_lateness_p50_s": 0.0,
            "server_was_the_limit": False,
        }  # fmt: skip
        levels = [ClientLevel(kind=k, asked_per_s=1.0, **few) for k in ("requests", "chunks")]  # type: ignore[arg-type]
        return ClientCalibration(100, 1, 1.0, tuple(levels))

    workload = Workload(Arrivals(users=2), Prompts(Lengths(40)), Outputs(Lengths(9)),
                        duration_s=9, warmup_s=0, requests=20)  # fmt: skip
    with MockServer(Talker(), {"/v1/models": models_page("m")}) as mock:
        configuration = Configuration("m", Knobs(), "endpoint", url=mock.url)
        plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
        (run,) = plan_runs(plan)
        stored = carry_out(run, tmp_path / "r", EndpointEngine(), SilentWatch(), calibrate=able)
    assert asked == [2.0]
    assert stored.state == "void"
    assert stored.summary is not None
    assert any(
        "at most 1 requests/s or 2 chunks/s right" in r for r in stored.summary.verdict.reasons
    )
    again = read_run(tmp_path / "r")
    assert again.facts is not None
    assert again.facts.calibration == able(workload)
