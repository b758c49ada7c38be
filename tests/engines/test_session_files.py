"""Sessions from a file, as a server sees them: the past is sent once, whatever the rows hold."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink, RequestRecord
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload, sessions_of
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.promptfiles import open_prompts
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.studyfile import parse_study
from support.mock_server import (
    DONE,
    MockServer,
    Pages,
    Script,
    Served,
    finish,
    models_page,
    stream,
    text,
    usage,
)


def words(count: int, name: str) -> str:
    return " ".join(f"{name}{i}" for i in range(count))


def user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


FIRST, REPLY, NEXT = words(100, "a"), words(50, "b"), words(30, "c")
CUMULATIVE = [
    {"session": "s", "messages": [user(FIRST)], "output_tokens": 50},
    {"session": "s", "messages": [user(FIRST), {"role": "assistant", "content": REPLY},
                                  user(NEXT)], "output_tokens": 20},
]  # fmt: skip
INCREMENTAL = [
    {"session": "s", "messages": [user(FIRST)], "output_tokens": 50},
    {"session": "s", "messages": [user(NEXT)], "output_tokens": 20},
]
OF_LENGTHS = [
    {"session_id": 7, "input_length": 100, "output_length": 50},
    {"session_id": 7, "input_length": 180, "output_length": 20},
]


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Counting:
    """Counts words as tokens and answers with as many words as it is allowed."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def __call__(self, served: Served, number: int) -> Script:
        body = served.json()
        self.asked.append(body)
        said = body.get("messages") or [{"content": body["prompt"]}]
        prompt = sum(len(m["content"].split()) for m in said)
        allowed = body["max_tokens"]
        chunk = text if "messages" in body else _completion
        parts = [(0.0, chunk(f" r{number}w{i}")) for i in range(allowed)]
        return stream([*parts, (0.0, finish("length") + usage(prompt, allowed) + DONE)])


def _completion(said: str) -> bytes:
    return (
        text(said).replace(b'"delta": {"content": ', b'"text": ').replace(b'"}, "fin', b'", "fin')
    )


PAGES: Pages = {"/v1/models": models_page("m", max_model_len=100_000)}


def sent(
    path: Path, *, history: str | None = None, salted: bool = False, endpoint: str = "chat",
    requests: int = 2, users: int = 1,
) -> tuple[list[dict[str, object]], list[RequestRecord]]:  # fmt: skip
    file = open_prompts(path, history=history, salted=salted)
    workload = Workload(
        Arrivals(users=users), Prompts(file=file), Outputs(Lengths(9)), duration_s=60, warmup_s=0,
        requests=requests, sessions=sessions_of(file, 0.0),
    )  # fmt: skip
    server, sink = Counting(), MemorySink()
    with MockServer(server, PAGES) as mock:
        plan = DrivePlan(draw_schedule(workload), "salt", endpoint)
        facts = HttpEndpoint(mock.url).drive(plan, sink, SilentWatch())
    asked = server.asked[facts.extra_requests :]
    return asked, sorted(sink.requests, key=lambda r: r.index)


@pytest.mark.parametrize(
    ("rows", "history"),
    [
        (CUMULATIVE, None),
        (CUMULATIVE, "cumulative"),
        (INCREMENTAL, None),
        (INCREMENTAL, "incremental"),
        (OF_LENGTHS, "cumulative"),
    ],
)
def test_the_second_request_has_180_tokens_and_not_330(
    rows: list[object], history: str | None, tmp_path: Path
) -> None:
    """100 tokens, a reply of 50, 30 more: in whichever form the file says it."""
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*rows))
    asked, records = sent(path, history=history)
    assert [r.failure for r in records] == [None, None]
    assert [r.prompt_tokens for r in records] == [100, 180]
    assert [r.output_tokens for r in records] == [50, 20]
    assert [(r.session, r.turn) for r in records] == [(0, 0), (0, 1)]
    messages = asked[1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]  # type: ignore[attr-defined]


