"""Files of prompts: what each form means, how often each is sent, and one line for each fault."""

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, TrafficClass, Workload
from ridgeline.workload.promptfiles import entries_of, open_prompts
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.studyfile import parse_study


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "system", "value": "Be short."}, {"from": "human", "value": "What is 2 + 2?"},
        {"from": "gpt", "value": "4" * 40}, {"from": "human", "value": "And 3 + 3?"},
        {"from": "gpt", "value": "6"}]},
    {"conversations": [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "hi"}]},
    {"conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"conversations": []},
]  # fmt: skip


def test_lines_rows_and_conversations(tmp_path: Path) -> None:
    plain, rows, talks = (tmp_path / n for n in ("p.txt", "p.jsonl", "t.json"))
    plain.write_text("one\n\n  two \u2028 words\r\n")
    found = open_prompts(plain)
    assert (found.format, found.rows) == ("text", 2)
    assert [e.messages[0][1] for e in entries_of(found)] == ["one", "  two \u2028 words"]
    past = [{"role": "user", "content": "a" * 400}, {"role": "assistant", "content": "b" * 200},
            {"role": "user", "content": "c" * 120}]  # fmt: skip
    rows.write_text(lines({"prompt": "x" * 40, "output_tokens": 7}, {"messages": past[:1]},
                          {"messages": past}))  # fmt: skip
    one, first, second = entries_of(open_prompts(rows))
    assert (one.output_tokens, one.planned_tokens) == (7, 10)
    # a row with the whole talk so far is that talk, once: 100 tokens, then 180 and not 330
    assert (first.planned_tokens, second.planned_tokens) == (100, 180)
    assert [role for role, _ in second.messages] == ["user", "assistant", "user"]
    talks.write_text(json.dumps(SHAREGPT))
    described = open_prompts(talks)
    assert (described.format, described.rows) == ("sharegpt", 2)
    question, greeting = entries_of(described)
    assert question.messages == (("system", "Be short."), ("user", "What is 2 + 2?"))
    assert question.output_tokens == 10
    assert (greeting.messages, greeting.output_tokens) == ((("user", "hi"),), None)
    talks.write_text(lines(*SHAREGPT[:1]))
    assert open_prompts(talks).format == "sharegpt"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.jsonl", lines({"prompt": "a"}) + "{\n", "row 2: is not JSON"),
        ("x.jsonl", lines({"prompt": "a"}, {"text": "b"}), "row 2: needs either 'prompt' or"),
        ("x.jsonl", lines({"prompt": "a", "messages": []}), "row 1: needs either"),
        ("x.jsonl", lines({"prompt": ""}), "row 1: prompt must be a text"),
        ("x.jsonl", lines({"messages": []}), "row 1: messages must be a list"),
        ("x.jsonl", lines({"messages": [{"role": "user"}]}), "row 1: a message needs role and"),
        ("x.jsonl", lines({"prompt": "a", "output_tokens": 0}), "row 1: output_tokens must be"),
        ("x.jsonl", lines({"prompt": "a", "output_tokens": -5}), "row 1: output_tokens must be"),
        ("x.json", "[1]", "row 1: is not a JSON object"),
        ("x.json", "[", "is no JSON"),
        ("x.json", "hello", "is no JSON"),
        ("x.json", json.dumps([{"conversations": [{"from": "bot", "value": "a"}]}]), "not 'bot'"),
        ("x.json", json.dumps([{"conversations": [{"value": "a"}]}]), "row 1: a turn needs"),
        ("x.json", json.dumps([{"conversations": []}]), "has no prompts"),
        ("x.txt", "\n \n", "has no prompts"),
    ],
)
def test_a_fault_is_one_line_with_its_row(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as caught:
        open_prompts(tmp_path / name)
    assert words in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_prompt_of_a_file_is_sent_equally_often(tmp_path: Path) -> None:
    """1000 requests out of 100 prompts: each ten times, each pass in another order."""
    path = tmp_path / "p.jsonl"
    path.write_text(lines(*({"prompt": "w" * (4 * i), "output_tokens": i} for i in range(1, 101))))
    file = open_prompts(path)
    workload = Workload(Arrivals(rate_per_s=100, process="constant"), Prompts(file=file),
                        Outputs(Lengths(5)), duration_s=10, warmup_s=0)  # fmt: skip
    schedule = draw_schedule(workload)
    entries = schedule.entry_of
    assert entries is not None
    assert np.bincount(entries).tolist() == [10] * 100
    assert entries[:100].tolist() != entries[100:200].tolist()
    assert schedule.output_tokens.tolist() == (entries + 1).tolist()
    assert schedule.planned(3).entry == entries[3]
    kinds = (TrafficClass("file", 0.5, Prompts(file=file)), TrafficClass("made", 0.5))
    mixed = draw_schedule(Workload(Arrivals(users=3), classes=kinds))
    assert mixed.class_of is not None
    assert mixed.entry_of is not None
    assert set(mixed.entry_of[mixed.class_of == 1]) == {-1}
    assert mixed.entry_of[mixed.class_of == 0].min() == 0


def test_a_study_file_names_one(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    head = "name: x\nmodel: m\nengine: endpoint\nurl: http://127.0.0.1:1\nworkload:\n"
    users = "  arrivals: {users: 1}\n"
    study = parse_study(head + users + "  prompts: {file: p.txt}\n", folder=tmp_path)
    file = study.baseline.workload.prompts.file
    assert file is not None
    assert (file.rows, file.salted) == (2, True)
    for text, words in (
        ("  prompts: {file: none.txt}\n", "cannot be read"),
        ("  prompts: {file: p.txt, tokens: 3}\n", "tokens does not go with a file"),
        ("  prompts: {file: {file: p.txt, salted: 1}}\n", "must be true or false"),
        ("  prompts: {file: p.txt}\n  sessions: {turns: 2}\n", "sessions do not go with a file"),
        ("  prompts: {images: {width: 0}}\n", "a number >= 1"),
        ("  prompts: {images: {}}\n  sessions: {turns: 2}\n", "images do not go with sessions"),
    ):
        with pytest.raises(BadInput) as caught:
            parse_study(head + users + text, "s.yaml", folder=tmp_path)
        assert words in str(caught.value)
        assert str(caught.value).startswith("s.yaml:")
