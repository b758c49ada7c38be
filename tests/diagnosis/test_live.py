"""Watching many replicas: one that hangs never holds up the others, and it costs little."""

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from ridgeline.cli.knownoptions import known_from
from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.watchpage import line, view
from ridgeline.cli.watchstate import State
from ridgeline.cli.winneroption import tuned_from
from ridgeline.diagnosis.alertrules import rules, write_rules
from ridgeline.diagnosis.exporter import Exporter, names, render
from ridgeline.diagnosis.gathering import WANTED, Snapshot, gather
from ridgeline.diagnosis.live import Pool, Price, figures
from ridgeline.diagnosis.saved import stamped
from ridgeline.domain.slo import parse_slo
from ridgeline.load.address import parse_address
from ridgeline.store.tables import read_telemetry
from ridgeline.telemetry.prometheus import parse_metrics
from ridgeline.telemetry.quickpage import QuickReader
from support.situations import Q8
from support.staging import load, serving, stage

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def pages() -> list[str]:
    """A second apart: 8 slots, 40 users."""
    staged = stage(serving(Q8, max_num_seqs=8), load(users=40, prompt=256))
    return [text for _, text in staged.pages]


@contextmanager
def served(body: Callable[[], bytes | None]) -> Iterator[str]:
    """A server whose /metrics is what `body` says; None: it never answers."""
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = body()
            if text is None:
                stop.wait(60)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def _playing(pages: list[str], every_s: float) -> Callable[[], bytes]:
    """The pages one after another, as time passes."""
    begun = time.monotonic()
    encoded = [page.encode() for page in pages]
    return lambda: encoded[min(len(pages) - 1, int((time.monotonic() - begun) / every_s))]


def test_a_quick_reading_says_what_the_full_parser_says(pages: list[str]) -> None:
    reader = QuickReader(WANTED)
    recorded = [p.read_text() for p in sorted(DATA.glob("*-1.txt"))]
    assert len(recorded) >= 5
    for text in (*pages[:2], *recorded):
        quick, full = reader.read(text), parse_metrics(text)
        assert quick.samples
        # a counter without _total has one added by the full parser
        odd = {n for n in quick.samples if f"{n}_total" in full.samples}
        assert odd <= {"llamacpp:n_tokens_max", "tgi_request_success"}
        for name, series in quick.samples.items():
            if name in odd:
                continue
            assert sorted(str(s) for s in series) == sorted(str(s) for s in full.samples[name])
        left_out = {n for n in full.samples if any(n.startswith(w) for w in WANTED)}
        kept = {n for n in left_out if not n.endswith("_created")}
        assert kept - {f"{n}_total" for n in odd} == set(quick.samples) - odd


def test_the_evidence_of_quick_readings_is_the_same(pages: list[str]) -> None:
    reader = QuickReader(WANTED)
    quick = gather([Snapshot(i, reader.read(p)) for i, p in enumerate(pages)])
    full = gather([Snapshot(i, parse_metrics(p)) for i, p in enumerate(pages)])
    assert quick == full