def test_taken_for_the_other_form_it_would_be_330(tmp_path: Path) -> None:
    """What the fault was: the statement is believed, so a wrong one shows."""
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*CUMULATIVE))
    _, records = sent(path, history="incremental")
    assert [r.prompt_tokens for r in records] == [100, 330]


def test_a_cumulative_row_is_sent_as_it_stands_and_an_incremental_one_behind_the_servers_reply(
    tmp_path: Path,
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*CUMULATIVE))
    asked, _ = sent(path)
    assert asked[1]["messages"] == CUMULATIVE[1]["messages"]
    path.write_text(lines(*INCREMENTAL))
    asked, _ = sent(path)
    past, reply, new = asked[1]["messages"]  # type: ignore[misc]
    assert (past["content"], new["content"]) == (FIRST, NEXT)
    assert reply["content"].split()[0].endswith("w0")
    assert len(reply["content"].split()) == 50


@pytest.mark.parametrize("rows", [CUMULATIVE, INCREMENTAL])
def test_a_salted_talk_stays_one_talk(rows: list[object], tmp_path: Path) -> None:
    """Each session begins with words of its own, all its turns with the same ones."""
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*rows))
    asked, records = sent(path, salted=True, requests=4)
    begins = [body["messages"][0]["content"] for body in asked]  # type: ignore[index]
    assert begins[0] == begins[1]
    assert begins[2] == begins[3]
    assert begins[0].split()[:8] != begins[2].split()[:8]
    assert begins[0].split()[8:] == FIRST.split()
    assert [r.prompt_tokens for r in records] == [108, 188, 108, 188]


def test_completions_carry_one_text(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    rows = [{"session": "s", "prompt": FIRST, "output_tokens": 5}, {"session": "s", "prompt": NEXT}]
    path.write_text(lines(*rows))
    asked, records = sent(path, endpoint="completions")
    assert str(asked[1]["prompt"]).startswith(FIRST + "\n\n")
    assert str(asked[1]["prompt"]).endswith("\n\n" + NEXT)
    assert [r.prompt_tokens for r in records] == [100, 135]


def test_sessions_keep_their_rows_together_and_all_are_sent_equally_often(tmp_path: Path) -> None:
    """Three sessions of 1, 2 and 3 turns whose rows are mixed up in the file."""
    rows = [{"session": s, "messages": [user(f"{s}{turn} {words(9, 'q')}{s}{turn}")]}
            for turn in range(3) for s in "abc"[turn:]]  # fmt: skip
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*rows))
    file = open_prompts(path)
    assert (file.format, file.history, file.turns, file.rows) == (
        "sessions",
        "incremental",
        (1, 3),
        6,
    )
    asked, records = sent(path, requests=18)
    order = [body["messages"][-1]["content"].split()[0] for body in asked]  # type: ignore[index]
    talks: dict[int | None, list[str]] = {}
    for record, name in zip(records, order, strict=True):
        talks.setdefault(record.session, []).append(name)
    assert sorted(map(tuple, talks.values())) == sorted(
        3 * [("a0",), ("b0", "b1"), ("c0", "c1", "c2")]
    )


LONG = [{"session": 1, "input_length": 100, "output_length": 50},
        {"session": 1, "input_length": 400, "output_length": 50}]  # fmt: skip
CUT = [CUMULATIVE[0], {"session": "s", "messages": [
    {"role": "assistant", "content": "what we said before"}, user(NEXT)]}]  # fmt: skip
MIXED = [*CUMULATIVE, {"session": "t", "messages": [user(FIRST)]},
         {"session": "t", "messages": [user(NEXT)]}]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "row", "said"),
    [
        (LONG, 2, "cannot tell whether this row carries the talk so far"),
        (CUT, 2, "cannot tell whether this row carries the talk so far"),
        (MIXED, 2, "this row carries the talk so far, row 4 does not"),
        ([{"session": 1, "prompt": NEXT}, {"session": 1, "prompt": f"User: {NEXT} Bot: ok"}], 2,
         "cannot tell whether"),
    ],
)  # fmt: skip
def test_what_the_rows_do_not_show_is_asked_for(
    rows: list[object], row: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*rows))
    with pytest.raises(BadInput, match=said) as caught:
        open_prompts(path)
    assert caught.value.where == f"{path}, row {row}"
    assert "--history cumulative or --history incremental" in str(caught.value)
    assert open_prompts(path, history="incremental").history == "incremental"


