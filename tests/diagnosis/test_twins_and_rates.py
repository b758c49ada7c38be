"""What a diagnosis says of fixed arrivals, of several engines, of GPUs paid for, and of a twin."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from diagnosis_pages import R, W, evidence, findings
from rich.console import Console
from rich.padding import Padding

from ridgeline.cli.doctor_page import page as printed
from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchpage import view
from ridgeline.cli.watchstate import State, as_json
from ridgeline.diagnosis.asking import with_gains
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.finding import Finding, Gain, Try
from ridgeline.diagnosis.known import with_configuration
from ridgeline.diagnosis.live import Now, Price, figures
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.wording import ms
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.report.watched import watched_console
from ridgeline.report.watchedpage import render
from ridgeline.workload.schemas import schema_of
from support.situations import Q4
from support.staging import Staged, load, serving, stage


@pytest.fixture(scope="module")
def full() -> Staged:
    """Two engines of eight slots, at a rate at which requests wait."""
    own = serving(Q4, max_num_seqs=8, data_parallel_size=2)
    return stage(own, load(rate=20.5, prompt=154, output=128, duration=20.0))


@pytest.fixture(scope="module")
def asked() -> Staged:
    """The same by users who wait for their answers."""
    own = serving(Q4, max_num_seqs=8, data_parallel_size=2)
    return stage(own, load(users=48, prompt=154, output=128, duration=20.0))


def _slots(e: Evidence) -> Finding:
    return next(f for f in with_gains(e, diagnose(e)) if f.id == "batch-ceiling")


def _by_model(staged: Staged) -> Evidence:
    """With the model and the GPU, and nothing said of engines."""
    e = staged.evidence(known=False)
    own = Configuration(Q4, Knobs(max_num_seqs=8), gpu="H100-SXM")
    known = with_configuration(e.known, own, None, "--model and --gpu", defaults=False)
    return replace(e, known=known)


def test_at_a_fixed_rate_no_more_tokens_are_promised(full: Staged) -> None:
    found = _slots(full.evidence())
    change = found.tries[0]
    assert change.knob == "max_num_seqs"
    by = {g.metric: g for g in change.gain}
    assert "output_tokens_per_s" not in by
    assert by["ttft_p95_s"].high < 1, "what falls is the time to the first token"
    assert by["rate_carried"].low > 1
    assert "no more tokens come out" in change.expect
    shown = "\n".join(str(line) for line in printed(full.evidence(), [found], ["x"])
                      if not hasattr(line, "renderable"))  # fmt: skip
    assert "in flight as now" not in shown


def test_users_get_more_tokens(asked: Staged) -> None:
    e = asked.evidence()
    gain = _slots(e).tries[0].gain[0]
    assert gain.metric == "output_tokens_per_s"
    assert gain.low > 1
    unsaid = replace(e, known=replace(e.known, workload=None))
    lines = printed(unsaid, [_slots(unsaid)], ["x"])
    assert any("with as many requests in flight as now" in str(line) for line in lines)


def test_as_many_twin_engines_as_cores_are_seen(asked: Staged) -> None:
    e = _by_model(asked)
    assert len(e.engines) == 2
    gain = _slots(e).tries[0].gain
    assert gain, _slots(e).tries[0].why_no_gain
    whole = _slots(asked.evidence()).tries[0].gain
    assert gain[0].ratio == pytest.approx(whole[0].ratio, rel=0.1)


def _known(**knobs: Any) -> Known:
    own = Configuration(Q4, Knobs(**knobs), gpu="H100-SXM")
    return with_configuration(Known(), own, None, "the study file")


def _tokens(engines: int, known: Known) -> Evidence:
    made = "vllm:generation_tokens_total"
    rows = [
        "".join(f'{name}{{engine="{n}"}} {value}\n' for n in range(engines)
                for name, value in ((R, 8), (W, 0), (made, 3000 * i)))
        for i in range(2)
    ]  # fmt: skip
    return evidence(*rows, known=known)


@pytest.mark.parametrize(
    ("engines", "known", "given", "gpus", "said"),
    [
        (2, Known(), None, 2, "2 engine cores seen, one each is taken"),
        (2, _known(data_parallel_size=2), None, 2, "2 engine cores seen, 1 each"),
        (2, _known(data_parallel_size=2, tensor_parallel_size=4), None, 8, "4 each"),
        (1, _known(data_parallel_size=2), None, 1, "the study's configuration has 2"),
        (2, _known(data_parallel_size=2), 1, 1, "as --gpus says; 2 engine cores seen, the study"),
    ],
)
def test_the_gpus_that_are_paid_for(
    engines: int, known: Known, given: int | None, gpus: int, said: str
) -> None:
    e, price = _tokens(engines, known), Price(3.6, given)
    row = figures("x", e, price)
    assert row.gpus == gpus
    made = 100.0 * engines  # 3,000 tokens an engine in 30 s
    assert row.output_tokens_per_s == pytest.approx(made)
    cost = 3.6 * gpus / 3600 / made * 1e6
    assert row.usd_per_million_output_tokens == pytest.approx(cost)
    assert said in price.said(e)


def test_declared_priorities_stand_behind_the_limit() -> None:
    known = Known(max_num_seqs=32, scheduling_policy="fcfs", priorities=True,
                  sources={"priorities": "the study file"})  # fmt: skip
    found = findings(evidence(*[f'{R}{{engine="0"}} 32\n{W}{{engine="0"}} 30\n'] * 4, known=known))
    assert next(iter(found)) == "batch-ceiling"
    note = found["priority"]
    assert (note.kind, note.share, note.binds) == ("note", 0.0, "")
    assert note.title == "the study file's classes declare priorities, and fcfs ignores priority"
    assert any("not on the server's page" in fact.words for fact in note.evidence)


def test_a_twin_is_called_one(
    full: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (_, text) in enumerate(full.pages):
        (tmp_path / f"metrics-{number:03d}.txt").write_text(text)
    assert ridgeline(["doctor", "--from", str(tmp_path), "--seconds", "1", "--json", "-"]) == 0
    told = capsys.readouterr()
    body = json.loads(told.out)
    jsonschema.validate(body, schema_of("diagnosis"))
    assert body["source"] == "twin"
    assert "TWIN: a digital twin" in " ".join(told.err.split())
    for file in tmp_path.iterdir():  # of a real server
        own = [r for r in file.read_text().splitlines() if "ridgeline_twin" not in r]
        file.write_text("\n".join(own) + "\n")
    assert ridgeline(["doctor", "--from", str(tmp_path), "--seconds", "1", "--json", "-"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["source"] == "measured"
    assert "TWIN" not in told.err


def _shown(rows: list[Now], width: int, price: Price | None = None) -> str:
    target = Console(width=width, record=True, file=io.StringIO())
    target.print(view(rows, width, price))
    return target.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_of_several_replicas_is_readable(full: Staged, width: int) -> None:
    price = Price(3.95)
    seen = full.evidence()
    rows = [figures(f"http://inference-0{n}.cluster.local:88{n:02d}", seen, price)
            for n in range(3)]  # fmt: skip
    rows.append(Now("http://127.0.0.1:8899", False, 12.0, "connection refused"))
    text = _shown(rows, width, price)
    assert all(len(line) <= width for line in text.splitlines())
    head = next(line for line in text.splitlines() if "replica " in line and "tok/s" in line)
    for word in ("tok/s", "wait", "TTFT p95", "$/Mtok"):
        assert word in head
    table = text.splitlines()[text.splitlines().index(head) + 1 :]
    for port in ("8800", "8801", "8802", "8899"):
        row = next(line for line in table if f":{port}" in line)
        assert "…" not in row[row.index(port) :], "no figure is cut"
    joined = " ".join(text.split())
    assert joined.count(rows[0].findings[0].title) == 3
    assert "127.0.0.1:8899 no answer for 12 s (connection refused)" in joined
    assert "TWIN: 3 of 4 are digital twins" in joined
    assert "2 GPUs a replica (2 engine cores seen, 1 each)" in joined


def test_a_recording_of_a_twin_is_called_one(full: Staged, tmp_path: Path) -> None:
    row = figures("http://127.0.0.1:8801", full.evidence(), Price(3.95))
    real = replace(full.evidence(), twin=False)
    for name, said in (("twin", row), ("real", figures("http://x:1", real, Price(3.95)))):
        folder = tmp_path / name
        folder.mkdir()
        lines = [json.dumps({"at": 1e9 + n, **as_json(said)}) for n in range(3)]
        (folder / "figures.jsonl").write_text("\n".join(lines) + "\n")
    target = Console(width=120, record=True, file=io.StringIO())
    target.print(watched_console(tmp_path / "twin"))
    assert "TWIN: read from pages of a digital twin" in target.export_text(clear=False)
    assert "GPUs" in target.export_text()
    assert "<b>TWIN</b>" in render(tmp_path / "twin")
    assert "<b>MEASURED</b>" in render(tmp_path / "real")


def test_times_are_written_out() -> None:
    assert ms(2.0).replace("\u2009", " ") == "2 000 ms"
    assert ms(0.0123) == "12.3 ms"


def _limit(share: float) -> Finding:
    return Finding(f"limit-{share}", "held back", "limit", share)


def test_shares_that_overlap_are_said_to() -> None:
    e = evidence(f'{R}{{engine="0"}} 1\n')
    told = "\n".join(str(line) for line in printed(e, [_limit(0.7), _limit(0.5)], ["x"]))
    assert "overlap" in told
    told = "\n".join(str(line) for line in printed(e, [_limit(0.7), _limit(0.2)], ["x"]))
    assert "overlap" not in told


def test_the_end_of_a_recording_says_what_was_kept(
    full: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = State(_Two(full.evidence()), tmp_path / "kept")  # type: ignore[arg-type]
    for _ in range(3):
        state.look()
    state.close()
    assert "recorded: 3 looks at 2 replicas in" in " ".join(capsys.readouterr().err.split())


class _Two:
    """A pool of two replicas that stay as they are."""

    replicas = ()

    def __init__(self, e: Evidence) -> None:
        self._rows = [figures(f"http://127.0.0.1:{port}", e, Price()) for port in (8801, 8802)]

    def now(self) -> list[Now]:
        return self._rows


@pytest.mark.parametrize(
    ("metric", "low", "high", "word"),
    [("ttft_p95_s", 1.2, 3.0, ": worse"), ("ttft_p95_s", 0.9, 1.3, ": no better"),
     ("output_tokens_per_s", 0.5, 0.8, ": worse"), ("rate_carried", 0.9, 1.1, ": no better")],
)  # fmt: skip
def test_what_is_surely_worse_is_called_so(metric: str, low: float, high: float, word: str) -> None:
    gain = Gain(metric, (low * high) ** 0.5, low, high, better=False)
    change = Try("max_num_seqs", "4", {"max_num_seqs": 4}, gain=(gain,))
    finding = Finding("x", "held back", "limit", 0.5, tries=(change,))
    rows = printed(evidence(f'{R}{{engine="0"}} 1\n'), [finding], ["x"])
    shown = [str(row.renderable) for row in rows if isinstance(row, Padding)]
    assert any(line.endswith(word) for line in shown)