def test_one_that_hangs_and_one_that_talks_nonsense_do_not_hold_up_the_others(
    pages: list[str],
) -> None:
    with ExitStack() as stack:
        good = [stack.enter_context(served(_playing(pages, 0.2))) for _ in range(2)]
        hung = stack.enter_context(served(lambda: None))
        odd = stack.enter_context(served(lambda: b"<html>{{{ \x00 not metrics"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            gone = f"http://127.0.0.1:{free.getsockname()[1]}"
        addresses = [parse_address(u) for u in (hung, *good, odd, gone)]
        price, slo = Price(4.0), parse_slo("ttft_p95_ms=1000000")
        pool = stack.enter_context(Pool(addresses, {}, period_s=0.2, price=price, slo=slo))
        time.sleep(2.5)
        begun = time.monotonic()
        first, one, two, nonsense, nobody = pool.now()
        assert time.monotonic() - begun < 1.0, "the view waits for nobody"
        for row in (one, two):
            assert row.up
            assert row.silent_s < 1.5
            assert row.output_tokens_per_s is not None
            assert row.output_tokens_per_s > 0
            assert row.ttft_s["p50"] <= row.ttft_s["p95"]
            assert row.findings[0].id == "batch-ceiling"
            assert row.usd_per_million_output_tokens == pytest.approx(
                4.0 / row.output_tokens_per_s / 3600 * 1e6
            )
            assert row.attainment == 1.0
        assert not first.up
        assert not nonsense.up
        assert nonsense.trouble == ("no page of engine metrics (HTML: a proxy or a login page?)")
        assert not nobody.up
        _check_page(render(pool.now()), up=2)


def _check_page(text: str, up: int) -> None:
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert set(families) <= names()
    assert sum(s.value for s in families["ridgeline_replica_up"].samples) == up
    assert len(families["ridgeline_replica_output_tokens_per_second"].samples) == up
    assert "NaN" not in text
    assert "None" not in text


def test_the_exporter_serves_the_page() -> None:
    exporter = Exporter(0, lambda: "ridgeline_pool_replicas 3\n")
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        assert urllib.request.urlopen(url, timeout=5).read() == b"ridgeline_pool_replicas 3\n"
    finally:
        exporter.close()


def test_every_metric_that_a_rule_names_exists(tmp_path: Path) -> None:
    import re  # noqa: PLC0415

    records = {
        rule["record"] for body in rules().values() for g in body["groups"] for rule in g["rules"]
        if "record" in rule
    }  # fmt: skip
    seen = set()
    for file in write_rules(tmp_path)[:2]:
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                seen |= set(re.findall(r"\bridgeline[_:][a-z0-9_:]+", rule["expr"]))
    assert seen
    assert seen <= names() | records, seen - names() - records


def test_the_view_where_nobody_looks_records_and_ends(
    pages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kept"
    with served(_playing(pages, 0.3)) as url:
        arguments = ["watch", url, "--interval", "0.3", "--for", "3", "--record", str(out)]
        assert ridgeline(arguments) == 0
    text = capsys.readouterr().out
    assert "the slots are full: 8 requests run" in text
    rows = [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]
    assert rows[-1]["findings"][0] == "batch-ceiling"
    assert rows[-1]["running"] == 8
    (kept,) = (out / "replica-000").glob("metrics-*.txt")
    assert ridgeline(["doctor", "--from", str(kept)]) == 0
    capsys.readouterr()
    rows_kept = read_telemetry(out)
    running = [r for r in rows_kept if r.metric == "running"]
    assert [r.value for r in running][-1] == 8
    assert {(r.source, r.unit) for r in running} == {("engine", url)}
    assert running[0].at_ns < running[-1].at_ns < 4e9
    assert {"ttft_p95_s", "output_tokens_per_s", "up"} <= {r.metric for r in rows_kept}
    made = [r.value for r in rows_kept if r.metric == "output_tokens_per_s"]
    assert ridgeline(["report", str(out)]) == 0
    shown = capsys.readouterr().out
    digits = f"{sum(made) / len(made):.0f}"  # thousands may be set apart
    assert digits in shown.replace("\u2009", "").replace("\u202f", "").replace(",", "")
    assert "batch-ceiling" in shown
    # killed before its end: made anew of the journal, whose last line may be cut off
    (out / "telemetry.parquet").unlink()
    with (out / "figures.jsonl").open("a") as file:
        file.write('{"at": 17')
    assert ridgeline(["report", str(out)]) == 0
    assert read_telemetry(out) == rows_kept
    assert ridgeline(["report", str(out), "--html", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert "batch-ceiling" in page
    assert url in page
    assert ridgeline(["report", str(out), "--markdown", str(tmp_path / "x.md")]) == 2
    assert "is a recording of `ridgeline watch`" in capsys.readouterr().err


GPU_PAGE = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="NVIDIA H100"} 100
DCGM_FI_PROF_SM_ACTIVE{gpu="0",modelName="NVIDIA H100"} 0.43
"""


def test_gpu_truth_stands_beside_nvidia_smis_utilisation(
    pages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kept"
    with served(_playing(pages, 0.3)) as url, served(GPU_PAGE.encode) as gpu:
        arguments = ["watch", url, "--interval", "0.3", "--for", "3", "--record", str(out)]
        more = ["--gpu-metrics", f"{gpu}/metrics", "--model", Q8, "--gpu", "H100-SXM"]
        assert ridgeline([*arguments, *more, "--price-per-gpu-hour", "4"]) == 0
        pool = Pool([parse_address(url)], {}, period_s=0.3, gpu_addresses=[parse_address(gpu)],
                    known=known_from(None, Q8, "H100-SXM", []), price=Price(4.0))  # fmt: skip
        with pool:
            time.sleep(1.5)
            target = Console(width=200, record=True)
            target.print(view(pool.now(), 200))
    shown = target.export_text()
    for word in ("util", "SM", "MBU", "MFU", "$/Mtok", "43%", "100%", "the slots are full"):
        assert word in shown
    found = {(r.source, r.metric): r.value for r in read_telemetry(out)}
    assert found["gpu", "sm_active"] == pytest.approx(0.43)
    assert found["gpu", "utilisation"] == 1.0
    assert 0 < found["engine", "mbu"] < 1
    capsys.readouterr()


def test_columns_without_a_figure_are_left_out(pages: list[str]) -> None:
    with served(_playing(pages, 0.3)) as url, Pool([parse_address(url)], {}, period_s=0.3) as pool:
        time.sleep(1.0)
        target = Console(width=200, record=True)
        target.print(view(pool.now(), 200))
    shown = target.export_text()
    assert "MBU" not in shown
    assert "TTFT p95" in shown


def test_doctor_reads_a_folder_of_replicas(
    pages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for replica in range(2):
        own = tmp_path / f"replica-{replica:03d}"
        own.mkdir()
        for place in (0, 5, 10):
            text = stamped(pages[place], 1e9 + place + 0.2 * replica)
            (own / f"metrics-{place:03d}.txt").write_text(text)
    assert ridgeline(["doctor", "--from", str(tmp_path), "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["findings"][0]["id"] == "batch-ceiling"
    assert (body["readings"], body["span_s"]) == (3, 10.0)
    waiting = next(f for f in body["findings"][0]["evidence"] if f["name"] == "waiting")
    assert waiting["value"] == pytest.approx(64, abs=3)  # 32 of 40 at each
    (tmp_path / "empty").mkdir()
    assert ridgeline(["doctor", "--from", str(tmp_path / "empty")]) == 2
    assert "holds no metrics-*.txt" in capsys.readouterr().err


WINNER = """\
name: slots-winner
model: Qwen/Qwen3-8B
hardware: {gpu: H100-SXM, count: 1}
engine: twin
workload:
  arrivals: {users: 8}
  prompts: {tokens: {mean: 256, spread: 0.5}}
  output_tokens: {max: 128}
baseline: {max_num_seqs: 8}
"""


class _Still:
    """A pool whose one replica is always as these pages say."""

    def __init__(self, pages: list[str]) -> None:
        seen = gather([Snapshot(i, parse_metrics(p)) for i, p in enumerate(pages)])
        self._row = figures("replica", seen, Price())
        self.replicas: list[Any] = []

    def now(self) -> list[Any]:
        return [self._row]


def test_a_load_that_left_the_winner_is_said_beside_the_finding(
    pages: list[str], tmp_path: Path
) -> None:
    (tmp_path / "winner.yaml").write_text(WINNER)
    state = State(_Still(pages), None, tuned_from(tmp_path / "winner.yaml"))  # type: ignore[arg-type]
    state.look()
    text = line(state.now[0])
    assert "the slots are full: 8 requests run" in text
    assert "the traffic is not what" in text
    assert "load x 5" in text  # 40 users, planned 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["watch"], "give the URLs of running servers"),
        (["watch", "ftp://x"], "is not http or https"),
        (["watch", "http://127.0.0.1:1", "--slo", "ttft=3"], "unknown SLO key"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline(arguments) == 2
    assert words in capsys.readouterr().err
