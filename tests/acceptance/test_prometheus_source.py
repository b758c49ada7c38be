"""`ridgeline doctor` and `watch` with Debian's real Prometheus as their source."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from support.replicas import debian_prometheus, replicas
from support.situations import Q8
from support.staging import load, serving, stage

pytestmark = pytest.mark.acceptance

PORT, SCRAPES = 19096, 12
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: [{engines}]}}]
  - job_name: dcgm
    static_configs: [{{targets: ["127.0.0.1:{gpu}"]}}]
"""
GPU = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="NVIDIA H100"} 100
DCGM_FI_PROF_SM_ACTIVE{gpu="0",modelName="NVIDIA H100"} 0.41
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """It has read two engines of 8 slots and 40 users, one that never answers, and a GPU page."""
    folder = tmp_path_factory.mktemp("prometheus")
    staged = stage(serving(Q8, max_num_seqs=8), load(users=40, prompt=256, duration=40.0))
    pages = []
    for number, (_, text) in enumerate(staged.pages):
        pages.append(folder / f"{number:03d}.txt")
        pages[-1].write_text(text)
    (folder / "gpu.txt").write_text(GPU)
    with ExitStack() as stack:
        urls = stack.enter_context(replicas(3, 1, pages))
        (gpu,) = stack.enter_context(replicas(1, 0, [folder / "gpu.txt"]))
        engines = ", ".join(f'"{u.removeprefix("http://")}"' for u in urls)
        config = folder / "p.yml"
        config.write_text(CONFIG.format(engines=engines, gpu=gpu.rsplit(":", 1)[1]))
        log = stack.enter_context((folder / "p.log").open("w"))
        words = [str(debian_prometheus() / "prometheus"), f"--config.file={config}",
                 f"--storage.tsdb.path={folder / 'db'}",
                 f"--web.listen-address=127.0.0.1:{PORT}"]  # fmt: skip
        process = stack.enter_context(subprocess.Popen(words, stdout=log, stderr=log))
        stack.callback(process.kill)
        url = f"http://127.0.0.1:{PORT}"
        _until_ready(url)
        _until_read(url)
        yield url


def _until_ready(url: str) -> None:
    end = time.monotonic() + 40
    while True:
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=2).close()
        except OSError:
            assert time.monotonic() < end, "Prometheus did not start"
            time.sleep(0.3)
        else:
            return


def _until_read(url: str) -> None:
    """SCRAPES readings of both engines that answer: on a busy machine the first ones come late."""
    query = urllib.parse.urlencode({"query": "count_over_time(vllm:num_requests_running[2m])"})
    end = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=5) as reply:
            rows = json.load(reply)["data"]["result"]
        if len(rows) == 2 and all(int(row["value"][1]) >= SCRAPES for row in rows):
            return
        assert time.monotonic() < end, f"Prometheus has read only {rows}"
        time.sleep(0.5)


def test_doctor_names_the_limit_from_what_it_stored(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d.json"
    arguments = ["doctor", "--prometheus", prometheus, "--match", '{job="vllm"}']
    assert ridgeline([*arguments, "--json", str(out)]) == 0
    body = json.loads(out.read_text())
    first = body["findings"][0]
    assert first["id"] == "batch-ceiling"
    assert 0.7 < first["share"] < 0.9  # 32 of 40 wait, at each of the two that answer
    assert SCRAPES <= body["readings"] <= 60
    assert SCRAPES - 2 <= body["span_s"] <= 60
    shown = capsys.readouterr().out
    assert "2 engine cores" in shown
    assert "SMs are active 41% of the time" in shown


def test_watch_shows_its_targets(prometheus: str, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    assert ridgeline(["watch", "--prometheus", prometheus, "--for", "7", "--record", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]
    last = {row["replica"]: row for row in rows[-2:]}
    assert len(last) == 2
    for row in last.values():
        assert row["findings"][0] == "batch-ceiling"


def test_nothing_of_that_job(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline(["doctor", "--prometheus", prometheus, "--match", '{job="none"}']) == 2
    assert 'that match {job="none"}' in capsys.readouterr().err
    assert ridgeline(["doctor", "--prometheus", prometheus, "--match", "{job=none}"]) == 2
    assert "refuses the query" in capsys.readouterr().err