def test_lengths_show_it_where_a_row_is_too_short_for_its_past(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(OF_LENGTHS[0], {"session_id": 7, "input_length": 30}))
    assert open_prompts(path).history == "incremental"
    _, records = sent(path)
    assert [r.prompt_tokens for r in records] == [100, 180]
    with pytest.raises(BadInput, match="30 tokens cannot carry the 150 tokens"):
        open_prompts(path, history="cumulative")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"session": 1, "prompt": "a"}, {"prompt": "b"}], "row 2.*needs 'session'"),
        ([{"session": 1, "prompt": "a"}, {"session": 1, "input_length": 9}], "texts or lengths"),
        ([{"session": 1, "input_length": 0}], "input_length must be a whole number from 1, not 0"),
        ([{"session": 1, "prompt": ""}], "row 1.*prompt must be a text that is not empty"),
    ],
)
def test_a_wrong_row_is_one_line(rows: list[object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*rows))
    with pytest.raises(BadInput) as caught:
        open_prompts(path, "sessions", history="incremental")
    import re  # noqa: PLC0415

    assert re.search(said, str(caught.value))


def test_the_twin_plays_the_same_sessions(tmp_path: Path) -> None:
    """Planned lengths of the turns are 100 and 180, and the cache knows the past."""
    path = tmp_path / "talk.jsonl"
    path.write_text(lines(*OF_LENGTHS))
    file = open_prompts(path, history="cumulative")
    workload = Workload(
        Arrivals(users=1), Prompts(file=file), Outputs(Lengths(9)), duration_s=60, warmup_s=0,
        requests=2, sessions=sessions_of(file, 0.0),
    )  # fmt: skip
    assert workload.longest == draw_schedule(workload).longest == 200
    sink = MemorySink()
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(), "twin", gpu="H100-SXM")
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(workload), "salt", "chat"), sink, SilentWatch())
    first, second = sorted(sink.requests, key=lambda r: r.index)[:2]
    assert (first.prompt_tokens, second.prompt_tokens) == (100, 180)
    assert second.cached_tokens == 144  # 150 tokens of past in whole blocks of 16


def test_bench_and_a_study_take_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "talk.jsonl", tmp_path / "o"
    path.write_text(lines(*CUMULATIVE))
    with MockServer(Counting(), PAGES) as mock:
        args = ["bench", mock.url, "--users", "1", "--requests", "4", "--warmup", "0", "--quiet"]
        code = ridgeline([*args, "--prompt-file", str(path), "--unsalted", "--json", "-",
                          "--out", str(out)])  # fmt: skip
        shown = capfd.readouterr()
        assert code in (0, 3), shown.err  # a busy machine may make it void
        assert json.loads(shown.out)["requests"]["ok"] == 4
        path.write_text(lines(*LONG))
        args = [*args, "--prompt-file", str(path), "--out", str(tmp_path / "p")]
        assert ridgeline(args) == 2
        assert "--history cumulative" in capfd.readouterr().err
        assert ridgeline(["bench", mock.url, "--users", "1", "--history", "cumulative"]) == 2
    study = (
        "name: s\nmodel: m\nengine: twin\nhardware: {gpu: H100-SXM}\nworkload:\n"
        "  arrivals: {users: 1}\n  prompts: {file: {file: talk.jsonl, history: cumulative}}\n"
        "  sessions: {think_time_s: 2}\nexperiments: []\n"
    )
    load = parse_study(study, "s.yaml", folder=tmp_path).baseline.workload
    assert load.sessions is not None
    assert (load.sessions.think_time_s, load.sessions.turns.low, load.sessions.turns.high) == (
        2,
        2,
        2,
    )
    with pytest.raises(BadInput, match="the file says how many turns"):
        parse_study(study.replace("think_time_s: 2", "turns: 2"), "s.yaml", folder=tmp_path)
