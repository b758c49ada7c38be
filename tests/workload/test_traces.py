"""Recorded traces: what each format means, that a replay is exact, and one line for each fault."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Trace, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.load import load_report
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.schedule import Schedule, Segment, draw_schedule
from ridgeline.workload.studyfile import parse_study
from ridgeline.workload.traces import open_trace, shared_chains

MOONCAKE = [
    {"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30000, "input_length": 1536, "output_length": 500, "hash_ids": [46, 47, 99]},
    {"timestamp": 30000, "input_length": 600, "output_length": 1, "hash_ids": [46, 7]},
    {"timestamp": 37500, "input_length": 512, "output_length": 3, "hash_ids": [5]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:16:46.6805900,879,55\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n"
    "46,GPT-4,417,0,417,API log\n"
    "118.5,GPT-4,1360,276,1636,API log\n"
)


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def to(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return to


def schedule(trace: Trace, warmup_s: float = 0.0, duration_s: float = 1e5) -> Schedule:
    return draw_schedule(Workload(Arrivals(trace=trace), duration_s=duration_s, warmup_s=warmup_s))


def seconds(found: Schedule) -> list[float]:
    assert found.intended_ns is not None
    return (found.intended_ns / 1e9).tolist()


def test_mooncake(write: Callable[[str, str], Path]) -> None:
    trace = open_trace(write("t.jsonl", lines(MOONCAKE)))
    assert (trace.format, trace.rows, trace.seconds) == ("mooncake", 4, 10.5)
    assert (trace.longest, trace.longest_prompt) == (2036, 1536)
    found = schedule(trace)
    assert seconds(found) == [0.0, 3.0, 3.0, 10.5]
    assert found.prompt_tokens.tolist() == [1100, 1536, 600, 512]
    assert found.output_tokens.tolist() == [52, 500, 1, 3]
    prefixes = [found.planned(i).prefix for i in range(4)]
    # all three begin with block 46; the first two go on with 47; nobody shares what follows
    assert [[s.tokens for s in p] for p in prefixes] == [[512, 512], [512, 512], [512], []]
    assert prefixes[0] == prefixes[1]
    assert prefixes[2] == prefixes[0][:1]


def test_azure_and_burstgpt(write: Callable[[str, str], Path]) -> None:
    azure = open_trace(write("a.csv", AZURE))
    assert azure.format == "azure"
    assert seconds(schedule(azure)) == pytest.approx([0, 4.314579, 60], abs=1e-6)
    assert schedule(azure).prompt_tokens.tolist() == [374, 396, 879]
    burst = open_trace(write("b.csv", BURST))
    assert (burst.format, burst.rows, burst.left_out) == ("burstgpt", 3, 1)
    assert seconds(schedule(burst)) == [0, 40, 113.5]
    assert schedule(burst).output_tokens.tolist() == [18, 230, 276]
    aware = AZURE.replace("0,374", "0+00:00,374").replace("0,396", "0+00:00,396")
    assert seconds(schedule(open_trace(write("c.csv", aware)))) == seconds(schedule(azure))


def test_a_slice_is_played_faster_and_the_warm_up_is_its_beginning(
    write: Callable[[str, str], Path],
) -> None:
    path = write("b.csv", BURST)
    trace = open_trace(path, speed=2.0, from_s=30, to_s=100)
    assert (trace.rows, trace.seconds) == (1, 5.0)
    assert seconds(schedule(trace)) == [5.0]
    whole = open_trace(path, speed=10.0)
    assert seconds(schedule(whole)) == [0.0, 4.0, 11.35]
    assert seconds(schedule(whole, warmup_s=1, duration_s=4)) == [0.0, 4.0]
    study = parse_study(
        "name: x\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H100-SXM}\nworkload:\n"
        "  arrivals: {trace: {file: b.csv, speed: 10}}\n",
        folder=path.parent,
    )
    workload = study.baseline.workload
    assert workload.warmup_s == pytest.approx(0.2 * 11.35)
    total_s = workload.warmup_s + workload.duration_s
    assert total_s == pytest.approx(11.351)  # the last request is inside
    assert seconds(draw_schedule(workload)) == [0.0, 4.0, 11.35]


def test_a_run_of_ours_is_replayed_to_the_nanosecond(tmp_path: Path) -> None:
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(), "twin", gpu="H100-SXM")
    workload = Workload(Arrivals(rate_per_s=20.0), duration_s=12, warmup_s=2, seed=8)
    plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
    run_plan(plan, StudyDirectory(tmp_path / "s"), lambda _: TwinEngine(), SilentStudyWatch(),
             command="x")  # fmt: skip
    before = draw_schedule(workload)
    assert before.intended_ns is not None
    trace = open_trace(tmp_path / "s")
    assert trace.format == "records"
    after = schedule(trace)
    assert after.intended_ns is not None
    assert np.abs(after.intended_ns - (before.intended_ns - before.intended_ns[0])).max() <= 1
    assert np.array_equal(after.prompt_tokens, before.prompt_tokens)
    assert np.array_equal(after.output_tokens, before.output_tokens)


def test_the_study_can_be_read_again_without_its_trace(write: Callable[[str, str], Path]) -> None:
    path = write("b.csv", BURST)
    text = (
        "name: x\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H100-SXM}\nrepeats: 1\nworkload:\n"
        "  arrivals: {trace: b.csv}\n  warmup_s: 0\n"
    )
    study = parse_study(text, folder=path.parent)
    from ridgeline.experiment.plan import plan_of  # noqa: PLC0415

    run_plan(plan_of(study), StudyDirectory(path.parent / "s"), lambda _: TwinEngine(),
             SilentStudyWatch(), command="x", study_text=study.text)  # fmt: skip
    path.unlink()
    report = load_report(path.parent / "s", details=False)
    assert report.load is not None
    assert "replay of b.csv (burstgpt" in report.load


FAULTS = [
    ("t.jsonl", lines([MOONCAKE[1], MOONCAKE[0]]), 2, "its time (27 s) is before"),
    ("t.jsonl", lines([{**MOONCAKE[0], "input_length": -1}]), 1, "input_length must be 1 to"),
    ("t.jsonl", lines([{**MOONCAKE[0], "input_length": 0}]), 1, "input_length must be 1 to"),
    ("t.jsonl", lines([{**MOONCAKE[0], "output_length": 1.5}]), 1, "must be a whole number"),
    ("t.jsonl", lines([{**MOONCAKE[0], "output_length": None}]), 1, "output_length is missing"),
    ("t.jsonl", lines([{**MOONCAKE[0], "timestamp": "x"}]), 1, "timestamp must be a number"),
    ("t.jsonl", lines([{**MOONCAKE[0], "hash_ids": [1, 2, 3, 4]}]), 1, "4 hash_ids for 1100"),
    ("t.jsonl", lines([{**MOONCAKE[0], "hash_ids": ["a"]}]), 1, "hash_ids must be a list of"),
    ("t.jsonl", lines(MOONCAKE[:1]) + "{", 2, "is not JSON"),
    ("t.jsonl", lines(MOONCAKE[:1]) + "[]\n", 2, "is not a JSON object"),
    ("a.csv", AZURE + "2023-11-16 18:15:00,5,5\n", 4, "is before that of the row above"),
    ("a.csv", AZURE + "yesterday,5,5\n", 4, "TIMESTAMP is no time: 'yesterday'"),
    ("a.csv", AZURE + "2023-11-16 18:17:00,,5\n", 4, "ContextTokens is missing"),
    ("a.csv", AZURE + "2023-11-16 18:17:00,5\n", 4, "has 2 columns of 3"),
    ("a.csv", AZURE + "2023-11-16 18:17:00,5,-5\n", 4, "GeneratedTokens must be 1 to"),
    ("a.csv", AZURE + "2023-11-16 18:17:00,5,0\n", 4, "GeneratedTokens must be 1 to"),
    ("b.csv", BURST + "nan,M,1,1,2,x\n", 5, "the time stamp is no number"),
    ("b.csv", BURST + "x,M,1,1,2,x\n", 5, "Timestamp is no number"),
    ("b.csv", BURST + "200,M,1,-1,2,x\n", 5, "Response tokens must be 0 to"),
    ("b.csv", BURST + "200,M,1e9,1,2,x\n", 5, "Request tokens must be 1 to"),
]


@pytest.mark.parametrize(("name", "text", "row", "words"), FAULTS)
def test_a_fault_is_one_line_with_its_row(
    write: Callable[[str, str], Path], name: str, text: str, row: int, words: str
) -> None:
    path = write(name, text)
    with pytest.raises(BadInput) as caught:
        open_trace(path)
    message = str(caught.value)
    assert f"{path}, row {row}: " in message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "is no trace in a known format"),
        ("", "is no trace in a known format"),
        ("\x00\x01", "is no trace in a known format"),
        (AZURE.splitlines()[0] + "\n", "has no requests"),
    ],
)
def test_what_is_no_trace_is_refused(
    write: Callable[[str, str], Path], text: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        open_trace(write("x.csv", text))


def test_other_refusals(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    path = write("b.csv", BURST)
    with pytest.raises(BadInput, match=r"no request from 200 s to its end; the trace lasts 113\.5"):
        open_trace(path, from_s=200)
    with pytest.raises(BadInput, match="cannot be read"):
        open_trace(tmp_path / "none.csv", "azure")
    with pytest.raises(BadInput, match="has no column ContextTokens"):
        open_trace(path, "azure")
    trace = open_trace(path)
    path.write_text(BURST + "300,M,1,1,2,x\n")
    with pytest.raises(BadInput, match="is another file than when"):
        schedule(trace)
    head = "name: x\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H100-SXM}\nworkload:\n"
    for text, words in (
        ("  arrivals: {trace: none.csv}\n", "cannot be read"),
        ("  arrivals: {trace: b.csv, process: poisson}\n", "process does not go with a trace"),
        ("  arrivals: {trace: b.csv}\n  prompts: {tokens: 5}\n", "prompts does not go with a"),
        ("  arrivals: {trace: b.csv}\n  output_tokens: 5\n", "output_tokens does not go with"),
        ("  arrivals: {trace: b.csv}\n  sessions: {turns: 5}\n", "sessions does not go with"),
        ("  arrivals: {trace: b.csv}\n  warmup_s: auto\n", "does not go with steps or a trace"),
        ("  arrivals: {trace: {file: b.csv, from_s: 9, to_s: 8}}\n", "to_s must be above from_s"),
        ("  arrivals: {trace: {file: b.csv, format: csv}}\n", "one of mooncake, azure"),
    ):
        with pytest.raises(BadInput) as caught:
            parse_study(head + text, "s.yaml", folder=path.parent)
        assert words in str(caught.value)
        assert str(caught.value).startswith("s.yaml:")


def test_shared_blocks_are_shared_in_the_texts_and_in_the_twins_cache(
    write: Callable[[str, str], Path],
) -> None:
    found = schedule(open_trace(write("t.jsonl", lines(MOONCAKE))))
    maker = PromptMaker(found.workload, "salt")
    texts = [
        maker.text(i, int(found.prompt_tokens[i]), found.planned(i).prefix).split()
        for i in range(4)
    ]
    assert [len(t) for t in texts] == [1100, 1536, 600, 512]

    def common(a: int, b: int) -> int:
        return next(k for k, (x, y) in enumerate(zip(texts[a], texts[b], strict=False)) if x != y)

    assert 1024 <= common(0, 1) <= 1026
    assert 512 <= common(0, 2) <= 514
    assert common(0, 3) < 4
    sink = MemorySink()
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(), "twin", gpu="H100-SXM")
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(DrivePlan(found, "s"), sink, SilentWatch())
    cached = sink.records().cached_tokens
    # the second finds the first's two blocks; the third, in the same step, its first one
    assert cached.tolist() == [0, 1024, 512, 0]


def test_chains_of_any_shape() -> None:
    chains = shared_chains(
        [[1, 2, 3], [1, 2, 3], [1, 2, 4], [9], [1, 5], [2, 3]], [1536, 1400, 1536, 512, 600, 1024]
    )
    tokens = [[t for _, t in chain] for chain in chains]
    # 1 is passed by four, 2 by three, 3 by two; [2, 3] begins otherwise: another 2, another 3
    assert tokens == [[512, 512, 512], [512, 512, 376], [512, 512], [], [512], []]
    assert chains[0][:2] == chains[2]
    assert Segment(*chains[0][0]).key == chains[4][0][0]
