"""`ridgeline watch` at size, and its exporter and rules before Debian's Prometheus."""

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import psutil
import pytest

from ridgeline.diagnosis.alertrules import write_rules
from ridgeline.diagnosis.exporter import Exporter, names, render
from ridgeline.diagnosis.live import Pool, Price
from ridgeline.domain.slo import parse_slo
from ridgeline.load.address import parse_address
from support.replicas import debian_prometheus, replicas
from support.situations import Q8
from support.staging import load, serving, stage

pytestmark = pytest.mark.acceptance

REPLICAS, SECONDS, MOST = 64, 20.0, 0.30


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pages")
    staged = stage(serving(Q8, max_num_seqs=8), load(users=40, prompt=256, duration=40.0))
    files = []
    for number, (_, text) in enumerate(staged.pages):
        files.append(folder / f"{number:03d}.txt")
        files[-1].write_text(text)
    return files


def test_64_replicas_at_one_second_cost_little(page_files: list[Path]) -> None:
    """CPU time of the command, not wall time; one of them hangs."""
    with replicas(REPLICAS, 1, page_files) as urls:
        words = [sys.executable, "-m", "ridgeline.cli.main", "watch", *urls, "--interval", "1",
                 "--for", str(2 * SECONDS)]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
            time.sleep(SECONDS / 2)  # imports and first connections
            process = psutil.Process(command.pid)
            before, begun = process.cpu_times(), time.monotonic()
            time.sleep(SECONDS)
            after, ended = process.cpu_times(), time.monotonic()
            text, _ = command.communicate(timeout=60)
    used = (after.user + after.system - before.user - before.system) / (ended - begun)
    size = page_files[0].stat().st_size
    print(f"\n{REPLICAS} replicas, pages of {size / 1e3:.0f} kB: {used:.1%} of a core")
    # The pages are a twin's, and each line says so.
    named = {line.split(": ")[0] for line in text.splitlines() if "slots are full" in line}
    assert named == {f"TWIN {url}" for url in urls[1:]}, "the others are seen in any case"
    assert any(line.startswith(f"{urls[0]}: no answer") for line in text.splitlines())
    assert used < MOST


def test_promtool_takes_the_page_and_the_rules(page_files: list[Path], tmp_path: Path) -> None:
    tool = debian_prometheus() / "promtool"
    rules = [file for file in write_rules(tmp_path) if file.suffix == ".yml"]
    subprocess.run([tool, "check", "rules", *rules], check=True)
    with replicas(3, 1, page_files) as urls:
        page = _page(urls)
    subprocess.run([tool, "check", "metrics"], input=page, text=True, check=True)


ONE_EACH = """\
rule_files: [ridgeline-recording.yml, ridgeline-alerts.yml]
tests:
  - interval: 1m
    input_series:
      - {series: 'ridgeline_replica_running_requests{replica="a"}', values: '4x30'}
      - {series: 'ridgeline_replica_running_requests{replica="b"}', values: '4x30'}
      - {series: 'ridgeline_replica_running_requests{replica="c"}', values: '60x30'}
      - {series: 'ridgeline_replica_waiting_requests{replica="a"}', values: '0x30'}
      - {series: 'ridgeline_replica_waiting_requests{replica="b"}', values: '0x30'}
      - {series: 'ridgeline_replica_waiting_requests{replica="c"}', values: '0x30'}
      - {series: 'ridgeline_replica_model_info{replica="a",model="small"}', values: '1x30'}
      - {series: 'ridgeline_replica_model_info{replica="b",model="small"}', values: '1x30'}
      - {series: 'ridgeline_replica_model_info{replica="c",model="LAST"}', values: '1x30'}
    alert_rule_test:
      - eval_time: 20m
        alertname: RidgelineImbalance
        exp_alerts: [EXPECTED]
"""
ALERT = """{exp_labels: {model: small, severity: warning}, exp_annotations: {summary: "the fullest\
 replica of small has 2.647 times the mean load", description: "One replica holds far more requests\
 than the others of its model. `ridgeline watch URL...` shows them side by side. Look at the\
 router's policy: sessions or prefixes that stick to a replica, or one that is slower than the\
 others."}}"""


@pytest.mark.parametrize(("last", "expected"), [("large", ""), ("small", ALERT)])
def test_prometheus_holds_a_replica_against_those_of_its_model(
    last: str, expected: str, tmp_path: Path
) -> None:
    """4, 4 and 60 requests: the last serves another model, or is 60 over a mean of 22.7."""
    write_rules(tmp_path)
    (tmp_path / "test.yaml").write_text(
        ONE_EACH.replace("LAST", last).replace("EXPECTED", expected)
    )
    tool = debian_prometheus() / "promtool"
    subprocess.run([tool, "test", "rules", "test.yaml"], check=True, cwd=tmp_path)


def _page(urls: list[str]) -> str:
    pool = Pool([parse_address(u) for u in urls], {}, price=Price(4.0),
                slo=parse_slo("ttft_p95_ms=2000"))  # fmt: skip
    with pool:
        time.sleep(4.0)
        return render(pool.now())


CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/*.yml]
scrape_configs:
  - job_name: ridgeline
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def test_prometheus_scrapes_the_exporter_and_fires_the_rules(
    page_files: list[Path], tmp_path: Path
) -> None:
    write_rules(tmp_path / "rules")
    with replicas(3, 0, page_files) as urls:
        pool = Pool([parse_address(u) for u in urls], {}, price=Price(4.0))
        with pool:
            exporter = Exporter(0, lambda: render(pool.now()))
            (tmp_path / "p.yml").write_text(
                CONFIG.format(rules=tmp_path / "rules", port=exporter.port)
            )
            words = [str(debian_prometheus() / "prometheus"), f"--config.file={tmp_path / 'p.yml'}",
                     f"--storage.tsdb.path={tmp_path / 'db'}",
                     "--web.listen-address=127.0.0.1:19095"]  # fmt: skip
            log = (tmp_path / "p.log").open("w")
            with subprocess.Popen(words, stdout=log, stderr=log, env=os.environ) as process:
                try:
                    _until_told("ridgeline:pool_waiting_share")
                    share = _until_told("ridgeline:pool_waiting_share")
                    assert 0.6 < share < 0.95  # 32 of 40 wait
                    assert _until_told("sum(ridgeline_replica_up)") == 3
                    for name in names():
                        _ask(name)  # a query that is refused would raise
                finally:
                    process.kill()
                    exporter.close()
                    log.close()


def _until_told(query: str) -> float:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            found = _ask(query)
        except OSError:
            found = []
        if found:
            return float(found[0]["value"][1])
        time.sleep(0.5)
    raise AssertionError(f"nothing for {query}")


def _ask(query: str) -> list[dict[str, tuple[float, str]]]:
    address = "http://127.0.0.1:19095/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(address, timeout=5) as reply:
        body = json.load(reply)
    assert body["status"] == "success"
    found: list[dict[str, tuple[float, str]]] = body["data"]["result"]
    return found
