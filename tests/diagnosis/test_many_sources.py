"""Pages of several replicas, of routers and of Ray; logs of several starts; a single reading."""

from pathlib import Path

import pytest
from diagnosis_pages import KV, MADE, PRE, PROMPT, STEPS, R, W, evidence, findings, page, words

from ridgeline.cli.main import run as ridgeline
from ridgeline.diagnosis.alertrules import rules
from ridgeline.diagnosis.evidence import Known
from ridgeline.diagnosis.known import with_log
from ridgeline.diagnosis.live import Pool
from ridgeline.load.address import parse_address
from support.mock_server import MockServer, plain_stream
from support.mock_server import page as reply

ITL = "vllm:inter_token_latency_seconds"


def _at(i: int, running: float = 3, waiting: float = 0) -> str:
    return page({R: running, W: waiting, KV: 0.1, STEPS: 100 + 800 * i, MADE: 1000 + 8000 * i,
                 PROMPT: 5000 + 10_000 * i, PRE: 0})  # fmt: skip


def _saved(folder: Path, *arguments: str) -> int:
    return ridgeline(["doctor", *arguments, "--seconds", "1", "--save", str(folder)])


def test_pages_of_replicas_are_kept_apart_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    bodies = (_at(0, 64, 90), _at(1000))
    mocks = [MockServer([plain_stream(1)], {"/metrics": reply(200, "text/plain", b.encode())})
             for b in bodies]  # fmt: skip
    with mocks[0] as one, mocks[1] as two:
        assert _saved(kept, one.url, two.url) == 0
        said = capsys.readouterr().out
        assert sorted(p.name for p in kept.iterdir()) == ["replica-000", "replica-001"]
        assert ridgeline(["doctor", "--from", str(kept)]) == 0
        again = capsys.readouterr().out
        assert _saved(kept, one.url) == 2, "a second look among the pages of the first"
        assert "holds pages of an earlier look" in capsys.readouterr().err
    for text in (said, again):
        assert "2 engine cores" in text
        assert "restarted" not in text
        assert "several servers" not in text


def test_of_several_starts_in_a_log_the_last_one_counts() -> None:
    def start(version: str, slots: int) -> str:
        arguments = {"model": "m", "max_num_seqs": slots}
        return f"INFO vLLM API server version {version}\nINFO non-default args: {arguments}\n...\n"

    found = with_log(Known(), start("0.20.1", 64) + start("0.21.0", 512))
    assert (found.max_num_seqs, found.version) == (512, "0.21.0")


def test_a_routers_page_is_of_several_replicas() -> None:
    rows = [(100, 80), (4, 0), (4, 0), (4, 0)]
    text = "".join(
        f'{name}{{server="http://10.0.0.{i}:8000"}} {value}\n'
        for i, row in enumerate(rows) for name, value in zip((R, W), row, strict=True)
    )  # fmt: skip
    first = next(iter(findings(evidence(text, text, text, apart_s=5)).values()))
    assert first.id == "imbalance"
    assert "loaded: http://10.0.0.0:8000" in words(first)


def test_vllm_under_ray_is_read() -> None:
    ray, own = (
        evidence(*(_at(i).replace("vllm:", prefix) for i in (0, 1)))
        for prefix in ("ray_vllm_", "vllm:")
    )
    assert ray.server == "vllm"
    assert ray.generation_tokens == own.generation_tokens == 8000
    assert ray.running == own.running


def test_replicas_with_other_buckets_are_added_by_the_edges_they_share() -> None:
    def at(i: int) -> str:
        def series(engine: int, edges: tuple[str, ...], n: int) -> str:
            buckets = "".join(f'{ITL}_bucket{{engine="{engine}",le="{e}"}} {n}\n' for e in edges)
            return (f'{buckets}{ITL}_sum{{engine="{engine}"}} {0.02 * n}\n'
                    f'{ITL}_count{{engine="{engine}"}} {n}\n')  # fmt: skip

        return _at(i) + series(0, ("1", "4", "+Inf"), 100 * i) + series(1, ("0.5", "4", "+Inf"),
                                                                       1000 * i)  # fmt: skip

    seen = evidence(at(0), at(1)).histograms.itl
    assert seen is not None
    assert seen.count == 1100
    assert seen.mean == pytest.approx(0.02)
    assert seen.quantile(0.95) == (0.0, 4.0), "no finer than both tell"


def test_pages_of_one_process_in_reverse_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for i in (1, 0):
        files.append(tmp_path / f"{i}.txt")
        files[-1].write_text(_at(i) + "process_start_time_seconds 5\n")
    named = [word for file in files for word in ("--from", str(file))]
    assert ridgeline(["doctor", *named, "--seconds", "30"]) == 2
    assert "shows less than the one before it" in capsys.readouterr().err


def test_priorities_under_an_unknown_policy_are_a_note() -> None:
    queue = [_at(i, 64, 30) for i in range(3)]
    unknown = findings(evidence(*queue, known=Known(priorities=True)))["priority"]
    assert (unknown.kind, unknown.confidence) == ("note", "low")
    assert "not known" in unknown.title
    told = findings(evidence(*queue, known=Known(priorities=True, scheduling_policy="fcfs")))
    assert (told["priority"].kind, told["priority"].confidence) == ("note", "medium")


def test_one_reading_without_a_queue_says_why_it_says_no_more() -> None:
    found = findings(evidence(_at(0)))
    assert "one reading" in found["no-rates"].title
    assert "no-rates" not in findings(evidence(_at(0), _at(1)))


def test_the_alert_on_imbalance_wants_some_load() -> None:
    (alert,) = [
        rule["expr"] for group in rules()["ridgeline-alerts.yml"]["groups"]
        for rule in group["rules"] if rule["alert"] == "RidgelineImbalance"
    ]  # fmt: skip
    assert ">= 8" in alert


def test_a_server_that_never_ends_its_page_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    body = reply(200, "text/plain", _at(0).encode())
    with MockServer([plain_stream(1)], {"/metrics": body}) as mock:
        pool = Pool([parse_address(mock.url)], {}, period_s=1.0)
        (replica,) = pool.replicas
        replica._look()
        replica._close()
        assert pool.now()[0].up
        at = replica._readings[-1][0]
        monkeypatch.setattr("ridgeline.diagnosis.live.time.monotonic", lambda: at + 12.0)
        (row,) = pool.now()
    assert not row.up
    assert "no whole page for 12 s" in str(row.trouble)
